"""How a leader is found: a replica that misses one asks whether it would be elected, then asks for votes.

As in Raft, with the pre-vote. A replica votes for one whose log is at least as long as its own, once in a term. What a
majority of the voters of the candidate's view gives is an election; the view is that of its log, decided or not.

Three things keep a group quiet. Nobody gives a pre-vote while it hears a leader that is itself heard by a majority
(`Append.contact_ns` says so: one that only sends is not honoured, DESIGN, Groups, rule 5). Time-outs are by chance.
And a replica that was itself late, because its process did not run, waits once more before it accuses anybody.
"""

from __future__ import annotations

from random import Random
from typing import Final
from zlib import crc32

from holdfast.group.core import Core
from holdfast.group.entries import Member, View, decode_view, encode_data
from holdfast.group.leadership import Role
from holdfast.group.log import NUMBER_MAX
from holdfast.group.peers import Peer, post
from holdfast.machine import Outbox
from holdfast.types import NEVER, Nanos
from holdfast.wire.frames import Ballot, Vote

PRE: Final = 0
REAL: Final = 1
NOW: Final = 2
EXCUSES_MAX: Final = 3
"""One that is always late is not excused for ever: then nobody would be elected on a machine that is too slow."""
RELUCTANCE: Final = 4
"""So many time-outs a replica that should not lead waits for others to."""
LIVES: Final = 1 << 32
"""In `availability` groups the last bits of a term say whose it is: two sides of a cut do not elect in the same one.
They must not depend on the view, which may be another on the other side."""


class Election:
    """The way of one replica to the lead, and its part in that of others."""

    def __init__(self, core: Core, rng: Random) -> None:
        self._core = core
        self._rng = rng
        self._votes: dict[str, None] = {}
        self._mine = crc32(core.node + core.life.to_bytes(8, "big"))
        self.due_ns: Nanos = NEVER
        """When it loses patience, unless it leads or is blank."""
        self._patience_ns = self._draw()
        self._excuses = 0
        self._held_back = 0
        self._shy_until_ns: Nanos = 0
        """It led and could not go on: others first."""

    # -- when ----------------------------------------------------------------------------------------------------

    def _draw(self) -> Nanos:
        election_ns = self._core.config.election_ns
        return election_ns + self._rng.randrange(election_ns)

    def wait(self, now: Nanos) -> None:
        """Nothing to complain about: wait for a whole time-out from now."""
        self._patience_ns = self._draw()
        self.due_ns = max(now, self._shy_until_ns) + self._patience_ns

    def heard(self, now: Nanos) -> None:
        """The leader was heard, and a majority hears it."""
        self._core.leadership.heard_ns = now
        self._held_back = 0
        # As long as all is well it does not matter how patient each one is, if only not all are equally so.
        self.due_ns = max(now, self._shy_until_ns) + self._patience_ns

    def leader_gone(self, now: Nanos) -> None:
        """The session with the leader ended: less patience is needed, but not everybody at once."""
        soon_ns = now + self._rng.randrange(self._core.config.election_ns)
        self.due_ns = min(self.due_ns, max(soon_ns, self._shy_until_ns))

    def be_shy(self, now: Nanos) -> None:
        self._shy_until_ns = now + 4 * self._core.config.election_ns
        self.wait(now)

    def wake(self, now: Nanos, out: Outbox) -> bool:
        """True when the time-out has made this replica the leader: it is the only voter."""
        core = self._core
        if core.is_blank or core.leadership.leading or now < self.due_ns:
            return False
        late = now - self.due_ns > core.config.election_ns // 2
        self.wait(now)
        self._excuses = self._excuses + 1 if late else 0
        if (late and self._excuses <= EXCUSES_MAX) or not self.may_lead:
            # A process that did not run has missed heartbeats that were sent: what they said is on its way.
            return False
        if self._is_reluctant and self._held_back < RELUCTANCE:
            # It leads only if nobody else can: its log may be the longest that is left.
            self._held_back += 1
            return False
        return self._ask(now, out)

    @property
    def may_lead(self) -> bool:
        core = self._core
        me = core.me
        if me is None or not me.voter:
            me = self._was_voter()
        return me is not None and me.voter and not core.delivery.suspended

    @property
    def _is_reluctant(self) -> bool:
        """Others first: it is suspended, or it is not to lead at all while others can."""
        me = self._core.me
        return me is not None and (me.suspended or not me.may_lead)

    def _was_voter(self) -> Member | None:
        """This replica before a change that takes its vote away, while nobody has decided that (Raft, thesis 4.2.2). If
        its log is the longest nobody else can be elected."""
        log = self._core.log
        if log.view_index <= log.commit:
            return None
        return self._core.member_in(log.view_before)

    # -- asking --------------------------------------------------------------------------------------------------

    def _ask(self, now: Nanos, out: Outbox) -> bool:
        """Would I be elected?"""
        self._core.leadership.go(Role.ASKING)
        self._core.leadership.leader = ""
        return self._gather(PRE, self._next_term(), now, out)

    def campaign(self, now: Nanos, out: Outbox) -> bool:
        """Begin a term and ask for votes; True when that has decided it already."""
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
        return term + (self._mine - term) % LIVES

    def _view(self) -> View:
        view = self._core.log.tail.view
        assert view is not None, "only a member campaigns"
        return view

    def _gather(self, kind: int, term: int, now: Nanos, out: Outbox) -> bool:
        core, view = self._core, self._view()
        self._votes = {core.name: None}
        tail = core.log.tail
        ballot = Ballot(
            core.config.name, core.history, kind, term, tail.term, tail.index, encode_data(view)
        )
        post(out, [peer.node for peer in core.voters_here()], ballot)
        return self._count(kind, now, out)

    def voted(self, peer: Peer, frame: Vote, now: Nanos, out: Outbox) -> bool:
        """An answer; True when it has made this replica the leader."""
        core, leadership = self._core, self._core.leadership
        if frame.history != core.history or not 0 < frame.term < NUMBER_MAX:
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

    def asked(self, peer: Peer, frame: Ballot, now: Nanos, out: Outbox) -> bool:
        """Somebody wants to lead, or wants us to; True when the latter has made this replica the leader."""
        core = self._core
        if not 0 < frame.term < NUMBER_MAX or not frame.history or not self._is_ours(frame):
            core.ignore("ballot")
            return False
        if frame.kind == NOW:
            return self._take_over(peer, frame, now, out)
        granted = self._grant(peer, frame, now)
        term = frame.term if granted else core.leadership.term
        post(out, [peer.node], Vote(core.config.name, core.history, frame.kind, term, granted))
        return False

    def _is_ours(self, frame: Ballot) -> bool:
        """A replica that has just started has acknowledged nothing in this life. If the view names this very life, it
        is a voter like any other, only with an empty log; if not, its vote would not be counted anyway."""
        core = self._core
        if core.is_blank:
            view = decode_view(frame.view)
            me = view.named(core.name) if view is not None else None
            if me is not None and me.node == core.node and me.life == core.life:
                core.history = frame.history
        return core.history == frame.history

    def _grant(self, peer: Peer, frame: Ballot, now: Nanos) -> bool:
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

    def _take_over(self, peer: Peer, frame: Ballot, now: Nanos, out: Outbox) -> bool:
        leadership = self._core.leadership
        if peer.name != leadership.leader or frame.term != leadership.term or not self.may_lead:
            self._core.ignore("ballot")
            return False
        return self.campaign(now, out)
