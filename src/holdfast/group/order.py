"""The leader's part in the order: what has arrived without a gap becomes entries, one per stream and turn.

The leader orders only what it holds, and entries are ranges: its work does not grow with the number of messages. Where
something is ignored, or messages carry request ids, it looks at each message, and only then. Numbers that were decided
to be dropped stand in the order as ranges that are skipped, so every number of a stream is covered once.
"""

from __future__ import annotations

from typing import Final

from holdfast.group.config import GroupConfig
from holdfast.group.criteria import Run, sort_out
from holdfast.group.entries import Opened, Ordered, Resumed, Skipped, encode_data
from holdfast.group.keeping import Pace
from holdfast.group.log import Kind, Log
from holdfast.group.streams import Stream, Streams, label_of
from holdfast.machine import Outbox, RangeSet
from holdfast.telemetry.facts import OrderFact
from holdfast.types import Nanos
from holdfast.wire.blocks import MESSAGES_MAX
from holdfast.wire.frames import Entry, StreamId

KIND_NAMES: Final = {kind.value: kind.name.lower() for kind in Kind}


class Order:
    """Makes entries. Nothing here knows who leads or for how long: `begin` is called when a term begins."""

    __slots__ = ("_config", "_log", "_pace", "_ready", "_streams", "_term", "ahead_ns", "verdicts")

    def __init__(self, config: GroupConfig, log: Log, streams: Streams, pace: Pace) -> None:
        self._config = config
        self._log = log
        self._streams = streams
        self._pace = pace
        self._term = 0
        self.ahead_ns = 0
        """What is added to this node's clock, or taken from it, so that log time goes on from the last stamp of the
        leader before: its machine has been up for longer, or shorter."""
        self._ready: dict[StreamId, None] = {}
        self.verdicts: dict[StreamId, dict[bytes, RangeSet]] = {}
        """What was decided about numbers that the order has not come to yet: by what their `SKIP` is to say."""

    def begin(self, term: int, now: Nanos, out: Outbox) -> None:
        """A term begins. Its first entry is what commits everything that earlier terms left behind."""
        self._term = term
        self.ahead_ns = self._log.tail.log_ns - now
        self._ready = dict.fromkeys(self._streams.streams)
        self.verdicts.clear()
        self._append(Kind.TERM, None, 0, 0, "", now, out)

    def log_ns(self, now: Nanos) -> Nanos:
        """Log time, as the next entry will be stamped. The log may go on from a state that is ahead of it: one that
        leads without a state takes that of another."""
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
        """An entry that is not the plain order of messages: a view, or a decision about what is lost."""
        label = label_of(stream) if stream else ""
        self._append(kind, stream, first, last, label, now, out, data)

    def note(self, stream: StreamId) -> None:
        """Something new is held of the stream: look at it at the end of the turn."""
        self._ready[stream] = None

    def skip(self, stream: StreamId, first: int, last: int, why: Skipped) -> None:
        """Numbers that are missing, and that nobody is to deliver: skipped when the order comes to them."""
        reasons = self.verdicts.setdefault(stream, {})
        reasons.setdefault(encode_data(why), RangeSet()).add(first, last + 1)
        self.note(stream)
        self._streams.look_at(stream)

    def is_decided(self, stream: StreamId, first: int, last: int) -> bool:
        return any(
            ranges.covers(first, last + 1) for ranges in self.verdicts.get(stream, {}).values()
        )

    def turn(self, now: Nanos, out: Outbox) -> None:
        """Order what has become contiguous. What finds the log full is looked at again when there is room."""
        ready, self._ready = self._ready, {}
        for stream_id in ready:
            stream = self._streams.get(stream_id)
            if stream is None or self._log.tail.is_over(stream_id):
                continue
            if not self._order(stream, now, out):
                self._ready[stream_id] = None

    def _order(self, stream: Stream, now: Nanos, out: Outbox) -> bool:
        """Order what is contiguous of one stream; False when the log is full."""
        log = self._log
        first = log.tail.next.get(stream.id, stream.origin)
        while True:
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
            elif stream.noted or log.tail.rulings.criteria:
                first = self._order_each(stream, first, stop, now, out)
            else:
                last = self._cut(stream, first, stop)
                self._append(Kind.ORDER, stream.id, first, last, stream.label, now, out)
                first = last + 1

    def _cut(self, stream: Stream, first: int, stop: int) -> int:
        """The last number of an entry that begins with `first`. Applications are called once for each, so what they
        say about it cannot be stopped halfway."""
        return min(stream.cut(first, stop, self._config.entry_bytes), first + self._pace.batch - 1)

    # -- what nobody delivers ------------------------------------------------------------------------------------

    def _has_verdict(self, stream: StreamId, number: int) -> bool:
        reasons = self.verdicts.get(stream)
        return reasons is not None and any(number in ranges for ranges in reasons.values())

    def _skip(self, stream: Stream, first: int, now: Nanos, out: Outbox) -> int:
        """Skip a range that was decided, up to what is held: what has come in the meantime is not lost."""
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
        rulings = self._log.tail.rulings
        runs = sort_out(
            stream.id,
            stream.pieces(first, stop - 1),
            first,
            stop,
            rulings.criteria,
            rulings.requests,
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
            kind, data = Kind.ORDER, encode_data(Ordered(run.requests)) if run.requests else b""
        self._append(kind, stream.id, run.first, run.last, stream.label, now, out, data)
        held = self._log.tail.rulings.criteria.get(run.criterion)
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
                entry.position, label, first, last,
            )
        )  # fmt: skip
