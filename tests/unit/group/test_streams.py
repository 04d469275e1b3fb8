"""What a replica holds: doubles and overlaps, bounds, what is let go when there is no room, and reading it back."""

from __future__ import annotations

from struct import unpack
from time import process_time

import pytest

from holdfast.group.delivery import digest_after
from holdfast.group.frames import Payload, StreamId
from holdfast.group.streams.stream_buffer import Stream, Streams, is_sound_payload
from holdfast.group.streams.values import PIECE_OVERHEAD
from holdfast.wire.blocks import pack_block

S = StreamId(b"s" * 16, 1, 0)
LOTS = 1 << 24


def text(number: int) -> bytes:
    return b"%d." % number


def payload(first: int, last: int, stream: StreamId = S) -> Payload:
    block = pack_block([text(number) for number in range(first, last + 1)])
    return Payload("g", stream, first, last - first + 1, 0, memoryview(block))


def filled(*ranges: tuple[int, int]) -> Stream:
    stream = Stream(S)
    for first, last in ranges:
        stream.take(payload(first, last), LOTS, 1)
    return stream


def read(stream: Stream, first: int, last: int) -> list[bytes]:
    return [bytes(message) for message in stream.read(first, last)[0]]


@pytest.mark.parametrize(
    "ranges",
    [
        [(1, 3), (4, 6), (7, 9)],
        [(7, 9), (1, 3), (4, 6)],
        [(1, 9)],
        [(1, 5), (3, 7), (6, 9)],
        [(2, 3), (6, 7), (1, 9)],
        [(1, 9), (1, 9), (4, 5)],
    ],
)
def test_any_blocks_that_cover_a_range_read_the_same(ranges: list[tuple[int, int]]) -> None:
    stream = filled(*ranges)
    messages, runs = stream.read(2, 8)
    expected = [text(number) for number in range(2, 9)]
    assert [bytes(message) for message in messages] == expected
    assert b"".join(content for _, content in runs) == b"".join(expected)
    lengths = b"".join(lengths for lengths, _ in runs)
    assert list(unpack(f"<{len(lengths) // 4}I", lengths)) == list(map(len, expected))


def test_reading_many_blocks_takes_as_long_as_reading_each_of_them() -> None:
    """No quadratic costs: what was sent one by one, behind a gap that is filled now, is one entry."""
    stream = filled(*((number, number) for number in range(1, 40_001)))
    begin = process_time()
    assert len(stream.read(1, 40_000)[0]) == 40_000
    assert process_time() - begin < 1


def test_the_digest_of_what_is_delivered_knows_messages_and_places_and_not_blocks() -> None:
    def digest(stream: Stream, position: int = 7) -> int:
        return digest_after(3, stream.read(2, 8)[1], position)

    usual = digest(filled((1, 9)))
    assert digest(filled((1, 3), (4, 6), (7, 9))) == usual == digest(filled((6, 9), (1, 7)))
    assert digest(filled((1, 9)), position=8) != usual
    other = Stream(S)
    # The same bytes, cut into messages elsewhere.
    other.take(
        Payload("g", S, 2, 7, 0, memoryview(pack_block([b"2.3.", b"", *map(text, range(4, 9))]))),
        LOTS,
        1,
    )
    assert digest(other) != usual


def test_what_is_held_already_takes_no_room() -> None:
    stream = filled((1, 5))
    before = stream.bytes
    assert not stream.take(payload(1, 5), LOTS, 1)
    assert not stream.take(payload(2, 4), LOTS, 1)
    assert stream.bytes == before


def test_what_is_below_the_floor_is_not_taken_again() -> None:
    stream = filled((1, 5), (6, 9))
    stream.drop_below(6)
    assert not stream.take(payload(1, 5), LOTS, 1)
    assert read(stream, 6, 9) == [text(number) for number in range(6, 10)]


def test_dropping_frees_every_byte() -> None:
    stream = filled((1, 5), (6, 9), (3, 12))
    stream.drop_below(13)
    assert (stream.bytes, stream.top, list(stream.held)) == (0, 0, [])


def test_a_block_stays_while_any_of_its_numbers_is_needed() -> None:
    stream = filled((1, 5))
    stream.drop_below(4)
    assert stream.bytes > 0
    assert read(stream, 4, 5) == [text(4), text(5)]


