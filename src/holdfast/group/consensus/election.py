"""Elections: a replica without a leader asks for pre-votes, then for votes.

As in Raft with pre-vote. A replica votes once per term, for a log at least as up to date as its own. A candidate needs
a majority of the voters of the view in its log, committed or not.

Three rules keep a group stable. A replica grants no pre-vote while it hears a leader that is itself in contact with a
majority (`Append.contact_ns`; rule 5 in docs/design/groups.md). Timeouts are random. And a replica whose own process
was delayed waits once more before it starts an election.
"""

from __future__ import annotations

from random import Random
from typing import Final
from zlib import crc32

from holdfast.group.consensus.leadership import Role
from holdfast.group.core import Core
from holdfast.group.frames import VoteRequest, VoteResponse
from holdfast.group.log.entries import Member, View, decode_view, encode_data
from holdfast.group.log.replicated_log import NUMBER_MAX
from holdfast.group.peer import Peer
from holdfast.group.peers import post
from holdfast.machine import Outbox
from holdfast.types import NEVER, Nanos

PRE: Final = 0
REAL: Final = 1
NOW: Final = 2
EXCUSES_MAX: Final = 3
"""A replica that is always late is not excused indefinitely, or there would be no election on a slow machine."""
RELUCTANCE: Final = 4
"""How many timeouts a replica that should not lead waits for others."""
LIVES: Final = 1 << 32
"""In `availability` groups the last bits of a term identify its owner, so that two sides of a partition do not elect in
the same one. They must not depend on the view, which may differ between the sides."""


