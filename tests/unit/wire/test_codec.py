"""Frames to bytes and back: every frame, in both directions of time, and whatever else may come in."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.unit.wire.samples import FRAMES, any_frame, of_struct

from holdfast.group.frames import Idle, StreamId
from holdfast.health.frames import Heartbeat, Probe
from holdfast.links.flow import CHUNK_OVERHEAD
from holdfast.wire.codec import (
    Part,
    Rejected,
    array_header,
    body_buffers,
    chunk_head,
    decode_body,
    decode_frame,
    encode,
    filled_part,
    part_size,
)
from holdfast.wire.frames import Chunk, ChunkAck, Frame, Hello, Refuse
from holdfast.wire.packet import HEAD
from holdfast.wire.seal import TAG


def body(*parts: Part) -> bytes:
    return b"".join(body_buffers(parts))


@pytest.mark.parametrize("kind", FRAMES, ids=lambda kind: kind.__name__)
def test_every_frame_survives_the_way_there_and_back(kind: type[Frame]) -> None:
    """Wire: both ends agree on all frames."""

    @settings(max_examples=25, deadline=None)
    @given(of_struct(kind))
    def round_trip(frame: Any) -> None:
        assert decode_frame(encode(frame)) == frame
        assert decode_body(body(encode(frame), encode(frame))) == [frame, frame]

    round_trip()


def test_no_two_frames_share_a_tag() -> None:
    """Wire: tags are never used again."""
    tags = [kind.__struct_config__.tag for kind in FRAMES]
    assert len(set(tags)) == len(tags) > 0


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
@example(b"\xdd\xff\xff\xff\xff")
@example(b"\x91\x92\x06\xdd\xff\xff\xff\xff")
@example(b"\x91" * 5000)
@example(b"\x91\x94\x02\xa1\xff\xa1a\x01")
def test_arbitrary_bytes_are_frames_or_rejected_and_never_raise(data: bytes) -> None:
    """Invariant 10: no input from the network raises."""
    assert isinstance(decode_body(data), list | Rejected)
    decode_frame(data)


@settings(max_examples=200, deadline=None)
@given(any_frame, st.data())
def test_a_truncated_frame_is_rejected(frame: Any, data: st.DataObject) -> None:
    encoded = encode(frame)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    assert isinstance(decode_frame(encoded[:cut]), Rejected)
    assert isinstance(decode_body(body(encoded)[: cut + 1]), Rejected)


@settings(max_examples=150, deadline=None)
@given(any_frame, st.data())
def test_a_frame_with_any_changed_bytes_never_raises(frame: Any, data: st.DataObject) -> None:
    encoded = bytearray(encode(frame))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(encoded) - 1))
        encoded[at] = data.draw(st.integers(0, 255))
    decode_frame(bytes(encoded))


@settings(max_examples=100, deadline=None)
@given(any_frame, st.lists(st.integers(0, 9), min_size=1, max_size=3))
def test_fields_that_a_newer_node_has_added_are_ignored(frame: Any, added: list[int]) -> None:
    """Wire: fields are only ever added at the end; an older node ignores them."""
    fields = msgspec.msgpack.decode(encode(frame))
    assert decode_frame(encode(fields + added)) == frame


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([20, 1, 2, 3], Heartbeat(1, 2, 3, echo_ns=0, echo_age_ns=0, sent=b"")),
        ([5, 1, 2, 3], ChunkAck(1, 2, 3, ranges=())),
        ([2, "self", "why"], Refuse("self", "why", retry_ms=5000)),
    ],
)
def test_fields_that_an_older_node_lacks_have_their_default(
    fields: list[Any], expected: Frame
) -> None:
    """Wire: a newer node fills in what an older one did not send."""
    assert decode_frame(encode(fields)) == expected


def test_a_missing_field_without_a_default_is_rejected() -> None:
    assert isinstance(decode_frame(encode([5, 1, 2])), Rejected)


def test_an_unknown_frame_rejects_its_packet_and_names_it() -> None:
    rejected = decode_body(body(encode(Heartbeat(1, 2, 3)), encode([250, 1])))
    assert isinstance(rejected, Rejected)
    assert "250" in rejected.detail


def test_a_rejection_has_a_bounded_text() -> None:
    rejected = decode_body(body(encode(["x" * 5000])))
    assert isinstance(rejected, Rejected)
    assert len(rejected.detail) <= 200


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 65_535, 65_536, 100_000])
@pytest.mark.parametrize("offset", [0, 127, 128, 1 << 40])
@pytest.mark.parametrize("channel", [0, 16, 200, 70_000])
def test_a_chunk_is_its_head_and_its_bytes(size: int, offset: int, channel: int) -> None:
    """Architecture, Wire: no copy on the way."""
    piece = memoryview(bytes(range(256)) * (size // 256 + 1))[:size]
    part = (chunk_head(channel, offset, size), piece)
    assert decode_frame(b"".join(part)) == Chunk(channel, offset, piece)
    assert part_size(part) == len(b"".join(part))
    assert len(part[0]) <= CHUNK_OVERHEAD - HEAD - TAG - 1, "what a flow leaves room for"


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 65_535])
def test_a_probe_part_decodes_to_its_probe_and_grows_by_one_for_each_byte_of_fill(
    size: int,
) -> None:
    """H1: a diagnostic packet really has its size; so the head in front of the fill never changes its length."""
    empty = Probe(7, 9000, 8, 9, memoryview(b""))
    part = filled_part(empty, memoryview(bytes(size)))
    assert part_size(part) == part_size(filled_part(empty, memoryview(b""))) + size
    frames = decode_body(body(part))
    assert frames == [Probe(7, 9000, 8, 9, memoryview(bytes(size)))]


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 1000, 65_535])
def test_a_body_may_hold_any_number_of_frames(count: int) -> None:
    idle = encode(Refuse("a", "b", 1))
    frames = decode_body(array_header(count) + idle * count)
    assert isinstance(frames, list)
    assert len(frames) == count


def test_a_hello_of_another_version_still_reads() -> None:
    """Wire: HELLO is the same in every version, or two versions could not find out about each other."""
    newer = [
        1,
        7,
        9,
        "lab",
        False,
        [b"n" * 16, "n1", 1, [], "new"],
        "red",
        1,
        2,
        0,
        0,
        True,
        b"",
        "new",
    ]
    hello = decode_frame(encode(newer))
    assert isinstance(hello, Hello)
    assert (hello.low, hello.high, hello.member.name) == (7, 9, "n1")


def test_a_bulk_field_pins_the_packet_and_copies_nothing() -> None:
    data = body(encode(Chunk(16, 0, memoryview(b"x" * 1000))))
    frames = decode_body(memoryview(data))
    assert isinstance(frames, list)
    chunk = frames[0]
    assert isinstance(chunk, Chunk)
    assert chunk.data.nbytes == 1000
    changed = bytearray(data)
    frames = decode_body(memoryview(changed))
    assert isinstance(frames, list)
    chunk = frames[0]
    assert isinstance(chunk, Chunk)
    changed[-1] = 0
    assert chunk.data[-1] == 0, "it is the packet's own memory"


def test_groups_with_names_in_any_script_survive() -> None:
    idle = Idle("Gruppe ß 组", StreamId(b"s" * 16, 1, 2), 1, 0)
    assert decode_frame(encode(idle)) == idle
