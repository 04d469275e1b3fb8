"""The messages that a replica holds of each stream, in the blocks in which they arrived.

Blocks are kept as they arrived, one per payload frame, and parsed only for delivery: the work is per block, and the
memory is little more than the bytes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from struct import Struct, unpack_from
from typing import Final

from holdfast.group.frames import Idle, Payload, StreamId
from holdfast.group.log.replicated_log import NUMBER_MAX, Cursor, is_sound_stream
from holdfast.group.streams.message_metadata import is_sound_about, zone_of
from holdfast.group.streams.values import PIECE_OVERHEAD, Piece
from holdfast.machine import RangeSet
from holdfast.types import Nanos
from holdfast.wire.blocks import HEAD, MESSAGES_MAX, part_of_block, whole_block

_HEAD: Final = Struct("<II")
_ONE: Final = Struct("<III")
"""Everything before the message of a block with one message, as most blocks in datagrams."""
_ONE_SIZE: Final = HEAD + 4


def is_sound_payload(frame: Payload) -> bool:
    """Whether the block contains exactly the messages that the frame states: checked before it is used."""
    count, block = frame.count, frame.block
    if not (1 <= frame.first < NUMBER_MAX and 1 <= count <= MESSAGES_MAX):
        return False
    if not 0 <= frame.created_ns < 1 << 62:
        return False
    size = len(block)
    if not is_sound_stream(frame.stream) or size < HEAD + 4 * count:
        return False
    if count == 1:
        if _ONE.unpack_from(block) != (size - 4, 1, size - _ONE_SIZE):
            return False
        return is_sound_about(frame.about, 1)
    if _HEAD.unpack_from(block) != (size - 4, count):
        return False
    if sum(unpack_from(f"<{count}I", block, HEAD)) != size - HEAD - 4 * count:
        return False
    return is_sound_about(frame.about, count)


Run = tuple[memoryview, memoryview]
"""The lengths of some messages, and the messages, one after the other."""


def label_of(stream: StreamId) -> str:
    """For display and for facts."""
    return f"{stream.source.hex()}/{stream.incarnation}/{stream.stream}"


class Stream:
    """One stream, as far as this replica has it."""

    __slots__ = (
        "_firsts", "_pieces", "bytes", "exists", "floor", "held", "id", "idle", "label", "lead_ns", "messages",
        "nacks", "noted", "origin", "packets",
    )  # fmt: skip

    def __init__(self, stream: StreamId) -> None:
        self.id = stream
        self.label = label_of(stream)
        self.held = RangeSet()
        self.bytes = 0
        self.floor = 1
        """Everything below was delivered here and is no longer needed."""
        self.exists = 0
        """The highest number that is known to exist, here or elsewhere."""
        self.origin = 1
        """The source can send nothing below this again."""
        self.noted = False
        """Some message has metadata: a request id, a resync mark, or a zone."""
        self.lead_ns: Nanos | None = None
        """The clock of this node minus that of the source, and the shortest delay between them."""
        self.idle: Idle | None = None
        """The last metadata of the idle source."""
        self.packets = self.messages = self.nacks = 0
        self._firsts: list[int] = []
        self._pieces: list[Piece] = []

    @property
    def top(self) -> int:
        """The highest number held, 0 if there is none."""
        return self._pieces[-1].last if self._pieces else 0

    def take(self, frame: Payload, limit: int, fixed: int, now: Nanos = 0) -> bool:
        """Keep what is new in a valid payload; False if nothing is or there is no room.

        Without room, the lowest numbers win: higher pieces are removed and requested again later. What the log has,
        everything below `fixed`, is never removed, because it was acknowledged, and does not count against the room: a
        log longer than a window could otherwise never be committed.
        """
        first, held = frame.first, self.held
        stop = first + frame.count
        if stop > self.exists:
            self.exists = stop - 1
        self.packets += 1
        lead_ns = now - frame.created_ns
        if now and (self.lead_ns is None or lead_ns < self.lead_ns):
            self.lead_ns = lead_ns
        stops = held.stops
        is_next = first >= self.floor and (not stops or first >= stops[-1])
        new = [(first, stop)] if is_next else list(held.missing(max(first, self.floor), stop))
        if not new:
            return False
        size = len(frame.block) + PIECE_OVERHEAD
        if self.bytes + size > limit and not self._make_room(limit - size, stop, fixed):
            return False
        for begin, end in new:
            piece = Piece(
                begin, end - 1, first, frame.count, frame.created_ns, frame.block, frame.about, now
            )
            at = len(self._firsts) if is_next else bisect_left(self._firsts, begin)
            self._firsts.insert(at, begin)
            self._pieces.insert(at, piece)
            held.add(begin, end)
            self.bytes += size
            self.messages += end - begin
        about = frame.about
        if about is not None and (
            about.requests or about.resyncs or any(map(zone_of, about.topics))
        ):
            self.noted = True
        return True

    def drop_from(self, number: int) -> None:
        """Nothing from `number` on will ever be ordered."""
        while self._pieces and self._pieces[-1].first >= number:
            self._drop_top()
        self.exists = min(self.exists, number - 1)

    def _drop_top(self) -> None:
        piece = self._pieces.pop()
        self._firsts.pop()
        self.held.remove(piece.first, piece.last + 1)
        self.bytes -= piece.size

    def _make_room(self, limit: int, stop: int, fixed: int) -> bool:
        """Drop the highest pieces, from `stop` on, until the bytes that the log does not have are within `limit`."""
        # rule: 8l
        held = sum(piece.size for piece in self._pieces[bisect_left(self._firsts, fixed) :])
        while held > limit:
            if not self._pieces or self._pieces[-1].first < max(stop, fixed):
                return False
            held -= self._pieces[-1].size
            self._drop_top()
        return True

    def drop_below(self, number: int) -> None:
        """Nothing below `number` is needed."""
        if number <= self.floor:
            return
        self.floor = number
        self.exists = max(self.exists, number - 1)
        self.held.remove(0, number)
        gone = bisect_left(self._firsts, number)
        if gone and self._pieces[gone - 1].last >= number:
            gone -= 1
        if gone:
            self.bytes -= sum([len(p.block) for p in self._pieces[:gone]]) + PIECE_OVERHEAD * gone
            del self._pieces[:gone], self._firsts[:gone]

    def pieces(self, first: int, last: int) -> Iterator[Piece]:
        """The pieces that contain any of `first` to `last`, in order."""
        at, pieces = max(0, bisect_right(self._firsts, first) - 1), self._pieces
        while at < len(pieces) and (piece := pieces[at]).first <= last:
            if piece.last >= first:
                yield piece
            at += 1

    def cut(self, first: int, stop: int, limit: int) -> int:
        """The last number of a range from `first`, below `stop`, of about `limit` bytes: whole pieces, at least one."""
        if self._pieces[-1].first <= first and stop - first <= MESSAGES_MAX:
            return stop - 1  # all of it in the last piece
        last, size = first, 0
        for piece in self.pieces(first, stop - 1):
            size += len(piece.block)
            if size > limit and piece.first > first:
                break
            last = min(piece.last, stop - 1)
        return min(last, first + MESSAGES_MAX - 1)

    def read(self, first: int, last: int) -> tuple[list[memoryview], list[Run]]:
        """Messages `first` to `last`, and the bytes that they are views of. All of them must be held."""
        messages: list[memoryview] = []
        runs: list[Run] = []
        pieces = self._pieces
        for at in range(max(0, bisect_right(self._firsts, first) - 1), len(pieces)):
            piece = pieces[at]
            low, high, count = piece.first, piece.last, piece.count
            if low > last:
                break
            if high < first:
                continue
            block, low, high = piece.block, max(first, low), min(last, high)
            if count == 1:
                # Nearly all pieces that arrive in datagrams: nothing has to be taken apart.
                message = block[_ONE_SIZE:]
                messages.append(message)
                runs.append((block[HEAD:_ONE_SIZE], message))
                continue
            if low == piece.start and high - low + 1 == count:
                whole = whole_block(block)
                assert whole is not None, "blocks are checked before they are kept"
                begin = HEAD + 4 * count
                some, run = whole, (block[HEAD:begin], block[begin:])
            else:
                a, b = low - piece.start, high - piece.start + 1
                some, begin = part_of_block(block, a, b)
                end = begin + sum(map(len, some))
                run = (block[HEAD + 4 * a : HEAD + 4 * b], block[begin:end])
            runs.append(run)
            if messages:
                messages += some
            else:
                messages = some
        assert len(messages) == last - first + 1, "only what is held is delivered"
        return messages, runs


class Streams:
    """All streams of which this replica holds or knows anything."""

    __slots__ = ("_limit", "_streams_max", "changed", "streams")

    def __init__(self, limit: int, streams_max: int) -> None:
        self._limit = limit
        self._streams_max = streams_max
        self.streams: dict[StreamId, Stream] = {}
        self.changed: dict[StreamId, None] = {}
        """Streams with something new; the reader clears it."""

    def get(self, stream: StreamId) -> Stream | None:
        return self.streams.get(stream)

    def open(self, stream: StreamId, floor: int = 1) -> Stream | None:
        """The stream, created if it is new; None if there are too many."""
        found = self.streams.get(stream)
        if found is None:
            if len(self.streams) >= self._streams_max and not self._forget_one():
                return None
            found = self.streams[stream] = Stream(stream)
            found.drop_below(floor)
            found.origin = max(found.origin, floor)
        return found

    def _forget_one(self) -> bool:
        """Remove a stream of which nothing is held, and that lacks nothing or is of an earlier incarnation. The log
        still knows where it continues."""
        newest: dict[tuple[bytes, int], int] = {}
        for stream in self.streams:
            key = (stream.source, stream.stream)
            newest[key] = max(newest.get(key, 0), stream.incarnation)
        for stream, found in self.streams.items():
            lacks_nothing = found.exists < found.floor
            superseded = stream.incarnation < newest[(stream.source, stream.stream)]
            if not found.bytes and (lacks_nothing or superseded):
                del self.streams[stream]
                self.changed.pop(stream, None)
                return True
        return False

    def take(self, frame: Payload, fixed: int, now: Nanos = 0) -> bool | None:
        """Keep a valid payload; False if it contains nothing new or finds no room, None if the stream finds none."""
        stream = self.streams.get(frame.stream)
        if stream is None:
            stream = self.open(frame.stream, fixed)
        if stream is None:
            return None
        before = stream.exists
        taken = stream.take(frame, self._limit, fixed, now)
        if taken or stream.exists > before:
            self.changed[stream.id] = None
        return taken

    def take_all(self, frame: Payload, floor: int) -> None:
        """Keep a valid payload from the store, of an earlier incarnation: it is needed, regardless of its size."""
        stream = self.streams.get(frame.stream)
        if stream is None:
            stream = self.streams[frame.stream] = Stream(frame.stream)
            stream.drop_below(floor)
            stream.origin = max(stream.origin, floor)
        stream.take(frame, 1 << 62, floor)
        self.changed[stream.id] = None

    def know(self, stream: StreamId, number: int, floor: int) -> None:
        """Number `number` of the stream exists somewhere: what is missing below it is a gap."""
        found = self.open(stream, floor)
        if found is not None and number > found.exists:
            found.exists = number
            self.changed[stream] = None

    def forget_over(self, ground: Cursor) -> None:
        """Remove streams that ended before everything that is still needed."""
        if ground.over:
            for stream in [stream for stream in self.streams if ground.is_over(stream)]:
                del self.streams[stream]
                self.changed.pop(stream, None)

    def look_at(self, stream: StreamId) -> None:
        """There may be a gap that no message of the stream has shown. The stream may be removed meanwhile."""
        if stream in self.streams:
            self.changed[stream] = None

    def need_all(self) -> None:
        """The order is another one, or starts earlier: freed messages may be needed again."""
        for stream in self.streams.values():
            stream.floor = 1
            self.changed[stream.id] = None

    def holds(self, stream: StreamId, first: int, last: int) -> bool:
        found = self.streams.get(stream)
        return found is not None and found.held.covers(first, last + 1)

    def most_bytes(self) -> int:
        """The bytes held of the largest stream."""
        return max([stream.bytes for stream in self.streams.values()], default=0)

    def all_bytes(self) -> int:
        """The bytes held of all streams together."""
        return sum([stream.bytes for stream in self.streams.values()])
