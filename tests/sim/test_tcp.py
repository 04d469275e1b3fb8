"""Connections in the virtual network: reliable and in order, and everything waits behind what does not pass."""

from __future__ import annotations

import pytest
from tests.sim.toys import (
    Arrived,
    Credit,
    FlowClosed,
    FlowOpened,
    OpenFailed,
    close,
    open_flow,
    open_request,
    pair,
    puppet,
    send,
)

from holdfast.faults.amounts import MILLION
from holdfast.faults.model import (
    Blackout,
    Corrupt,
    Fault,
    Filter,
    Loss,
    Over,
    Pattern,
    Rate,
    Slow,
    What,
    Where,
)
from holdfast.links.ports import Identity
from holdfast.sim.host import Host
from holdfast.sim.world import World
from holdfast.types import MICROSECOND, MILLISECOND, SECOND, FlowId

THERE = Where("red", "n1", "n2")
BACK = Where("red", "n2", "n1")


def connected(secure: bool = False) -> tuple[World, Host, Host, FlowId, FlowId]:
    """Two hosts with a connection; its number at either side."""
    world, n1, n2 = pair(secure=secure)
    flow = open_flow(world, n1, n2, "tcp")
    return world, n1, n2, flow, puppet(n2).of(FlowOpened)[0].flow


def try_to_open(world: World, n1: Host, remote: tuple[str, int]) -> str:
    """The reason for which a connection is not made."""
    n1.give("do", open_request("red", "tcp", remote))
    world.run_for(10 * SECOND)
    (failed,) = puppet(n1).of(OpenFailed)
    assert (failed.host, failed.port) == remote
    return str(failed.reason)


# -- opening -----------------------------------------------------------------------------------------------------


def test_a_connection_takes_a_round_trip_and_both_sides_learn_of_it() -> None:
    world, n1, n2 = pair()
    n1.give("do", open_request("red", "tcp", n2.adapters["red"].address))
    began = world.now
    assert world.run_until(lambda: bool(puppet(n1).of(FlowOpened)), SECOND)
    assert 200 * MICROSECOND <= world.now - began <= 310 * MICROSECOND
    assert world.run_until(lambda: bool(puppet(n2).of(FlowOpened)), SECOND)
    near, far = puppet(n1).of(FlowOpened)[0], puppet(n2).of(FlowOpened)[0]
    assert (near.inbound, near.host, near.port, near.unit) == (False, "127.1.0.2", 7000, "test")
    assert (far.inbound, far.host, far.unit) == (True, "127.1.0.1", "")
    assert far.port != 7000
    assert near.identity is far.identity is None


def test_in_a_secure_world_each_side_sees_the_others_certificate() -> None:
    world, n1, n2, _, _ = connected(secure=True)
    assert puppet(n1).of(FlowOpened)[0].identity == Identity(b"", "n2", "sim")
    assert puppet(n2).of(FlowOpened)[0].identity == Identity(b"", "n1", "sim")
    open_flow(world, n1, n2, "udp")
    assert puppet(n1).of(FlowOpened)[1].identity is None


def test_a_host_without_process_has_no_listener() -> None:
    world, n1, n2 = pair()
    n2.crash()
    assert try_to_open(world, n1, n2.adapters["red"].address) == "connection refused"


def test_a_machine_without_power_does_not_even_refuse() -> None:
    world, n1, n2 = pair()
    n2.power_off()
    assert try_to_open(world, n1, n2.adapters["red"].address) == "timed out"


def test_there_is_no_route_to_another_subnet() -> None:
    world, n1, n2 = pair()
    assert try_to_open(world, n1, n2.adapters["blue"].address) == "no route"


@pytest.mark.parametrize("where", [THERE, BACK])
@pytest.mark.parametrize("what", [Blackout(), Filter("tcp")])
def test_a_connection_needs_both_directions(where: Where, what: What) -> None:
    world, n1, n2 = pair()
    world.network.add(Fault(where, what))
    assert try_to_open(world, n1, n2.adapters["red"].address) == "timed out"


def test_a_connection_is_tried_again_until_the_path_heals() -> None:
    world, n1, n2 = pair()
    number = world.network.add(Fault(THERE, Blackout()))
    n1.give("do", open_request("red", "tcp", n2.adapters["red"].address))
    world.run_for(SECOND)
    world.network.remove(number)
    assert world.run_until(lambda: bool(puppet(n1).of(FlowOpened)), SECOND)