class Election:
    """The election of one replica, and its part in that of others."""

    def __init__(self, core: Core, rng: Random) -> None:
        self._core = core
        self._rng = rng
        self._votes: dict[str, None] = {}
        self._mine = crc32(core.node + core.life.to_bytes(8, "big"))
        self.due_ns: Nanos = NEVER
        """When it starts an election, unless it leads or has no state."""
        self._patience_ns = self._draw()
        self._excuses = 0
        self._held_back = 0
        self._shy_until_ns: Nanos = 0
        """This replica led and could not continue; until this time, others go first."""

    # -- timeouts ------------------------------------------------------------------------------------------------

    def _draw(self) -> Nanos:
        election_ns = self._core.config.election_ns
        return election_ns + self._rng.randrange(election_ns)

    def wait(self, now: Nanos) -> None:
        """Restart the timeout from now."""
        self._patience_ns = self._draw()
        self.due_ns = max(now, self._shy_until_ns) + self._patience_ns

    def heard(self, now: Nanos) -> None:
        """The leader was heard, and is in contact with a majority."""
        self._core.leadership.heard_ns = now
        self._held_back = 0
        # While there is a healthy leader the timeouts do not matter, as long as they differ.
        self.due_ns = max(now, self._shy_until_ns) + self._patience_ns

    def leader_gone(self, now: Nanos) -> None:
        """The session with the leader ended: a shorter timeout, still randomised."""
        soon_ns = now + self._rng.randrange(self._core.config.election_ns)
        self.due_ns = min(self.due_ns, max(soon_ns, self._shy_until_ns))

    def back_off(self, now: Nanos) -> None:
        self._shy_until_ns = now + 4 * self._core.config.election_ns
        self.wait(now)

    def wake(self, now: Nanos, out: Outbox) -> bool:
        """True if the timeout has made this replica the leader, because it is the only voter."""
        core = self._core
        if core.is_blank or core.leadership.leading or now < self.due_ns:
            return False
        late = now - self.due_ns > core.config.election_ns // 2
        self.wait(now)
        self._excuses = self._excuses + 1 if late else 0
        if (late and self._excuses <= EXCUSES_MAX) or not self.may_lead:
            # A delayed process has missed heartbeats that are still on their way.
            return False
        if self._is_reluctant and self._held_back < RELUCTANCE:
            # It leads only if no other replica can: its log may be the longest remaining one.
            self._held_back += 1
            return False
        return self._ask(now, out)

    @property
    def may_lead(self) -> bool:
        core = self._core
        me = core.me
        if me is None or not me.voter:
            me = self._was_voter()
        # rule: 8e
        return me is not None and me.voter and not core.delivery.suspended

    @property
    def _is_reluctant(self) -> bool:
        """Others first: it is suspended, or should not lead while others can."""
        me = self._core.me
        return me is not None and (me.suspended or not me.may_lead)

    def _was_voter(self) -> Member | None:
        """This replica before a change that removes its vote, while that is not committed (Raft, thesis 4.2.2). If its
        log is the longest, no other replica can be elected."""
        log = self._core.log
        if log.view_index <= log.commit:
            return None
        return self._core.member_in(log.view_before)

    # -- asking --------------------------------------------------------------------------------------------------

    def _ask(self, now: Nanos, out: Outbox) -> bool:
        """Ask for pre-votes."""
        self._core.leadership.go(Role.ASKING)
        self._core.leadership.leader = ""
        return self._gather(PRE, self._next_term(), now, out)

    def campaign(self, now: Nanos, out: Outbox) -> bool:
        """Start a term and ask for votes; True if that has decided the election already."""
        core, term = self._core, self._next_term()
        if term >= NUMBER_MAX:
            return False
        core.new_term(term)
        core.leadership.voted = core.node
        core.leadership.go(Role.CANDIDATE)
        self.wait(now)
        core.fact("campaigns", f"{core.name} asks for votes", now, out)
        return self._gather(REAL, term, now, out)

    def _next_term(self) -> int:
        term = self._core.leadership.term + 1
        if self._core.config.mode == "majority":
            return term
        # rule: 11l
        return term + (self._mine - term) % LIVES

    def _view(self) -> View:
        view = self._core.log.tail.view
        assert view is not None, "only a member campaigns"
        return view

    def _gather(self, kind: int, term: int, now: Nanos, out: Outbox) -> bool:
        core, view = self._core, self._view()
        self._votes = {core.name: None}
        tail = core.log.tail
        request = VoteRequest(
            core.config.name, core.group_epoch, kind, term, tail.term, tail.index, encode_data(view)
        )
        post(out, [peer.node for peer in core.voters_here()], request)
        return self._count(kind, now, out)

    def voted(self, peer: Peer, frame: VoteResponse, now: Nanos, out: Outbox) -> bool:
        """A vote response; True if it has made this replica the leader."""
        core, leadership = self._core, self._core.leadership
        if frame.group_epoch != core.group_epoch or not 0 < frame.term < NUMBER_MAX:
            core.ignore("vote")
            return False
        if not frame.granted:
            if frame.term > leadership.term:
                core.new_term(frame.term)
            return False
        asked = {Role.ASKING: (PRE, self._next_term()), Role.CANDIDATE: (REAL, leadership.term)}
        if asked.get(leadership.role) != (frame.kind, frame.term):
            return False
        member = self._view().named(peer.name)
        if member is None or not member.voter or not core.peers.is_here(member):
            return False
        self._votes[peer.name] = None
        return self._count(frame.kind, now, out)

    def _count(self, kind: int, now: Nanos, out: Outbox) -> bool:
        view = self._view()
        votes = sum(1 for member in view.voters if member.name in self._votes)
        if votes < self._core.quorum(view):
            return False
        if kind == PRE:
            return self.campaign(now, out)
        self._core.leadership.go(Role.LEADER)
        self._core.leadership.leader = self._core.name
        return True

    # -- being asked ---------------------------------------------------------------------------------------------

    def asked(self, peer: Peer, frame: VoteRequest, now: Nanos, out: Outbox) -> bool:
        """A vote request, or a request to lead; True if the latter has made this replica the leader."""
        core = self._core
        if not 0 < frame.term < NUMBER_MAX or not frame.group_epoch or not self._is_ours(frame):
            core.ignore("ballot")
            return False
        if frame.kind == NOW:
            return self._take_over(peer, frame, now, out)
        granted = self._grant(peer, frame, now)
        term = frame.term if granted else core.leadership.term
        post(
            out,
            [peer.node],
            VoteResponse(core.config.name, core.group_epoch, frame.kind, term, granted),
        )
        return False

    def _is_ours(self, frame: VoteRequest) -> bool:
        """A replica that just started has acknowledged nothing in this incarnation. If the view names this life, it is
        a regular voter with an empty log; if not, its vote would not count anyway."""
        core = self._core
        if core.is_blank:
            view = decode_view(frame.view)
            me = view.named(core.name) if view is not None else None
            if me is not None and me.node == core.node and me.life == core.life:
                core.group_epoch = frame.group_epoch
        return core.group_epoch == frame.group_epoch

    def _grant(self, peer: Peer, frame: VoteRequest, now: Nanos) -> bool:
        core, leadership = self._core, self._core.leadership
        tail = core.log.tail
        is_long = (frame.last_term, frame.last_index) >= (tail.term, tail.index)
        if frame.kind == PRE:
            led = leadership.is_led(now, core.config.election_ns)
            return is_long and not led and not leadership.leading and frame.term > leadership.term
        if frame.term > leadership.term:
            core.new_term(frame.term)
        mine = frame.term == leadership.term and leadership.voted in (b"", peer.node)
        if not mine or not is_long:
            return False
        leadership.voted = peer.node
        leadership.go(Role.FOLLOWER)
        self.wait(now)
        return True

    def _take_over(self, peer: Peer, frame: VoteRequest, now: Nanos, out: Outbox) -> bool:
        leadership = self._core.leadership
        if peer.name != leadership.leader or frame.term != leadership.term or not self.may_lead:
            self._core.ignore("ballot")
            return False
        return self.campaign(now, out)