def test_without_room_the_lowest_numbers_win() -> None:
    room = 3 * (len(payload(1, 2).block) + PIECE_OVERHEAD)
    stream = Stream(S)
    for first in (3, 5, 7):
        assert stream.take(payload(first, first + 1), room, 1)
    assert not stream.take(payload(9, 10), room, 1), "higher than everything: dropped"
    assert stream.take(payload(1, 2), room, 1), "lower: the highest makes room"
    assert list(stream.held) == [(1, 7)]
    assert stream.exists == 10, "what was let go is known to exist, so it is asked for again"


def test_what_is_larger_than_all_the_room_is_not_taken() -> None:
    """Whoever sent it has a larger window, or is out of its mind: it is a gap, and nothing raises."""
    room = len(payload(1, 2).block)
    stream = Stream(S)
    assert not stream.take(payload(1, 2), room, 1)
    assert (stream.bytes, list(stream.held), stream.exists) == (0, [], 2)
    stream.take(payload(1, 1), LOTS, 1)
    assert not stream.take(payload(2, 9), room, 1)
    assert not stream.take(payload(2, 9), room, fixed=2)


def test_what_the_log_has_is_never_let_go_and_takes_no_room() -> None:
    room = len(payload(3, 4).block) + PIECE_OVERHEAD
    stream = Stream(S)
    assert stream.take(payload(3, 4), room, 1)
    assert stream.take(payload(7, 8), room, fixed=5)
    assert not stream.take(payload(9, 10), room, fixed=5)
    assert stream.take(payload(5, 6), room, fixed=5)
    assert list(stream.held) == [(3, 7)], "of what comes next the lowest numbers win"


def test_tiny_messages_are_bounded_by_more_than_their_bytes() -> None:
    stream = Stream(S)
    for number in range(1, 10_000, 2):
        stream.take(payload(number, number), 100_000, 1)
    assert len(stream.held) <= 100_000 // PIECE_OVERHEAD


def test_a_cut_ends_at_whole_blocks_and_has_at_least_one() -> None:
    stream = filled((1, 3), (4, 6), (7, 9))
    size = len(payload(1, 3).block)
    assert stream.cut(1, 10, 2 * size) == 6
    assert stream.cut(1, 10, 1) == 3
    assert stream.cut(2, 10, 1) == 3
    assert stream.cut(1, 6, LOTS) == 5


@pytest.mark.parametrize("letters", [b"sss", b"abc"], ids=["lives of one source", "three sources"])
def test_too_many_streams_are_refused_unless_one_is_not_needed(letters: bytes) -> None:
    streams = Streams(LOTS, streams_max=2)
    one, two, three = (StreamId(bytes([letter]) * 16, k, 0) for k, letter in enumerate(letters))
    assert streams.take(payload(1, 2, one), 1)
    assert streams.take(payload(1, 2, two), 1)
    assert streams.take(payload(1, 2, three), 1) is None
    streams.streams[one].drop_below(3)
    assert streams.take(payload(1, 2, three), 1)
    assert list(streams.streams) == [two, three]


def test_a_stream_that_lacks_something_is_not_forgotten() -> None:
    streams = Streams(LOTS, streams_max=1)
    streams.know(S, 7, floor=1)
    assert streams.open(StreamId(b"r" * 16, 1, 0)) is None


def broken(**changes: object) -> Payload:
    good = payload(1, 3)
    fields = {name: getattr(good, name) for name in good.__struct_fields__} | changes
    return Payload(**fields)


@pytest.mark.parametrize(
    "frame",
    [
        broken(count=2),
        broken(count=4),
        broken(count=0),
        broken(count=-1),
        broken(count=1 << 40),
        broken(first=0),
        broken(first=-5),
        broken(first=1 << 61),
        broken(stream=StreamId(b"", 1, 0)),
        broken(stream=StreamId(b"s" * 16, -1, 0)),
        broken(block=memoryview(b"")),
        broken(block=payload(1, 3).block[:-1]),
        broken(block=memoryview(bytes(payload(1, 3).block) + b"x")),
        broken(block=memoryview(b"\x10\x00\x00\x00\x03\x00\x00\x00" + b"\xff" * 12)),
    ],
)
def test_damaged_payload_is_told(frame: Payload) -> None:
    assert is_sound_payload(payload(1, 3))
    assert not is_sound_payload(frame)
