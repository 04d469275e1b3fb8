"""The message log of a group on one node: received messages on disk, for recovery when no buffer has them.

It is optional and bounded: a ring of tables in the node's store; when a new table is started, the oldest is cleared. It
guarantees nothing: a message may be delivered before it is logged. It is a separate unit because an acknowledgement of
the replica must not wait for it.

The index of numbers per table is in memory. Messages are read from the store on request, one table at a time.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, ClassVar, Final

from holdfast.group.config import GroupConfig, log_unit, replica_unit
from holdfast.group.frames import LossQuery, LossReply, Nack, Payload, StreamId
from holdfast.group.log.replicated_log import NUMBER_MAX
from holdfast.group.peers import post
from holdfast.group.streams.stream_buffer import is_sound_payload
from holdfast.group.streams.values import LogRequest
from holdfast.links.ports import Received
from holdfast.machine import Erase, Machine, Outbox, Put, RangeSet, ReadTable, TableRead
from holdfast.types import Nanos, NodeId
from holdfast.wire.codec import Rejected, decode_frame, encode
from holdfast.wire.frames import Frame

TABLES: Final = 16
"""The ring: a sixteenth of the log is cleared at a time."""
RANGES_MAX: Final = 64
PENDING_MAX: Final = 64
"""Requests that wait for a table to be read. Further ones are dropped; the requester repeats them."""
RESEND_BYTES: Final = 1 << 20
_KEY: Final = Struct(">16sQQQ")
_TURN: Final = b"\0"
"""The key under which a table stores its number; the highest is the newest table."""
_END: Final = b"\xff" * (_KEY.size + 1)


def log_table(group: str, number: int) -> str:
    return f"messages/{group}/{number}"


def log_tables(group: str) -> list[str]:
    return [log_table(group, number) for number in range(TABLES)]


class _Table:
    """The contents of one table of the ring."""

    __slots__ = ("bytes", "held", "turn")

    def __init__(self) -> None:
        self.turn = 0
        self.bytes = 0
        self.held: dict[StreamId, RangeSet] = {}

    def add(self, stream: StreamId, first: int, last: int, size: int) -> None:
        self.held.setdefault(stream, RangeSet()).add(first, last + 1)
        self.bytes += size


class MessageLog(Machine):
    """The unit `messages/<group>` of a node."""

    layer: ClassVar[str] = "message_log"

    def __init__(
        self, config: GroupConfig, node: NodeId, stored: dict[str, list[tuple[bytes, bytes]]]
    ) -> None:
        self._group = config.name
        self._node = node
        self._limit = max(1, config.message_log_bytes // TABLES)
        self._tables = [_Table() for _ in range(TABLES)]
        self._now_at = 0
        self._pending: dict[int, list[LogRequest]] = {}
        self.written = self.read = self.ignored = 0
        for number, table in enumerate(self._tables):
            self._load(table, stored.get(log_table(config.name, number), []))
        self._now_at = max(range(TABLES), key=lambda number: self._tables[number].turn)

    def _load(self, table: _Table, rows: list[tuple[bytes, bytes]]) -> None:
        for key, value in rows:
            if key == _TURN:
                table.turn = int.from_bytes(value, "big")
                continue
            frame = decode_frame(value)
            if isinstance(frame, Payload) and is_sound_payload(frame):
                last = frame.first + frame.count - 1
                table.add(frame.stream, frame.first, last, len(value))

    def up(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        for item in inputs:
            if isinstance(item, TableRead):
                self._read(now, item, out)
            elif isinstance(item, Received):
                for frame in item.frames:
                    self._frame(now, item.peer, frame, out)

    def _frame(self, now: Nanos, peer: NodeId, frame: Frame, out: Outbox) -> None:
        if isinstance(frame, Payload):
            self._write(frame, out)
        elif isinstance(frame, LossQuery):
            self._answer_loss_query(now, peer, frame, out)
        elif isinstance(frame, Nack) and frame.from_log:
            self._look_up(peer, frame, out)

    # -- writing -------------------------------------------------------------------------------------------------

    def _write(self, frame: Payload, out: Outbox) -> None:
        if not is_sound_payload(frame):
            self.ignored += 1
            return
        last = frame.first + frame.count - 1
        for table in self._tables:
            held = table.held.get(frame.stream)
            if held is not None and held.covers(frame.first, last + 1):
                return
        data = encode(frame)
        table = self._room_for(len(data), out)
        table.add(frame.stream, frame.first, last, len(data))
        name = log_table(self._group, self._now_at)
        out.write(Put(name, _key(frame.stream, frame.first), data))
        self.written += frame.count

    def _room_for(self, size: int, out: Outbox) -> _Table:
        """The table to write to; the next one of the ring when this one is full."""
        table = self._tables[self._now_at]
        if table.turn and table.bytes + size <= self._limit:
            return table
        turn = table.turn + 1
        emptied = log_tables(self._group)
        if table.turn:
            self._now_at = (self._now_at + 1) % TABLES
            emptied = [emptied[self._now_at]] if self._tables[self._now_at].held else []
        # An empty index does not mean an empty table: this unit may have failed and been rebuilt.
        for name in emptied:
            out.write(Erase(name, b"", _END))
        name = log_table(self._group, self._now_at)
        out.write(Put(name, _TURN, turn.to_bytes(8, "big")))
        self._pending.pop(self._now_at, None)
        table = self._tables[self._now_at] = _Table()
        table.turn = turn
        return table

    # -- reading -------------------------------------------------------------------------------------------------

    def _within(
        self, table: _Table, stream: StreamId, ranges: tuple[tuple[int, int], ...]
    ) -> RangeSet:
        """Which of the requested numbers a table holds."""
        found = RangeSet()
        held = table.held.get(stream)
        for first, last in ranges[:RANGES_MAX] if held is not None else ():
            if not 0 < first <= last < NUMBER_MAX:
                continue
            assert held is not None
            for start, stop in held:
                found.add(max(start, first), min(stop, last + 1))
        return found

    def _answer_loss_query(self, now: Nanos, peer: NodeId, lost: LossQuery, out: Outbox) -> None:
        logged = RangeSet()
        for table in self._tables:
            for start, stop in self._within(table, lost.stream, lost.ranges):
                logged.add(start, stop)
        ranges = tuple((start, stop - 1) for start, stop in logged)[:RANGES_MAX]
        found = LossReply(self._group, lost.question, lost.stream, (), b"", ranges, True)
        self._answer(now, peer, found, out)

    def _answer(self, now: Nanos, peer: NodeId, frame: Frame, out: Outbox) -> None:
        if peer == self._node:
            out.up(replica_unit(self._group), Received(self._node, [frame], now))
        else:
            post(out, [peer], frame)

    def _look_up(self, peer: NodeId, nack: Nack, out: Outbox) -> None:
        """Read the tables that hold requested messages."""
        request = LogRequest(peer, nack.stream, nack.ranges[:RANGES_MAX])
        waiting = sum(map(len, self._pending.values()))
        for number, table in enumerate(self._tables):
            if waiting >= PENDING_MAX:
                self.ignored += 1
                return
            if not self._within(table, nack.stream, nack.ranges):
                continue
            requests = self._pending.setdefault(number, [])
            if not requests:
                name = log_table(self._group, number)
                out.effect(ReadTable(log_unit(self._group), name), immediate=True)
            if request not in requests:
                requests.append(request)
                waiting += 1

    def _read(self, now: Nanos, item: TableRead, out: Outbox) -> None:
        names = log_tables(self._group)
        if item.table not in names:
            self.ignored += 1
            return
        rows = [(key, value) for key, value in item.rows if key != _TURN]
        for request in self._pending.pop(names.index(item.table), []):
            budget = RESEND_BYTES
            for key, value in rows:
                if budget > 0 and _is_wanted(key, request):
                    frame = decode_frame(value)
                    if isinstance(frame, Rejected) or not _overlaps(frame, request):
                        continue
                    budget -= len(value)
                    self.read += 1
                    self._answer(now, request.peer, frame, out)

    def status(self) -> dict[str, object]:
        return {
            "group": self._group,
            "bytes": sum(table.bytes for table in self._tables),
            "written": self.written,
            "read": self.read,
        }


def _key(stream: StreamId, first: int) -> bytes:
    return _KEY.pack(stream.source, stream.incarnation, stream.stream, first)


def _is_wanted(key: bytes, request: LogRequest) -> bool:
    stream = request.stream
    return key[: _KEY.size - 8] == _key(stream, 0)[: _KEY.size - 8]


def _overlaps(frame: Frame, request: LogRequest) -> bool:
    if not isinstance(frame, Payload):
        return False
    stop = frame.first + frame.count
    return any(first < stop and last >= frame.first for first, last in request.ranges)
