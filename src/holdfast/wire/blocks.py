"""Many messages as one byte string, lengths first, so that both ends work per batch and not per message.

block = u32 length of the rest | u32 count | count x u32 length | the messages
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from struct import Struct, error, pack, unpack_from
from typing import Final

from holdfast.wire.codec import Rejected

_HEAD: Final = Struct("<II")
_LENGTH: Final = Struct("<I")
_ONE: Final = Struct("<III")
"""Everything before the message of a block with one message."""
HEAD: Final = _HEAD.size
MESSAGES_MAX: Final = 1 << 20

Buffer = bytes | memoryview


def pack_block(messages: Sequence[Buffer]) -> bytes:
    """One block that contains `messages`."""
    count = len(messages)
    if count == 1:
        message = messages[0]
        return _ONE.pack(8 + len(message), 1, len(message)) + message
    lengths = [len(message) for message in messages]
    size = 4 + 4 * count + sum(lengths)
    return b"".join((pack(f"<II{count}I", size, count, *lengths), *messages))


def roomy_block(messages: Sequence[Buffer], lengths: Sequence[int], room: int) -> bytearray:
    """The same with `room` unused bytes before it; `lengths` are those of the messages."""
    count = len(messages)
    head = pack(f"<{room}xII{count}I", 4 + 4 * count + sum(lengths), count, *lengths)
    return bytearray().join((head, *messages))


def head_of_one(size: int) -> bytes:
    """Everything before the message, in a block with one message of `size` bytes."""
    return _ONE.pack(8 + size, 1, size)


def block_after(
    head: bytes, messages: Sequence[Buffer], lengths: Sequence[int], size: int
) -> bytes:
    """The same after `head`; `size` is that of the whole block."""
    count = len(messages)
    if count == 1:
        return b"".join((head, _ONE.pack(size - 4, 1, lengths[0]), messages[0]))
    return b"".join((head, pack(f"<II{count}I", size - 4, count, *lengths), *messages))


def block_size(data: Buffer, start: int = 0) -> int:
    """The length of the block at `start`, including its header; 0 if the header is incomplete."""
    if len(data) - start < HEAD:
        return 0
    return 4 + int(_HEAD.unpack_from(data, start)[0])


def whole_block(data: memoryview) -> list[memoryview] | None:
    """The messages of a block that is exactly `data`, without a copy; None otherwise."""
    end = len(data)
    if end < _ONE.size:
        return None
    size, count, length = _ONE.unpack_from(data)
    if size + 4 != end:
        return None
    if count == 1:
        return [data[_ONE.size :]] if length + _ONE.size == end else None
    begin = HEAD + 4 * count
    if begin > end or not 0 < count <= MESSAGES_MAX:
        return None
    ends = list(accumulate(unpack_from(f"<{count}I", data, HEAD), initial=begin))
    return [data[a:b] for a, b in pairwise(ends)] if ends[-1] == end else None


def part_of_block(data: memoryview, first: int, stop: int) -> tuple[list[memoryview], int]:
    """The messages at places `first` to `stop` of a valid block, and their offset. The other messages cost only the sum
    of their lengths."""
    _, count = _HEAD.unpack_from(data)
    lengths = unpack_from(f"<{stop}I", data, HEAD)
    begin = HEAD + 4 * count + sum(lengths[:first])
    ends = accumulate(lengths[first:], initial=begin)
    return [data[a:b] for a, b in pairwise(ends)], begin


def unpack_block(data: Buffer, start: int = 0) -> list[memoryview] | Rejected:
    """The messages of the complete block at `start`, without a copy: each pins `data`."""
    view = data if isinstance(data, memoryview) else memoryview(data)
    try:
        size, count = _HEAD.unpack_from(view, start)
        if (
            count == 1
            and size == 8 + _LENGTH.unpack_from(view, start + HEAD)[0] <= len(view) - start - 4
        ):
            return [view[start + _ONE.size : start + 4 + size]]
        if count > MESSAGES_MAX:
            return Rejected("block", f"{count} messages")
        begin = start + HEAD + 4 * count
        lengths = unpack_from(f"<{count}I", view, start + HEAD)
    except error as problem:
        return Rejected("block", str(problem))
    ends = list(accumulate(lengths, initial=begin))
    if ends[-1] != start + 4 + size or ends[-1] > len(view):
        return Rejected("block", "lengths do not add up")
    return [view[a:b] for a, b in pairwise(ends)]
