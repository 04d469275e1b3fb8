"""Blocks: many messages as one run of bytes, and blocks that somebody made up."""

from __future__ import annotations

from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.wire.blocks import (
    HEAD,
    MESSAGES_MAX,
    block_size,
    pack_block,
    part_of_block,
    unpack_block,
    whole_block,
)
from holdfast.wire.codec import Rejected


def unpacked(data: bytes, start: int = 0) -> list[bytes] | Rejected:
    messages = unpack_block(data, start)
    return messages if isinstance(messages, Rejected) else [bytes(message) for message in messages]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=50), max_size=20), st.binary(max_size=9), st.binary(max_size=9))
def test_messages_come_out_as_they_went_in(
    messages: list[bytes], before: bytes, after: bytes
) -> None:
    """Architecture, Wire: lengths first, then the messages; also in the middle of other bytes."""
    block = pack_block(messages)
    data = before + block + after
    assert block_size(data, len(before)) == len(block)
    assert unpacked(data, len(before)) == messages


@pytest.mark.parametrize("missing", range(1, HEAD + 1))
def test_a_head_that_is_not_complete_has_no_size_yet(missing: int) -> None:
    assert block_size(pack_block([b""])[: HEAD - missing]) == 0


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=100), st.integers(0, 20))
def test_arbitrary_bytes_never_raise(data: bytes, start: int) -> None:
    """Invariant 10."""
    assert isinstance(block_size(data, min(start, len(data))), int)
    unpack_block(data, start)


@pytest.mark.parametrize(
    "data",
    [
        pack("<II", 4, 0xFFFFFFFF),
        pack("<II", 0xFFFFFFFF, 0xFFFFFFFF),
        pack("<II", 4, MESSAGES_MAX + 1) + bytes(100),
        pack("<II", 4, MESSAGES_MAX) + bytes(100),
        pack("<II", 0, 0),
        pack("<II", 3, 0),
        pack("<II", 8, 0) + bytes(4),
        pack("<III", 8, 1, 1),
        pack("<III", 9, 1, 0xFFFFFFFF) + b"x",
        pack("<III", 9, 1, 2) + b"x",
        pack("<III", 10, 1, 1) + b"xy",
        pack("<IIII", 12, 2, 0xFFFFFFFF, 1) + b"x",
        b"",
        bytes(7),
    ],
    ids=lambda data: data.hex()[:40],
)
def test_counts_and_lengths_that_do_not_add_up_are_rejected(data: bytes) -> None:
    """Links: hostile counts and lengths."""
    assert isinstance(unpack_block(data), Rejected)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=20), min_size=1, max_size=5), st.data())
def test_a_block_whose_lengths_are_changed_gives_other_messages_or_is_rejected(
    messages: list[bytes], data: st.DataObject
) -> None:
    block = bytearray(pack_block(messages))
    at = data.draw(st.integers(0, HEAD + 4 * len(messages) - 1))
    block[at] ^= data.draw(st.integers(1, 255))
    result = unpacked(bytes(block))
    assert isinstance(result, Rejected) or result != messages


def test_a_block_of_the_largest_count_is_read_and_one_more_is_not() -> None:
    block = pack_block([b""] * 1000)
    assert unpacked(block) == [b""] * 1000
    assert MESSAGES_MAX == 1 << 20


def test_messages_share_the_memory_of_the_block() -> None:
    """Architecture: payloads are slices, not copies."""
    block = pack_block([b"abc", b"defg"])
    messages = unpack_block(block)
    assert isinstance(messages, list)
    assert all(message.obj is block for message in messages)


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=60),
        st.lists(st.binary(max_size=9), max_size=9).map(pack_block),
        st.lists(st.binary(max_size=9), max_size=9).map(lambda some: pack_block(some) + b"."),
        st.tuples(st.integers(0, 40), st.integers(0, 6), st.binary(max_size=40)).map(
            lambda head: pack("<II", *head[:2]) + head[2]
        ),
    )
)
def test_a_whole_block_is_what_any_block_is_that_ends_with_its_bytes(data: bytes) -> None:
    """The short way of almost all blocks gives what the long way gives, or sends there."""
    short, long = whole_block(memoryview(data)), unpack_block(data)
    if short is not None:
        assert block_size(data) == len(data)
        assert short == long
    elif not isinstance(long, Rejected) and long:
        assert block_size(data) < len(data), "more follows: that is for the long way"


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=9), min_size=1, max_size=9), st.data())
def test_a_part_of_a_block_is_read_by_itself(messages: list[bytes], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(messages) - 1))
    stop = data.draw(st.integers(first + 1, len(messages)))
    block = memoryview(pack_block(messages))
    some, begin = part_of_block(block, first, stop)
    assert some == messages[first:stop]
    content = b"".join(messages[first:stop])
    assert bytes(block[begin : begin + len(content)]) == content
