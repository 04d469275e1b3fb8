"""UDP: flows are remote addresses; batches, bounds, sizes, a socket that takes no more."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any
from unittest.mock import patch

from tests.unit.transports.harness import LEFT, RIGHT, End, connected, end, joined, on_loop

from holdfast.transports.udp import DRAIN_MAX, QUEUED_OVERHEAD, UdpLimits, UdpTransport
from holdfast.types import MILLISECOND


def stranger_to(target: End) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((LEFT, 0))
    sock.connect((target.host, target.port))
    return sock


class Choked:
    """A socket that takes no more datagrams until it is told otherwise: loopback itself never says so."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.full = True

    def sendto(self, data: bytes, address: Any) -> int:
        if self.full:
            raise BlockingIOError
        return self._sock.sendto(data, address)

    def sendmsg(self, *given: Any) -> int:
        if self.full:
            raise BlockingIOError
        return self._sock.sendmsg(*given)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


def choke(one: End) -> Choked:
    assert isinstance(one.transport, UdpTransport)
    assert one.transport._socket is not None
    choked = Choked(one.transport._socket)
    one.transport._socket = choked  # type: ignore[assignment]  # stands in for it
    return choked


@on_loop
async def test_what_waits_in_the_socket_is_handed_on_once_for_each_flow() -> None:
    async with end("udp", RIGHT) as right:
        first, second = stranger_to(right), stranger_to(right)
        for n in range(50):
            first.send(b"a%d" % n)
            second.send(b"b%d" % n)
        await right.seen.until(lambda: right.seen.count() == 100, "all datagrams")
        assert len(right.seen.batches) <= 10, "two, unless the machine is busy"
        assert right.seen.packets(right.seen.batches[0][0]) == [b"a%d" % n for n in range(50)]
        first.close()
        second.close()


@on_loop
async def test_a_flood_leaves_the_loop_time_for_others() -> None:
    at_once = 256
    assert at_once < DRAIN_MAX, "more would not fit into the buffer of the socket"
    with patch("holdfast.transports.udp.DRAIN_MAX", at_once):
        async with end("udp", RIGHT) as right:
            stranger = stranger_to(right)
            for n in range(600):
                stranger.send(b"%d" % n)
            await right.seen.until(lambda: right.seen.count() == 600, "all datagrams")
            assert max(len(packets) for _, packets, _ in right.seen.batches) <= at_once
            stranger.close()


@on_loop
async def test_unanswered_senders_are_bounded_and_the_oldest_makes_room() -> None:
    async with end("udp", RIGHT, limits=UdpLimits(unanswered_max=3)) as right:
        strangers = [stranger_to(right) for _ in range(5)]
        for n, stranger in enumerate(strangers):
            stranger.send(b"hello")
            await right.seen.until_count(n + 1)
            if n == 0:
                right.transport.transmit(right.seen.opens[0].flow, [b"welcome"])
        assert [c.flow for c in right.seen.closes] == [right.seen.opens[1].flow]
        assert "was never answered" in right.seen.closes[0].reason
        strangers[0].send(b"the answered one is still there")
        await right.seen.until(lambda: right.seen.count() == 6, "heard again")
        assert right.seen.batches[-1][0] == right.seen.opens[0].flow
        for stranger in strangers:
            stranger.close()


@on_loop
async def test_all_flows_together_are_bounded() -> None:
    async with end("udp", RIGHT, limits=UdpLimits(flows_max=1)) as right:
        known, unknown = stranger_to(right), stranger_to(right)
        known.send(b"hello")
        await right.seen.until(lambda: right.seen.opens, "opened")
        right.transport.transmit(right.seen.opens[0].flow, [b"welcome"])
        unknown.send(b"me too")
        known.send(b"again")
        await right.seen.until(lambda: right.seen.count() == 2, "heard again")
        assert right.transport.counters.dropped == 1
        assert len(right.seen.opens) == 1
        right.ask(LEFT, 9)
        assert "already 1 flows" in right.seen.failures[0].reason
        known.close()
        unknown.close()


@on_loop
async def test_a_flow_that_was_heard_first_is_announced_again_when_it_is_asked_for() -> None:
    async with joined("udp") as (left, right, _, other):
        right.ask(left.host, left.port, unit="acceptor")
        again = right.seen.opens[1]
        assert (again.flow, again.inbound, again.unit) == (other, False, "acceptor")


