"""Ordering by the leader: contiguous messages become entries, one per stream and turn.

The leader orders only what it holds, and entries are ranges, so its work does not grow with the number of messages.
Only if something is ignored, or messages have request ids, it examines each message. Dropped numbers are skipped ranges
in the order, so every number of a stream is covered once.
"""

from __future__ import annotations

from typing import Final

from holdfast.group.config import GroupConfig
from holdfast.group.frames import Entry, StreamId
from holdfast.group.log.entries import Opened, Ordered, Resumed, Skipped, encode_data
from holdfast.group.log.replicated_log import Kind, Log
from holdfast.group.loss.criteria import Run, sort_out
from holdfast.group.outputs.output_buffer import ApplyWindow
from holdfast.group.streams.stream_buffer import Stream, Streams, label_of
from holdfast.machine import Outbox, RangeSet
from holdfast.telemetry.facts import OrderFact
from holdfast.types import Nanos
from holdfast.wire.blocks import MESSAGES_MAX

KIND_NAMES: Final = {kind.value: kind.name.lower() for kind in Kind}


class Order:
    """Creates entries, independent of leadership: `begin` is called when a term starts."""

    __slots__ = (
        "_apply_window",
        "_config",
        "_log",
        "_ready",
        "_streams",
        "_term",
        "ahead_ns",
        "verdicts",
    )

    def __init__(
        self, config: GroupConfig, log: Log, streams: Streams, apply_window: ApplyWindow
    ) -> None:
        self._config = config
        self._log = log
        self._streams = streams
        self._apply_window = apply_window
        self._term = 0
        self.ahead_ns = 0
        """The offset of log time from the clock of this node, so that it continues from the last stamp of the previous
        leader."""
        self._ready: dict[StreamId, None] = {}
        self.verdicts: dict[StreamId, dict[bytes, RangeSet]] = {}
        """Decisions about numbers that the order has not reached yet: the contents of their `SKIP`."""

    def begin(self, term: int, now: Nanos, out: Outbox) -> None:
        """A term starts. Its first entry commits everything that earlier terms left behind."""
        self._term = term
        # rule: 4c
        self.ahead_ns = self._log.tail.log_ns - now
        self._ready = dict.fromkeys(self._streams.streams)
        # rule: 4b
        self.verdicts.clear()
        # rule: 6m
        self._append(Kind.TERM, None, 0, 0, "", now, out)

    def log_ns(self, now: Nanos) -> Nanos:
        """The log time of the next entry. The log may continue from a snapshot that is ahead of it: a leader without a
        state installs that of another replica."""
        self.ahead_ns = max(self.ahead_ns, self._log.tail.log_ns - now)
        return now + self.ahead_ns

    def append(
        self,
        kind: Kind,
        stream: StreamId | None,
        first: int,
        last: int,
        data: bytes,
        now: Nanos,
        out: Outbox,
    ) -> None:
        """An entry that does not order messages: a view, or a decision about lost messages."""
        label = label_of(stream) if stream else ""
        self._append(kind, stream, first, last, label, now, out, data)

    def note(self, stream: StreamId) -> None:
        """Something new is held of the stream: check it at the end of the turn."""
        self._ready[stream] = None

    def skip(self, stream: StreamId, first: int, last: int, why: Skipped) -> None:
        """Missing numbers that are not to be delivered: skipped when the order reaches them."""
        reasons = self.verdicts.setdefault(stream, {})
        reasons.setdefault(encode_data(why), RangeSet()).add(first, last + 1)
        self.note(stream)
        # rule: 1g
        self._streams.look_at(stream)

    def is_decided(self, stream: StreamId, first: int, last: int) -> bool:
        return any(
            ranges.covers(first, last + 1) for ranges in self.verdicts.get(stream, {}).values()
        )

    def turn(self, now: Nanos, out: Outbox) -> None:
        """Order what has become contiguous. What finds the log full is checked again when there is room."""
        ready, self._ready = self._ready, {}
        for stream_id in ready:
            stream = self._streams.get(stream_id)
            if stream is None or self._log.tail.is_over(stream_id):
                continue
            if not self._order(stream, now, out):
                self._ready[stream_id] = None

    def _order(self, stream: Stream, now: Nanos, out: Outbox) -> bool:
        """Order what is contiguous of one stream; False if the log is full."""
        log = self._log
        first = log.tail.next.get(stream.id, stream.origin)
        while True:
            # rule: 1i
            stop = stream.held.first_missing(first)
            if first == stop and not self._has_verdict(stream.id, first):
                return True
            if len(log) >= self._config.log_entries:
                return False
            if stream.id not in log.tail.next:
                opened = encode_data(Opened(stream.id, first))
                self._append(Kind.OPEN, None, 0, 0, stream.label, now, out, opened)
            if first == stop:
                first = self._skip(stream, first, now, out)
            elif stream.noted or log.tail.metadata.criteria:
                first = self._order_each(stream, first, stop, now, out)
            else:
                last = self._cut(stream, first, stop)
                self._append(Kind.ORDER, stream.id, first, last, stream.label, now, out)
                first = last + 1

    def _cut(self, stream: Stream, first: int, stop: int) -> int:
        """The last number of an entry that starts with `first`. Applications are called once per entry, so their
        outputs cannot be stopped halfway."""
        return min(
            stream.cut(first, stop, self._config.entry_bytes), first + self._apply_window.batch - 1
        )

    # -- skipped messages ----------------------------------------------------------------------------------------

    def _has_verdict(self, stream: StreamId, number: int) -> bool:
        reasons = self.verdicts.get(stream)
        return reasons is not None and any(number in ranges for ranges in reasons.values())

    def _skip(self, stream: Stream, first: int, now: Nanos, out: Outbox) -> int:
        """Skip a decided range, up to what is held: messages that arrived in the meantime are not lost."""
        reasons = self.verdicts[stream.id]
        why, ranges = next(item for item in reasons.items() if first in item[1])
        end = min(ranges.first_missing(first), first + MESSAGES_MAX)
        _, missing_end = next(stream.held.missing(first, end))
        last = missing_end - 1
        self._append(Kind.SKIP, stream.id, first, last, stream.label, now, out, why)
        ranges.remove(0, last + 1)
        if not ranges:
            del reasons[why]
            if not reasons:
                del self.verdicts[stream.id]
        return last + 1

    def _order_each(self, stream: Stream, first: int, stop: int, now: Nanos, out: Outbox) -> int:
        """Order or skip messages one by one, as far as one entry may reach."""
        stop = self._cut(stream, first, stop) + 1
        metadata = self._log.tail.metadata
        runs = sort_out(
            stream.id,
            stream.pieces(first, stop - 1),
            first,
            stop,
            metadata.criteria,
            metadata.requests,
            self._config.priorities,
        )
        for run in runs:
            self._append_run(stream, run, now, out)
            if len(self._log) >= self._config.log_entries:
                return run.last + 1
        return stop

    def _append_run(self, stream: Stream, run: Run, now: Nanos, out: Outbox) -> None:
        for criterion in run.resumed:
            self.resume(criterion, "resync", now, out)
        if run.repeat or run.criterion:
            skipped = Skipped("repeat") if run.repeat else Skipped("ignored", run.criterion)
            kind, data = Kind.SKIP, encode_data(skipped)
        else:
            plain = not run.requests and not run.zone
            kind, data = Kind.ORDER, b"" if plain else encode_data(Ordered(run.requests, run.zone))
        self._append(kind, stream.id, run.first, run.last, stream.label, now, out, data)
        held = self._log.tail.metadata.criteria.get(run.criterion)
        if held is not None and held[1] < 0:
            self.resume(run.criterion, "used up", now, out)

    def resume(self, criterion: int, why: str, now: Nanos, out: Outbox) -> None:
        """A criterion ends."""
        self._append(Kind.RESUME, None, 0, 0, "", now, out, encode_data(Resumed(criterion, why)))

    # -- entries -------------------------------------------------------------------------------------------------

    def _append(
        self,
        kind: Kind,
        stream: StreamId | None,
        first: int,
        last: int,
        label: str,
        now: Nanos,
        out: Outbox,
        data: bytes = b"",
    ) -> None:
        tail = self._log.tail
        log_ns = self.log_ns(now)
        entry = Entry(
            self._term, tail.index + 1, tail.position, log_ns, kind.value, stream, first, last, data
        )
        self._log.append(entry)
        out.fact(
            OrderFact(
                now, self._config.name, entry.term, entry.index, KIND_NAMES[entry.kind],
                entry.position, label, first, last, self._log.epoch,
            )
        )  # fmt: skip
