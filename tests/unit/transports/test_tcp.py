"""TCP: back-pressure, bounds, and peers that die, lie or say nothing."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest
from tests.unit.transports.harness import (
    LEFT,
    RIGHT,
    End,
    dial,
    end,
    joined,
    on_loop,
    read_all,
)

from holdfast.transports.framing import LENGTH, frame
from holdfast.transports.tcp import TcpLimits, TcpTransport
from holdfast.types import MILLISECOND, FlowId
from holdfast.wire.packet import PACKET_MAX

SMALL = TcpLimits(write_high_bytes=64 * 1024, write_low_bytes=16 * 1024)
PIECE = bytes(64 * 1024)


async def fill(sender: End, flow: FlowId) -> int:
    """Send until credit is gone; gives how many pieces that took."""
    sent = 0
    while not sender.seen.credits:
        assert sent < 1000, "64 MB are in flight and nobody said stop"
        sender.transport.transmit(flow, [PIECE])
        sent += 1
        await asyncio.sleep(0)
    return sent


@on_loop
async def test_a_reader_that_stops_takes_the_credit_away_and_gives_it_back() -> None:
    async with joined("tcp", limits=SMALL) as (left, right, flow, other):
        right.transport.pause(other)
        sent = await fill(left, flow)
        assert left.seen.credits == [(flow, False)]
        right.transport.resume(other)
        await left.seen.until(lambda: len(left.seen.credits) == 2, "credit again")
        assert left.seen.credits[1] == (flow, True)
        await right.seen.until(lambda: right.seen.count() == sent + 1, "all arrived")
        assert set(right.seen.packets()[1:]) == {PIECE}


@on_loop
async def test_sending_on_without_credit_closes_the_flow_at_the_bound() -> None:
    limits = TcpLimits(write_high_bytes=64 * 1024, write_low_bytes=1024, write_max_bytes=1 << 20)
    async with joined("tcp", limits=limits) as (left, right, flow, other):
        right.transport.pause(other)
        await fill(left, flow)
        for _ in range(17):
            assert (
                left.seen.closes == [] or "above the limit of 1048576" in left.seen.closes[0].reason
            )
            left.transport.transmit(flow, [PIECE])
        assert [c.flow for c in left.seen.closes] == [flow]
        right.transport.resume(other)


@on_loop
async def test_a_packet_above_the_largest_is_not_sent_and_closes_the_flow() -> None:
    async with joined("tcp") as (left, right, flow, _):
        left.transport.transmit(flow, [b"ok", bytes(PACKET_MAX + 1)])
        assert str(PACKET_MAX + 1) in left.seen.closes[0].reason
        await right.seen.until(lambda: right.seen.closes, "closed")
        assert right.seen.packets() == [b"first"]


@on_loop
async def test_a_port_without_listener_is_a_failure_with_a_plain_reason() -> None:
    async with end("tcp", LEFT) as left:
        async with end("tcp", RIGHT) as right:
            host, port = right.transport.address
        assert await left.failure_to(host, port) == "no process listens there"
        failure = left.seen.failures[0]
        assert (failure.host, failure.port, failure.unit) == (host, port, "asker")


@on_loop
async def test_a_peer_that_is_killed_closes_the_flow_and_what_it_sent_still_counts() -> None:
    async with end("tcp") as right:
        stranger = dial(right)
        stranger.sendall(frame([b"one"]) + LENGTH.pack(100) + b"half a packet")
        await right.seen.until(right.seen.count, "a packet")
        # What the kernel does for a process that dies with data unread.
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        stranger.close()
        await right.seen.until(lambda: right.seen.closes, "closed")
        assert "reset" in right.seen.closes[0].reason
        assert right.seen.packets() == [b"one"]
        assert len(right.seen.closes) == 1


@on_loop
async def test_a_damaged_length_closes_the_flow_and_says_why() -> None:
    async with end("tcp") as right:
        stranger = dial(right)
        stranger.sendall(frame([b"good"]) + b"GET / HTTP/1.1\r\n\r\n")
        await right.seen.until(lambda: right.seen.closes, "closed")
        assert right.seen.packets() == [b"good"]
        assert "at most 1048576" in right.seen.closes[0].reason
        await read_all(stranger)
        stranger.close()


@on_loop
async def test_packets_that_come_byte_by_byte_are_whole() -> None:
    async with end("tcp") as right:
        stranger = dial(right)
        stream = frame([b"abc", b"defg"])
        for at in range(len(stream)):
            stranger.sendall(stream[at : at + 1])
            await asyncio.sleep(0)
        await right.seen.until(lambda: right.seen.count() == 2, "two packets")
        assert right.seen.packets() == [b"abc", b"defg"]
        stranger.close()


@on_loop
async def test_what_comes_in_one_read_is_handed_on_in_one_call() -> None:
    async with end("tcp") as right:
        stranger = dial(right)
        stranger.sendall(frame([b"%d" % n for n in range(500)]))
        await right.seen.until(lambda: right.seen.count() == 500, "all packets")
        assert len(right.seen.batches) == 1
        stranger.close()


@on_loop
async def test_a_stranger_that_says_nothing_is_closed_after_its_time() -> None:
    async with end("tcp", limits=TcpLimits(handshake_ns=20 * MILLISECOND)) as right:
        stranger = dial(right)
        await right.seen.until(lambda: right.seen.closes, "closed")
        assert "no packet within 0.02 s" in right.seen.closes[0].reason
        assert await read_all(stranger) == b""
        stranger.close()


@on_loop
async def test_one_that_has_spoken_may_be_silent_for_longer() -> None:
    async with end("tcp", limits=TcpLimits(handshake_ns=20 * MILLISECOND)) as right:
        talker, silent = dial(right), dial(right)
        talker.sendall(frame([b"hello"]))
        await right.seen.until(lambda: right.seen.closes, "the silent one is closed")
        talker.sendall(frame([b"still here"]))
        await right.seen.until(lambda: right.seen.count() == 2, "the talker speaks again")
        assert len(right.seen.closes) == 1
        talker.close()
        silent.close()


@on_loop
async def test_silent_strangers_are_bounded_and_the_oldest_makes_room() -> None:
    async with end("tcp", limits=TcpLimits(newcomers_max=3)) as right:
        strangers = []
        for n in range(1, 6):
            strangers.append(dial(right))
            await right.seen.until(lambda n=n: len(right.seen.opens) == n, "accepted")  # type: ignore[misc]
        assert [c.flow for c in right.seen.closes] == [o.flow for o in right.seen.opens[:2]]
        assert right.transport.counters.evicted == 2
        assert "make room" in right.seen.closes[0].reason
        strangers[4].sendall(frame([b"I am real"]))
        await right.seen.until(lambda: right.seen.count() == 1, "the newest is served")
        for stranger in strangers:
            stranger.close()


@on_loop
async def test_a_connection_that_has_spoken_is_not_evicted_for_a_newcomer() -> None:
    async with end("tcp", limits=TcpLimits(newcomers_max=1)) as right:
        strangers = [dial(right)]
        strangers[0].sendall(frame([b"hello"]))
        await right.seen.until_count(1)
        for n in (2, 3):
            strangers.append(dial(right))
            await right.seen.until(lambda n=n: len(right.seen.opens) == n, "accepted")  # type: ignore[misc]
        assert [c.flow for c in right.seen.closes] == [right.seen.opens[1].flow]
        for stranger in strangers:
            stranger.close()


@on_loop
async def test_all_connections_together_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    async with end("tcp", RIGHT, limits=TcpLimits(flows_max=2)) as right:
        strangers = [dial(right) for _ in range(3)]
        assert await read_all(strangers[2]) == b""
        assert len(right.seen.opens) == 2
        assert right.transport.counters.refused == 1
        assert "already 2 connections" in caplog.text
        right.ask(LEFT, 1)
        assert "already 2 connections" in right.seen.failures[0].reason
        for stranger in strangers:
            stranger.close()


@on_loop
async def test_a_flood_of_refusals_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with end("tcp", limits=TcpLimits(flows_max=0)) as right:
        strangers = [dial(right) for _ in range(20)]
        for stranger in strangers:
            await read_all(stranger)
            stranger.close()
        assert right.transport.counters.refused == 20
        assert len(caplog.records) < 5


@on_loop
async def test_outgoing_connections_come_from_the_address_of_the_adapter() -> None:
    async with end("tcp", "127.0.2.9") as left, end("tcp", RIGHT) as right:
        await left.open_to(right)
        await right.seen.until(lambda: right.seen.opens, "accepted")
        assert right.seen.opens[0].host == "127.0.2.9"
        assert right.seen.opens[0].port != left.port


@on_loop
async def test_small_writes_are_not_delayed() -> None:
    async with end("tcp", LEFT) as left, end("tcp", RIGHT) as right:
        flow = await left.open_to(right)
        assert isinstance(left.transport, TcpTransport)
        transport = left.transport._flows[flow]._transport
        assert transport is not None
        sock = transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
