"""Frames to bytes and back. Decoding is total: what cannot be read is `Rejected`, never an exception."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from typing import Final

import msgspec

from holdfast.wire.frames import AnyFrame, Chunk, Probe, RawBatch


class Rejected(msgspec.Struct, frozen=True, gc=False):
    """Input that is not what it should be. `reason` is one of a few words, `detail` is for people."""

    reason: str
    detail: str = ""


_encoder: Final = msgspec.msgpack.Encoder()
_one: Final = msgspec.msgpack.Decoder(AnyFrame)
_many: Final = msgspec.msgpack.Decoder(list[AnyFrame])

_EMPTY: Final = memoryview(b"")
_CHUNK_NUMBERS: Final = Struct(">BQBI")
"""An offset and a length as msgpack has them in full."""
_LENGTH: Final = Struct(">BI")

encode = _encoder.encode


ROOM: Final = 64
"""Bytes that a buffer with room has before its bulk: more than the head of a packet and of a chunk take."""


class RoomyPart(msgspec.Struct, frozen=True, gc=False):
    """A frame whose bulk fills a buffer from `ROOM` on: a packet can be made around it without a copy, once."""

    head: bytes
    buffer: bytearray


Part = bytes | tuple[bytes, memoryview] | RoomyPart
"""A frame as it goes into a packet: encoded, or what stands before its bulk and the bulk, which is not copied."""


def part_size(part: Part) -> int:
    if isinstance(part, bytes):
        return len(part)
    if isinstance(part, tuple):
        return len(part[0]) + len(part[1])
    return len(part.head) + len(part.buffer) - ROOM


def chunk_head(channel: int, offset: int, size: int) -> bytes:
    """A `Chunk` up to its bytes, of which there are `size`. The numbers have a fixed width: that is quicker."""
    return _chunk_begin(channel) + _CHUNK_NUMBERS.pack(0xCF, offset, 0xC6, size)


@lru_cache(maxsize=1024)
def _chunk_begin(channel: int) -> bytes:
    return encode(Chunk(channel, 0, _EMPTY))[:-3]


def raw_head(port: int, size: int) -> bytes:
    """A `RawBatch` up to its block, which has `size` bytes."""
    return _raw_begin(port) + _LENGTH.pack(0xC6, size)


@lru_cache(maxsize=1024)
def _raw_begin(port: int) -> bytes:
    return encode(RawBatch(port, _EMPTY))[:-2]


def roomy_chunk(channel: int, offset: int, buffer: bytearray) -> Part:
    """A `Chunk` whose bytes are all of the buffer but its room."""
    return RoomyPart(chunk_head(channel, offset, len(buffer) - ROOM), buffer)


def probe_part(probe: Probe, fill: memoryview) -> Part:
    """A `Probe`, or one of a stress run, with this fill. The length of the fill always takes two bytes, where msgpack
    would take one for a short fill: or some sizes of packets could not be made."""
    head = encode(msgspec.structs.replace(probe, fill=_EMPTY))[:-2]
    return head + b"\xc5" + len(fill).to_bytes(2, "big"), fill


def body_buffers(parts: Sequence[Part]) -> list[bytes | memoryview]:
    """The body of a packet as pieces, to be joined once, by whoever writes the packet."""
    buffers: list[bytes | memoryview] = [array_header(len(parts))]
    for part in parts:
        if isinstance(part, bytes):
            buffers.append(part)
        elif isinstance(part, tuple):
            buffers.extend(part)
        else:
            buffers += (part.head, memoryview(part.buffer)[ROOM:])
    return buffers


def array_header(count: int) -> bytes:
    """The msgpack header of an array of `count` items."""
    if count < 16:
        return bytes((0x90 | count,))
    return b"\xdc" + count.to_bytes(2, "big")


def decode_frame(data: bytes | memoryview) -> AnyFrame | Rejected:
    """One frame, as channels carry them."""
    try:
        frame: AnyFrame = _one.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        return Rejected("frame", str(error)[:200])
    return frame


def decode_body(data: bytes | memoryview) -> list[AnyFrame] | Rejected:
    """All frames of a packet's body."""
    try:
        return _many.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        return Rejected("body", str(error)[:200])
