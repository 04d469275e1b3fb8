"""Channels: delivered exactly once, in order, whatever the paths do; and peers that lie."""

from __future__ import annotations

from random import Random
from struct import pack
from time import process_time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.links.channels import DATAGRAMS, KINDS, OTHER_STREAM, STREAM, Pair, audit, chunk_of

from holdfast.links.channel_in import BLOCK_MAX, MESSAGE_MAX, RANGES_MAX, WINDOW, ChannelIn
from holdfast.links.channel_out import ChannelOut
from holdfast.types import MILLISECOND
from holdfast.wire.blocks import pack_block
from holdfast.wire.codec import Rejected, RoomyPart
from holdfast.wire.frames import Chunk, ChunkAck

LOTS = 1 << 30


def numbered(count: int, rng: Random, size_max: int) -> list[bytes]:
    return [
        number.to_bytes(4, "big") + rng.randbytes(rng.randrange(size_max + 1))
        for number in range(count)
    ]


def sent(
    out: ChannelOut, flow: Any = STREAM, piece_max: int = 60_000, now: int = 0, budget: int = LOTS
) -> list[Chunk]:
    return [chunk_of(part) for part in out.pump(now, flow, budget, piece_max, KINDS[flow])]


def taken(into: ChannelIn, *chunks: Chunk) -> list[bytes]:
    messages: list[memoryview] = []
    for chunk in chunks:
        assert into.take(chunk, messages) is None
    return [bytes(message) for message in messages]


# -- delivery ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_everything_arrives_once_and_in_order_over_any_paths(seed: int) -> None:
    """Links (b): reliable, FIFO, surviving any change of path, of packet size, of flow; acks lost one way."""
    pair = Pair(seed)
    rng = Random(seed + 1000)
    messages = numbered(rng.randrange(1, 80), rng, rng.choice([0, 10, 300, 2000]))
    pair.run(messages)
    assert pair.received == messages


@pytest.mark.parametrize("seed", range(4))
def test_messages_of_several_megabytes_arrive_whole(seed: int) -> None:
    """Links (b): a message larger than the window must not wait for itself."""
    pair = Pair(seed, pieces=(20_000, 60_000))
    pair.weather.changes = 5
    rng = Random(seed)
    messages = [b"", rng.randbytes(WINDOW + 100), b"", rng.randbytes(2 * WINDOW), b"end"]
    pair.run(messages)
    assert pair.received == messages


def test_a_large_message_is_copied_once_into_packets_of_its_own() -> None:
    out, into = ChannelOut(16), ChannelIn(16)
    message = Random(1).randbytes(290_000)
    out.write([message])
    parts = out.pump(0, STREAM, LOTS, 60_000, KINDS[STREAM])
    assert len(parts) == 5
    assert all(isinstance(part, RoomyPart) for part in parts)
    assert taken(into, *map(chunk_of, parts)) == [message]


def test_empty_messages_are_messages() -> None:
    out, into = ChannelOut(16), ChannelIn(16)
    out.write([b"", b"", b"a", b""])
    assert taken(into, *sent(out)) == [b"", b"", b"a", b""]


def test_nothing_to_write_writes_nothing() -> None:
    out = ChannelOut(16)
    out.write([])
    assert not out.wants()
    assert sent(out) == []


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=30), min_size=1, max_size=10), st.randoms(use_true_random=False))
def test_pieces_may_come_in_any_order_any_number_of_times(
    messages: list[bytes], rng: Random
) -> None:
    out, into = ChannelOut(16), ChannelIn(16)
    out.write(messages)
    chunks = sent(out, piece_max=7) * 2
    rng.shuffle(chunks)
    assert taken(into, *chunks) == messages


# -- bounds --------------------------------------------------------------------------------------------------------


def test_a_sender_stops_exactly_at_the_window_and_goes_on_with_the_acknowledgement() -> None:
    """Invariant 9: buffers never exceed their bounds."""
    out, into = ChannelOut(16), ChannelIn(16)
    messages = [bytes(60_000)] * 200
    out.write(messages)
    chunks = sent(out)
    assert sum(len(chunk.data) for chunk in chunks) == WINDOW
    assert not out.wants()
    got = taken(into, *chunks)
    assert out.ack(0, into.ack(), KINDS.copy)
    assert out.wants()
    while chunks := sent(out):
        got += taken(into, *chunks)
        out.ack(0, into.ack(), KINDS.copy)
        audit(out)
    assert got == messages
    assert not out.unacked


