"""The progress of each replica, as the leader knows it, and what it is sent next.

Entries are sent from `next` on, without waiting for answers to earlier ones, up to a bound. A replica that finds a gap
reports where to continue, at the latest with the next heartbeat. Lost, duplicated and reordered frames are therefore
repaired without extra timers.
"""

from __future__ import annotations

from typing import Final

from holdfast.group.core import Core
from holdfast.group.frames import Append, AppendResponse, StateChunk
from holdfast.group.log.entries import Member
from holdfast.group.membership.relay_tree import relays
from holdfast.group.peer import Peer
from holdfast.group.peers import post, post_bytes
from holdfast.machine import Outbox
from holdfast.types import NEVER, Nanos
from holdfast.wire.codec import encode

ENTRIES_PER_FRAME: Final = 512
FRAMES_PER_TURN: Final = 8
ENTRIES_IN_FLIGHT: Final = 4096
"""Entries in flight to a replica that has not acknowledged them."""
LEARNER_GAP_NS: Final = 20_000
"""The minimum interval between frames to a learner in a large group, per member: the leader sends 50 000 frames a
second to learners, however many there are."""
LEARNER_PERIODS: Final = 5
"""In a large group learners get heartbeats this many times less often than voters, which need them for elections."""


class Progress:
    """One other member of the view."""

    __slots__ = (
        "applied",
        "caught_up",
        "failed",
        "heard_ns",
        "held",
        "held_bytes",
        "held_ns",
        "informed",
        "match",
        "member",
        "misses",
        "moved_ns",
        "next",
        "out_until_ns",
        "reported",
        "sent_ns",
        "start",
        "told",
        "why",
    )  # fmt: skip

    def __init__(self, member: Member, last: int, now: Nanos) -> None:
        self.member = member
        """The life of the node from which this was learned."""
        self.next = last + 1
        self.start = last
        """Where sending started; entries in flight are counted from here or from `match`."""
        self.match = 0
        self.reported = 0
        """Up to where it holds the log and knows that it is committed."""
        self.applied = 0
        self.moved_ns = now
        """When `applied` last increased."""
        self.caught_up = False
        """It was once as far as the leader."""
        self.informed = False
        """It has reported, in this term, what it holds of every stream."""
        self.failed = 0
        """The entry at which its application failed, and the error."""
        self.why = ""
        self.out_until_ns = 0
        """It was left behind: the others do not wait for it again before this time."""
        self.held = -1
        """It is suspended and rejoining: entries after this one are kept for it (-1: none are), and since when."""
        self.held_ns = 0
        self.held_bytes = 0
        """What it keeps of all streams."""
        self.misses = 0
        """How often it did not rejoin in time."""
        self.told = -1
        """The last commit index that it was sent."""
        self.heard_ns = now
        self.sent_ns = -1


def _window_end(progress: Progress) -> int:
    """Entries after this one wait for an acknowledgement."""
    return max(progress.match, progress.start) + ENTRIES_IN_FLIGHT


def _is_life(member: Member, node: bytes, life: int) -> bool:
    return member.node == node and member.life == life


