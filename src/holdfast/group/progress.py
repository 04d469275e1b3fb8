"""How far each replica has come, as the leader knows it, and what it is sent next.

Entries go to a replica from `next` on, without waiting for the answers to earlier ones, up to a bound. A replica that
finds a hole says where to go on, and it finds one at the latest with the next heartbeat: so lost, doubled and
reordered frames mend themselves without timers of their own.
"""

from __future__ import annotations

from typing import Final

from holdfast.group.core import Core
from holdfast.group.entries import Member, View
from holdfast.group.peers import Peer, post, post_bytes
from holdfast.machine import Outbox
from holdfast.types import NEVER, Nanos
from holdfast.wire.codec import encode
from holdfast.wire.frames import Append, Appended, StateChunk

ENTRIES_PER_FRAME: Final = 512
FRAMES_PER_TURN: Final = 8
ENTRIES_IN_FLIGHT: Final = 4096
"""So many entries may be on the way to a replica that has not said that it has them."""


class Progress:
    """One other member of the view."""

    __slots__ = (
        "applied", "caught_up", "failed", "heard_ns", "held", "held_ns", "informed", "match", "member", "misses",
        "moved_ns", "next", "out_until_ns", "sent_ns", "start", "told", "why",
    )  # fmt: skip

    def __init__(self, member: Member, last: int, now: Nanos) -> None:
        self.member = member
        """Which life of which node this was learnt from."""
        self.next = last + 1
        self.start = last
        """Where sending began; what is on the way is counted from here or from `match`."""
        self.match = 0
        self.applied = 0
        self.moved_ns = now
        """When `applied` last grew."""
        self.caught_up = False
        """It was once where the leader was."""
        self.informed = False
        """It has said, in this term, what it holds of every stream."""
        self.failed = 0
        """The entry at which its application failed, and why."""
        self.why = ""
        self.out_until_ns = 0
        """It was left behind: it is not waited for again before this."""
        self.held = -1
        """It is suspended, on its way back: what comes after this entry is kept for it, since when. -1: nothing is."""
        self.held_ns = 0
        self.misses = 0
        """How often it did not come back in time."""
        self.told = -1
        """The commit index that it was last told."""
        self.heard_ns = now
        self.sent_ns = -1


def _is_life(member: Member, node: bytes, life: int) -> bool:
    return member.node == node and member.life == life


