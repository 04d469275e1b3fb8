"""A replica that knows of no group: it looks for one, and if there is none and never was, the group is founded.

A replica that has just started is *blank*. It says so to everybody (`Seek`), and everybody answers with what it is
(`Standing`). The leader of the group, if there is one, lets it in (`views`). A group is new when *every* configured
voter is there and blank: with fewer, one that was not heard may be the one that remembers. Then the founder writes the
first entry, a view that names the lives of all voters, and asks for their votes. That is the only time at which all
of them are needed.

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


class Founding:
    """Looks for the group, and founds it."""

    def __init__(self, core: Core, rng: Random) -> None:
        self._core = core
        self._rng = rng
        self._blank: dict[str, Peer] = {}
        """Voters that have said that they are blank, in which life."""
        self._seek_ns: Nanos = 0
        self.removed = False
        """The leader said that this replica was removed."""

    def peer_up(self, now: Nanos) -> None:
        self._seek_ns = now

    def peer_down(self, peer: Peer) -> None:
        self._blank.pop(peer.name, None)

    def wake(self, now: Nanos, out: Outbox) -> None:
        core = self._core
        if now < self._seek_ns:
            return
        period_ns = core.config.query_period_ns
        self._seek_ns = now + (period_ns if core.is_blank else SEEK_SLOWER * period_ns)
        led = core.leadership.leading or core.leadership.is_led(now, 2 * core.config.election_ns)
        if core.is_blank or not led:
            nodes = [peer.node for peer in core.peers.all]
            post(out, nodes, Seek(core.config.name, core.history))

    def answer(self) -> Standing:
        core = self._core
        return Standing(
            core.config.name, core.history, core.leadership.term, core.leadership.leader
        )

    def heard(self, peer: Peer, frame: Standing) -> None:
        """Somebody says what it is."""
        if frame.history:
            self._blank.pop(peer.name, None)
            if frame.leader == peer.name:
                self.removed = frame.removed
        elif peer.name in self._core.config.voters:
            self._blank[peer.name] = peer

    def found(self, now: Nanos, out: Outbox) -> bool:
        """Found the group, if this replica is the one to do it and nobody knows of another."""
        core, config = self._core, self._core.config
        if not core.is_blank or core.name != config.founder:
            return False
        voters = []
        for name in config.voters:
            peer = self._blank.get(name)
            if name == core.name:
                voters.append(self._member(name, core.node, core.life))
            elif peer is None or core.peers.named(name) != peer:
                return False
            else:
                voters.append(self._member(name, peer.node, peer.life))
        core.history = self._rng.getrandbits(60) | 1
        self._write(View(1, tuple(voters), founding=core.history), 1)
        core.new_term(1)
        core.fact("founded", f"by {core.name}, with {', '.join(config.voters)}", now, out)
        return True

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

    def refound(self, now: Nanos, out: Outbox) -> bool:
        """Go on alone with what is here, under another history: the others' memory is lost, or given up."""
        core = self._core
        view = core.log.tail.view
        if view is None or core.leadership.leading or core.me is None or core.delivery.suspended:
            return False
        me = self._member(core.name, core.node, core.life)
        core.history = self._rng.getrandbits(60) | 1
        core.new_term(core.leadership.term + 1)
        alone = View(view.number + 1, (me,), founding=core.history)
        self._write(alone, core.leadership.term)
        core.fact("refounded", f"{core.name} goes on alone from entry {core.log.last}", now, out)
        return True

    @property
    def stuck(self) -> str:
        """Why there can be no leader, as far as can be seen from here; empty while there can."""
        core = self._core
        view = core.log.tail.view
        if view is None or core.leadership.leader or core.config.mode != "majority":
            return ""
        lost = [
            voter.name
            for voter in view.voters
            if core.peers.named(voter.name) is not None and not core.peers.is_here(voter)
        ]
        if len(view.voters) - len(lost) >= core.quorum(view):
            return ""
        return (
            f"the memory of a majority is lost ({', '.join(lost)} started again): nothing more is ordered until an "
            "operator has a replica that remembers go on alone"
        )

    def deadline(self) -> Nanos:
        return self._seek_ns if self._core.peers.all else NEVER