@on_loop
async def test_a_datagram_that_is_too_large_is_counted_and_the_others_pass() -> None:
    async with joined("udp") as (left, right, flow, _):
        left.transport.transmit(flow, [b"before", bytes(65_508), b"after"])
        await right.seen.until(lambda: right.seen.count() == 3, "the others")
        assert right.seen.packets()[1:] == [b"before", b"after"]
        assert left.transport.counters.too_large == 1


@on_loop
async def test_sending_to_an_absent_peer_raises_nothing_and_keeps_the_flow() -> None:
    async with end("udp", LEFT) as left, end("udp", RIGHT) as right:
        async with end("udp", RIGHT) as gone:
            flow = await left.open_to(gone)
        for _ in range(5):
            left.transport.transmit(flow, [b"anybody there?"])
            await asyncio.sleep(0)
        async with connected(left, right):
            assert left.seen.closes == []


@on_loop
async def test_datagrams_are_not_fragmented_and_no_path_mtu_is_remembered() -> None:
    async with end("udp", LEFT) as left:
        assert isinstance(left.transport, UdpTransport)
        assert left.transport._socket is not None
        discover, probe = 10, 3
        assert left.transport._socket.getsockopt(socket.IPPROTO_IP, discover) == probe


@on_loop
async def test_a_socket_that_takes_no_more_takes_the_credit_and_order_is_kept() -> None:
    async with joined("udp") as (left, right, flow, _):
        choked = choke(left)
        left.transport.transmit(flow, [b"one", b"two"])
        left.transport.transmit(flow, [b"three"])
        await asyncio.sleep(0)
        assert left.seen.credits == [(flow, False)]
        choked.full = False
        left.transport.transmit(flow, [b"four"])  # must not overtake those that wait
        await right.seen.until(lambda: right.seen.count() == 5, "all sent")
        assert right.seen.packets()[1:] == [b"one", b"two", b"three", b"four"]
        assert left.seen.credits == [(flow, False), (flow, True)]
        choked.full = True
        left.transport.transmit(flow, [b"five"])
        assert left.seen.credits[2:] == [(flow, False)]


@on_loop
async def test_what_waits_for_the_socket_is_bounded_and_the_rest_is_counted() -> None:
    limits = UdpLimits(queue_max_bytes=3 * (100 + QUEUED_OVERHEAD))
    async with joined("udp", limits=limits) as (left, right, flow, _):
        choked = choke(left)
        left.transport.transmit(flow, [bytes([n]) * 100 for n in range(10)])
        assert left.transport.counters.dropped == 7
        choked.full = False
        await right.seen.until(lambda: right.seen.count() == 4, "those that fitted")
        assert [packet[0] for packet in right.seen.packets()[1:]] == [0, 1, 2]


@on_loop
async def test_arrival_is_when_the_kernel_got_it_not_when_we_looked() -> None:
    """A node that was busy must not take its own delay for the network's (docs/design/health.md, local pauses)."""
    async with end("udp", RIGHT) as right:
        stranger = stranger_to(right)
        stranger.send(b"warm up: the kernel keeps times from now on")
        await right.seen.until(lambda: right.seen.count() == 1, "warm up")
        before = time.monotonic_ns()
        stranger.send(b"timed")
        time.sleep(0.005)  # noqa: ASYNC251  # the loop is busy: that is what is tested
        free = time.monotonic_ns()
        await right.seen.until(lambda: right.seen.count() == 2, "timed")
        at = right.seen.batches[-1][2]
        assert before - MILLISECOND <= at <= free - 3 * MILLISECOND
        stranger.close()


@on_loop
async def test_datagrams_that_waited_for_the_process_have_receive_times_of_their_own() -> None:
    """One time for all of them would make the first look as late as the last is."""
    async with end("udp", RIGHT) as right:
        stranger = stranger_to(right)
        stranger.send(b"first")
        time.sleep(0.04)  # noqa: ASYNC251  # the process does not run
        stranger.send(b"second")
        await right.seen.until(lambda: right.seen.count() == 2, "both datagrams")
        first, second = (at for _, _, at in right.seen.batches)
        assert second - first >= 35 * MILLISECOND
        stranger.close()
