"""Bootstrap: a replica without a state looks for its group, and if there never was one, the group is created.

A replica that has just started has no state. It announces that to all nodes (`JoinRequest`), and they answer with their
own status (`JoinResponse`). The leader of the group, if there is one, admits it (`view_changes`). A group is new if
*every* configured voter is present without a state, and no other node reports one: with fewer, a missing voter may be
the one that has it. The founder then writes the first entry, a view with the lives of all voters, and asks for their
votes. Only then are all of them needed.

Lives make it safe to lose state. A majority is one of the lives in a view. A voter that restarts is another life:
acknowledgements of the earlier one do not count for it, and it is admitted by a view like any other. If so many lives
have ended that the rest is not a majority, no leader can be elected: the group halts and reports why, until an operator
restarts it from one surviving replica (`RestartFromSurvivor`), under a new epoch.
"""

from __future__ import annotations

from random import Random
from typing import Final

from holdfast.group.core import Core
from holdfast.group.frames import Entry, JoinRequest, JoinResponse
from holdfast.group.log.entries import Member, View, encode_data
from holdfast.group.log.replicated_log import Kind
from holdfast.group.peer import Peer
from holdfast.group.peers import post
from holdfast.machine import Outbox
from holdfast.types import NEVER, Nanos, NodeId

DISCOVERY_SLOWER: Final = 20
"""A replica with a group epoch but no leader looks for others this much less often."""
CALM_PERIODS: Final = 2
"""No new node must have appeared for this long before the group is created, so that all have been asked and
answered."""


ASKED_AT_ONCE: Final = 16
"""A replica that looks for the group asks the voters, and this many others in turn: if all asked all, the requests of a
large group would grow with the square of its size."""


