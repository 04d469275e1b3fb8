"""Sockets that measure: a port of their own, fragments, segments of a chosen size outside TLS; and what strangers
try on them."""

from __future__ import annotations

import asyncio
import socket
import struct
from pathlib import Path

import pytest
from tests.unit.transports.harness import (
    LEFT,
    RIGHT,
    End,
    Recorder,
    dial,
    end,
    on_loop,
    read_all,
    tls_for,
)

from holdfast.links.ports import OpenFlow
from holdfast.transports.faults import Faults, Rule
from holdfast.transports.framing import MEASURES, Lead, begin_measuring, frame
from holdfast.transports.multicast import MulticastTransport
from holdfast.transports.tcp import TcpLimits
from holdfast.transports.udp import UdpLimits, UdpTransport
from holdfast.types import MILLISECOND, FlowId

GROUP = ("239.255.72.1", 17402)


async def opened(left: End, right: End, use: str) -> FlowId:
    """A flow of some use from one end to another."""
    before = len(left.seen.opens)
    transport = left.transport
    transport.open(OpenFlow("red", transport.kind, right.host, right.port, "asker", use))
    await left.seen.until(lambda: len(left.seen.opens) > before or left.seen.failures, use)
    assert not left.seen.failures, left.seen.failures
    assert left.seen.opens[-1].use == use
    return left.seen.opens[-1].flow


# -- datagrams ---------------------------------------------------------------------------------------------------


@on_loop
async def test_each_flow_to_another_port_has_a_port_of_its_own() -> None:
    async with end("udp", LEFT) as left, end("udp", RIGHT) as right:
        flows = [await opened(left, right, use) for use in ("", "alt", "alt", "frag")]
        for flow in flows:
            left.transport.transmit(flow, [b"%d" % flow])
        await right.seen.until_count(4)
        assert len({heard.port for heard in right.seen.opens}) == 4
        assert left.port in {heard.port for heard in right.seen.opens}


@on_loop
async def test_answers_come_back_on_the_flow_that_asked() -> None:
    async with end("udp", LEFT) as left, end("udp", RIGHT) as right:
        flow = await opened(left, right, "alt")
        left.transport.transmit(flow, [b"ask"])
        await right.seen.until_count(1)
        right.transport.transmit(right.seen.opens[-1].flow, [b"answer"])
        await left.seen.until_count(1)
        assert left.seen.packets(flow) == [b"answer"]


@on_loop
async def test_a_stranger_is_not_heard_at_a_port_that_measures() -> None:
    async with end("udp", LEFT) as left, end("udp", RIGHT) as right:
        flow = await opened(left, right, "alt")
        left.transport.transmit(flow, [b"ask"])
        await right.seen.until_count(1)
        heard = right.seen.opens[-1]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            stranger.bind((RIGHT, 0))
            stranger.sendto(b"let me in", (heard.host, heard.port))
        right.transport.transmit(heard.flow, [b"answer"])
        await left.seen.until_count(1)
        assert left.seen.packets() == [b"answer"]
        assert left.transport.counters.dropped == 1


@on_loop
async def test_a_port_is_given_back_when_its_flow_is_closed() -> None:
    async with end("udp", LEFT, limits=UdpLimits(sides_max=2)) as left, end("udp", RIGHT) as right:
        for _ in range(10):
            flow = await opened(left, right, "alt")
            left.transport.close_flow(flow, "enough")
            await left.seen.until(lambda f=flow: f in [c.flow for c in left.seen.closes])  # type: ignore[misc]


@on_loop
async def test_ports_that_measure_are_bounded() -> None:
    async with end("udp", LEFT, limits=UdpLimits(sides_max=2)) as left, end("udp", RIGHT) as right:
        for _ in range(2):
            await opened(left, right, "alt")
        left.transport.open(OpenFlow("red", "udp", right.host, right.port, "asker", "alt"))
        await left.seen.until(lambda: left.seen.failures)
        assert left.seen.failures[-1].use == "alt"
        assert "2 measuring sockets" in left.seen.failures[-1].reason


@on_loop
async def test_every_flow_that_measures_is_closed_with_its_transport() -> None:
    async with end("udp", RIGHT) as right:
        async with end("udp", LEFT) as left:
            flows = [await opened(left, right, use) for use in ("alt", "frag")]
        assert sorted(closed.flow for closed in left.seen.closes) == flows


@on_loop
async def test_a_size_limit_does_not_hit_fragments_that_fit() -> None:
    faults = Faults()
    faults.add(Rule("over 1500"))
    async with end("udp", LEFT, faults=faults) as left, end("udp", RIGHT) as right:
        assert isinstance(left.transport, UdpTransport)
        left.transport._mtu = 1500  # as an adapter of a real cable has it
        flow = await opened(left, right, "frag")
        left.transport.transmit(flow, [bytes(4000)])
        await right.seen.until_count(1)
        faults.add(Rule("blackout only frag"))
        left.transport.transmit(flow, [bytes(4000), b"small"])
        await right.seen.until_count(2)
        assert right.seen.packets()[-1] == b"small"


