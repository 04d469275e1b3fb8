"""Installing a snapshot: the replica fell too far behind, its application failed, or it has just started.

It requests a snapshot from the leader, or from another replica if the leader has none or fails in the middle; then only
the missing parts are requested. It restores the application from the snapshot and continues there. Log entries after
the snapshot stay: they were acknowledged.

A snapshot that is ahead of the commit index (`fast`) is installed only when the replica's own log contains the entry
that the snapshot is after. It is then as if this replica had run ahead: if its log is truncated below that entry,
it discards the snapshot. If its log ends too early to be continued, the log restarts at the committed index of the
snapshot. The replica therefore helps to commit the rest before it has installed the snapshot.
"""

from __future__ import annotations

from random import Random
from typing import Final

from holdfast.group.config import replica_unit
from holdfast.group.consensus.follower import Follower
from holdfast.group.core import Core
from holdfast.group.frames import StateChunk, StreamId
from holdfast.group.log.replicated_log import Cursor
from holdfast.group.peer import Peer
from holdfast.group.ports import Restored, RestoreState
from holdfast.group.transfer.checkpoint import Checkpoint, CursorState, encode_checkpoint
from holdfast.group.transfer.snapshot import SnapshotReceiver
from holdfast.machine import Outbox
from holdfast.types import NEVER, Nanos

FAILURES_MAX: Final = 6
"""Each failure of the application doubles the time to the next attempt, at most this often."""


