"""The receiving half of a channel: pieces of a byte stream in any order become ordered messages."""

from __future__ import annotations

from bisect import insort
from typing import Final

from holdfast.machine.rangeset import RangeSet
from holdfast.wire.blocks import block_size, unpack_block, whole_block
from holdfast.wire.codec import Rejected
from holdfast.wire.frames import Chunk, ChunkAck

WINDOW: Final = 4 << 20
"""How far beyond its contiguous prefix a receiver accepts bytes."""
BLOCK_MAX: Final = 64 << 10
"""The maximum size of a block, unless a single message is larger."""
MESSAGE_MAX: Final = 64 << 20
RANGES_MAX: Final = 32


class ChannelIn:
    """The receiving half. Accepts pieces in any order and repeatedly; delivers messages once, in order."""

    def __init__(self, channel: int) -> None:
        self.channel = channel
        self.upto = 0
        self.duplicates = 0
        self._early: list[tuple[int, int, memoryview]] = []
        self._early_bytes = 0
        self._have = RangeSet()
        self._partial = bytearray()
        self._need = 0

    def take(self, frame: Chunk, messages: list[memoryview]) -> Rejected | None:
        """Add a piece; messages that are complete now are appended to `messages`."""
        start, data = frame.offset, frame.data
        stop = start + len(data)
        if start == self.upto and not self._have.starts and not self._partial:
            # In order and nothing else waits: the common case, mostly just one block.
            block = whole_block(data)
            if block is None:
                return self._feed(data, messages)
            self.upto = stop
            messages += block
            return None
        if stop <= self.upto:
            self.duplicates += 1
            return None
        if stop > self.upto + 2 * WINDOW:
            return Rejected("window", f"{stop - self.upto} bytes ahead")
        if start > self.upto:
            self._keep_early(start, stop, data)
            return None
        problem = self._feed(data[self.upto - start :] if start < self.upto else data, messages)
        used = 0
        for begin, end, early in self._early:
            if problem is not None or begin > self.upto:
                break
            used += 1
            self._early_bytes -= end - begin
            if end > self.upto:
                problem = self._feed(early[self.upto - begin :], messages)
        if used:
            del self._early[:used]
        if self._have.starts:
            self._have.remove(0, self.upto)
        return problem

    def _keep_early(self, start: int, stop: int, data: memoryview) -> None:
        if self._have.covers(start, stop) or self._early_bytes > 2 * WINDOW:
            self.duplicates += 1
            return
        self._have.add(start, stop)
        # A view would keep the whole packet alive as long as the gap exists.
        insort(self._early, (start, stop, memoryview(bytes(data))), key=lambda piece: piece[:2])
        self._early_bytes += stop - start

    def _feed(self, data: memoryview, messages: list[memoryview]) -> Rejected | None:
        """Continue with the next bytes."""
        end = len(data)
        self.upto += end
        at = 0
        if self._partial:
            self._partial += data
            if self._need and len(self._partial) < self._need:
                return None
            # Messages are views of the old buffer, so the rest goes into a new one.
            data, self._partial = memoryview(self._partial).toreadonly(), bytearray()
            end = len(data)
        while at < end:
            size = block_size(data, at)
            if size > MESSAGE_MAX + BLOCK_MAX:
                return Rejected("block", f"{size} bytes")
            if not size or at + size > end:
                self._partial = bytearray(data[at:])
                self._need = size
                return None
            block = unpack_block(data, at)
            if isinstance(block, Rejected):
                return block
            messages.extend(block)
            at += size
        self._need = 0
        return None

    def ack(self) -> ChunkAck:
        ranges = tuple(self._have)[:RANGES_MAX] if self._have.starts else ()
        return ChunkAck(self.channel, self.upto, self.upto + WINDOW, ranges)
