"""Packets on a stream: each has a little-endian `u32` length prefix. An empty packet has no meaning and is skipped.

Bytes are read into a block, and packets are slices of it. Only the start of a packet whose end did not fit is copied. A
part of a block that contains a packet is never overwritten. A block stays in memory as long as one of its packets does,
so it is kept small; smaller blocks would mean more turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from holdfast.wire.packet import LENGTH, PACKET_MAX, AnyPacket, RoomyPacket

EMPTY: Final = LENGTH.pack(0)
MEASURES: Final = b"\xfeHM1"
"""The first bytes of a connection that measures segments; their size follows as a `u32`. As a length they would be too
large, and no TLS record starts like this."""
TLS_BEGINS: Final = b"\x16\x03\x01"
BLOCK: Final = 256 * 1024
PIECE: Final = 96 * 1024
ROOM_MIN: Final = 32 * 1024
"""The minimum size of a read; it must hold one TLS record (16 KiB)."""

_LEAD: Final = len(MEASURES) + LENGTH.size
_pack = LENGTH.pack
_unpack = LENGTH.unpack_from


def frame(packets: list[bytes]) -> bytes:
    """All packets with their lengths, as one piece: one write is cheaper than many small ones."""
    if len(packets) == 1:
        return _pack(len(packets[0])) + packets[0]
    parts: list[bytes] = []
    for packet in packets:
        parts.append(_pack(len(packet)))
        parts.append(packet)
    return b"".join(parts)


def frames(packets: list[AnyPacket]) -> Iterator[bytes | memoryview]:
    """The same in pieces of about `PIECE` bytes. Larger buffers are allocated from the system and returned each time,
    which costs more than the writes. A packet with room before it is not copied."""
    some: list[bytes] = []
    size = 0
    for packet in packets:
        roomy = isinstance(packet, RoomyPacket)
        if some and (roomy or size + len(packet) > PIECE):
            yield frame(some)
            some, size = [], 0
        if isinstance(packet, RoomyPacket):
            yield packet.framed()
            continue
        some.append(packet)
        size += len(packet)
    if some:
        yield frame(some)


def begin_measuring(mss: int) -> bytes:
    """The first bytes that the opener of a measuring connection sends."""
    return MEASURES + LENGTH.pack(mss)


class Lead:
    """Reads the first bytes of an accepted connection, which identify measuring connections."""

    __slots__ = ("_bytes", "_filled", "decided", "mss")

    def __init__(self) -> None:
        self._bytes = bytearray(ROOM_MIN)
        self._filled = 0
        self.decided = False
        self.mss = 0
        """The segment size of a measuring connection; 0 for other connections."""

    def room(self) -> memoryview:
        return memoryview(self._bytes)[self._filled :]

    def add(self, count: int) -> None:
        self._filled += count
        start = bytes(self._bytes[: min(self._filled, len(MEASURES))])
        if not MEASURES.startswith(start):
            self.decided = True
        elif self._filled >= _LEAD:
            self.decided = True
            (self.mss,) = _unpack(self._bytes, len(MEASURES))

    def rest(self) -> memoryview:
        """Bytes that were read and belong to the regular stream."""
        return memoryview(self._bytes)[_LEAD if self.mss else 0 : self._filled]


class Cutter:
    """Splits a stream into packets: read into `room()`, report with `add`, then call `cut`."""

    __slots__ = ("_block", "_filled", "_needed", "_start", "_view", "damage", "frames")

    def __init__(self) -> None:
        self._block = bytearray(0)
        self._view = memoryview(self._block)
        self._start = 0
        self._filled = 0
        self._needed = LENGTH.size
        self.frames = 0
        """Complete packets so far, including empty ones."""
        self.damage = ""
        """Why the stream cannot be read any further; set when a length is invalid."""

    def room(self) -> memoryview:
        """The buffer for the next bytes."""
        size = len(self._block)
        # A packet that will not fit moves early, while it is short; one larger than a block fills it first.
        if size - self._filled < ROOM_MIN or 0 < size - self._needed < self._start:
            self._new_block()
        return self._view[self._filled :]

    def add(self, count: int) -> None:
        self._filled += count

    def cut(self) -> list[memoryview]:
        """The packets that are complete now."""
        packets: list[memoryview] = []
        block, view, filled, at = self._block, self._view, self._filled, self._start
        needed = 0
        while True:
            first = at + 4
            if first > filled:
                needed = 4
                break
            (size,) = _unpack(block, at)
            if size > PACKET_MAX:
                self._damaged(size)
                break
            stop = first + size
            if stop > filled:
                needed = stop - at
                break
            if size:
                packets.append(view[first:stop])
            self.frames += 1
            at = stop
        self._start = at
        self._needed = needed
        return packets

    def begins_as_tls(self) -> bool:
        """Whether the first bytes are those of a TLS handshake. As a length they could be valid (66326)."""
        return not self.frames and self._block[self._start : min(self._filled, 3)] == TLS_BEGINS

    def _damaged(self, size: int) -> None:
        self.damage = (
            f"the peer announced a packet of {size} bytes, but at most {PACKET_MAX} are allowed: "
            "the stream is damaged, or the peer is not a Holdfast node"
        )

    def _new_block(self) -> None:
        # A peer that announces much and sends little makes us hold four times what it sent, not what it announced.
        left = self._filled - self._start
        size = max(BLOCK, min(self._needed, 4 * left) + ROOM_MIN)
        block = bytearray(size)
        view = memoryview(block)
        view[:left] = self._view[self._start : self._filled]
        self._block, self._view = block, view
        self._start, self._filled = 0, left
