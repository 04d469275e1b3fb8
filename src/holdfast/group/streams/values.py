"""Values of streams: gaps, pieces of blocks, notes on messages. Structs, apart from the code that uses them."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.group.frames import (
    MessageMetadata,
    Payload,
    StreamId,
)
from holdfast.machine import RangeSet
from holdfast.types import MILLISECOND, NEVER, Nanos, NodeId


class Hole(msgspec.Struct, gc=False):
    """A contiguous range of missing numbers, and the attempts to recover it."""

    first: int
    last: int
    noticed_ns: Nanos
    due_ns: Nanos
    tries: int = 0
    exhausted: str = ""
    """Why asking has ended; empty while it has not."""
    asked: str = ""
    """The place that was last asked for them, one of `PLACES`; empty before the first request."""

    def part(self, first: int, last: int) -> Hole:
        return Hole(
            first, last, self.noticed_ns, self.due_ns, self.tries, self.exhausted, self.asked
        )

    def joins(self, other: Hole) -> bool:
        """Whether both are in the same state, so that they can be merged."""
        return (
            self.last + 1 == other.first
            and self.tries == other.tries
            and (self.exhausted, self.asked) == (other.exhausted, other.asked)
            and other.noticed_ns - self.noticed_ns < MILLISECOND
        )


class Grant(msgspec.Struct, gc=False):
    """The leader may recover these numbers, from these places."""

    ranges: RangeSet
    places: tuple[tuple[NodeId, bool], ...]
    """Nodes, and whether their message log is meant, not their buffers."""


class Gap(msgspec.Struct, gc=False):
    """The missing messages of one stream."""

    since_ns: Nanos
    holes: list[Hole]
    asked: bool = False
    brought: int = 0
    """Messages that arrived after they were requested."""
    timed: tuple[NodeId, int, Nanos] | None = None
    """A request whose answer is timed: the node, the number, and the time of the request."""

    @property
    def due_ns(self) -> Nanos:
        return min([hole.due_ns for hole in self.holes], default=NEVER)


class LogRequest(msgspec.Struct, frozen=True):
    peer: NodeId
    stream: StreamId
    ranges: tuple[tuple[int, int], ...]


class Note(msgspec.Struct, frozen=True, gc=False):
    """Metadata that the sender attaches to one message."""

    priority: int = -1
    """0 is the most urgent; -1 is the lowest of the group."""
    topic: str = ""
    request: bytes = b""
    resync: bool = False


class Indication(msgspec.Struct, frozen=True):
    """Known bounds of the priorities of lost messages."""

    levels: int
    known: tuple[tuple[int, int], ...] = ()
    """(number, priority) of lost messages whose priority is certain."""
    at_least: tuple[int, ...] = ()
    """Per priority: at least this many of the lost messages have it."""
    at_most: tuple[int, ...] = ()

    @property
    def exact(self) -> bool:
        """The priority of every lost message is known."""
        return self.at_least == self.at_most

    @property
    def highest(self) -> int:
        """The most urgent priority that a lost message certainly has; if none is certain, the most urgent one that it
        may have."""
        return (*self.certain, *self.possible, self.levels - 1)[0]

    @property
    def certain(self) -> tuple[int, ...]:
        """The priorities that lost messages certainly have, most urgent first."""
        return tuple(priority for priority, count in enumerate(self.at_least) if count)

    @property
    def possible(self) -> tuple[int, ...]:
        """The priorities that lost messages may have, most urgent first."""
        return tuple(priority for priority, count in enumerate(self.at_most) if count)


class RoundTripEstimate(msgspec.Struct, gc=False):
    mean_ns: Nanos
    spread_ns: Nanos


class SentFrame(msgspec.Struct, frozen=True, gc=False):
    """A payload frame as it was sent."""

    first: int
    count: int
    created_ns: Nanos
    data: bytes
    block_size: int
    about: MessageMetadata
    tail: int
    """The number of bytes after the block in `data`."""

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    @property
    def size(self) -> int:
        """As replicas count it. They have room for two windows, so a full window of the source always fits."""
        return self.block_size + PIECE_OVERHEAD

    def frame(self, group: str, stream: StreamId) -> Payload:
        """The frame again; its block is a view of the bytes that are kept anyway."""
        stop = len(self.data) - self.tail
        block = memoryview(self.data)[stop - self.block_size : stop]
        return Payload(group, stream, self.first, self.count, self.created_ns, block, self.about)


PIECE_OVERHEAD: Final = 256
"""Counted for each piece besides its bytes, so that many tiny ones are bounded too."""


class Piece(msgspec.Struct, frozen=True, gc=False):
    """Numbers `first` to `last`, in a block whose first message has the number `start`."""

    first: int
    last: int
    start: int
    count: int
    """Of messages in the block."""
    created_ns: int
    block: memoryview
    about: MessageMetadata | None = None
    arrived_ns: int = 0

    @property
    def size(self) -> int:
        return len(self.block) + PIECE_OVERHEAD
