"""Freeing of messages and log entries that no replica needs.

An entry is needed until the application of every member has processed it: until then a member may ask for it and for
its messages. `LogStability` determines the progress of all members, and every replica frees its own log and buffers
(`GarbageCollector`). The leader watches for members that block the others (`AppliedTracker`), and informs the sources
(`announcements`). In `availability` groups the leader's account decides instead, and the replicas free what it
announces.

An unreachable member blocks the others until buffers are tight; then the leader suspends it, and it installs a snapshot
when it is back. A reachable but slow member slows the sources down; it is suspended only if its application makes no
progress for long.

A member that installs a snapshot needs everything ordered since that snapshot. The log is therefore kept for it from
its pin on, and full buffers slow the sources down, for at most `patience_ns`. Each unsuccessful attempt doubles the
time until the log is kept for it again.
"""

from __future__ import annotations

from typing import Final

from holdfast.group.consensus.replication import Progress
from holdfast.group.core import Core
from holdfast.group.delivery import Delivery
from holdfast.group.frames import Freed, StreamId
from holdfast.group.log.announcements import STREAMS_PER_FRAME, Announcer
from holdfast.group.log.replicated_log import Log
from holdfast.group.streams.stream_buffer import Streams
from holdfast.machine import Outbox
from holdfast.types import SECOND, Nanos

MISSES_MAX: Final = 3
"""Each failure to rejoin in time doubles the time in which a replica is not waited for, up to this many times."""


class GarbageCollector:
    """Frees messages and entries that every replica has applied."""

    def __init__(self, log: Log, streams: Streams, delivery: Delivery) -> None:
        self._log = log
        self._streams = streams
        self._delivery = delivery
        self._upto: dict[StreamId, int] = {}
        self.index = 0
        """Entries up to here are free, including those without messages."""

    def release(self, index: int) -> None:
        """No other member needs anything up to this entry."""
        if index > self.index:
            self.index = index
            self._trim()

    def take(self, frame: Freed) -> None:
        """The leader announces what is free. What was not delivered here is still kept."""
        self.index = max(self.index, frame.index)
        known = self._delivery.at.next
        for stream, number in frame.upto[:STREAMS_PER_FRAME]:
            if stream in known or self._delivery.at.is_over(stream):
                self._upto[stream] = max(number, self._upto.get(stream, 0))
                self._drop(stream)
        self._trim()

    def _drop(self, stream: StreamId) -> None:
        found = self._streams.get(stream)
        # Entries delivered before they were committed may be rolled back, and are read again then.
        # rule: 11e
        if found is not None and self._delivery.at.index <= self._log.commit:
            upto = self._upto[stream] + 1
            found.drop_below(min(upto, self._delivery.at.next.get(stream, upto)))

    def _trim(self) -> None:
        """Remove entries from the oldest on, as long as they are free and were delivered here."""
        log = self._log
        free = log.ground.index
        gone: dict[StreamId, int] = {}
        for index in range(free + 1, min(self._delivery.at.index, log.commit) + 1):
            entry = log.entry(index)
            if index > self.index and (
                entry.stream is None or entry.last > self._upto.get(entry.stream, 0)
            ):
                break
            free = index
            if entry.stream is not None:
                gone[entry.stream] = entry.last
        log.trim(free)
        for stream, last in gone.items():
            found = self._streams.get(stream)
            if found is not None:
                found.drop_below(last + 1)
        self._streams.forget_over(log.ground)
        if len(self._upto) > 2 * STREAMS_PER_FRAME:
            known = log.ground.next
            self._upto = {
                stream: number for stream, number in self._upto.items() if stream in known
            }


