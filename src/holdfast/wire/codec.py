"""Encoding and decoding of frames. Decoding is total: invalid input becomes `Rejected`, never an exception."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from struct import Struct
from typing import Final, Union

import msgspec

from holdfast.errors import MisuseError
from holdfast.wire.frames import LINK_FRAMES, Chunk, FilledFrame, Frame, RawBatch


class Rejected(msgspec.Struct, frozen=True, gc=False):
    """Invalid input. `reason` is one of a few fixed words, `detail` is for display."""

    reason: str
    detail: str = ""


_encoder: Final = msgspec.msgpack.Encoder()


class _Known:
    """The frames that this process can read. It grows when a subsystem is declared, and never shrinks."""

    def __init__(self) -> None:
        self.frames: dict[int, type[Frame]] = {}
        self.one: msgspec.msgpack.Decoder[Frame]
        self.many: msgspec.msgpack.Decoder[list[Frame]]
        self.add(LINK_FRAMES)

    def add(self, frames: Iterable[type[Frame]]) -> None:
        known = dict(self.frames)
        for frame in frames:
            tag = frame.__struct_config__.tag
            if not isinstance(tag, int):
                raise MisuseError(f"the tag of frame {frame.__name__} is not a number")
            if known.setdefault(tag, frame) is not frame:
                raise MisuseError(
                    f"frames {frame.__name__} and {known[tag].__name__} both have tag {tag}"
                )
        if len(known) == len(self.frames):
            return
        self.frames = known
        # A union made of a tuple of types: the decoder picks one of them by its tag.
        any_frame = Union[tuple(known.values())]  # type: ignore[valid-type]  # noqa: UP007 known only at run time
        self.one = msgspec.msgpack.Decoder(any_frame)
        self.many = msgspec.msgpack.Decoder(list[any_frame])  # type: ignore[valid-type]  # as above


_known: Final = _Known()


def learn(frames: Iterable[type[Frame]]) -> None:
    """Register frames that this process can read; registering one twice has no effect. Raises `MisuseError` if two have
    the same tag."""
    _known.add(frames)


def known_frames() -> tuple[type[Frame], ...]:
    """Every frame that this process can read."""
    return tuple(_known.frames.values())


_EMPTY: Final = memoryview(b"")
_CHUNK_NUMBERS: Final = Struct(">BQBI")
"""An offset and a length as full-width msgpack integers."""
_LENGTH: Final = Struct(">BI")

encode = _encoder.encode


ROOM: Final = 64
"""Free bytes at the front of a buffer: more than the headers of a packet and a chunk need."""


class RoomyPart(msgspec.Struct, frozen=True, gc=False):
    """A frame whose payload fills a buffer from `ROOM` on: one packet can be built around it without a copy."""

    head: bytes
    buffer: bytearray


Part = bytes | tuple[bytes, memoryview] | RoomyPart
"""A frame inside a packet: encoded, or as a header and a payload that is not copied."""


def part_size(part: Part) -> int:
    if isinstance(part, bytes):
        return len(part)
    if isinstance(part, tuple):
        return len(part[0]) + len(part[1])
    return len(part.head) + len(part.buffer) - ROOM


def chunk_head(channel: int, offset: int, size: int) -> bytes:
    """A `Chunk` up to its payload of `size` bytes. The numbers have a fixed width, which is faster."""
    return _chunk_begin(channel) + _CHUNK_NUMBERS.pack(0xCF, offset, 0xC6, size)


@lru_cache(maxsize=1024)
def _chunk_begin(channel: int) -> bytes:
    return encode(Chunk(channel, 0, _EMPTY))[:-3]


def raw_head(port: int, size: int) -> bytes:
    """A `RawBatch` up to its block of `size` bytes."""
    return _raw_begin(port) + _LENGTH.pack(0xC6, size)


@lru_cache(maxsize=1024)
def _raw_begin(port: int) -> bytes:
    return encode(RawBatch(port, _EMPTY))[:-2]


def roomy_chunk(channel: int, offset: int, buffer: bytearray) -> Part:
    """A `Chunk` whose payload is the buffer except its free front."""
    return RoomyPart(chunk_head(channel, offset, len(buffer) - ROOM), buffer)


def fill_of(frame: FilledFrame) -> bytes:
    """The bytes that are repeated to fill its packet."""
    return bytes(frame.fill) or b"\0"  # type: ignore[attr-defined]  # its last field, by contract


def filled_part(frame: FilledFrame, fill: memoryview) -> Part:
    """A filled frame with this fill. The length of the fill always takes two bytes, although msgpack would use one for
    a short fill; otherwise some packet sizes could not be built."""
    head = encode(msgspec.structs.replace(frame, fill=_EMPTY))[:-2]
    return head + b"\xc5" + len(fill).to_bytes(2, "big"), fill


def body_buffers(parts: Sequence[Part]) -> list[bytes | memoryview]:
    """The body of a packet as pieces, to be joined once by the code that writes the packet."""
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


def decode_frame(data: bytes | memoryview) -> Frame | Rejected:
    """One frame, as channels carry them."""
    try:
        frame: Frame = _known.one.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        return Rejected("frame", str(error)[:200])
    return frame


def decode_body(data: bytes | memoryview) -> list[Frame] | Rejected:
    """All frames of the body of a packet."""
    try:
        return _known.many.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        return Rejected("body", str(error)[:200])