class Appends:
    """Replication to all other members of the view, in one term."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._config = core.config
        self._log = core.log
        self.progress: dict[str, Progress] = {}
        self._leaving: dict[str, Progress] = {}
        """Voters that a change takes out which is not decided: it is decided with them."""
        self._voters: list[Progress] = []
        """The other voters, and whether this replica is one."""
        self._is_voter = False
        self._here: list[tuple[Peer, Progress]] = []
        """The members that can be reached, in the lives that the view names."""
        self._peers_seen = -1

    def begin(self, now: Nanos) -> None:
        self.progress = {}
        self._leaving = {}
        self.follow_view(now)

    def follow_view(self, now: Nanos) -> None:
        """The view of the log has changed. A new life of a replica has nothing of what the one before had."""
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
        self._voters = [progress for progress in self.progress.values() if progress.member.voter]
        me = view.named(self._core.name) if view is not None else None
        self._is_voter = me is not None and me.voter
        self._peers_seen = -1

    def _keep(
        self, member: Member, known: dict[str, Progress], into: dict[str, Progress], now: Nanos
    ) -> None:
        """Go on with what is known of this very life of a member, or begin."""
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
        """What is known of a peer, if the view names this very life of it."""
        progress = self.progress.get(peer.name) or self._leaving.get(peer.name)
        if progress is None or not _is_life(progress.member, peer.node, peer.life):
            return None
        return progress

    def peer_up(self, peer: Peer) -> None:
        """A session begins: what was on the way is lost."""
        progress = self.of(peer)
        if progress is not None:
            progress.next = self._log.last + 1
            progress.start = self._log.last
            progress.sent_ns = progress.told = -1

    def heard(self, peer: Peer, frame: Appended, now: Nanos, out: Outbox) -> None:
        """An answer. Only what is possible is believed."""
        progress = self.of(peer)
        if progress is None or frame.term != self._core.leadership.term:
            return
        progress.heard_ns = now
        progress.informed = progress.informed or frame.all_marks
        progress.failed, progress.why = frame.failed, frame.why
        last = self._log.last
        # In `fast` groups it may have applied what is not in our log.
        applied = min(frame.applied, frame.match, self._log.commit)
        if progress.applied < applied:
            progress.applied = applied
            progress.moved_ns = now
        if frame.ok:
            if progress.match < frame.match <= last:
                progress.match = frame.match
                progress.next = max(progress.next, frame.match + 1)
            return
        if not 0 <= frame.hint <= last:
            return
        if self._config.mode == "availability":
            # It may have given up what it had, for a state that was of no use.
            progress.match = min(progress.match, frame.hint)
        progress.start = max(frame.hint, progress.match)
        progress.next = progress.start + 1
        if progress.next <= self._log.ground.index:
            offer = StateChunk(self._config.name, 0, self._log.ground.index, 0, 0, memoryview(b""))
            post(out, [peer.node], offer)

    # -- majorities ----------------------------------------------------------------------------------------------

    def agreed(self) -> int:
        """The highest index that a majority of the voters has. The view of the log counts, decided or not."""
        matches = [progress.match for progress in self._voters]
        if self._is_voter:
            matches.append(self._core.stable)
        matches.sort(reverse=True)
        agreed = matches[self._quorum() - 1]
        before = self._core.view_before
        return agreed if before is None else self._agreed_before(before, agreed)

    def _agreed_before(self, before: View, agreed: int) -> int:
        living = [voter for voter in before.voters if not self._core.peers.has_ended(voter)]
        matches = sorted((self._match(voter) for voter in living), reverse=True)
        quorum = self._core.quorum(before)
        agreed_before = matches[quorum - 1] if quorum <= len(matches) else self._log.commit
        return agreed if agreed_before >= self._log.view_index else min(agreed, agreed_before)

    def _match(self, member: Member) -> int:
        """Up to where this very life of a replica has the log."""
        if member.name == self._core.name:
            return self._core.stable
        for known in (self.progress, self._leaving):
            progress = known.get(member.name)
            if progress is not None and _is_life(progress.member, member.node, member.life):
                return progress.match
        return 0

    def contact_ns(self, now: Nanos) -> Nanos:
        """How long ago a majority was last heard."""
        heard = [progress.heard_ns for progress in self._voters]
        if self._is_voter:
            heard.append(now)
        heard.sort(reverse=True)
        return now - heard[self._quorum() - 1]

    def is_informed(self) -> bool:
        """Whether a majority has said in this term what it holds (DESIGN, Groups, rule 6)."""
        informed = sum([progress.informed for progress in self._voters])
        return informed + self._is_voter >= self._quorum()

    def _quorum(self) -> int:
        view = self._log.tail.view
        assert view is not None, "a leader has a view"
        return self._core.quorum(view)

    # -- sending -------------------------------------------------------------------------------------------------

    def send(self, now: Nanos, out: Outbox) -> None:
        """Send every member that can be reached what it lacks: entries, the commit index, or a sign of life."""
        contact_ns = -1
        journal = self._core.journal
        # Entries promise nothing: the leader counts itself only when its own write is done. But nobody may hear of a
        # term that a crash would make it forget.
        at_once = journal is None or journal.durable_term == self._core.leadership.term
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

    def _due(self, progress: Progress, now: Nanos) -> list[tuple[int, int]]:
        """The frames to send to one replica, each as (previous index, number of entries)."""
        log = self._log
        due: list[tuple[int, int]] = []
        lacks_state = progress.next <= log.ground.index
        limit = min(log.last, max(progress.match, progress.start) + ENTRIES_IN_FLIGHT)
        while not lacks_state and progress.next <= limit and len(due) < FRAMES_PER_TURN:
            count = min(ENTRIES_PER_FRAME, log.last - progress.next + 1)
            due.append((progress.next - 1, count))
            progress.next += count
        if due:
            return due
        untold = progress.told < log.commit and not lacks_state
        if untold or now >= progress.sent_ns + self._config.append_period_ns:
            return [(max(progress.next - 1, log.ground.index), 0)]
        return due

    def _encode(self, prev: int, count: int, contact_ns: Nanos) -> bytes:
        log, core = self._log, self._core
        prev_term = log.term_at(prev)
        assert prev_term is not None, "what is sent is in the log"
        entries = log.entries(prev + 1, count) if count else ()
        frame = Append(
            self._config.name, core.leadership.term, prev, prev_term, log.commit, entries, contact_ns, core.history
        )  # fmt: skip
        return encode(frame)

    def deadline(self) -> Nanos:
        """When the next sign of life is due."""
        sent = [progress.sent_ns for _, progress in self.here()]
        return min(sent) + self._config.append_period_ns if sent else NEVER
