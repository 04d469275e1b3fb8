"""A replica that knows of no group: it looks for one, and if there is none and never was, the group is founded.

A replica that has just started is *blank*. It says so to everybody (`Seek`), and everybody answers with what it is
(`Standing`). The leader of the group, if there is one, lets it in (`views`). A group is new when *every* configured
voter is there and blank, and nobody else says that it remembers: with fewer, one that was not heard may be the one
that does. Then the founder writes the first entry, a view that names the lives of all voters, and asks for their
votes. That is the only time at which all of them are needed.

The lives are what makes memory safe to lose. A majority is one of the lives that a view names. A voter that restarts is
another life: what the earlier one acknowledged does not count for it, and it is let in by a view like anybody else. If
so many lives have ended that the rest is no majority, nobody can be elected: the group stands, and says why, until an
operator has one of the replicas that remember go on alone (`Refound`), under another history.
"""

from __future__ import annotations

from random import Random
from typing import Final

from holdfast.group.core import Core
from holdfast.group.entries import Member, View, encode_data
from holdfast.group.log import Kind
from holdfast.group.peers import Peer, post
from holdfast.machine import Outbox
from holdfast.types import NEVER, Nanos
from holdfast.wire.frames import Entry, Seek, Standing

SEEK_SLOWER: Final = 20
"""One that has a history, but no leader, looks around so much less often."""
CALM_PERIODS: Final = 2
"""So long nobody must have come before the group is founded: whoever has come has been asked, and has answered."""


class Founding:
    """Looks for the group, and founds it."""

    def __init__(self, core: Core, rng: Random) -> None:
        self._core = core
        self._rng = rng
        self._standing: dict[str, tuple[Peer, Standing]] = {}
        """What others have said that they are, in which life."""
        self._seek_ns: Nanos = 0
        self._calm_ns: Nanos = 0
        self.removed = False
        """The leader said that this replica was removed."""

    def peer_up(self, now: Nanos) -> None:
        self._seek_ns = now
        self._calm_ns = now + CALM_PERIODS * self._core.config.query_period_ns

    def peer_down(self, peer: Peer) -> None:
        self._standing.pop(peer.name, None)

    def wake(self, now: Nanos, out: Outbox) -> None:
        core = self._core
        if self.removed and not core.is_blank and self._is_led(now):
            self.removed = False  # Who is removed hears nobody lead: it was let in again.
        if now < self._seek_ns:
            return
        period_ns = core.config.query_period_ns
        self._seek_ns = now + (period_ns if core.is_blank else SEEK_SLOWER * period_ns)
        if core.is_blank or not self._is_led(now):
            nodes = [peer.node for peer in core.peers.all]
            post(out, nodes, Seek(core.config.name, core.history))

    def _is_led(self, now: Nanos) -> bool:
        leadership = self._core.leadership
        return leadership.leading or leadership.is_led(now, 2 * self._core.config.election_ns)

    def answer(self) -> Standing:
        core = self._core
        return Standing(
            core.config.name, core.history, core.leadership.term, core.leadership.leader
        )

    def heard(self, peer: Peer, frame: Standing) -> None:
        """Somebody says what it is."""
        self._standing[peer.name] = (peer, frame)
        if frame.history and frame.leader == peer.name:
            self.removed = frame.removed

    def found(self, now: Nanos, out: Outbox) -> bool:
        """Found the group, if this replica is the one to do it and nobody knows of another."""
        core, config = self._core, self._core.config
        if not core.is_blank or core.name != config.founder or now < self._calm_ns:
            return False
        if self.removed or any(frame.history for frame in self._heard.values()):
            return False
        voters = []
        for name in config.voters:
            peer = core.peers.named(name)
            if name == core.name:
                voters.append(self._member(name, core.node, core.life))
            elif peer is None or name not in self._heard:
                return False
            else:
                voters.append(self._member(name, peer.node, peer.life))
        core.history = self._rng.getrandbits(60) | 1
        self._write(View(1, tuple(voters), founding=core.history), 1)
        core.new_term(1)
        core.fact("founded", f"by {core.name}, with {', '.join(config.voters)}", now, out)
        return True

    @property
    def _heard(self) -> dict[str, Standing]:
        """What those are that can be reached now."""
        named = self._core.peers.named
        return {name: said for name, (peer, said) in self._standing.items() if named(name) == peer}

    @property
    def lacks(self) -> str:
        """What a replica that takes no part waits for; empty if it is being let in."""
        core, heard = self._core, self._heard
        if self.removed:
            return f"{core.name} was removed from the group: `holdfast groups add` lets it in again"
        if not core.is_blank or any(said.leader for said in heard.values()):
            return ""
        if remember := sorted(name for name, said in heard.items() if said.history):
            return f"nobody leads the group, and {', '.join(remember)} remembers it: see the status there"
        missing = [n for n in core.config.voters if n != core.name and core.peers.named(n) is None]
        if not missing:
            return ""
        return (
            f"nobody who can be reached remembers the group, and it begins only when every voter of the configuration "
            f"is there: {', '.join(missing)} cannot be reached"
        )

    def _member(self, name: str, node: bytes, life: int) -> Member:
        may_lead = name not in self._core.config.never_lead
        return Member(name, node, life, voter=True, may_lead=may_lead)

    def _write(self, view: View, term: int) -> None:
        tail = self._core.log.tail
        data = encode_data(view)
        self._core.log.append(
            Entry(
                term, tail.index + 1, tail.position, tail.log_ns, Kind.VIEW.value, None, 0, 0, data
            )
        )

    def refound(self, force: bool, now: Nanos, out: Outbox) -> bool:
        """Go on alone with what is here, under another history: the others' memory is lost, or given up (`force`)."""
        core = self._core
        view = core.log.tail.view
        if view is None or core.me is None or core.delivery.suspended:
            return False
        if not self.stuck and (core.leadership.leading or not force):
            return False
        me = self._member(core.name, core.node, core.life)
        core.history = self._rng.getrandbits(60) | 1
        core.new_term(core.leadership.term + 1)
        alone = View(view.number + 1, (me,), view.removed, core.history)
        self._write(alone, core.leadership.term)
        core.fact("refounded", f"{core.name} goes on alone from entry {core.log.last}", now, out)
        return True

    @property
    def stuck(self) -> str:
        """Why nothing can be decided, by whoever leads, as far as can be seen from here; empty while something can."""
        core = self._core
        leads = core.leadership.leading
        if core.config.mode != "majority" or (core.leadership.leader and not leads):
            return ""
        # Who leads has a majority of the last view. While that is not decided the one before counts as well.
        for view in (None if leads else core.log.tail.view, core.view_before):
            lost = [
                voter.name
                for voter in (view.voters if view is not None else ())
                if core.peers.named(voter.name) is not None and not core.peers.is_here(voter)
            ]
            if view is not None and len(view.voters) - len(lost) < core.quorum(view):
                return (
                    f"the memory of a majority is lost ({', '.join(lost)} started again): nothing more is ordered "
                    "until an operator has a replica that remembers go on alone"
                )
        return ""

    def deadline(self) -> Nanos:
        return self._seek_ns if self._core.peers.all else NEVER
