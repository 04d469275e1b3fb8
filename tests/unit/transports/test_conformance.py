"""What every transport must do, whatever carries it. A new transport is added to `KINDS` and must pass."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.unit.transports.harness import (
    LEFT,
    RIGHT,
    End,
    Recorder,
    connected,
    end,
    run,
    tls_for,
)

from holdfast.errors import AddressInUse, SetupError
from holdfast.transports.tcp import TcpTransport
from holdfast.transports.udp import UdpTransport
from holdfast.types import FlowId

KINDS = ["tcp", "tls", "udp", "websocket", "websocket-tls"]
Scenario = Callable[[End, End], Coroutine[Any, Any, None]]
Play = Callable[[Scenario], None]


def uvloop_factory() -> Callable[[], Any]:
    return pytest.importorskip("uvloop").new_event_loop  # type: ignore[no-any-return]  # optional


@pytest.fixture(params=["asyncio", "uvloop"])
def loop_factory(request: pytest.FixtureRequest) -> Callable[[], Any] | None:
    return uvloop_factory() if request.param == "uvloop" else None


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def play(kind: str, loop_factory: Callable[[], Any] | None, demo_ca: Path) -> Play:
    """Runs a scenario between two ends on two addresses."""

    async def main(scenario: Scenario) -> None:
        async with AsyncExitStack() as stack:
            ends = []
            for name, host in (("left", LEFT), ("right", RIGHT)):
                tls = tls_for(demo_ca, name) if kind.endswith("tls") else None
                ends.append(await stack.enter_async_context(end(kind, host, tls=tls)))
            await scenario(ends[0], ends[1])

    return lambda scenario: run(main(scenario), loop_factory)


def test_a_flow_is_announced_at_both_ends_with_where_it_goes(play: Play, kind: str) -> None:
    async def scenario(left: End, right: End) -> None:
        async with connected(left, right):
            mine, theirs = left.seen.opens[0], right.seen.opens[0]
            assert (mine.host, mine.port) == (right.host, right.port)
            assert (mine.inbound, mine.unit) == (False, "asker")
            assert (theirs.inbound, theirs.unit) == (True, "")
            assert theirs.host == left.host
            assert (mine.adapter, mine.transport) == ("red", left.transport.kind)
            if kind.endswith("tls"):
                assert mine.identity is not None
                assert theirs.identity is not None
                assert (mine.identity.name, theirs.identity.name) == ("right", "left")
                assert mine.identity.domain == "demo"
                assert mine.identity.node == b""
            else:
                assert mine.identity is None
                assert theirs.identity is None

    play(scenario)


def test_packets_arrive_unchanged_and_in_order_both_ways(play: Play) -> None:
    async def scenario(left: End, right: End) -> None:
        there = [b"there %d" % n + bytes(range(256)) for n in range(200)]
        back = [b"back %d" % n for n in range(200)]
        async with connected(left, right) as (flow, other):
            left.transport.transmit(flow, there)
            right.transport.transmit(other, back)
            await right.seen.until(lambda: right.seen.count() == 201, "all there")
            await left.seen.until(lambda: left.seen.count() == 200, "all back")
            assert right.seen.packets(other) == [b"first", *there]
            assert left.seen.packets(flow) == back

    play(scenario)


def test_many_small_packets_arrive(play: Play) -> None:
    async def scenario(left: End, right: End) -> None:
        async with connected(left, right) as (flow, _):
            sent = [b"first"]
            for round_ in range(20):
                batch = [b"%d/%d" % (round_, n) for n in range(100)]
                left.transport.transmit(flow, batch)
                sent += batch
                # Datagrams are lost when they find the kernel's buffer full, so let them be read.
                await right.seen.until_count(len(sent))
            assert right.seen.packets() == sent

    play(scenario)


def test_large_packets_arrive(play: Play, kind: str) -> None:
    async def scenario(left: End, right: End) -> None:
        size = 60_000 if kind == "udp" else 1 << 20
        sent = [bytes([n]) * size for n in range(5)]
        async with connected(left, right) as (flow, _):
            left.transport.transmit(flow, sent)
            await right.seen.until(lambda: right.seen.count() == 6, "large packets")
            assert right.seen.packets()[1:] == sent

    play(scenario)


def test_closing_says_so_exactly_once_and_ends_the_flow(play: Play, kind: str) -> None:
    async def scenario(left: End, right: End) -> None:
        async with connected(left, right) as (flow, other):
            left.transport.transmit(flow, [b"last words"])
            left.transport.close_flow(flow, "enough")
            left.transport.close_flow(flow, "again")
            left.transport.transmit(flow, [b"too late"])
            assert [(c.flow, c.reason) for c in left.seen.closes] == [(flow, "enough")]
            await right.seen.until(lambda: right.seen.count() == 2, "last words")
            assert right.seen.packets()[1:] == [b"last words"]
            if kind != "udp":
                await right.seen.until(lambda: right.seen.closes, "closed at the other end")
                assert right.seen.closes[0].flow == other
                assert "peer closed" in right.seen.closes[0].reason

    play(scenario)


def test_a_paused_flow_brings_nothing_until_it_is_resumed(play: Play) -> None:
    async def scenario(left: End, right: End) -> None:
        async with connected(left, right) as (flow, other):
            right.transport.pause(other)
            left.transport.transmit(flow, [b"held"])
            for _ in range(20):  # each time the loop looks at all its sockets
                await asyncio.sleep(0)
            assert right.seen.count() == 1
            right.transport.resume(other)
            await right.seen.until(lambda: right.seen.count() == 2, "resumed")
            assert right.seen.packets()[-1] == b"held"

    play(scenario)


def test_stopping_closes_every_flow_once_and_refuses_new_ones(play: Play) -> None:
    async def scenario(left: End, right: End) -> None:
        flows = [await left.open_to(right)]
        await left.transport.stop()
        assert [c.flow for c in left.seen.closes] == flows
        left.ask(right.host, right.port)
        assert "stopping" in left.seen.failures[0].reason
        left.transport.transmit(flows[0], [b"nobody"])
        await left.transport.stop()
        assert len(left.seen.closes) == 1

    play(scenario)


def test_stopping_answers_what_is_being_opened(play: Play) -> None:
    async def scenario(left: End, right: End) -> None:
        left.ask("localhost", right.port)
        await left.transport.stop()
        opened, failed, closed = left.seen.opens, left.seen.failures, left.seen.closes
        assert len(opened) + len(failed) == 1
        assert len(closed) == len(opened)

    play(scenario)


def test_a_host_may_be_a_name(play: Play) -> None:
    async def scenario(left: End, right: End) -> None:
        async with (
            end(left.transport.kind, LEFT, adapter="blue") as local,
            end(left.transport.kind, LEFT) as other,
        ):
            local.ask("localhost", other.port)
            await local.seen.until(lambda: local.seen.opens, "opened by name")
            assert local.seen.opens[0].host == "localhost"

    play(scenario)


def make(kind: str, host: str, port: int) -> TcpTransport | UdpTransport:
    cls = UdpTransport if kind == "udp" else TcpTransport
    return cls("red", host, port, Recorder(), lambda: FlowId(1))


def test_a_port_in_use_names_adapter_and_address_and_says_what_to_do(kind: str) -> None:
    async def scenario() -> None:
        async with end(kind) as taken:
            with pytest.raises(AddressInUse) as caught:
                await make(kind, taken.host, taken.port).start()
            text = str(caught.value)
            for part in (
                "adapter red",
                f"{taken.host}:{taken.port}",
                "another port",
                "Nothing was",
            ):
                assert part in text

    run(scenario())


@pytest.mark.parametrize("host", ["203.0.113.77", "no..host"])
def test_an_address_of_another_machine_is_a_setup_error(kind: str, host: str) -> None:
    async def scenario() -> None:
        with pytest.raises(SetupError, match="adapter red"):
            await make(kind, host, 0).start()

    run(scenario())


def test_a_transport_can_be_started_again_on_its_port_at_once(kind: str) -> None:
    """A restart must not wait for old connections to be forgotten by the kernel."""

    async def scenario() -> None:
        async with end(kind, LEFT) as left:
            async with end(kind, RIGHT) as right:
                host, port = right.transport.address
                async with connected(left, right) as (_, other):
                    right.transport.close_flow(other, "restart")
                    await asyncio.sleep(0)
            again = make(kind, host, port)
            await again.start()
            assert again.address == (host, port)
            await again.stop()

    run(scenario())
