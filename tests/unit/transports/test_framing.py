"""A stream of bytes is cut into the packets that were put in, wherever the network breaks it."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.transports.framing import BLOCK, EMPTY, LENGTH, ROOM_MIN, Cutter, frame
from holdfast.wire.packet import PACKET_MAX


def feed(cutter: Cutter, data: bytes) -> list[memoryview]:
    """As a socket does: fill what room there is, then cut."""
    packets: list[memoryview] = []
    while data:
        room = cutter.room()
        assert len(room) >= ROOM_MIN
        piece, data = data[: len(room)], data[len(room) :]
        room[: len(piece)] = piece
        cutter.add(len(piece))
        packets += cutter.cut()
    return packets


@settings(max_examples=200, deadline=None)
@given(
    packets=st.lists(st.binary(min_size=1, max_size=300), max_size=30),
    cuts=st.lists(st.integers(min_value=0, max_value=9000), max_size=20),
)
def test_any_split_gives_the_same_packets(packets: list[bytes], cuts: list[int]) -> None:
    stream = frame(packets)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    cutter = Cutter()
    found: list[memoryview] = []
    for first, stop in pairwise(edges):
        found += feed(cutter, stream[first:stop])
    assert [bytes(packet) for packet in found] == packets
    assert cutter.damage == ""


def test_packets_that_are_kept_never_change_while_more_comes() -> None:
    """The block is used on and on; a slice that was handed out must not be written over."""
    cutter = Cutter()
    sent = [bytes([n % 256]) * (1 + 997 * n % 40_000) for n in range(200)]
    kept: list[memoryview] = []
    for packet in sent:
        kept += feed(cutter, frame([packet]))
    assert [bytes(packet) for packet in kept] == sent


def test_the_largest_packet_passes_in_small_pieces() -> None:
    packet = b"x" * PACKET_MAX
    stream = frame([packet, b"after"])
    cutter = Cutter()
    found: list[memoryview] = []
    for at in range(0, len(stream), 5000):
        found += feed(cutter, stream[at : at + 5000])
    assert [bytes(one) for one in found] == [packet, b"after"]


def test_a_length_above_the_bound_is_damage_and_what_came_before_still_counts() -> None:
    cutter = Cutter()
    found = feed(cutter, frame([b"good"]) + LENGTH.pack(PACKET_MAX + 1) + b"rest")
    assert [bytes(packet) for packet in found] == [b"good"]
    assert str(PACKET_MAX + 1) in cutter.damage


def test_announcing_much_and_sending_little_does_not_make_us_hold_much() -> None:
    cutter = Cutter()
    sent = 240_000  # enough for the first block to be left
    assert feed(cutter, LENGTH.pack(PACKET_MAX) + bytes(sent)) == []
    assert BLOCK < sent + len(cutter.room()) < 5 * sent


def test_empty_packets_are_counted_and_skipped() -> None:
    cutter = Cutter()
    found = feed(cutter, EMPTY + frame([b"a"]) + EMPTY)
    assert [bytes(packet) for packet in found] == [b"a"]
    assert cutter.frames == 3
