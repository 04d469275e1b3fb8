"""The fault layer: datagrams vanish, streams stall, and both come back when the fault is healed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.unit.transports.harness import LEFT, RIGHT, end, joined, on_loop, tls_for

from holdfast.errors import MisuseError
from holdfast.transports.faults import Faults, Rule
from holdfast.transports.tcp import TcpLimits
from holdfast.types import MILLISECOND


async def a_while() -> None:
    """Long enough for loopback to deliver whatever is on the way: the loop looks at its sockets each time."""
    for _ in range(20):
        await asyncio.sleep(0)


@on_loop
async def test_a_size_hole_takes_exactly_the_larger_datagrams_of_one_direction() -> None:
    faults = Faults()
    async with joined("udp", faults=faults) as (left, right, flow, other):
        faults.add(Rule("over 1000", adapter="red"))
        left.transport.transmit(flow, [b"a" * 972, b"b" * 973, b"c" * 20])
        right.transport.transmit(other, [b"d" * 5000])
        await right.seen.until(lambda: right.seen.count() == 3, "the smaller ones")
        await left.seen.until(lambda: left.seen.count() == 1, "the other direction")
        assert [len(packet) for packet in right.seen.packets()] == [5, 972, 20]
        faults.clear()
        left.transport.transmit(flow, [b"e" * 5000])
        await right.seen.until(lambda: right.seen.count() == 4, "healed")


@on_loop
async def test_a_stalled_stream_delivers_everything_in_order_after_the_heal() -> None:
    faults = Faults()
    async with joined("tcp", faults=faults) as (left, right, flow, other):
        number = faults.add(Rule("over 1000 only tcp", host=RIGHT))
        left.transport.transmit(flow, [b"small passes"])
        left.transport.transmit(flow, [b"x" * 1000])
        left.transport.transmit(flow, [b"small waits behind it"])
        right.transport.transmit(other, [b"y" * 5000])
        await left.seen.until(lambda: left.seen.count() == 1, "the other direction")
        await right.seen.until(lambda: right.seen.count() == 2, "what came before")
        await a_while()
        assert right.seen.packets()[1:] == [b"small passes"]
        faults.remove(number)
        await right.seen.until(lambda: right.seen.count() == 4, "healed")
        assert right.seen.packets()[2:] == [b"x" * 1000, b"small waits behind it"]


@on_loop
async def test_many_small_packets_in_one_write_are_one_large_segment() -> None:
    faults = Faults()
    async with joined("tcp", faults=faults) as (left, right, flow, _):
        faults.add(Rule("over 1000"))
        left.transport.transmit(flow, [b"x" * 90] * 10)  # 940 bytes with lengths, 980 with headers
        await right.seen.until(lambda: right.seen.count() == 11, "fits")
        left.transport.transmit(flow, [b"x" * 90] * 11)
        await a_while()
        assert right.seen.count() == 11


@on_loop
async def test_a_stall_takes_the_credit_and_the_heal_gives_it_back() -> None:
    faults = Faults()
    limits = TcpLimits(write_high_bytes=10_000, write_low_bytes=1000)
    async with joined("tcp", faults=faults, limits=limits) as (left, right, flow, _):
        faults.add(Rule("blackout"))
        left.transport.transmit(flow, [b"x" * 5000])
        assert left.seen.credits == []
        left.transport.transmit(flow, [b"x" * 5000])
        assert left.seen.credits == [(flow, False)]
        faults.clear()
        await right.seen.until(lambda: right.seen.count() == 3, "healed")
        assert left.seen.credits == [(flow, False), (flow, True)]


@on_loop
async def test_what_a_stall_keeps_is_bounded() -> None:
    faults = Faults()
    limits = TcpLimits(write_max_bytes=20_000)
    async with joined("tcp", faults=faults, limits=limits) as (left, right, flow, _):
        faults.add(Rule("blackout"))
        for _ in range(3):
            left.transport.transmit(flow, [b"x" * 5000])
        assert left.seen.closes == []
        left.transport.transmit(flow, [b"x" * 5000])
        assert "above the limit of 20000" in left.seen.closes[0].reason
        await right.seen.until(lambda: right.seen.closes, "closed at the peer")
        assert right.seen.count() == 1


@on_loop
async def test_a_closed_flow_sends_nothing_of_what_was_stalled() -> None:
    faults = Faults()
    async with joined("tcp", faults=faults) as (left, right, flow, _):
        faults.add(Rule("blackout"))
        left.transport.transmit(flow, [b"never"])
        left.transport.close_flow(flow, "given up")
        faults.clear()
        await right.seen.until(lambda: right.seen.closes, "closed")
        assert right.seen.packets() == [b"first"]


@on_loop
async def test_no_connection_is_made_over_a_dead_cable_until_it_is_healed() -> None:
    faults = Faults()
    limits = TcpLimits(connect_ns=20 * MILLISECOND)
    async with end("tcp", LEFT, faults=faults, limits=limits) as left, end("tcp", RIGHT) as right:
        number = faults.add(Rule("blackout", host=RIGHT))
        assert await left.failure_to(right.host, right.port) == "no answer within 0.02 s"
        left.ask(right.host, right.port)
        await a_while()
        faults.remove(number)
        await left.seen.until(lambda: left.seen.opens, "opened after the heal")
        assert len(left.seen.failures) == 1


@on_loop
async def test_a_lost_syn_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.transports.tcp.SYN_RETRY_S", 0.001)
    faults = Faults(seed=5)
    faults.add(Rule("loss 90%"))
    async with end("tcp", LEFT, faults=faults) as left, end("tcp", RIGHT) as right:
        await left.open_to(right)
        assert "hit 0 times" not in faults.describe()[0]


@on_loop
async def test_a_lost_segment_only_delays_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.transports.faults.RETRY_S", 0.001)
    faults = Faults(seed=1)
    async with joined("tcp", faults=faults) as (left, right, flow, _):
        faults.add(Rule("loss 50%"))
        sent = [b"%d" % n for n in range(50)]
        for packet in sent:
            left.transport.transmit(flow, [packet])
        await right.seen.until(lambda: right.seen.count() == 51, "all, in the end")
        assert right.seen.packets()[1:] == sent
        hits = int(faults.describe()[0].rsplit("hit ", 1)[1].split()[0])
        assert hits > 10


@on_loop
async def test_a_tls_stream_survives_a_stall(demo_ca: Path) -> None:
    faults = Faults()
    tls = tls_for(demo_ca, "n1"), tls_for(demo_ca, "n2")
    async with joined("tcp", tls=tls, faults=faults) as (left, right, flow, _):
        faults.add(Rule("over 500"))
        sent = [b"x" * 1000, b"after"]
        for packet in sent:
            left.transport.transmit(flow, [packet])
        await a_while()
        assert right.seen.count() == 1
        faults.clear()
        await right.seen.until(lambda: right.seen.count() == 3, "healed")
        assert right.seen.packets()[1:] == sent


def losses(seed: int) -> list[bool]:
    faults = Faults(seed)
    faults.add(Rule("loss 20%"))
    return [faults.hit("red", "udp", RIGHT, 1, 100) is not None for _ in range(2000)]


def test_loss_is_the_same_for_the_same_seed_and_near_its_rate() -> None:
    assert losses(7) == losses(7)
    assert losses(7) != losses(8)
    assert 300 < sum(losses(7)) < 500


@pytest.mark.parametrize(
    ("rule", "hit"),
    [
        (Rule("blackout"), True),
        (Rule("blackout only udp", adapter="red", host=RIGHT, port=7001), True),
        (Rule("blackout", adapter="blue"), False),
        (Rule("blackout", host=LEFT), False),
        (Rule("blackout", port=7002), False),
        (Rule("blackout only tcp"), False),
        (Rule("over 128"), False),
        (Rule("over 127"), True),
    ],
)
def test_a_rule_hits_only_what_it_names(rule: Rule, hit: bool) -> None:
    faults = Faults()
    faults.add(rule)
    assert (faults.hit("red", "udp", RIGHT, 7001, 100) is not None) is hit


def test_rules_are_described_and_removed_by_number() -> None:
    faults = Faults()
    first = faults.add(Rule("over 1000", adapter="red", host=RIGHT))
    second = faults.add(Rule("loss 0.1% only udp"))
    faults.hit("red", "tcp", RIGHT, 1, 2000)
    assert faults.describe() == [
        f"{first}: over 1000, from red to 127.0.1.1: hit 1 times",
        f"{second}: loss 0.1% only udp, from any adapter to any host: hit 0 times",
    ]
    faults.remove(first)
    assert list(faults.rules) == [second]
    with pytest.raises(MisuseError, match=f"no fault {first} .active: {second}."):
        faults.remove(first)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("corrupt 1%", "'corrupt' is not a kind of fault here: blackout, loss, over"),
        ("mtu 900", "'mtu' is not a kind of fault here"),
        ("blackout only sctp", "'sctp' is not a kind of packets"),
        ("over", "the line ends where a size in bytes is expected"),
        ("loss", "the line ends where a share is expected"),
        ("loss 101%", "101%"),
        ("blackout flap 1s/1s", "'flap' is not understood here"),
    ],
)
def test_a_fault_that_makes_no_sense_here_is_refused(fault: str, says: str) -> None:
    faults = Faults()
    with pytest.raises(MisuseError, match=f"{says}.*; nothing was changed"):
        faults.add(Rule(fault))
    assert faults.describe() == []
