"""How far each replica has come, as the leader knows it, and what it is sent next.

Entries go to a replica from `next` on, without waiting for the answers to earlier ones, up to a bound. A replica that
finds a hole says where to go on, and it finds one at the latest with the next heartbeat: so lost, doubled and
reordered frames mend themselves without timers of their own.
"""

from __future__ import annotations

from typing import Final

from holdfast.group.config import GroupConfig
from holdfast.group.log import Log
from holdfast.group.peers import Peer, Peers, post, post_bytes
from holdfast.machine import Outbox
from holdfast.types import NEVER, Nanos
from holdfast.wire.codec import encode
from holdfast.wire.frames import Append, Appended, StateChunk

ENTRIES_PER_FRAME: Final = 512
FRAMES_PER_TURN: Final = 8
ENTRIES_IN_FLIGHT: Final = 4096
"""So many entries may be on the way to a replica that has not said that it has them."""


class Progress:
    """One other replica."""

    __slots__ = (
        "applied", "blank", "counted", "heard_ns", "life", "match", "moved_ns", "next", "out_until_ns",
        "sent_ns", "start", "told",
    )  # fmt: skip

    def __init__(self, last: int, now: Nanos) -> None:
        self.next = last + 1
        self.start = last
        """Where sending began; what is on the way is counted from here or from `match`."""
        self.match = 0
        self.applied = 0
        self.moved_ns = now
        """When `applied` last grew."""
        self.blank = False
        """It has no state: entries are of no use to it."""
        self.counted = True
        """Nothing that it has not applied is freed."""
        self.out_until_ns = 0
        """When it was left behind: it holds nobody back before this."""
        self.life: Peer | None = None
        """Which life of which node this was learnt from."""
        self.told = 0
        """The commit index that it was last told."""
        self.heard_ns = -1
        self.sent_ns = -1


class Appends:
    """Replication to all other replicas, in one term."""

    def __init__(self, config: GroupConfig, log: Log, peers: Peers, name: str) -> None:
        self._config = config
        self._log = log
        self._peers = peers
        self._others = tuple(other for other in config.replicas if other != name)
        self._voters = tuple(voter for voter in config.voters if voter != name)
        self.term = 0
        self.progress: dict[str, Progress] = {}

    def begin(self, term: int, now: Nanos) -> None:
        self.term = term
        self.progress = {other: Progress(self._log.last, now) for other in self._others}
        for peer in self._peers.replicas:
            self.progress[peer.name].life = peer

    def peer_up(self, peer: Peer) -> None:
        """A session begins: what was on the way is lost, and a new incarnation has lost its memory."""
        progress = self.progress.get(peer.name)
        if progress is None:
            return
        if progress.life != peer:
            progress.life = peer
            progress.match = 0
        progress.next = self._log.last + 1
        progress.start = self._log.last
        progress.sent_ns = progress.told = -1
        progress.blank = False

    def heard(self, peer: Peer, frame: Appended, now: Nanos, out: Outbox) -> None:
        """An answer. Only what is possible is believed."""
        progress = self.progress.get(peer.name)
        if progress is None:
            return
        if frame.term != self.term:
            if frame.term == 0:
                self._heard_blank(progress, now)
            return
        progress.heard_ns = now
        progress.blank = False
        last = self._log.last
        if progress.applied < frame.applied <= self._log.commit:
            progress.applied = frame.applied
            progress.moved_ns = now
        if not progress.counted and progress.applied >= self._log.ground.index:
            progress.counted = True
            progress.moved_ns = now
        if frame.ok:
            if progress.match < frame.match <= last:
                progress.match = frame.match
                progress.next = max(progress.next, frame.match + 1)
            return
        if not 0 <= frame.hint <= last:
            return
        progress.start = max(frame.hint, progress.match)
        progress.next = progress.start + 1
        if progress.next <= self._log.ground.index:
            offer = StateChunk(self._config.name, 0, self._log.ground.index, 0, 0, memoryview(b""))
            post(out, [peer.node], offer)

    def _heard_blank(self, progress: Progress, now: Nanos) -> None:
        """It has no state. It will get one of now or later, so everything from now on is kept for it, for a while."""
        progress.blank = True
        progress.match = 0
        if progress.applied != self._log.ground.index or not progress.counted:
            if now < progress.out_until_ns:
                return
            progress.applied = self._log.ground.index
            progress.moved_ns = now
            progress.counted = True

    def agreed(self) -> int:
        """The highest index that a majority of the voters has, this one included."""
        matches = [self.progress[voter].match for voter in self._voters]
        matches.append(self._log.last)
        matches.sort(reverse=True)
        return matches[self._config.majority - 1]

    def contact_ns(self, now: Nanos) -> Nanos:
        """How long ago a majority was last heard."""
        heard = [self.progress[voter].heard_ns for voter in self._voters]
        heard.append(now)
        heard.sort(reverse=True)
        at = heard[self._config.majority - 1]
        return now - at if at >= 0 else NEVER

    # -- sending -------------------------------------------------------------------------------------------------

    def send(self, now: Nanos, out: Outbox) -> None:
        """Send every reachable replica what it lacks: entries, the commit index, or a sign of life."""
        contact_ns = -1
        frames: dict[tuple[int, int], bytes] = {}
        for peer in self._peers.replicas:
            progress = self.progress[peer.name]
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
                post_bytes(out, [peer.node], batch, Append)

    def _due(self, progress: Progress, now: Nanos) -> list[tuple[int, int]]:
        """The frames to send to one replica, each as (previous index, number of entries)."""
        log = self._log
        due: list[tuple[int, int]] = []
        lacks_state = progress.blank or progress.next <= log.ground.index
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
        log = self._log
        prev_term = log.term_at(prev)
        assert prev_term is not None, "what is sent is in the log"
        entries = log.entries(prev + 1, count) if count else ()
        frame = Append(
            self._config.name, self.term, prev, prev_term, log.commit, entries, contact_ns
        )
        return encode(frame)

    def deadline(self) -> Nanos:
        """When the next sign of life is due."""
        sent = [self.progress[peer.name].sent_ns for peer in self._peers.replicas]
        return min(sent) + self._config.append_period_ns if sent else NEVER