# -- segments ----------------------------------------------------------------------------------------------------


def negotiated(transport: object, flow: FlowId) -> int:
    """What the kernel puts into a segment of this connection at most."""
    connection = transport._flows[flow]  # type: ignore[attr-defined]
    sock = connection._transport.get_extra_info("socket")
    return int(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG))


@pytest.mark.parametrize("mss", [536, 960, 1240, 1460])
@pytest.mark.parametrize("sealed", [False, True])
def test_both_kernels_keep_to_the_segment_size(demo_ca: Path, mss: int, sealed: bool) -> None:
    @on_loop
    async def test() -> None:
        tls = [tls_for(demo_ca, name) if sealed else None for name in ("n1", "n2")]
        async with end("tcp", LEFT, tls=tls[0]) as left, end("tcp", RIGHT, tls=tls[1]) as right:
            flow = await opened(left, right, f"mss:{mss}")
            left.transport.transmit(flow, [b"x" * 3000])
            await right.seen.until_count(1)
            other = right.seen.opens[-1]
            assert (other.use, other.identity) == (f"mss:{mss}" if sealed else "", None)
            right.transport.transmit(other.flow, [b"y" * 3000])
            await left.seen.until_count(1)
            options = left.seen.opens[-1].overhead - 44
            assert options in (0, 12), "timestamps take twelve bytes of each segment"
            assert negotiated(left.transport, flow) == mss - options
            assert negotiated(right.transport, other.flow) == mss - options

    test()


@on_loop
async def test_connections_that_measure_leave_room_for_others() -> None:
    limits = TcpLimits(measuring_max=2)
    async with end("tcp", LEFT) as left, end("tcp", RIGHT, limits=limits) as right:
        flows = [await opened(left, right, "mss:536") for _ in range(3)]
        for flow in flows:
            left.transport.transmit(flow, [b"x"])
        await left.seen.until(lambda: left.seen.closes, "one too many")
        data = await opened(left, right, "")
        left.transport.transmit(data, [b"data"])
        await right.seen.until(lambda: b"data" in right.seen.packets(), "data")
        right.transport.open(OpenFlow("red", "tcp", left.host, left.port, "asker", "mss:536"))
        await right.seen.until(lambda: right.seen.failures)
        assert right.seen.failures[-1].reason == "there are too many measuring connections"
        left.transport.close_flow(next(f for f in flows if f not in closed(left)), "enough")
        await right.seen.until(lambda: len(right.seen.closes) == 2)
        await opened(left, right, "mss:960")


def closed(one: End) -> list[FlowId]:
    return [event.flow for event in one.seen.closes]


@on_loop
async def test_ordinary_connections_say_how_much_is_around_a_packet() -> None:
    async with end("tcp", LEFT) as left, end("tcp", RIGHT) as right:
        await opened(left, right, "")
        assert left.seen.opens[-1].overhead in (44, 56)


def test_tls_is_counted_in_what_is_around_a_packet(demo_ca: Path) -> None:
    @on_loop
    async def test() -> None:
        left_tls, right_tls = tls_for(demo_ca, "n1"), tls_for(demo_ca, "n2")
        async with (
            end("tcp", LEFT, tls=left_tls) as left,
            end("tcp", RIGHT, tls=right_tls) as right,
        ):
            await opened(left, right, "")
            assert left.seen.opens[-1].overhead in (66, 78)

    test()


@pytest.mark.parametrize("cut", range(1, 9))
def test_what_a_connection_begins_with_may_come_in_pieces(cut: int) -> None:
    lead, data = Lead(), begin_measuring(1240) + b"rest"
    for piece in (data[:cut], data[cut:]):
        lead.room()[: len(piece)] = piece
        lead.add(len(piece))
    assert (lead.decided, lead.mss, bytes(lead.rest())) == (True, 1240, b"rest")


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01", b"\x05\0\0\0hello", b"\xfeHM2", b"\xff", b"GET / HTTP"]
)
def test_any_other_beginning_is_left_as_it_is(data: bytes) -> None:
    lead = Lead()
    for byte in data:
        lead.room()[:1] = bytes([byte])
        lead.add(1)
    assert (lead.decided, lead.mss, bytes(lead.rest())) == (True, 0, data)


HOSTILE = [
    MEASURES,
    MEASURES + b"\1",
    begin_measuring(0),
    begin_measuring(1),
    begin_measuring(1 << 31),
    begin_measuring(536) + struct.pack("<I", 1 << 30) + b"garbage",
    b"\xfe" * 100,
    b"GET / HTTP/1.1\r\n\r\n",
    bytes(range(256)),
]


