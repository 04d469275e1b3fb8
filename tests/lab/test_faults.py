"""Each fault of a lab takes exactly the packets that it names, on the path and in the direction that it names."""

from __future__ import annotations

from itertools import pairwise
from time import monotonic_ns

import pytest
from tests.lab.wire import Wire

from holdfast.lab.lab import Lab

pytestmark = [pytest.mark.root, pytest.mark.alone]

NOTHING = bytes(100)


def unharmed(wire: Wire, sound: str = "blue") -> None:
    """The way back, the other listener and the other subnet carry everything."""
    assert wire.passes(1500, sender="n2", listener="n1")
    assert wire.passes(1500, sender="n1", listener="n3")
    assert wire.passes(1500, subnet=sound)
    assert wire.tcp(bytes(5000), subnet=sound) == bytes(5000)


def test_a_sound_lab_loses_nothing_and_delivers_what_was_sent(wire: Wire) -> None:
    payloads = [bytes([i % 256]) * 1400 for i in range(500)]
    assert wire.arrive(payloads) == list(range(500))
    assert wire.arrive([bytes(8000)], df=False) == [0]
    assert wire.tcp(bytes(200_000)) == bytes(200_000)
    assert wire.multicast(NOTHING) == ["n2", "n3"]


def test_a_size_limit_is_exact_to_the_byte(lab: Lab, wire: Wire) -> None:
    lab.break_("red n1->n2 over 1000")
    assert wire.passes(1000)
    assert not wire.passes(1001)
    unharmed(wire)


def test_a_size_limit_stops_large_segments_but_not_small_ones(lab: Lab, wire: Wire) -> None:
    lab.break_("red n1->n2 over 1000")
    assert wire.tcp(bytes(20_000)) != bytes(20_000)
    assert wire.tcp(bytes(20_000), mss=536) == bytes(20_000)


def test_a_size_limit_can_spare_tcp(lab: Lab, wire: Wire) -> None:
    lab.break_("red n1->n2 over 1000 only udp")
    assert not wire.passes(1001)
    assert wire.tcp(bytes(20_000)) == bytes(20_000)


def test_a_filter_for_udp_leaves_tcp(lab: Lab, wire: Wire) -> None:
    lab.break_("red n1->n2 filter udp")
    assert not wire.passes(100)
    assert wire.tcp() == b"x"
    unharmed(wire)


def test_a_filter_for_tcp_leaves_udp(lab: Lab, wire: Wire) -> None:
    lab.break_("red n1->n2 filter tcp")
    assert wire.tcp() == b""
    assert wire.passes(1500)
    unharmed(wire)


def test_a_filter_for_multicast_leaves_everything_else_and_other_listeners(
    lab: Lab, wire: Wire
) -> None:
    lab.break_("red n1->n2 filter multicast")
    assert wire.multicast(NOTHING) == ["n3"]
    assert wire.multicast(NOTHING, sender="n3") == ["n1", "n2"]
    assert wire.passes(1500)
    unharmed(wire)


def test_a_filter_for_fragments_takes_first_and_last_ones(lab: Lab, wire: Wire) -> None:
    lab.break_("red n1->n2 filter frag")
    assert wire.arrive([bytes(4000)], df=False) == []
    assert wire.passes(1500)
    assert wire.arrive([bytes(4000)], sender="n2", listener="n1", df=False) == [0]
    (fault,) = lab.status()["faults"]
    assert fault["packets"] == 3


def test_a_pattern_is_found_at_its_place_only(lab: Lab, wire: Wire) -> None:
    lab.break_("red n1->n2 pattern 55555555 at 100")
    placed = bytearray(500)
    placed[100 - 28 : 104 - 28] = b"\x55" * 4
    beside = bytes(1) + bytes(placed)
    assert wire.arrive([bytes(placed), beside, b"\xaa" * 500]) == [1, 2]
    unharmed(wire)


@pytest.mark.parametrize("at", [4, 700, 1396])
def test_a_pattern_is_found_anywhere(lab: Lab, wire: Wire, at: int) -> None:
    lab.break_("red n1->n2 pattern 55555555")
    placed = bytearray(1400)
    placed[at : at + 4] = b"\x55" * 4
    nearly = bytearray(1400)
    nearly[at : at + 3] = b"\x55" * 3
    assert wire.arrive([bytes(placed), bytes(nearly), bytes(1400)]) == [1, 2]
    assert wire.passes(1500, b"\x55", sender="n2", listener="n1")
    unharmed(wire)


