"""What the lab's forwarder does to packets, without sockets."""

from __future__ import annotations

from random import Random

import pytest

from holdfast.lab.plan import make_plan
from holdfast.lab.relay import Packet, Relay, flip_bit
from holdfast.lab.words import parse_lab_fault
from holdfast.types import MILLISECOND, SECOND

PLAN = make_plan("lab", 3, 2, 1500)


def udp(payload: bytes, port: int = 1000) -> bytes:
    """An Ethernet frame with a datagram; its checksum is right."""
    size = 8 + len(payload)
    addresses = bytes([10, 70, 0, 1, 10, 70, 0, 2])
    head = port.to_bytes(2, "big") + (2000).to_bytes(2, "big") + size.to_bytes(2, "big")
    total = checksum(
        addresses + bytes([0, 17]) + size.to_bytes(2, "big") + head + bytes(2) + payload
    )
    ip = bytes([0x45, 0]) + (20 + size).to_bytes(2, "big") + bytes([0, 0, 0x40, 0, 64, 17, 0, 0])
    return bytes(12) + b"\x08\0" + ip + addresses + head + total.to_bytes(2, "big") + payload


def checksum(data: bytes) -> int:
    data += bytes(len(data) % 2)
    total = sum(int.from_bytes(data[i : i + 2], "big") for i in range(0, len(data), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return (~total & 0xFFFF) or 0xFFFF


def relay(*texts: str, seed: int = 1) -> Relay:
    made = Relay(Random(seed))
    made.use(
        {f"f{i}": parse_lab_fault(t, PLAN.hosts, PLAN.subnets) for i, t in enumerate(texts)}, 0
    )
    return made


def test_a_slow_path_is_slow_and_keeps_the_order() -> None:
    path = relay("red n1->n2 slow 5ms jitter 4ms")
    leaves = [path.take(udp(b"x"), n * 1000)[0][0] for n in range(200)]
    assert leaves == sorted(leaves)
    assert leaves[0] >= 5 * MILLISECOND
    assert leaves[-1] <= 200 * 1000 + 9 * MILLISECOND
    assert path.taken() == {"f0": 200}


def test_a_narrow_place_sends_at_its_rate_and_loses_what_its_queue_does_not_hold() -> None:
    path = relay("red n1->n2 rate 100000 queue 5000")
    frame = udp(bytes(958))  # 1000 bytes with all headers
    departures = [path.take(frame, 0) for _ in range(20)]
    kept = [found[0][0] for found in departures if found]
    assert kept == [n * 10 * MILLISECOND for n in range(1, 7)]
    assert path.take(frame, SECOND) == [(SECOND + 10 * MILLISECOND, frame)]


def test_a_packet_rate_allows_what_it_says() -> None:
    path = relay("red n1->n2 packets 10 flap 10s/1s")
    passed = [bool(path.take(udp(b"x"), n * SECOND // 100)) for n in range(1000)]
    assert 100 <= sum(passed) <= 111


@pytest.mark.parametrize("size", [1, 2, 301, 1400])
@pytest.mark.parametrize("seed", range(5))
def test_a_flipped_bit_fits_its_checksum(size: int, seed: int) -> None:
    whole = udp(Random(seed).randbytes(size))
    flipped = flip_bit(Packet(whole), Random(seed))
    differing = [a ^ b for a, b in zip(whole, flipped, strict=True)]
    assert sum(byte.bit_count() for byte in differing[42:]) == 1
    assert not any(differing[:40])
    assert flipped == udp(flipped[42:])


def test_frames_that_are_no_packets_are_left_alone() -> None:
    arp = bytes(12) + b"\x08\x06" + bytes(28)
    path = relay("red n1->n2 corrupt 100%", "red n1->n2 over 10", "red n1->n2 pattern 00")
    assert path.take(arp, 0) == [(0, arp)]


def test_a_fault_that_continues_keeps_its_state() -> None:
    path = relay("red n1->n2 every 2 flap 10s/1s")
    fault = {"f0": parse_lab_fault("red n1->n2 every 2 flap 10s/1s", PLAN.hosts, PLAN.subnets)}
    assert path.take(udp(b"x"), 0)
    path.use(fault, 1)
    assert not path.take(udp(b"x"), 2)
