"""Packets: the unit that a path carries or loses.

    u8 format | u8 flags | u32 session | u64 number | u64 check | body

The session is the receiver's own number for what it agreed with the sender (0 before that): it finds the link and
the key, and it makes packets of an earlier session fall on deaf ears. The number only grows: it is the nonce of a
sealed packet and tells duplicates. The checksum (XXH3: it costs a fifteenth of a CRC) covers head and body of a plain
packet; in a sealed one the tag does that, and inside TLS the record does. A clear packet is authenticated but not
encrypted: its bytes are what crosses the cable.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

import msgspec
from xxhash import xxh3_64, xxh3_64_intdigest

from holdfast.wire.codec import (
    ROOM,
    Part,
    Rejected,
    RoomyPart,
    array_header,
    body_buffers,
    decode_body,
)
from holdfast.wire.frames import AnyFrame
from holdfast.wire.seal import TAG, Seal

FORMAT: Final = 1
SEALED: Final = 1
CLEAR: Final = 2
UNCHECKED: Final = 4
"""No checksum, because the stream below is authenticated; accepted only there."""

LENGTH: Final = Struct("<I")
"""What a stream puts before each packet."""
_HEAD: Final = Struct("<BBIQ")
_CHECK: Final = Struct("<Q")
_NO_CHECK: Final = bytes(8)
HEAD: Final = _HEAD.size + _CHECK.size
PACKET_MAX: Final = 1 << 20
"""Nothing larger is read from a stream."""


class Packet(msgspec.Struct, frozen=True, gc=False):
    """A packet whose head was read; the body is opened by the link that its session belongs to."""

    flags: int
    session: int
    number: int
    data: memoryview


class RoomyPacket:
    """A packet at the end of a buffer, with room for its length before it: a stream sends it without a copy."""

    __slots__ = ("_buffer", "_start")

    def __init__(self, buffer: bytearray, start: int) -> None:
        self._buffer = buffer
        self._start = start

    def __len__(self) -> int:
        return len(self._buffer) - self._start

    def __bytes__(self) -> bytes:
        return bytes(memoryview(self._buffer)[self._start :])

    def framed(self) -> memoryview:
        """The packet after its length, as streams carry it."""
        start = self._start - LENGTH.size
        LENGTH.pack_into(self._buffer, start, len(self))
        return memoryview(self._buffer)[start:]


AnyPacket = bytes | RoomyPacket


def read_head(data: bytes | memoryview) -> Packet | Rejected:
    """The head of a packet, checked as far as it can be without a key."""
    view = memoryview(data)
    if len(view) < HEAD:
        return Rejected("short", f"{len(view)} bytes")
    form, flags, session, number = _HEAD.unpack_from(view)
    if form != FORMAT:
        return Rejected("format", f"packet format {form}, this node reads {FORMAT}")
    return Packet(flags, session, number, view)


def read_plain(packet: Packet, authenticated: bool = False) -> list[AnyFrame] | Rejected:
    """The frames of a plain packet; `authenticated` says that TLS has checked its bytes."""
    view = packet.data
    if packet.flags:
        if packet.flags != UNCHECKED or not authenticated:
            return Rejected("flags", f"{packet.flags}")
        return decode_body(view[HEAD:])
    (expected,) = _CHECK.unpack_from(view, _HEAD.size)
    # The head goes in as the seed of the body's: two calls, and no object in between.
    if xxh3_64_intdigest(view[HEAD:], xxh3_64_intdigest(view[: _HEAD.size])) != expected:
        return Rejected("checksum")
    return decode_body(view[HEAD:])


def read_sealed(packet: Packet, seal: Seal) -> list[AnyFrame] | Rejected:
    """The frames of a sealed or clear packet; `Rejected` when it was not made with this key."""
    view = packet.data
    head = view[:HEAD]
    if packet.flags & CLEAR:
        tagged = view[HEAD : len(view) - TAG]
        if not seal.check(packet.number, view[len(view) - TAG :], (head, tagged)):
            return Rejected("seal")
        return decode_body(tagged)
    body = seal.open(packet.number, view[HEAD:], head)
    return Rejected("seal") if body is None else decode_body(body)


def write_plain(
    session: int, number: int, parts: Sequence[Part], authenticated: bool = False
) -> bytes:
    """A plain packet. What goes inside TLS needs no checksum of ours."""
    buffers = body_buffers(parts)
    head = _HEAD.pack(FORMAT, UNCHECKED if authenticated else 0, session, number)
    check = 0
    if not authenticated:
        digest = xxh3_64(seed=xxh3_64_intdigest(head))
        for buffer in buffers:
            digest.update(buffer)
        check = digest.intdigest()
    return b"".join((head, _CHECK.pack(check), *buffers))


def write_in_place(
    session: int, number: int, part: RoomyPart, authenticated: bool = False
) -> RoomyPacket:
    """The same for one frame whose bulk is a whole buffer: everything before it goes into the room at its front."""
    body = array_header(1) + part.head
    buffer, begin = part.buffer, ROOM - len(body)
    start = begin - HEAD
    head = _HEAD.pack(FORMAT, UNCHECKED if authenticated else 0, session, number)
    buffer[begin:ROOM] = body
    check = 0
    if not authenticated:
        check = xxh3_64_intdigest(memoryview(buffer)[begin:], xxh3_64_intdigest(head))
    buffer[start:begin] = head + _CHECK.pack(check)
    return RoomyPacket(buffer, start)


def write_sealed(
    session: int, number: int, parts: Sequence[Part], seal: Seal, clear: bool = False
) -> bytes:
    """A packet that only the holder of the key can read, or (`clear`) that everybody can read and nobody change."""
    body = b"".join(body_buffers(parts))
    flags = CLEAR | SEALED if clear else SEALED
    head = _HEAD.pack(FORMAT, flags, session, number) + _NO_CHECK
    if clear:
        return b"".join((head, body, seal.tag(number, (head, body))))
    return head + seal.close(number, body, head)