def test_a_pattern_stops_tcp_as_well(lab: Lab, wire: Wire) -> None:
    lab.break_("red n1->n2 pattern 55555555")
    assert wire.tcp(b"\x55" * 3000) == b""
    assert wire.tcp(b"\xaa" * 3000) == b"\xaa" * 3000


def test_random_loss_has_its_rate(lab: Lab, wire: Wire) -> None:
    lab.break_("red n1->n2 loss 20%")
    came = wire.arrive([NOTHING] * 3000)
    assert 2250 <= len(came) <= 2550
    assert came == sorted(came)
    unharmed(wire)


def test_every_fourth_packet_is_every_fourth_packet(lab: Lab, wire: Wire) -> None:
    assert wire.passes(
        100
    )  # the hosts know each other's addresses: nothing but these packets is counted
    lab.break_("red n1->n2 every 4 only udp")
    assert wire.arrive([NOTHING] * 12) == [0, 1, 2, 4, 5, 6, 8, 9, 10]
    unharmed(wire)


def test_a_share_of_the_flows_suffers_always_and_the_others_never(lab: Lab, wire: Wire) -> None:
    lab.break_("red n1->n2 blackout only udp share 25%")
    port = wire.next_port()
    here = wire.udp("n2", port=port)
    for flow in range(200):
        there = wire.udp("n1")
        for _ in range(3):
            there.sendto(flow.to_bytes(4, "big"), (wire.address("n2"), port))
    heard = [number for number, _ in wire.heard(here)]
    counts = {heard.count(flow) for flow in range(200)}
    assert counts == {0, 3}
    assert 25 <= 200 - len(set(heard)) <= 80
    unharmed(wire)


def test_the_four_quarters_are_all_flows(lab: Lab, wire: Wire) -> None:
    lab.break_(*(f"red n1->n2 blackout only udp share 25% from {p}%" for p in (0, 25, 50, 75)))
    port = wire.next_port()
    here = wire.udp("n2", port=port)
    for _ in range(100):
        wire.udp("n1").sendto(NOTHING, (wire.address("n2"), port))
    assert wire.heard(here) == []
    assert min(fault["packets"] for fault in lab.status()["faults"]) > 0
    unharmed(wire)


def test_more_packets_in_a_second_than_allowed_are_lost(lab: Lab, wire: Wire) -> None:
    lab.break_("red n1->n2 packets 50 only udp")
    assert 1 <= len(wire.arrive([NOTHING] * 500)) <= 60
    unharmed(wire)


def test_a_narrow_place_queues_and_then_loses(lab: Lab, wire: Wire) -> None:
    lab.break_("red n1->n2 rate 100000 queue 20000")
    began = monotonic_ns()
    came = wire.arrive([bytes(1000)] * 100)
    took_s = (monotonic_ns() - began) / 1e9
    assert 18 <= len(came) <= 30
    assert took_s >= 0.18  # 20 kB at 100 kB a second
    unharmed(wire)


def test_a_narrow_port_carries_nothing_larger_either_way(lab: Lab, wire: Wire) -> None:
    lab.break_("red *<->n2 mtu 800")
    for other in ("n1", "n3"):
        assert wire.passes(800, sender=other, listener="n2")
        assert not wire.passes(801, sender=other, listener="n2")
        assert wire.passes(800, sender="n2", listener=other)
        assert not wire.passes(801, sender="n2", listener=other)
    assert not wire.arrive([bytes(4000)], df=False)
    assert wire.passes(1500, sender="n1", listener="n3")
    assert wire.passes(1500, subnet="blue")
    lab.heal()
    assert wire.passes(1500)


def test_a_blackout_takes_everything_one_way_only(lab: Lab, wire: Wire) -> None:
    lab.break_("red n1->n2 blackout")
    assert not wire.passes(100)
    assert wire.tcp() == b""
    assert wire.multicast(NOTHING) == ["n3"]
    unharmed(wire)


def test_a_blackout_can_be_both_ways(lab: Lab, wire: Wire) -> None:
    lab.break_("red n1<->n2 blackout")
    assert not wire.passes(100)
    assert not wire.passes(100, sender="n2", listener="n1")
    assert wire.passes(100, sender="n3", listener="n1")


