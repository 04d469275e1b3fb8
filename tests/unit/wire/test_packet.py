"""Packets: plain with a checksum, sealed, clear; and what damage and forgery make of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.wire.samples import any_frame

from holdfast.health.frames import Heartbeat, Probe
from holdfast.wire.codec import Rejected, encode
from holdfast.wire.frames import Frame, Refuse
from holdfast.wire.packet import (
    CLEAR,
    FORMAT,
    HEAD,
    SEALED,
    UNCHECKED,
    Packet,
    read_head,
    read_plain,
    read_sealed,
    write_plain,
    write_sealed,
)
from holdfast.wire.seal import KEY, TAG, Seal

SEAL = Seal(bytes(range(KEY)))
OTHER = Seal(bytes(KEY))
FRAMES: list[Frame] = [Heartbeat(1, 2, 3), Refuse("self", "why")]
PARTS = [encode(frame) for frame in FRAMES]

PLAIN = write_plain(0x01020304, 77, PARTS)
UNTESTED = write_plain(0x01020304, 77, PARTS, authenticated=True)
CLOSED = write_sealed(0x01020304, 77, PARTS, SEAL)
OPEN = write_sealed(0x01020304, 77, PARTS, SEAL, clear=True)


def head(data: bytes) -> Packet:
    packet = read_head(data)
    assert isinstance(packet, Packet)
    return packet


def read(data: bytes, authenticated: bool = False) -> list[Frame] | Rejected:
    """As a link reads: by its head first."""
    packet = read_head(data)
    if isinstance(packet, Rejected):
        return packet
    return read_sealed(packet, SEAL) if packet.flags & SEALED else read_plain(packet, authenticated)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(any_frame, max_size=4),
    st.integers(0, (1 << 32) - 1),
    st.integers(0, (1 << 64) - 1),
    st.sampled_from(["plain", "authenticated", "sealed", "clear"]),
)
def test_frames_come_out_as_they_went_in_under_their_session_and_number(
    frames: list[Any], session: int, number: int, kind: str
) -> None:
    parts = [encode(frame) for frame in frames]
    if kind in ("plain", "authenticated"):
        data = write_plain(session, number, parts, authenticated=kind == "authenticated")
    else:
        data = write_sealed(session, number, parts, SEAL, clear=kind == "clear")
    packet = head(data)
    assert (packet.session, packet.number) == (session, number)
    assert read(data, authenticated=kind == "authenticated") == frames


@pytest.mark.parametrize("data", [PLAIN, CLOSED, OPEN], ids=["plain", "sealed", "clear"])
def test_any_flipped_bit_is_rejected(data: bytes) -> None:
    """Links: every payload carries its own checksum; an offloaded UDP or TCP checksum does not protect."""
    assert read(data) == FRAMES
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert isinstance(read(bytes(damaged)), Rejected), f"bit {bit}"


@pytest.mark.parametrize("data", [PLAIN, CLOSED, OPEN], ids=["plain", "sealed", "clear"])
def test_a_packet_that_lost_its_end_or_gained_one_is_rejected(data: bytes) -> None:
    for cut in range(len(data)):
        assert isinstance(read(data[:cut]), Rejected), f"{cut} bytes"
    assert isinstance(read(data + b"\0"), Rejected)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=150), st.booleans())
def test_arbitrary_bytes_never_raise(data: bytes, authenticated: bool) -> None:
    """Invariant 10."""
    for flags in (0, SEALED, SEALED | CLEAR, CLEAR, UNCHECKED, 255):
        forged = bytes([FORMAT, flags]) + data
        packet = read_head(forged)
        if not isinstance(packet, Rejected):
            read_plain(packet, authenticated)
            assert isinstance(read_sealed(packet, SEAL), Rejected)
    assert isinstance(read(data), Rejected)


def test_an_unchecked_packet_is_read_only_inside_an_authenticated_stream() -> None:
    """Packet: no checksum, because the stream below is authenticated; accepted only there."""
    assert read_plain(head(UNTESTED), authenticated=True) == FRAMES
    assert read_plain(head(UNTESTED)) == Rejected("flags", "4")


def test_a_checked_packet_is_checked_also_inside_an_authenticated_stream() -> None:
    damaged = PLAIN[:-1] + bytes([PLAIN[-1] ^ 1])
    assert read_plain(head(PLAIN), authenticated=True) == FRAMES
    assert read_plain(head(damaged), authenticated=True) == Rejected("checksum")


@pytest.mark.parametrize("data", [CLOSED, OPEN], ids=["sealed", "clear"])
def test_a_sealed_packet_is_not_read_as_a_plain_one(data: bytes) -> None:
    for authenticated in (False, True):
        assert isinstance(read_plain(head(data), authenticated), Rejected)


@pytest.mark.parametrize("data", [PLAIN, UNTESTED], ids=["plain", "unchecked"])
def test_a_plain_packet_does_not_pass_as_a_sealed_one(data: bytes) -> None:
    assert read_sealed(head(data), SEAL) == Rejected("seal")


@pytest.mark.parametrize("clear", [False, True])
def test_another_key_does_not_open_a_packet(clear: bool) -> None:
    """Links: AEAD on datagrams."""
    data = write_sealed(5, 6, PARTS, OTHER, clear)
    assert read_sealed(head(data), SEAL) == Rejected("seal")


@pytest.mark.parametrize("clear", [False, True])
def test_a_sealed_packet_under_another_number_or_session_is_rejected(clear: bool) -> None:
    """The number is the nonce and the session is in the head: neither can be changed on the way."""
    data = bytearray(write_sealed(5, 6, PARTS, SEAL, clear))
    data[14:22] = (7).to_bytes(8, "little")
    assert read_sealed(head(bytes(data)), SEAL) == Rejected("seal")
    data[14:22] = (6).to_bytes(8, "little")
    assert read_sealed(head(bytes(data)), SEAL) == FRAMES
    data[10:14] = (9).to_bytes(4, "little")
    assert read_sealed(head(bytes(data)), SEAL) == Rejected("seal")


def test_a_clear_packet_does_not_pass_as_an_encrypted_one_or_the_other_way_round() -> None:
    for data in (CLOSED, OPEN):
        changed = bytearray(data)
        changed[9] ^= CLEAR
        assert read_sealed(head(bytes(changed)), SEAL) == Rejected("seal")


@pytest.mark.parametrize("form", [0, 2, 255])
def test_another_packet_format_is_named_with_the_one_that_is_read(form: int) -> None:
    rejected = read_head(PLAIN[:8] + bytes([form]) + PLAIN[9:])
    assert rejected == Rejected("format", f"packet format {form}; this node reads {FORMAT}")


def test_what_is_shorter_than_a_head_is_rejected() -> None:
    for size in range(HEAD):
        assert read_head(bytes(size)) == Rejected("short", f"{size} bytes")


def test_the_pattern_of_a_clear_packet_is_what_crosses_the_cable() -> None:
    """Health, patterns: probes are authenticated, not encrypted."""
    pattern = b"\x55" * 400
    probe = encode(Probe(1, 500, 1, 1, memoryview(pattern)))
    assert pattern in write_sealed(5, 6, [probe], SEAL, clear=True)
    assert pattern not in write_sealed(5, 6, [probe], SEAL)


def test_a_sealed_packet_is_larger_by_its_tag_only() -> None:
    """Links: security is there from the first day, because it changes every size."""
    assert len(CLOSED) == len(OPEN) == len(PLAIN) + TAG
    assert len(UNTESTED) == len(PLAIN)
