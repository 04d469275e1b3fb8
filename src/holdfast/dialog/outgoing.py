"""The sending side of a dialog: numbers, the send buffer, acknowledgement, retransmission, the partner's window.

Messages are kept as runs: what one turn captured, up to 64 KB, is one run with one body, from the store to the wire.
A run is *queued* until it is transmitted and *in flight* until it is acknowledged. With at-least-once delivery it is
freed by acknowledgement, otherwise by transmission.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from xxhash import xxh3_64_intdigest

from holdfast.dialog.place import Place
from holdfast.machine import RangeSet
from holdfast.types import MILLISECOND, NEVER, SECOND, Nanos
from holdfast.wire.blocks import Buffer, pack_block, unpack_block
from holdfast.wire.codec import Rejected

RUN_BYTES: Final = 64 << 10
RUN_MESSAGES: Final = 1024
RETRY_FIRST: Final = 3 * SECOND
"""Wait for the first acknowledgement, before a round trip was measured."""
RETRY_MIN: Final = 1 * SECOND
"""Acknowledgements wait for the receiver's disk, whose worst case is far above its average."""
RETRY_MAX: Final = 60 * SECOND
BACKOFF_MAX: Final = 6


class Run:
    """Messages `first` to `stop` as one block."""

    __slots__ = (
        "after", "body", "check", "due", "first", "place", "sends", "sent_at", "size", "stop",
    )  # fmt: skip

    def __init__(self, first: int, stop: int, body: bytes, due: int = 0, after: int = 0) -> None:
        self.first = first
        self.stop = stop
        self.body = body
        self.size = len(body)
        self.check = xxh3_64_intdigest(body)
        self.place = Place()
        self.due = due
        self.after = after
        self.sent_at: Nanos = 0
        self.sends = 0

    @property
    def count(self) -> int:
        return self.stop - self.first

    def messages(self) -> list[memoryview]:
        messages = unpack_block(self.body)
        assert not isinstance(messages, Rejected), "a run holds a block that this node made"
        return messages

    def part(self, first: int, stop: int) -> Run:
        """A run of only some of the messages; it lies in the same block of the store."""
        messages = self.messages()[first - self.first : stop - self.first]
        run = Run(first, stop, pack_block(messages), self.due, self.after)
        run.place, run.sends, run.sent_at = self.place, self.sends, self.sent_at
        return run


