"""The leader's part in the order: what has arrived without a gap becomes entries, one per stream and turn.

The leader orders only what it holds, and entries are ranges: its work does not grow with the number of messages.
"""

from __future__ import annotations

from typing import Final

from holdfast.group.config import GroupConfig
from holdfast.group.log import Kind, Log
from holdfast.group.streams import Stream, Streams
from holdfast.machine import Outbox
from holdfast.telemetry.facts import OrderFact
from holdfast.types import Nanos
from holdfast.wire.frames import Entry, StreamId

KIND_NAMES: Final = {kind.value: kind.name.lower() for kind in Kind}


class Order:
    """Makes entries. Nothing here knows who leads or for how long: `begin` is called when a term begins."""

    __slots__ = ("_ahead_ns", "_config", "_log", "_ready", "_streams", "_term")

    def __init__(self, config: GroupConfig, log: Log, streams: Streams) -> None:
        self._config = config
        self._log = log
        self._streams = streams
        self._term = 0
        self._ahead_ns = 0
        """What is added to this node's clock, so that log time goes on from where the last leader's clock was."""
        self._ready: dict[StreamId, None] = {}

    def begin(self, term: int, now: Nanos, out: Outbox) -> None:
        """A term begins. Its first entry is what commits everything that earlier terms left behind."""
        self._term = term
        self._ahead_ns = max(0, self._log.tail.log_ns - now)
        self._ready = dict.fromkeys(self._streams.streams)
        self._append(Kind.TERM, None, 0, 0, "", now, out)

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
        label = f"{stream.source.hex()}/{stream.incarnation}/{stream.stream}" if stream else ""
        self._append(kind, stream, first, last, label, now, out, data)

    def note(self, stream: StreamId) -> None:
        """Something new is held of the stream: look at it at the end of the turn."""
        self._ready[stream] = None

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
        first = self._log.tail.next.get(stream.id, stream.origin)
        stop = stream.held.first_missing(first)
        while first < stop:
            if len(self._log) >= self._config.log_entries:
                return False
            last = stream.cut(first, stop, self._config.entry_bytes)
            self._append(Kind.ORDER, stream.id, first, last, stream.label, now, out)
            first = last + 1
        return True

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
        log_ns = now + self._ahead_ns
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