def test_a_lost_acknowledgement_of_a_full_window_is_said_again_when_asked() -> None:
    out, into = ChannelOut(16), ChannelIn(16)
    out.write([bytes(1000)] * 3)
    taken(into, *sent(out, DATAGRAMS, 1200))
    assert out.expire(1000 * MILLISECOND, DATAGRAMS)
    again = sent(out, DATAGRAMS, 1200)
    before = into.duplicates
    assert again
    assert taken(into, *again) == []
    assert into.duplicates == before + len(again), "the receiver knows that it was not heard"
    assert out.ack(0, into.ack(), KINDS.copy)
    assert not out.unacked


def test_what_lies_far_ahead_is_refused_and_what_lies_near_is_kept_once() -> None:
    """Memory is bounded by the window."""
    into = ChannelIn(16)
    refused = into.take(Chunk(16, 2 * WINDOW, memoryview(b"x")), [])
    assert isinstance(refused, Rejected)
    assert refused.reason == "window"
    piece = memoryview(bytes(60_000))
    for offset in range(1, 2 * WINDOW - len(piece), 30_000):
        into.take(Chunk(16, offset, piece), [])
        into.take(Chunk(16, offset, piece), [])
    assert into._early_bytes <= 2 * WINDOW + len(piece)


def test_acknowledgements_name_a_bounded_number_of_ranges() -> None:
    into = ChannelIn(16)
    for offset in range(10, 10_000, 10):
        into.take(Chunk(16, offset, memoryview(b"x")), [])
    assert len(into.ack().ranges) == RANGES_MAX


def test_sending_again_what_was_sent_in_many_small_blocks_costs_no_more_than_sending_it() -> None:
    """Links: no quadratic costs. A busy channel of small messages moves within a turn, not within minutes."""
    out, into = ChannelOut(16), ChannelIn(16)
    first: list[Chunk] = []
    for number in range(40_000):
        out.write([number.to_bytes(4, "big")])
        first += sent(out)
    begin = process_time()
    out.abandon(STREAM)
    again = out.pump(0, OTHER_STREAM, LOTS, 60_000, False)
    assert process_time() - begin < 5
    chunks = [chunk_of(part) for part in again]
    assert len(chunks) == len(first)
    assert taken(into, *chunks) == [number.to_bytes(4, "big") for number in range(40_000)]


# -- loss, and paths -----------------------------------------------------------------------------------------------


def test_a_datagram_is_lost_when_three_later_ones_have_arrived() -> None:
    out, into = ChannelOut(16), ChannelIn(16)
    out.write([bytes(1000)] * 5)
    chunks = sent(out, DATAGRAMS, 1200)
    for chunk in chunks[1:3]:
        taken(into, chunk)
        out.ack(MILLISECOND, into.ack(), KINDS.copy)
    assert sent(out, DATAGRAMS, 1200) == [], "two may have overtaken it"
    taken(into, chunks[3])
    out.ack(MILLISECOND, into.ack(), KINDS.copy)
    assert [chunk.offset for chunk in sent(out, DATAGRAMS, 1200)] == [0]
    audit(out)


def test_what_is_overtaken_on_a_stream_is_not_lost() -> None:
    out, into = ChannelOut(16), ChannelIn(16)
    out.write([bytes(1000)] * 5)
    first = sent(out, STREAM, 1200, budget=1000)
    later = sent(out, OTHER_STREAM, 1200)
    taken(into, *later)
    out.ack(MILLISECOND, into.ack(), KINDS.copy)
    assert sent(out, OTHER_STREAM) == []
    assert taken(into, *first)