class Outgoing:
    """What this end has sent and still keeps."""

    __slots__ = (
        "acked", "acknowledges", "backoff", "buffered", "buffered_bytes", "flight", "flight_bytes", "limit", "lowest",
        "mean_ns", "next", "queue", "resent", "spread_ns", "timed", "top",
    )  # fmt: skip

    def __init__(self, acknowledges: bool) -> None:
        self.acknowledges = acknowledges
        self.next = 0
        """The number of the next message."""
        self.limit = 0
        """The partner takes numbers below this one."""
        self.acked = RangeSet()
        self.lowest = 0
        """No number below is sent again."""
        self.top = 0
        """No number from here on was transmitted, as far as this process knows."""
        self.queue: deque[Run] = deque()
        self.flight: dict[int, Run] = {}
        self.flight_bytes = 0
        self.buffered = 0
        self.buffered_bytes = 0
        self.mean_ns: Nanos = 0
        self.spread_ns: Nanos = 0
        self.backoff = 0
        self.timed = False
        """Some message has a time to live."""
        self.resent = 0
        """Messages transmitted more than once without a new link session."""

    # -- capture -------------------------------------------------------------------------------------------------

    def capture(self, bodies: Sequence[Buffer], due: int = 0, after: int = 0) -> list[Run]:
        """Number messages and queue them. The runs must be stored before they are transmitted."""
        runs: list[Run] = []
        ends = list(accumulate(map(len, bodies)))
        start = before = 0
        while start < len(bodies):
            # As many as fit, and at least one.
            stop = bisect_right(
                ends, before + RUN_BYTES, start, min(len(ends), start + RUN_MESSAGES)
            )
            stop = max(stop, start + 1)
            runs.append(self._queue(bodies[start:stop], due, after))
            start, before = stop, ends[stop - 1]
        return runs

    def _queue(self, bodies: Sequence[Buffer], due: int, after: int) -> Run:
        run = Run(self.next, self.next + len(bodies), pack_block(bodies), due, after)
        self.next = run.stop
        self._add(run)
        return run

    def _add(self, run: Run) -> None:
        self.timed = self.timed or bool(run.due)
        self.queue.append(run)
        self.buffered += run.count
        self.buffered_bytes += run.size

    def restore(self, run: Run) -> None:
        """A run that the store had. Numbers that were acknowledged are left out; the caller adds in order."""
        self.next = max(self.next, run.stop)
        for first, stop in self.acked.missing(max(run.first, self.lowest), run.stop):
            part = run if (first, stop) == (run.first, run.stop) else run.part(first, stop)
            self._add(part)

    # -- transmission --------------------------------------------------------------------------------------------

    def transmit(self, now: Nanos) -> Run:
        """The next run, cut at the partner's window; it is in flight from now on, or free without acknowledgements."""
        run = self.queue.popleft()
        if run.stop > self.limit:
            self.queue.appendleft(run.part(self.limit, run.stop))
            run = run.part(run.first, self.limit)
            # The two parts have block heads of their own.
            self.buffered_bytes = sum(r.size for r in self.queue) + run.size
            self.buffered_bytes += sum(r.size for r in self.flight.values())
        run.sent_at = now
        run.sends += 1
        self.top = max(self.top, run.stop)
        # rule: D-2a
        if self.acknowledges:
            self.flight[run.first] = run
            self.flight_bytes += run.size
        else:
            self._free(run)
            self.lowest = run.stop
        return run

    def requeue(self) -> None:
        """A new link session: what is in flight may be lost, and goes first."""
        if not self.flight:
            return
        # rule: D-20f
        runs = sorted((*self.flight.values(), *self.queue), key=lambda run: run.first)
        self.flight.clear()
        self.flight_bytes = 0
        self.queue = deque(runs)
        self.backoff = 0

    def overdue(self, now: Nanos) -> list[Run]:
        """Runs whose acknowledgement is late, oldest first. They are queued again."""
        wait = self.wait_ns()
        late = [run for run in self.flight.values() if now - run.sent_at >= wait]
        if late:
            for run in late:
                del self.flight[run.first]
                self.flight_bytes -= run.size
                self.resent += run.count
            self.queue = deque(sorted((*late, *self.queue), key=lambda run: run.first))
            # rule: D-20e
            self.backoff = min(self.backoff + 1, BACKOFF_MAX)
        return late

    def retry_at(self) -> Nanos:
        """When the oldest acknowledgement is late; `NEVER` with nothing in flight."""
        if not self.flight:
            return NEVER
        return min(run.sent_at for run in self.flight.values()) + self.wait_ns()

    def wait_ns(self) -> Nanos:
        wait = RETRY_FIRST
        if self.mean_ns:
            wait = max(RETRY_MIN, self.mean_ns + 4 * self.spread_ns)
        return min(wait << self.backoff, RETRY_MAX)

    def _measured(self, ns: Nanos) -> None:
        """As TCP smooths it (RFC 6298)."""
        ns = max(ns, MILLISECOND // 8)
        if not self.mean_ns:
            self.mean_ns, self.spread_ns = ns, ns // 2
            return
        self.spread_ns += (abs(ns - self.mean_ns) - self.spread_ns) // 4
        self.mean_ns += (ns - self.mean_ns) // 8

    # -- acknowledgement -----------------------------------------------------------------------------------------

    def valid(self, ranges: list[int]) -> bool:
        """Whether a list of ranges is sorted, disjoint and within what was sent."""
        if len(ranges) % 2:
            return False
        last = -1
        for start, stop in zip(ranges[::2], ranges[1::2], strict=True):
            if start <= last or stop <= start:
                return False
            last = stop
        return not ranges or (ranges[0] >= 0 and last <= self.next)

    def credible(self, ranges: list[int]) -> bool:
        """Whether valid ranges list nothing that was never transmitted. Those of a resume may: an earlier process may
        have transmitted more than this one knows."""
        return not ranges or ranges[-1] <= self.top

    def acknowledge(self, ranges: list[int], now: Nanos = 0) -> list[Run]:
        """Free what the partner's store has. The ranges were found valid."""
        if not self.acknowledges or not ranges:
            return []
        before = self.acked.first_missing(0)
        for start, stop in zip(ranges[::2], ranges[1::2], strict=True):
            if stop > before:
                self.acked.add(start, stop)
        top = ranges[-1]
        self.top = max(self.top, top)
        freed: list[Run] = []
        sample = 0
        for run in [run for run in self.flight.values() if run.first < top]:
            # rule: D-2d
            if self.acked.covers(run.first, run.stop):
                del self.flight[run.first]
                self.flight_bytes -= run.size
                freed.append(run)
                # rule: D-20b
                if run.sends == 1 and now:
                    sample = max(sample, now - run.sent_at)
        if self.queue and self.queue[0].first < top:
            kept: deque[Run] = deque()
            for run in self.queue:
                (freed if self.acked.covers(run.first, run.stop) else kept).append(run)
            self.queue = kept
        for run in freed:
            self._free(run)
        if freed:
            self.backoff = 0
            if sample:
                self._measured(sample)
        self.lowest = self.acked.first_missing(self.lowest)
        return freed

    def trimmed(self, run: Run) -> list[Run]:
        """A run to be transmitted again, without what was acknowledged in the meantime."""
        missing = list(self.acked.missing(run.first, run.stop))
        if missing == [(run.first, run.stop)]:
            return [run]
        return [run.part(first, stop) for first, stop in missing]

    def _free(self, run: Run) -> None:
        self.buffered -= run.count
        self.buffered_bytes -= run.size

    def drop_expired(self, wall: int) -> list[Run]:
        """Without at-least-once: queued runs whose time to live is over. They are never sent."""
        dropped = [run for run in self.queue if run.due and run.due <= wall]
        if dropped:
            self.queue = deque(run for run in self.queue if not run.due or run.due > wall)
            for run in dropped:
                self._free(run)
            self.lowest = self.queue[0].first if self.queue else self.next
        return dropped

    def runs(self) -> list[Run]:
        """Everything buffered, by number."""
        return sorted((*self.flight.values(), *self.queue), key=lambda run: run.first)

    def clear(self) -> list[Run]:
        """Forget everything; gives what was buffered."""
        runs = self.runs()
        self.flight.clear()
        self.queue.clear()
        self.buffered = self.buffered_bytes = self.flight_bytes = 0
        return runs