@pytest.mark.parametrize("secure", [False, True])
def test_a_stopped_process_takes_connections_but_no_part_in_a_tls_handshake(secure: bool) -> None:
    world, n1, n2 = pair(secure=secure)
    n2.pause()
    n1.give("do", open_request("red", "tcp", n2.adapters["red"].address))
    world.run_for(SECOND)
    assert bool(puppet(n1).of(FlowOpened)) is not secure
    n2.resume()
    world.run_for(SECOND)
    assert len(puppet(n1).of(FlowOpened)) == len(puppet(n2).of(FlowOpened)) == 1


# -- order and stalls --------------------------------------------------------------------------------------------


def test_packets_arrive_in_order_whatever_the_jitter() -> None:
    world, n1, n2, flow, _ = connected()
    packets = [b"%04d" % n for n in range(500)]
    for packet in packets:
        send(n1, flow, packet)
        world.run_for(3 * MICROSECOND)
    world.run_for(10 * MILLISECOND)
    assert puppet(n2).packets() == packets


def test_loss_delays_and_never_loses_or_reorders() -> None:
    world, n1, n2, flow, _ = connected()
    world.network.add(Fault(Where("red"), Loss(300_000)))
    packets = [b"%04d" % n for n in range(200)]
    began = world.now
    for packet in packets:
        send(n1, flow, packet)
        world.run_for(MILLISECOND)
    assert world.run_until(lambda: len(puppet(n2).packets()) == 200, 60 * SECOND)
    assert puppet(n2).packets() == packets
    assert world.now - began > 300 * MILLISECOND