class Bootstrap:
    """Looks for the group, and creates it."""

    def __init__(self, core: Core, rng: Random) -> None:
        self._core = core
        self._rng = rng
        self._responses: dict[str, tuple[Peer, JoinResponse]] = {}
        """The reported status of other nodes, with their life."""
        self._seek_ns: Nanos = 0
        self._unasked: dict[NodeId, None] = {}
        """Nodes that have appeared since the last requests."""
        self._turn = 0
        """How many others were asked so far."""
        self._calm_ns: Nanos = 0
        self.removed = False
        """The leader reported that this replica was removed."""

    def peer_up(self, peer: Peer, now: Nanos) -> None:
        config = self._core.config
        if self._core.name == config.founder or peer.name in config.voters:
            self._unasked[peer.node] = None
        self._calm_ns = now + CALM_PERIODS * self._core.config.query_period_ns

    def peer_down(self, peer: Peer) -> None:
        self._responses.pop(peer.name, None)

    def wake(self, now: Nanos, out: Outbox) -> None:
        core = self._core
        if self.removed and not core.is_blank and self._is_led(now):
            self.removed = False  # a removed replica hears no leader: it was added again
        nodes, self._unasked = self._unasked, {}
        if now >= self._seek_ns:
            period_ns = core.config.query_period_ns
            self._seek_ns = now + (period_ns if core.is_blank else DISCOVERY_SLOWER * period_ns)
            nodes |= self._to_ask()
        if nodes and (core.is_blank or not self._is_led(now)):
            reached = [node for node in nodes if core.peers.at(node) is not None]
            post(out, reached, JoinRequest(core.config.name))

    def _to_ask(self) -> dict[NodeId, None]:
        """The voters, the presumed leader, and some others in turn. The replica that creates the group asks all."""
        core = self._core
        reachable = [peer.node for peer in core.peers.all]
        if core.name == core.config.founder or len(reachable) <= ASKED_AT_ONCE:
            return dict.fromkeys(reachable)
        leaders = [said.leader for _, said in self._responses.values() if said.leader]
        first = [core.peers.named(name) for name in (*core.config.voters, *leaders)]
        nodes = dict.fromkeys(peer.node for peer in first if peer is not None)
        begin = self._turn % len(reachable)
        self._turn += ASKED_AT_ONCE
        others = [*reachable[begin:], *reachable[:begin]]
        return nodes | dict.fromkeys(others[:ASKED_AT_ONCE])

    def _is_led(self, now: Nanos) -> bool:
        leadership = self._core.leadership
        return leadership.leading or leadership.is_led(now, 2 * self._core.config.election_ns)

    def answer(self) -> JoinResponse:
        core = self._core
        return JoinResponse(
            core.config.name, core.group_epoch, core.leadership.term, core.leadership.leader
        )

    def heard(self, peer: Peer, frame: JoinResponse) -> None:
        """A node reports its status."""
        self._responses[peer.name] = (peer, frame)
        if frame.group_epoch and frame.leader == peer.name:
            self.removed = frame.removed

    def found(self, now: Nanos, out: Outbox) -> bool:
        """Create the group, if that is the task of this replica and no node knows of another."""
        core, config = self._core, self._core.config
        if not core.is_blank or core.name != config.founder or now < self._calm_ns:
            return False
        if self.removed or any(frame.group_epoch for frame in self._heard.values()):
            return False
        voters = []
        for name in config.voters:
            peer = core.peers.named(name)
            if name == core.name:
                voters.append(self._member(name, core.node, core.life))
            elif peer is None or name not in self._heard:
                # rule: 2d
                return False
            else:
                voters.append(self._member(name, peer.node, peer.life))
        core.group_epoch = self._rng.getrandbits(60) | 1
        self._write(View(1, tuple(voters), group_epoch=core.group_epoch), 1)
        core.new_term(1)
        core.fact("founded", f"by {core.name}, with {', '.join(config.voters)}", now, out)
        return True

    @property
    def _heard(self) -> dict[str, JoinResponse]:
        """The status of the nodes that are reachable now."""
        named = self._core.peers.named
        return {name: said for name, (peer, said) in self._responses.items() if named(name) == peer}

    @property
    def lacks(self) -> str:
        """Why a replica does not participate yet; empty if it is being admitted."""
        core, heard = self._core, self._heard
        if self.removed:
            return f"{core.name} was removed from the group: `holdfast groups add` adds it again"
        if not core.is_blank or any(said.leader for said in heard.values()):
            return ""
        if remember := sorted(name for name, said in heard.items() if said.group_epoch):
            return f"the group has no leader, but {', '.join(remember)} has its state: see the status there"
        missing = [n for n in core.config.voters if n != core.name and core.peers.named(n) is None]
        if not missing:
            return ""
        return (
            f"no reachable node has the state of the group, and it is created only when every configured voter "
            f"is present: {', '.join(missing)} is unreachable"
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

    def restart_from_survivor(self, force: bool, now: Nanos, out: Outbox) -> bool:
        """Restart the group from this replica alone, under a new epoch: the state of the others is lost, or given up
        (`force`)."""
        core = self._core
        view = core.log.tail.view
        if view is None or core.me is None or core.delivery.suspended:
            return False
        if not self.stuck and (core.leadership.leading or not force):
            return False
        me = self._member(core.name, core.node, core.life)
        core.group_epoch = self._rng.getrandbits(60) | 1
        core.new_term(core.leadership.term + 1)
        alone = View(view.number + 1, (me,), view.removed, core.group_epoch)
        self._write(alone, core.leadership.term)
        core.fact("refounded", f"{core.name} continues alone from entry {core.log.last}", now, out)
        return True

    @property
    def stuck(self) -> str:
        """Why nothing can be committed by any leader, as far as this replica can see; empty if something can."""
        core = self._core
        leads = core.leadership.leading
        if core.config.mode != "majority" or (core.leadership.leader and not leads):
            return ""
        # A leader has a majority of the last view. While that is not committed, the previous one counts as well.
        for view in (None if leads else core.log.tail.view, core.view_before):
            lost = [
                voter.name
                for voter in (view.voters if view is not None else ())
                if core.peers.named(voter.name) is not None and not core.peers.is_here(voter)
            ]
            if view is not None and len(view.voters) - len(lost) < core.quorum(view):
                return (
                    f"the state of a majority is lost ({', '.join(lost)} restarted): nothing more is ordered "
                    "until an operator restarts the group from a replica that has its state"
                )
        return ""

    def deadline(self) -> Nanos:
        if self._unasked:
            return 0
        # Asked in every turn: `peers.all` would sort them all again for each one that appears.
        return self._seek_ns if self._core.peers.are_any else NEVER