class Replication:
    """Replication to all other members of the view, in one term."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._config = core.config
        self._log = core.log
        self.progress: dict[str, Progress] = {}
        self._leaving: dict[str, Progress] = {}
        """Voters that an uncommitted change removes: they must also have it."""
        self.voters: list[Progress] = []
        """The other voters, and whether this replica is one."""
        self.is_voter = False
        self._here: list[tuple[Peer, Progress]] = []
        """The reachable members, in the lives that the view names."""
        self._peers_seen = -1
        self._learner_gap_ns: Nanos = 0
        """The minimum interval between two frames to a learner; 0 unless the group is large."""
        self._held_back_ns: Nanos = NEVER
        """When a replica is due for which something waits."""
        self._seen = (-1, -1, -1)
        """The last entry, the commit index and the reachable nodes when the members were last checked."""
        self._due_ns: Nanos = 0
        """When the next member is due, as of that check."""
        self._stale = True
        """The next turn must check the members, whatever has changed."""
        self.checks = 0
        """How often all members were checked."""
        self._patient: tuple[int, int, Nanos] = (0, -1, 0)
        """Entries from the first to the second index that may wait for others, until this time."""

    def begin(self, now: Nanos) -> None:
        self.progress = {}
        self._leaving = {}
        self._stale = True
        self._patient = (0, -1, 0)
        self.follow_view(now)

    def follow_view(self, now: Nanos) -> None:
        """The view of the log has changed. A new life of a replica has nothing of the previous one."""
        log = self._log
        view = log.tail.view
        known, self.progress = self._leaving | self.progress, {}
        self._leaving = {}
        for member in view.members if view is not None else ():
            self._keep(member, known, self.progress, now)
        before = self._core.view_before
        for member in before.voters if before is not None else ():
            if member.name not in self.progress:
                self._keep(member, known, self._leaving, now)
        self.voters = [progress for progress in self.progress.values() if progress.member.voter]
        me = view.named(self._core.name) if view is not None else None
        self.is_voter = me is not None and me.voter
        self._peers_seen = -1
        self._stale = True
        is_large = relays(self._config, view)
        self._learner_gap_ns = LEARNER_GAP_NS * len(self.progress) if is_large else 0

    def _keep(
        self, member: Member, known: dict[str, Progress], into: dict[str, Progress], now: Nanos
    ) -> None:
        """Continue with the progress of this life of a member, or start."""
        if member.name == self._core.name:
            return
        progress = known.get(member.name)
        if progress is None or not _is_life(progress.member, member.node, member.life):
            progress = Progress(member, self._log.last, now)
        progress.member = member
        into[member.name] = progress

    def here(self) -> list[tuple[Peer, Progress]]:
        peers = self._core.peers
        if self._peers_seen != peers.changed:
            self._peers_seen = peers.changed
            self._here = self._reached(self.progress)
        return self._here

    def _reached(self, members: dict[str, Progress]) -> list[tuple[Peer, Progress]]:
        peers = self._core.peers
        return [
            (peer, progress)
            for peer in peers.replicas
            if (progress := members.get(peer.name)) is not None and peers.is_here(progress.member)
        ]

    def of(self, peer: Peer) -> Progress | None:
        """The progress of a peer, if the view names this life of it."""
        progress = self.progress.get(peer.name) or self._leaving.get(peer.name)
        # rule: 2b
        if progress is None or not _is_life(progress.member, peer.node, peer.life):
            return None
        return progress

    def peer_up(self, peer: Peer) -> None:
        """A session starts: what was in flight is lost."""
        progress = self.of(peer)
        if progress is not None:
            progress.next = self._log.last + 1
            progress.start = self._log.last
            progress.sent_ns = progress.told = -1
            self._stale = True

    def heard(self, peer: Peer, frame: AppendResponse, now: Nanos, out: Outbox) -> None:
        """An answer. Only plausible values are accepted."""
        progress = self.of(peer)
        if progress is None or frame.term != self._core.leadership.term:
            return
        progress.heard_ns = now
        progress.informed = progress.informed or frame.all_marks
        progress.failed, progress.why = frame.failed, frame.why
        if frame.held_bytes >= 0:
            progress.held_bytes = frame.held_bytes
        last = self._log.last
        # In `fast` groups it may have applied what is not in our log.
        applied = min(frame.applied, frame.match, self._log.commit)
        progress.reported = max(progress.reported, min(frame.commit, frame.match, self._log.commit))
        if progress.applied < applied:
            progress.applied = applied
            progress.moved_ns = now
        if not frame.ok or progress.next > _window_end(progress):
            self._stale = True  # it lacks entries that were not sent
        if frame.ok:
            if progress.match < frame.match <= last:
                progress.match = frame.match
                progress.next = max(progress.next, frame.match + 1)
            return
        if not 0 <= frame.hint <= last:
            return
        if self._config.mode == "availability":
            # It may have discarded what it had, for a snapshot that turned out to be useless.
            # rule: 11d
            progress.match = min(progress.match, frame.hint)
        progress.start = max(frame.hint, progress.match)
        progress.next = progress.start + 1
        if progress.next <= self._log.ground.index:
            offer = StateChunk(self._config.name, 0, self._log.ground.index, 0, 0, memoryview(b""))
            post(out, [peer.node], offer)

    # -- majorities ----------------------------------------------------------------------------------------------

    def match_of(self, member: Member) -> int:
        """Up to where this life of a replica has the log."""
        if member.name == self._core.name:
            return self._core.stable
        for known in (self.progress, self._leaving):
            progress = known.get(member.name)
            if progress is not None and _is_life(progress.member, member.node, member.life):
                return progress.match
        return 0

    def contact_ns(self, now: Nanos) -> Nanos:
        """The time since the last contact with a majority."""
        heard = [progress.heard_ns for progress in self.voters]
        if self.is_voter:
            heard.append(now)
        heard.sort(reverse=True)
        return now - heard[self.quorum() - 1]

    def is_informed(self) -> bool:
        """Whether a majority has reported in this term what it holds (rule 6 in docs/design/groups.md)."""
        informed = sum([progress.informed for progress in self.voters])
        return informed + self.is_voter >= self.quorum()

    def quorum(self) -> int:
        """How many voters of the view in the log are a majority; committed or not, that view counts."""
        # rule: 6c
        view = self._log.tail.view
        assert view is not None, "a leader has a view"
        return self._core.quorum(view)

    # -- sending -------------------------------------------------------------------------------------------------

    def let_wait(self, now: Nanos) -> None:
        """Nothing waits for the last entry of the log: it is sent with the next one that is urgent, or a little later.
        Entries that wait do so no longer than the first of them."""
        last = self._log.last
        first, before, until_ns = self._patient
        if before != last - 1 or now >= until_ns:
            first, until_ns = last, now + self._config.free_period_ns
        self._patient = (first, last, until_ns)

    def _may_wait(self, progress: Progress, now: Nanos) -> bool:
        """Whether a replica lacks only entries that nothing waits for."""
        first, last, until_ns = self._patient
        return last == self._log.last and first <= progress.next <= last and now < until_ns

    def send(self, now: Nanos, out: Outbox) -> None:
        """Send every reachable member what it lacks: entries, the commit index, or a heartbeat.

        Most turns in a large group bring acknowledgements only. Then no member lacks anything, and none is checked.
        """
        log = self._log
        state = (log.last, log.commit, self._core.peers.changed)
        if state == self._seen and not self._stale and now < self._due_ns:
            return
        self._seen, self._stale = state, False
        self.checks += 1
        contact_ns = -1
        self._held_back_ns = NEVER
        journal = self._core.journal
        # Entries promise nothing: the leader counts itself only when its own write is done. But a term that a crash
        # would lose must not be announced.
        at_once = journal is None or journal.durable_term == self._core.leadership.term
        stability = self._core.stability
        frames: dict[tuple[int, int], bytes] = {}
        reached = self.here()
        if self._leaving:
            reached = [*reached, *self._reached(self._leaving)]
        for peer, progress in reached:
            batch: list[bytes] = []
            for prev, count in self._due(progress, now):
                key = (prev, count)
                if key not in frames:
                    if contact_ns < 0:
                        contact_ns = self.contact_ns(now)
                    frames[key] = self._encode(prev, count, contact_ns)
                batch.append(frames[key])
            if batch:
                progress.sent_ns = now
                progress.told = self._log.commit
                post_bytes(out, [peer.node], batch, Append, at_once)
                if stability is not None:
                    stability.ride(peer.node, now, out)
        self._due_ns = self._next_due(reached)

    def _due(self, progress: Progress, now: Nanos) -> list[tuple[int, int]]:
        """The frames to send to one replica, each as (previous index, number of entries)."""
        log = self._log
        due: list[tuple[int, int]] = []
        period_ns = self._config.append_period_ns
        if self._learner_gap_ns and not progress.member.voter:
            period_ns *= LEARNER_PERIODS
            next_ns = progress.sent_ns + self._learner_gap_ns
            if now < next_ns:
                if progress.next <= log.last or progress.told < log.commit:
                    self._held_back_ns = min(self._held_back_ns, next_ns)
                return due
        lacks_state = progress.next <= log.ground.index
        limit = min(log.last, _window_end(progress))
        if self._may_wait(progress, now):
            self._held_back_ns = min(self._held_back_ns, self._patient[2])
            limit = 0
        while not lacks_state and progress.next <= limit and len(due) < FRAMES_PER_TURN:
            count = min(ENTRIES_PER_FRAME, log.last - progress.next + 1)
            due.append((progress.next - 1, count))
            progress.next += count
        if lacks_state or progress.next <= limit:
            self._stale = True
        if due:
            return due
        untold = progress.told < log.commit and not lacks_state
        if untold and progress.told >= log.pressing_index:
            # Only requests of services were committed. No application waits for them: the next entries say so too.
            later_ns = progress.sent_ns + self._config.free_period_ns
            if now < later_ns:
                self._held_back_ns = min(self._held_back_ns, later_ns)
                untold = False
        if untold or now >= progress.sent_ns + period_ns:
            return [(max(progress.next - 1, log.ground.index), 0)]
        return due

    def _encode(self, prev: int, count: int, contact_ns: Nanos) -> bytes:
        log, core = self._log, self._core
        prev_term = log.term_at(prev)
        assert prev_term is not None, "entries to be sent are in the log"
        entries = log.entries(prev + 1, count) if count else ()
        frame = Append(
            self._config.name, core.leadership.term, prev, prev_term, log.commit, entries, contact_ns, core.group_epoch
        )  # fmt: skip
        return encode(frame)

    def deadline(self) -> Nanos:
        """When the next heartbeat is due."""
        return self._next_due(self.here()) if self._stale else self._due_ns

    def _next_due(self, reached: list[tuple[Peer, Progress]]) -> Nanos:
        period_ns = self._config.append_period_ns
        later_ns = period_ns * LEARNER_PERIODS if self._learner_gap_ns else period_ns
        due = [
            progress.sent_ns + (period_ns if progress.member.voter else later_ns)
            for _, progress in reached
        ]
        return (
            min(due, default=NEVER)
            if self._held_back_ns == NEVER
            else min(*due, self._held_back_ns)
        )