def timed(wire: Wire, count: int) -> list[float]:
    """Milliseconds from send to arrival of packets, one by one, and in the order in which they came."""
    port = wire.next_port()
    here, there = wire.udp("n2", port=port), wire.udp("n1")
    sent = {}
    for number in range(count):
        sent[number] = monotonic_ns()
        there.sendto(number.to_bytes(4, "big"), (wire.address("n2"), port))
    took = []
    while len(took) < count:
        for number, _ in wire.heard(here, quiet_s=0.0005):
            took.append((monotonic_ns() - sent[number]) / 1e6)
        assert monotonic_ns() - sent[0] < 5_000_000_000, f"{len(took)} of {count} came"
    return took


def test_a_slow_path_takes_its_time_and_keeps_the_order(lab: Lab, wire: Wire) -> None:
    lab.break_("red n1->n2 slow 30ms jitter 20ms")
    took = timed(wire, 20)
    assert min(took) >= 30
    assert wire.arrive([NOTHING] * 100) == list(range(100))
    unharmed(wire)


def test_packets_are_overtaken_but_not_lost(lab: Lab, wire: Wire) -> None:
    lab.break_("red n1->n2 reorder 20% by 5ms only udp")
    came = wire.arrive([NOTHING] * 200)
    assert came != sorted(came)
    assert sorted(came) == list(range(200))
    unharmed(wire)


def test_packets_come_twice(lab: Lab, wire: Wire) -> None:
    lab.break_("red n1->n2 duplicate 100% only udp")
    assert wire.arrive([NOTHING] * 10) == [n for n in range(10) for _ in range(2)]
    unharmed(wire)


def test_one_bit_is_wrong_and_no_checksum_tells(lab: Lab, wire: Wire) -> None:
    lab.break_("red n1->n2 corrupt 100%")
    port = wire.next_port()
    here, there = wire.udp("n2", port=port), wire.udp("n1")
    for _ in range(50):
        there.sendto(bytes(301), (wire.address("n2"), port))
    came = wire.heard(here)
    assert len(came) == 50
    assert all(sum(byte.bit_count() for byte in packet) == 1 for _, packet in came)
    data = wire.tcp(bytes(500))
    assert len(data) == 500
    assert sum(byte.bit_count() for byte in data) == 1
    unharmed(wire)


def test_a_flapping_fault_comes_and_goes(lab: Lab, wire: Wire) -> None:
    assert wire.passes(100)
    lab.break_("red n1->n2 blackout flap 100ms/100ms")
    port = wire.next_port()
    here, there = wire.udp("n2", port=port), wire.udp("n1")
    began = monotonic_ns()
    sent = 0
    came = []
    while monotonic_ns() - began < 1_000_000_000:
        there.sendto(sent.to_bytes(4, "big"), (wire.address("n2"), port))
        sent += 1
        came += [number for number, _ in wire.heard(here, quiet_s=0.002)]
    gaps = [b - a for a, b in pairwise(came) if b - a > 10]
    assert 3 <= len(gaps) <= 6
    assert 0.3 * sent <= len(came) <= 0.7 * sent


def test_faults_of_the_kernel_and_of_the_forwarder_add_up(lab: Lab, wire: Wire) -> None:
    lab.break_("red n1->n2 over 1000", "red n1->n2 slow 20ms")
    assert min(timed(wire, 5)) >= 20
    assert wire.passes(1000)
    assert not wire.passes(1001)
    unharmed(wire)


def test_faults_heal_one_by_one_and_count_what_they_took(lab: Lab, wire: Wire) -> None:
    size, lossy = lab.break_("red n1->n2 over 1000", "red n1->n2 filter frag")
    wire.arrive([bytes(1200)] * 7)
    taken = {fault["name"]: fault["packets"] for fault in lab.status()["faults"]}
    assert taken == {size: 7, lossy: 0}
    assert lab.heal(size) == [size]
    assert wire.passes(1500)
    assert wire.arrive([bytes(4000)], df=False) == []
    assert lab.heal() == [lossy]
    assert wire.arrive([bytes(4000)], df=False) == [0]


def test_watching_counts_and_harms_nothing(lab: Lab, wire: Wire) -> None:
    lab.break_("red n1->n2 watch 1000 only udp")
    assert wire.arrive([bytes(900)] * 5 + [bytes(1200)] * 3) == list(range(8))
    assert [fault["packets"] for fault in lab.status()["faults"]] == [3]


def test_what_is_sent_on_a_path_is_counted_in_bytes_on_the_wire(lab: Lab, wire: Wire) -> None:
    assert wire.passes(100)
    before = lab.traffic()[("red", "n1", "n2")]
    wire.arrive([bytes(972)] * 10)
    packets, size = lab.traffic()[("red", "n1", "n2")]
    assert (packets - before[0], size - before[1]) == (10, 10 * (1000 + 14))