@pytest.mark.parametrize("garbage", HOSTILE)
@pytest.mark.parametrize("sealed", [False, True])
def test_garbage_ends_its_own_connection_in_time_and_no_other(
    demo_ca: Path, garbage: bytes, sealed: bool
) -> None:
    @on_loop
    async def test() -> None:
        tls = [tls_for(demo_ca, name) if sealed else None for name in ("n1", "n2")]
        limits = TcpLimits(handshake_ns=300 * MILLISECOND)
        async with (
            end("tcp", LEFT, tls=tls[0]) as left,
            end("tcp", RIGHT, tls=tls[1], limits=limits) as right,
        ):
            flow = await opened(left, right, "mss:536")
            left.transport.transmit(flow, [b"before"])
            await right.seen.until_count(1)
            with dial(right) as stranger:
                stranger.sendall(garbage)
                await read_all(stranger)
            left.transport.transmit(flow, [b"after"])
            await right.seen.until_count(2)

    test()


@on_loop
async def test_a_stranger_that_measures_and_says_nothing_is_turned_away_in_time() -> None:
    async with end("tcp", RIGHT, limits=TcpLimits(handshake_ns=200 * MILLISECOND)) as right:
        with dial(right) as stranger:
            stranger.sendall(begin_measuring(536))
            assert await read_all(stranger) == b""


def test_a_packet_outside_tls_is_not_taken_for_one_of_a_certified_peer(demo_ca: Path) -> None:
    @on_loop
    async def test() -> None:
        async with end("tcp", RIGHT, tls=tls_for(demo_ca, "n2")) as right:
            with dial(right) as stranger:
                stranger.sendall(begin_measuring(536) + frame([b"trust me"]))
                await right.seen.until_count(1)
            assert (right.seen.opens[-1].identity, right.seen.opens[-1].use) == (None, "mss:536")

    test()


# -- multicast ---------------------------------------------------------------------------------------------------


class Member:
    """One socket in the group."""

    def __init__(self, host: str, faults: Faults | None = None) -> None:
        self.seen = Recorder()
        self.numbers = iter(range(1, 100))
        self.transport = MulticastTransport(
            "red", host, GROUP, self.seen, lambda: FlowId(next(self.numbers)), faults=faults
        )

    async def join(self) -> FlowId:
        await self.transport.start()
        self.transport.open(OpenFlow("red", "multicast", *GROUP, "group"))
        assert not self.seen.failures, self.seen.failures
        return self.seen.opens[-1].flow


@on_loop
async def test_all_members_of_a_multicast_group_receive_one_packet() -> None:
    members = [Member(LEFT), Member(RIGHT), Member(RIGHT)]
    flows = [await member.join() for member in members]
    members[0].transport.transmit(flows[0], [b"one", b"two"])
    for member in members:
        await member.seen.until_count(2)
        assert member.seen.packets() == [b"one", b"two"]
    for member in members:
        await member.transport.stop()
        assert [closed.flow for closed in member.seen.closes] == [1]


@on_loop
async def test_a_socket_that_left_a_multicast_group_receives_nothing_and_can_rejoin() -> None:
    one, other = Member(LEFT), Member(RIGHT)
    flow, old = await one.join(), await other.join()
    other.transport.close_flow(old, "enough")
    one.transport.transmit(flow, [b"unheard"])
    await one.seen.until_count(1)
    await asyncio.sleep(0)
    new = await other.join()
    assert new != old
    one.transport.transmit(flow, [b"heard"])
    await other.seen.until_count(1)
    assert other.seen.packets() == [b"heard"]
    for member in (one, other):
        await member.transport.stop()


@on_loop
async def test_a_group_is_not_heard_at_another_group_of_the_same_port() -> None:
    one, other = Member(LEFT), Member(RIGHT)
    other.transport._group = ("239.255.72.2", GROUP[1])
    flow, there = await one.join(), await other.join()
    one.transport.transmit(flow, [b"ours"])
    await one.seen.until_count(1)
    other.transport.transmit(there, [b"theirs"])
    await other.seen.until_count(1)
    assert (one.seen.packets(), other.seen.packets()) == ([b"ours"], [b"theirs"])
    for member in (one, other):
        await member.transport.stop()


@on_loop
async def test_a_group_that_cannot_be_joined_is_said_to_be_so() -> None:
    member = Member("192.0.2.1")
    await member.transport.start()
    member.transport.open(OpenFlow("red", "multicast", *GROUP, "group"))
    assert [failure.unit for failure in member.seen.failures] == ["group"]
    await member.transport.stop()


@on_loop
async def test_faults_break_multicast_by_name() -> None:
    faults = Faults()
    member = Member(LEFT, faults)
    flow = await member.join()
    rule = faults.add(Rule("blackout only multicast"))
    member.transport.transmit(flow, [b"lost"])
    faults.remove(rule)
    faults.add(Rule("blackout only tcp"))
    member.transport.transmit(flow, [b"sound"])
    await member.seen.until_count(1)
    assert member.seen.packets() == [b"sound"]
    await member.transport.stop()