def test_a_closed_flow_gives_back_what_was_on_it_and_nothing_else() -> None:
    out, into = ChannelOut(16), ChannelIn(16)
    out.write([bytes(1000)] * 5)
    lost = sent(out, STREAM, 1200, budget=1000)
    kept = sent(out, OTHER_STREAM, 1200)
    out.abandon(STREAM)
    audit(out)
    again = sent(out, OTHER_STREAM, 1200)
    assert [chunk.offset for chunk in again] == [chunk.offset for chunk in lost]
    assert len(taken(into, *kept, *again)) == 5


def test_an_acknowledgement_may_end_in_the_middle_of_a_piece() -> None:
    """Re-packetising: the pieces that arrive need not be the pieces that are on record."""
    out = ChannelOut(16)
    out.write([bytes(1000)])
    sent(out, DATAGRAMS, 600)
    out.ack(0, ChunkAck(16, 300, WINDOW), KINDS.copy)
    audit(out)
    out.abandon(DATAGRAMS)
    audit(out)
    assert [chunk.offset for chunk in sent(out, STREAM)] == [300]


def test_the_time_out_backs_off_and_recovers() -> None:
    out, into = ChannelOut(16), ChannelIn(16)
    out.write([b"a"])
    sent(out, DATAGRAMS)
    first, now = out.rto(), 0
    last: list[Chunk] = []
    for _ in range(8):
        now += out.rto()
        assert out.expire(now, DATAGRAMS)
        last = sent(out, DATAGRAMS, now=now)
    assert out.rto() > 4 * first
    taken(into, *last)
    out.ack(now, into.ack(), KINDS.copy)
    assert out.rto() <= first


# -- peers that lie ------------------------------------------------------------------------------------------------

numbers = st.one_of(
    st.integers(-100, 3000),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.sampled_from([WINDOW, 2 * WINDOW, 1 << 40]),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(numbers, numbers, st.lists(st.tuples(numbers, numbers), max_size=40))))
def test_no_acknowledgement_can_break_the_sender(
    acks: list[tuple[int, int, list[tuple[int, int]]]],
) -> None:
    """Links: acks beyond what was sent, overlapping, huge: refused, or a lie that only the liar suffers from."""
    out = ChannelOut(16)
    out.write([bytes(200)] * 10)
    sent(out, DATAGRAMS, 300)
    for upto, limit, ranges in acks:
        believed = out.ack(0, ChunkAck(16, upto, limit, tuple(ranges)), KINDS.copy)
        assert believed == (upto <= out._sent and len(ranges) <= RANGES_MAX)
        assert out.limit <= max(WINDOW, out.acked + 4 * WINDOW)
        assert out._flight_bytes >= 0
        assert out.acked <= out._sent
        out.expire(1 << 50, DATAGRAMS)
        sent(out, DATAGRAMS, 300)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(numbers, st.binary(max_size=50))))
def test_no_piece_can_break_the_receiver(pieces: list[tuple[int, bytes]]) -> None:
    """Links: offsets far ahead, negative, overlapping with other content: refused or read, never raised."""
    into = ChannelIn(16)
    messages: list[memoryview] = []
    for offset, data in pieces:
        problem = into.take(Chunk(16, offset, memoryview(data)), messages)
        ack = into.ack()
        assert ack.upto == into.upto >= 0
        if problem is not None and problem.reason != "window":
            return


@pytest.mark.parametrize(
    "head",
    [
        pack("<II", MESSAGE_MAX + BLOCK_MAX, 0),
        pack("<II", 0xFFFFFFFF, 1),
        pack("<II", 0, 5),
        pack("<III", 8, 1, 5),
    ],
)
def test_a_block_that_cannot_be_ends_the_channel_with_a_reason(head: bytes) -> None:
    into = ChannelIn(16)
    problem = into.take(Chunk(16, 0, memoryview(head)), [])
    assert isinstance(problem, Rejected)
    assert problem.reason == "block"


def test_bytes_that_come_twice_with_other_content_do_not_change_what_was_taken() -> None:
    into = ChannelIn(16)
    block = pack_block([b"abcd", b"efgh"])
    forged = bytes(len(block) - 4)
    got = taken(into, Chunk(16, 0, memoryview(block[:18])))
    got += taken(into, Chunk(16, 4, memoryview(forged[:10])))
    got += taken(into, Chunk(16, 10, memoryview(block[10:])))
    assert got == [b"abcd", b"efgh"]
