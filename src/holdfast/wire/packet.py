"""Packets: the unit that a path carries or loses.

    u64 check | u8 format | u8 flags | u32 session | u64 number | body

The session number is chosen by the receiver when the session is established (0 before that). It identifies the link and
the key; packets of an earlier session have another number and are discarded. The packet number only increases: it is
the nonce of a sealed packet and identifies duplicates. The checksum (XXH3, which costs a fifteenth of a CRC) covers
everything after it in a plain packet. Sealed packets have an authentication tag instead, and packets inside TLS need
neither. A clear packet is authenticated but not encrypted, so its bytes cross the wire as they are.
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
    part_size,
)
from holdfast.wire.frames import Frame
from holdfast.wire.seal import TAG, Seal

FORMAT: Final = 1
SEALED: Final = 1
CLEAR: Final = 2
UNCHECKED: Final = 4
"""No checksum, because the stream below is authenticated; accepted only there."""

LENGTH: Final = Struct("<I")
"""The length prefix of a packet on a stream."""
_HEAD: Final = Struct("<QBBIQ")
_TAIL: Final = Struct("<BBIQ")
"""The header without the checksum."""
_CHECK: Final = Struct("<Q")
CHECK: Final = _CHECK.size
HEAD: Final = _HEAD.size
_ONE_FRAME: Final = array_header(1)
AT_ONCE: Final = 4096
"""A body up to this size is joined before its checksum is computed; a larger one is hashed piece by piece."""
PACKET_MAX: Final = 1 << 20
"""The largest packet accepted from a stream."""


class Packet(msgspec.Struct, frozen=True, gc=False):
    """A packet with a parsed header; the link of its session opens the body."""

    flags: int
    session: int
    number: int
    data: memoryview


class RoomyPacket:
    """A packet at the end of a buffer, with room for its length prefix: a stream sends it without a copy."""

    __slots__ = ("_buffer", "_start")

    def __init__(self, buffer: bytearray, start: int) -> None:
        self._buffer = buffer
        self._start = start

    def __len__(self) -> int:
        return len(self._buffer) - self._start

    def __bytes__(self) -> bytes:
        return bytes(memoryview(self._buffer)[self._start :])

    def framed(self) -> memoryview:
        """The packet after its length prefix, as on streams."""
        start = self._start - LENGTH.size
        LENGTH.pack_into(self._buffer, start, len(self))
        return memoryview(self._buffer)[start:]


AnyPacket = bytes | RoomyPacket


def read_head(data: bytes | memoryview) -> Packet | Rejected:
    """The header of a packet, checked as far as possible without a key."""
    view = memoryview(data)
    if len(view) < HEAD:
        return Rejected("short", f"{len(view)} bytes")
    _, form, flags, session, number = _HEAD.unpack_from(view)
    if form != FORMAT:
        return Rejected("format", f"packet format {form}; this node reads {FORMAT}")
    return Packet(flags, session, number, view)


def read_plain(packet: Packet, authenticated: bool = False) -> list[Frame] | Rejected:
    """The frames of a plain packet; `authenticated` means that TLS has checked its bytes."""
    view = packet.data
    if packet.flags:
        if packet.flags != UNCHECKED or not authenticated:
            return Rejected("flags", f"{packet.flags}")
        return decode_body(view[HEAD:])
    if xxh3_64_intdigest(view[CHECK:]) != _CHECK.unpack_from(view)[0]:
        return Rejected("checksum")
    return decode_body(view[HEAD:])


def read_at_once(data: memoryview, session: int) -> tuple[int, list[Frame]] | None:
    """Number and frames of a plain packet of this session, in one step for the common case. None: use `read_head` and
    `read_plain` to find the error."""
    if len(data) < HEAD:
        return None
    check, form, flags, shown, number = _HEAD.unpack_from(data)
    if shown != session or flags or form != FORMAT or xxh3_64_intdigest(data[CHECK:]) != check:
        return None
    frames = decode_body(data[HEAD:])
    return (number, frames) if type(frames) is list else None


def read_sealed(packet: Packet, seal: Seal) -> list[Frame] | Rejected:
    """The frames of a sealed or clear packet; `Rejected` if it was not sealed with this key."""
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
    """A plain packet. Inside TLS it needs no checksum."""
    if authenticated:
        return b"".join((_HEAD.pack(0, FORMAT, UNCHECKED, session, number), *body_buffers(parts)))
    tail = _TAIL.pack(FORMAT, 0, session, number)
    if len(parts) == 1:
        part = parts[0]
        rest = b""
        if type(part) is bytes:
            if len(part) <= AT_ONCE:
                rest = tail + _ONE_FRAME + part
        elif type(part) is tuple and len(part[1]) <= AT_ONCE:
            rest = b"".join((tail, _ONE_FRAME, part[0], part[1]))
        if rest:
            return _CHECK.pack(xxh3_64_intdigest(rest)) + rest
    if sum(map(part_size, parts)) <= AT_ONCE:
        rest = b"".join((tail, *body_buffers(parts)))
        return _CHECK.pack(xxh3_64_intdigest(rest)) + rest
    buffers = body_buffers(parts)
    digest = xxh3_64(tail)
    for buffer in buffers:
        digest.update(buffer)
    return b"".join((_CHECK.pack(digest.intdigest()), tail, *buffers))


def write_in_place(
    session: int, number: int, part: RoomyPart, authenticated: bool = False
) -> RoomyPacket:
    """The same for one frame whose payload is a whole buffer: the headers go into its free front."""
    flags = UNCHECKED if authenticated else 0
    front = _HEAD.pack(0, FORMAT, flags, session, number) + array_header(1) + part.head
    buffer, start = part.buffer, ROOM - len(front)
    buffer[start:ROOM] = front
    if not authenticated:
        _CHECK.pack_into(buffer, start, xxh3_64_intdigest(memoryview(buffer)[start + CHECK :]))
    return RoomyPacket(buffer, start)


def write_sealed(
    session: int, number: int, parts: Sequence[Part], seal: Seal, clear: bool = False
) -> bytes:
    """A packet that only the holder of the key can read or, if `clear`, that all can read but not modify."""
    body = b"".join(body_buffers(parts))
    flags = CLEAR | SEALED if clear else SEALED
    head = _HEAD.pack(0, FORMAT, flags, session, number)
    if clear:
        return b"".join((head, body, seal.tag(number, (head, body))))
    return head + seal.close(number, body, head)