@pytest.mark.parametrize(("behind", "soon"), [(0, False), (10, True)])
def test_a_lost_packet_is_repeated_soon_when_others_arrive_behind_it(
    behind: int, soon: bool
) -> None:
    world, n1, n2, flow, _ = connected()
    number = world.network.add(Fault(THERE, Blackout()))
    send(n1, flow, b"lost", *[b"behind"] * behind)
    world.run_for(MILLISECOND // 10)
    world.network.remove(number)
    world.run_for(100 * MILLISECOND)
    assert bool(puppet(n2).packets()) is soon
    world.run_for(SECOND)
    assert len(puppet(n2).packets()) == 1 + behind


@pytest.mark.parametrize(
    ("what", "fatal"),
    [
        (Over(1000), b"x" * 1001),
        (Pattern(b"\x55\x55"), b"..\x55\x55.."),
        (Filter("tcp"), b"x"),
        (Blackout(), b"x"),
    ],
)
def test_everything_waits_behind_a_packet_that_does_not_pass(what: What, fatal: bytes) -> None:
    world, n1, n2, flow, back = connected()
    number = world.network.add(Fault(THERE, what))
    send(n1, flow, fatal)
    send(n1, flow, b"behind")
    send(n2, back, b"the other way")
    world.run_for(3 * SECOND)
    assert puppet(n2).packets() == []
    if isinstance(what, Over | Pattern):
        assert puppet(n1).packets() == [b"the other way"]
    world.network.remove(number)
    world.run_for(3 * SECOND)
    assert puppet(n2).packets() == [fatal, b"behind"]
    assert puppet(n1).packets() == [b"the other way"]
    assert puppet(n1).of(FlowClosed) == []


def test_a_size_limit_lets_smaller_packets_pass_on_a_stream() -> None:
    world, n1, n2, flow, _ = connected()
    world.network.add(Fault(THERE, Over(1000)))
    send(n1, flow, b"x" * 956)
    world.run_for(10 * MILLISECOND)
    assert puppet(n2).packets() == [b"x" * 956]


def test_a_stream_is_cut_into_segments_of_the_mtu() -> None:
    world, n1, n2 = pair(mtu=1500)
    flow = open_flow(world, n1, n2, "tcp")
    world.network.add(Fault(THERE, Over(1500)))
    send(n1, flow, b"x" * 50_000)
    world.run_for(10 * MILLISECOND)
    assert [len(packet) for packet in puppet(n2).packets()] == [50_000]


def test_a_stalled_connection_is_closed_at_its_sender_after_a_while() -> None:
    world, n1, n2, flow, back = connected()
    world.network.add(Fault(THERE, Over(1000)))
    send(n1, flow, b"x" * 2000)
    began = world.now
    assert world.run_until(lambda: bool(puppet(n1).of(FlowClosed)), 30 * SECOND)
    assert puppet(n1).of(FlowClosed) == [FlowClosed(flow, "timed out")]
    assert world.now - began >= 10 * SECOND
    assert puppet(n2).of(FlowClosed) == []
    send(n2, back, b"anybody there?")
    world.run_for(SECOND)
    assert puppet(n2).of(FlowClosed) == [FlowClosed(back, "reset by peer")]


def test_data_passes_but_without_acknowledgements_the_sender_gives_up() -> None:
    world, n1, n2, flow, _ = connected()
    world.network.add(Fault(BACK, Blackout()))
    send(n1, flow, b"x")
    world.run_for(SECOND)
    assert puppet(n2).packets() == [b"x"]
    send(n1, flow, *[b"y" * 1000] * 200)
    world.run_for(SECOND)
    assert 60 <= len(puppet(n2).packets()) <= 70  # What a window holds.
    world.run_for(20 * SECOND)
    assert puppet(n1).of(FlowClosed) == [FlowClosed(flow, "timed out")]


def test_an_idle_connection_survives_a_blackout() -> None:
    world, n1, n2, flow, _ = connected()
    number = world.network.add(Fault(Where(), Blackout()))
    world.run_for(60 * SECOND)
    world.network.remove(number)
    send(n1, flow, b"still here")
    world.run_for(SECOND)
    assert puppet(n2).packets() == [b"still here"]


def test_a_slow_path_keeps_the_stream_whole() -> None:
    world, n1, n2, flow, _ = connected()
    world.network.add(Fault(THERE, Slow(50 * MILLISECOND, 50 * MILLISECOND)))
    packets = [b"%03d" % n for n in range(100)]
    began = world.now
    for packet in packets:
        send(n1, flow, packet)
    world.run_for(SECOND)
    assert puppet(n2).packets() == packets
    assert puppet(n2).of(Arrived)[0].at - n2.clock_ns >= began + 50 * MILLISECOND


def test_a_narrow_place_limits_a_stream_and_loses_nothing() -> None:
    world, n1, n2, flow, _ = connected()
    world.network.add(Fault(THERE, Rate(bytes_per_s=100_000, queue_bytes=1_000)))
    send(n1, flow, *[b"x" * 1000] * 100)
    world.run_for(500 * MILLISECOND)
    assert 45 <= len(puppet(n2).packets()) <= 55
    world.run_for(2 * SECOND)
    assert len(puppet(n2).packets()) == 100


def test_corruption_reaches_the_application_on_a_plain_stream() -> None:
    world, n1, n2, flow, _ = connected()
    world.network.add(Fault(THERE, Corrupt(MILLION)))
    send(n1, flow, bytes(10_000))
    world.run_for(SECOND)
    (packet,) = puppet(n2).packets()
    assert int.from_bytes(packet, "big").bit_count() == 1


def test_tls_ends_a_flow_that_was_tampered_with() -> None:
    world, n1, n2, flow, back = connected(secure=True)
    world.network.add(Fault(THERE, Corrupt(MILLION)))
    send(n1, flow, bytes(10_000))
    world.run_for(SECOND)
    assert puppet(n2).packets() == []
    assert puppet(n2).of(FlowClosed) == [FlowClosed(back, "damaged TLS record")]
    assert puppet(n1).of(FlowClosed) == [FlowClosed(flow, "closed by peer")]


def test_another_connection_is_another_flow() -> None:
    world, n1, n2, _, _ = connected()
    world.network.add(Fault(THERE, Blackout(), share_ppm=MILLION // 2))
    passed = stalled = 0
    for _ in range(30):
        before = len(puppet(n2).packets())
        opened = len(puppet(n1).of(FlowOpened))
        n1.give("do", open_request("red", "tcp", n2.adapters["red"].address))
        world.run_for(4 * SECOND)
        if len(puppet(n1).of(FlowOpened)) == opened:
            stalled += 1
            continue
        send(n1, puppet(n1).of(FlowOpened)[-1].flow, b"x")
        world.run_for(10 * MILLISECOND)
        passed += len(puppet(n2).packets()) > before
    assert passed + stalled == 30
    assert 5 <= stalled <= 25


# -- credit ------------------------------------------------------------------------------------------------------


def test_credit_goes_when_the_buffer_is_full_and_comes_back_when_it_has_drained() -> None:
    world, n1, n2, flow, _ = connected()
    n2.pause()
    for _ in range(30):
        send(n1, flow, b"x" * 10_000)
        world.run_for(MILLISECOND)
    assert puppet(n1).of(Credit) == [Credit(flow, False)]
    n2.resume()
    world.run_for(10 * MILLISECOND)
    assert puppet(n1).of(Credit) == [Credit(flow, False), Credit(flow, True)]
    assert len(puppet(n2).packets()) == 30


def test_a_stalled_path_takes_the_credit_as_well() -> None:
    world, n1, _, flow, _ = connected()
    world.network.add(Fault(THERE, Blackout()))
    send(n1, flow, *[b"x" * 10_000] * 30)
    world.run_for(10 * MILLISECOND)
    assert puppet(n1).of(Credit) == [Credit(flow, False)]


def test_sending_without_credit_loses_the_flow() -> None:
    world, n1, n2, flow, back = connected()
    n2.pause()
    for _ in range(70):
        send(n1, flow, *[b"x" * 100_000] * 10)
        world.run_for(MILLISECOND)
    (closed,) = puppet(n1).of(FlowClosed)
    assert closed.flow == flow
    assert "without credit" in closed.reason
    n2.resume()
    world.run_for(SECOND)
    assert puppet(n2).of(FlowClosed) == [FlowClosed(back, "closed by peer")]


# -- the end -----------------------------------------------------------------------------------------------------


def test_closing_lets_what_was_sent_arrive_first() -> None:
    world, n1, n2, flow, back = connected()
    send(n1, flow, b"last words")
    close(n1, flow)
    world.run_for(10 * MILLISECOND)
    assert puppet(n1).of(FlowClosed) == [FlowClosed(flow, "test")]
    assert [type(item) for item in puppet(n2).heard] == [FlowOpened, Arrived, FlowClosed]
    assert puppet(n2).of(FlowClosed) == [FlowClosed(back, "closed by peer")]


def test_a_close_waits_behind_a_stall() -> None:
    world, n1, n2, flow, _ = connected()
    number = world.network.add(Fault(THERE, Blackout()))
    send(n1, flow, b"last words")
    close(n1, flow)
    world.run_for(2 * SECOND)
    assert puppet(n2).of(FlowClosed) == []
    world.network.remove(number)
    world.run_for(2 * SECOND)
    assert [type(item) for item in puppet(n2).heard] == [FlowOpened, Arrived, FlowClosed]


def test_peers_learn_of_a_crash() -> None:
    world, n1, n2, flow, _ = connected()
    n2.crash()
    world.run_for(10 * MILLISECOND)
    assert puppet(n1).of(FlowClosed) == [FlowClosed(flow, "closed by peer")]


def test_peers_do_not_learn_of_a_crash_that_they_cannot_hear_of() -> None:
    world, n1, n2, flow, _ = connected()
    number = world.network.add(Fault(BACK, Blackout()))
    n2.crash()
    world.run_for(2 * SECOND)
    assert puppet(n1).of(FlowClosed) == []
    world.network.remove(number)
    world.run_for(2 * SECOND)
    assert puppet(n1).of(FlowClosed) == [FlowClosed(flow, "closed by peer")]


def test_a_power_failure_sends_no_notice_until_the_machine_is_back() -> None:
    world, n1, n2, flow, _ = connected()
    n2.power_off()
    world.run_for(5 * SECOND)
    assert puppet(n1).of(FlowClosed) == []
    n2.start()
    send(n1, flow, b"who are you?")
    world.run_for(SECOND)
    assert puppet(n1).of(FlowClosed) == [FlowClosed(flow, "reset by peer")]
    assert puppet(n2).packets() == []


def test_data_for_a_machine_without_power_times_out() -> None:
    world, n1, n2, flow, _ = connected()
    n2.power_off()
    send(n1, flow, b"x")
    world.run_for(20 * SECOND)
    assert puppet(n1).of(FlowClosed) == [FlowClosed(flow, "timed out")]