class SnapshotInstaller:
    """Installs snapshots."""

    def __init__(self, core: Core, follower: Follower, rng: Random) -> None:
        self._core = core
        self._follower = follower
        self._snapshot_receiver = SnapshotReceiver(core.config, rng)
        self._image: Checkpoint | None = None
        """The snapshot that the application is being restored from."""
        self._own: Checkpoint | None = None
        """A snapshot from our own store that the application has not been restored from yet."""
        self._awaited: Checkpoint | None = None
        """A snapshot that our log has not reached yet."""
        self._givers_tried = 0
        self._failures = 0
        self._rejoin_ns: Nanos = NEVER
        self._lost: dict[StreamId, int] = {}
        """The progress of the application in each stream, including messages that are not in the order."""

    def begin_with(self, checkpoint: Checkpoint) -> None:
        """The snapshot in this replica's own store."""
        self._own = checkpoint
        self._core.delivery.paused = True

    @property
    def is_restoring(self) -> bool:
        return self._snapshot_receiver.active or self._image is not None or self._own is not None

    def peer_down(self, peer: Peer, now: Nanos) -> None:
        if self._snapshot_receiver.peer == peer:
            self._snapshot_receiver.stop()
            self._rejoin_ns = now
            self._go_on()

    def _go_on(self) -> None:
        """No snapshot is expected: a suspended replica continues through the log without delivering, so that it buffers
        nothing."""
        if not self.is_restoring and self._awaited is None:
            self._core.delivery.paused = False

    def wake(self, now: Nanos, out: Outbox) -> None:
        if self._own is not None:
            checkpoint, self._own = self._own, None
            self._take(checkpoint, now, out)
        if not self._snapshot_receiver.wake(now, out):
            self._rejoin_ns = now
        self._go_on()
        if now >= self._rejoin_ns:
            self._rejoin_ns = now + self._core.config.rejoin_ns
            self._fetch(now, out)

    def settle(self, now: Nanos, out: Outbox) -> None:
        """A replica that cannot obtain a message of the order installs a snapshot that covers it, and asks to be
        suspended. It cannot know whether it is: that entry lies behind the one that it lacks."""
        if self._awaited is not None and self._has_come_to(self._awaited.at):
            self._take(self._awaited, now, out)
        if self._rejoin_ns == NEVER and not self.is_restoring:
            self._snapshot_receiver.forget()
            if self._follower.lacks(now):
                self._rejoin_ns = now

    def failed(self, now: Nanos) -> None:
        """The application raised: after a while it is restored from a replica whose application did not."""
        self._image = self._awaited = None
        self._snapshot_receiver.stop()
        self._core.delivery.paused = False
        self._rejoin_ns = now + (self._core.config.rejoin_ns << self._failures)
        self._failures = min(self._failures + 1, FAILURES_MAX)

    def undone(self, now: Nanos, delivered: dict[StreamId, int]) -> None:
        """Delivered messages are not in the log: a snapshot is needed at once; other transfers are cancelled."""
        self._image = self._awaited = None
        self._snapshot_receiver.stop()
        self._core.delivery.paused = False
        self._lost = delivered
        self._rejoin_ns = now

    def _report_lost(self, cursor: Cursor, now: Nanos, out: Outbox) -> None:
        """Report what this replica had delivered and the snapshot does not contain."""
        delivery = self._core.delivery
        delivered = self._lost if delivery.suspended else delivery.at.next
        self._lost = {}
        parts = []
        for stream, number in delivered.items():
            first = cursor.next.get(stream, 1)
            if number > first and not cursor.is_over(stream):
                label = f"{stream.source.hex()}/{stream.incarnation}/{stream.stream}"
                parts.append(f"{label} {first} to {number - 1}")
        if parts:
            self._core.fact(
                "lost", "delivered here, not (yet) in the order: " + "; ".join(parts), now, out
            )

    def _fetch(self, now: Nanos, out: Outbox) -> None:
        """Request a snapshot from the leader, or from another replica if the leader did not provide one."""
        core = self._core
        peers = core.peers
        if self.is_restoring or not peers.replicas or core.leadership.leading:
            return
        leader = peers.named(core.leadership.leader)
        others = [peer for peer in peers.replicas if peer is not leader]
        givers = [leader, *others] if leader is not None else others
        # A replica of other zones has delivered other messages.
        zones = core.config.zones_of(core.name)
        givers = [giver for giver in givers if core.config.zones_of(giver.name) == zones]
        if not givers:
            return
        # Entries after the snapshot must still exist when it arrives.
        core.delivery.paused = bool(core.delivery.suspended)
        giver = givers[self._givers_tried % len(givers)]
        self._snapshot_receiver.begin(giver, now, out, self._least())
        self._givers_tried += 1

    def _least(self) -> int:
        """Snapshots from before this entry are of no use. A replica without a state has passed entries that its
        application did not receive: it may go back as far as entries and messages are still available."""
        core = self._core
        at = core.delivery.at.index
        # rule: 8f
        if not core.delivery.suspended:
            return at
        return max(core.log.ground.index, min(self._follower.collector.index, at))

    def offered(self, peer: Peer, frame: StateChunk, now: Nanos, out: Outbox) -> None:
        """The leader's log starts after the end of ours: a snapshot is needed."""
        core = self._core
        if peer.name == core.leadership.leader and frame.index > core.pending.match:
            self._fetch(now, out)

    def chunk(self, peer: Peer, frame: StateChunk, now: Nanos, out: Outbox) -> None:
        core = self._core
        checkpoint = self._snapshot_receiver.chunk(peer, frame, now, out)
        if checkpoint is None or self._image is not None:
            return
        suspended = bool(core.delivery.suspended)
        beyond = checkpoint.begin.index > core.log.last
        # Our log ends before it and has a later term: it belongs to a side that lost. But a current leader has won.
        leads = peer.name == core.leadership.leader
        lost = beyond and checkpoint.begin.term < core.log.tail.term and not leads
        # rule: 11a
        takes = (suspended or beyond) and not lost
        if (
            checkpoint.group_epoch != core.group_epoch
            or checkpoint.index < self._least()
            or not takes
        ):
            # Messages delivered after it would be delivered again.
            core.ignore("old state")
            self._go_on()
            needed = suspended or checkpoint.index > core.log.last
            self._rejoin_ns = self._rejoin_ns if needed else NEVER
            self._snapshot_receiver.forget()
            return
        self._take(checkpoint, now, out)

    def _has_come_to(self, place: CursorState) -> bool:
        """Whether our log contains exactly this entry."""
        return self._core.log.term_at(place.index) == place.term

    def _take(self, checkpoint: Checkpoint, now: Nanos, out: Outbox) -> None:
        """Restore the application from a snapshot, if that is possible already."""
        core = self._core
        core.delivery.paused = True
        # rule: 11p
        if checkpoint.ground is None or self._has_come_to(checkpoint.at):
            self._image, self._awaited = checkpoint, None
            self._put_in(checkpoint, out)
            return
        self._awaited = checkpoint
        self._rejoin_ns = now + core.config.rejoin_ns
        begins = checkpoint.ground.index > core.log.ground.index and not self._has_come_to(
            checkpoint.ground
        )
        if begins or not core.delivery.suspended:
            ahead = checkpoint.index - checkpoint.ground.index
            why = f"its snapshot is {ahead} entries ahead of the commit index"
            delivered = core.delivery.undo(why, checkpoint.ground.cursor())
            self._lost = self._lost or delivered
        if begins:
            self._begin_log(checkpoint.ground.cursor(), checkpoint, out)
        core.fact(
            "awaits",
            f"the order up to entry {checkpoint.index}, before it can restore its snapshot",
            now,
            out,
        )

    def _begin_log(self, at: Cursor, checkpoint: Checkpoint, out: Outbox) -> None:
        """The log continues from here."""
        core = self._core
        # rule: 11c
        if at.term > core.leadership.term:
            core.new_term(at.term)  # the provider knows a leader that we do not know
        emptied = core.log.restart(at)
        core.recovery.forget()
        core.streams.forget_over(at)
        # rule: 11i
        if emptied:
            core.streams.need_all()
        for stream in core.streams.streams.values():
            stream.drop_below(at.next.get(stream.id, 1))
            core.streams.changed[stream.id] = None
        self._follower.restarted()
        if core.journal is not None:
            core.journal.begin_again(at, encode_checkpoint(checkpoint), emptied, out)

    def _put_in(self, checkpoint: Checkpoint, out: Outbox) -> None:
        effect = RestoreState(
            replica_unit(self._core.config.name), checkpoint.index, checkpoint.state
        )
        out.effect(effect, immediate=True)

    def restored(self, item: Restored, now: Nanos, out: Outbox) -> None:
        """The application is restored: continue from the index of the snapshot."""
        core = self._core
        checkpoint, self._image = self._image, None
        if checkpoint is None or checkpoint.index != item.index:
            return
        if checkpoint.ground is not None and not self._has_come_to(checkpoint.at):
            # The log was truncated meanwhile.
            self._take(checkpoint, now, out)
            return
        cursor = checkpoint.at.cursor()
        # rule: 11q
        self._report_lost(cursor, now, out)
        core.delivery.restart(cursor, checkpoint.digest, checkpoint.outputs)
        stored = core.journal is not None and checkpoint.begin.index == core.journal.state_index
        if checkpoint.ground is None and not stored:
            self._begin_log(cursor, checkpoint, out)
        self._givers_tried = 0
        self._rejoin_ns = NEVER
        what = "own state" if stored else f"{len(checkpoint.state)} bytes"
        core.fact("restored", f"{what} at position {cursor.position}", now, out)

    def deadline(self) -> Nanos:
        return min(self._rejoin_ns, self._snapshot_receiver.deadline())