class AppliedTracker:
    """The applied indexes of all replicas, as known to the leader."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._config = core.config
        self._node = core.node
        self._log = core.log
        self._streams = core.streams
        self._delivery = core.delivery
        self._peers = core.peers
        self._announcer = Announcer(core)
        self._look_ns = 0
        """Not every turn needs a check of all streams."""
        self._full_ns = 0
        """When outputs were last refused: all applications wait then, so none of them counts as hanging."""

    def settle(self, progress: dict[str, Progress], now: Nanos, out: Outbox) -> dict[str, str]:
        """Free what all have applied and announce it, at a limited rate. Returns the replicas that block the others for
        too long, and why."""
        free = self._needed_by_no_member(progress, now, out)
        behind: dict[str, str] = {}
        if self._delivery.output_buffer.full:
            self._full_ns = now
        if free < self._delivery.applied and now >= self._look_ns:
            self._look_ns = now + self._config.free_period_ns
            behind = self._behind(progress, free, now)
        self._announcer.note_held()
        if free > self._log.ground.index:
            self._free(free)
        self._announcer.settle(free, now, out)
        return behind

    def _needed_by_no_member(self, progress: dict[str, Progress], now: Nanos, out: Outbox) -> int:
        """Up to where no applying member and no member that installs a snapshot needs the log."""
        stability = self._core.stability
        if stability is not None and stability.active:
            return min(stability.index, self._delivery.applied, self._log.commit)
        free = self._applied_by_all(progress)
        for other in progress.values():
            # rule: 8g
            if other.member.suspended:
                free = min(free, self._kept_for(other, free, now, out))
            else:
                other.held = -1
        return free

    def _kept_for(self, other: Progress, free: int, now: Nanos, out: Outbox) -> int:
        """Up to where nothing is kept for a suspended replica: it is waited for temporarily."""
        patience_ns = self._config.patience_ns
        if not self._peers.is_here(other.member) or now < other.out_until_ns:
            other.held = -1
            return free
        if other.held < 0:
            if other.next > self._log.ground.index:
                return free  # its log continues: it keeps what it will need itself
            other.held, other.held_ns = free, now
        elif now - other.held_ns >= patience_ns:
            other.held = -1
            other.out_until_ns = now + (patience_ns << other.misses)
            other.misses = min(other.misses + 1, MISSES_MAX)
            detail = f"{other.member.name} did not rejoin in time and is no longer waited for"
            self._core.fact("left behind", detail, now, out)
            return free
        # Once it has a snapshot, it does not request again what its log contains.
        return other.held if other.why else max(other.held, other.match)

    def _applied_by_all(self, progress: dict[str, Progress]) -> int:
        """By every member of the committed view that is not suspended (rule 6 in docs/design/groups.md)."""
        applied = min(self._delivery.applied, self._log.commit)
        view = self._log.committed_view
        # A side that continues alone cannot suspend the other one. It keeps what the other lacks while there is room,
        # so that it can be ordered again if the other side wins.
        waits = self._config.mode == "majority" or not self._core.is_tight
        for member in view.members if view is not None else ():
            if member.suspended or member.name == self._core.name:
                continue
            other = progress.get(member.name)
            if other is None:
                # An uncommitted change removes it: until that is committed, keep everything that it may ask for.
                # rule: 6d
                return self._log.ground.index
            if not waits and not self._peers.is_here(member):
                continue
            applied = min(applied, other.applied)
        return applied

    def _behind(self, progress: dict[str, Progress], free: int, now: Nanos) -> dict[str, str]:
        """Replicas that block all others and need not be waited for, if room is needed."""
        if not self._core.is_tight:
            return {}
        slow = {name: other for name, other in progress.items() if other.applied <= free}
        gone = {name: self._why(other, now) for name, other in slow.items()}
        return {name: why for name, why in gone.items() if why}

    def _why(self, other: Progress, now: Nanos) -> str:
        """Why a replica need not be waited for; empty if it must be."""
        if not self._peers.is_here(other.member):
            return "it is unreachable"
        if now - other.heard_ns >= self._config.lack_ns:
            return f"it has not answered for {(now - other.heard_ns) // SECOND} s"
        stands_ns = now - max(other.moved_ns, self._full_ns)
        if stands_ns >= self._config.patience_ns:
            return f"its application has made no progress for {stands_ns // SECOND} s"
        return ""

    def _free(self, upto: int) -> None:
        log = self._log
        unsaid = self._announcer.note_applied(upto)
        log.trim(upto)
        for stream, number in unsaid.items():
            found = self._streams.get(stream)
            if found is not None:
                found.drop_below(number + 1)
        self._streams.forget_over(log.ground)

    def deadline(self) -> Nanos:
        return self._announcer.deadline()
