"""Datagrams in the virtual network: what passes, when, and what each fault does to them, in which direction."""

from __future__ import annotations

import pytest
from tests.sim.toys import (
    Arrived,
    FlowClosed,
    FlowOpened,
    OpenFailed,
    Puppet,
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
    Duplicate,
    Every,
    Fault,
    Filter,
    Loss,
    Over,
    Packets,
    Pattern,
    Rate,
    Reorder,
    Slow,
    What,
    Where,
)
from holdfast.sim.host import Host
from holdfast.sim.profile import HostProfile
from holdfast.sim.world import World
from holdfast.types import MICROSECOND, MILLISECOND, SECOND, FlowId

ONE_WAY = Where("red", "n1", "n2")


def talking(*faults: Fault) -> tuple[World, Host, Host, FlowId, FlowId]:
    """Two hosts with a datagram flow between them; the faults come after it is there."""
    world, n1, n2 = pair()
    flow = open_flow(world, n1, n2, "udp")
    send(n1, flow, b"first")
    world.run_for(10 * MILLISECOND)
    back = puppet(n2).of(FlowOpened)[0].flow
    puppet(n2).heard.clear()
    for fault in faults:
        world.network.add(fault)
    return world, n1, n2, flow, back


def heard_after(what: What, *packets: bytes, only: str = "", wait: int = SECOND) -> list[bytes]:
    """What n2 hears of packets that n1 sends while a fault is on the path."""
    world, n1, n2, flow, _ = talking(Fault(ONE_WAY, what, only))
    for packet in packets:
        send(n1, flow, packet)
        world.run_for(10 * MILLISECOND)
    world.run_for(wait)
    return puppet(n2).packets()


def test_first_packet_makes_an_inbound_flow_with_the_senders_address() -> None:
    world, n1, n2 = pair()
    flow = open_flow(world, n1, n2, "udp")
    send(n1, flow, b"hello")
    world.run_for(10 * MILLISECOND)
    opened, arrived = puppet(n2).heard
    assert opened == FlowOpened(
        opened.flow, "red", "udp", "127.1.0.1", 7000, inbound=True, overhead=28
    )
    assert (arrived.flow, bytes(arrived.packets[0])) == (opened.flow, b"hello")


def test_an_open_flow_is_announced_again_under_its_number() -> None:
    world, n1, n2 = pair()
    first = open_flow(world, n1, n2, "udp")
    again = open_flow(world, n1, n2, "udp")
    assert first == again
    assert [item.inbound for item in puppet(n1).of(FlowOpened)] == [False, False]


def test_both_sides_use_one_flow_each() -> None:
    world, n1, n2, flow, back = talking()
    send(n2, back, b"answer")
    world.run_for(10 * MILLISECOND)
    (arrived,) = puppet(n1).of(Arrived)
    assert arrived.flow == flow
    assert not [item for item in puppet(n1).of(FlowOpened) if item.inbound]


def test_a_packet_takes_the_subnets_delay_and_carries_its_time_of_arrival() -> None:
    world, n1, n2, flow, _ = talking()
    began = world.now
    send(n1, flow, b"x")
    world.run_for(10 * MILLISECOND)
    at = puppet(n2).of(Arrived)[0].at - n2.clock_ns
    assert 100 * MICROSECOND <= at - began <= 151 * MICROSECOND


def test_a_burst_arrives_in_order_as_one_input() -> None:
    world, n1, n2, flow, _ = talking()
    packets = [b"%d" % n for n in range(50)]
    send(n1, flow, *packets)
    world.run_for(10 * MILLISECOND)
    assert puppet(n2).packets() == packets
    assert len(puppet(n2).of(Arrived)) == 1


def test_without_faults_nothing_overtakes_between_bursts() -> None:
    world, n1, n2, flow, _ = talking()
    packets = [b"%d" % n for n in range(200)]
    for packet in packets:
        send(n1, flow, packet)
        world.run_for(5 * MICROSECOND)
    world.run_for(10 * MILLISECOND)
    assert puppet(n2).packets() == packets


@pytest.mark.parametrize(
    ("what", "lost"),
    [
        (Blackout(), True),
        (Loss(MILLION), True),
        (Loss(0), False),
        (Filter("udp"), True),
        (Filter("tcp"), False),
        (Pattern(b"\x55\x55"), True),
        (Pattern(b"\x55\x56"), False),
    ],
)
def test_deadly_faults(what: What, lost: bool) -> None:
    heard = heard_after(what, b"\x00\x55\x55\x00")
    assert heard == ([] if lost else [b"\x00\x55\x55\x00"])


def test_size_limit_counts_the_bytes_on_the_wire() -> None:
    fits, too_long = b"x" * (1000 - 28), b"x" * (1001 - 28)
    assert heard_after(Over(1000), fits, too_long) == [fits]


def test_only_one_transport_suffers() -> None:
    assert heard_after(Blackout(), b"x", only="tcp") == [b"x"]
    assert heard_after(Blackout(), b"x", only="udp") == []


def test_a_fault_has_a_direction_and_a_subnet() -> None:
    world, n1, n2, flow, back = talking(Fault(ONE_WAY, Blackout()))
    blue = open_flow(world, n1, n2, "udp", "blue")
    for host, number in ((n1, flow), (n2, back), (n1, blue)):
        send(host, number, b"to the other")
    world.run_for(10 * MILLISECOND)
    assert puppet(n1).packets() == [b"to the other"]
    assert puppet(n2).packets() == [b"to the other"]
    assert puppet(n2).of(FlowOpened)[0].adapter == "blue"


def test_both_directions_suffer_when_the_fault_says_so() -> None:
    where = Where("red", "n1", "n2", both=True)
    world, n1, n2, flow, back = talking(Fault(where, Blackout()))
    send(n1, flow, b"x")
    send(n2, back, b"x")
    world.run_for(10 * MILLISECOND)
    assert puppet(n1).packets() == puppet(n2).packets() == []


def test_loss_is_about_the_share_asked_for() -> None:
    heard = heard_after(Loss(200_000), *[b"x"] * 1000)
    assert 740 <= len(heard) <= 860


def test_a_fault_that_is_removed_hurts_no_more() -> None:
    world, n1, n2, flow, _ = talking()
    number = world.network.add(Fault(ONE_WAY, Blackout()))
    send(n1, flow, b"lost")
    world.run_for(10 * MILLISECOND)
    assert world.network.remove(number)
    assert not world.network.remove(number)
    send(n1, flow, b"heard")
    world.run_for(10 * MILLISECOND)
    assert puppet(n2).packets() == [b"heard"]


def test_corruption_flips_exactly_one_bit() -> None:
    packet = bytes(100)
    (heard,) = heard_after(Corrupt(MILLION), packet)
    assert int.from_bytes(heard, "big").bit_count() == 1


def test_duplication_delivers_twice() -> None:
    assert heard_after(Duplicate(MILLION), b"x") == [b"x", b"x"]


def test_reordering_lets_later_packets_overtake() -> None:
    heard = heard_after(Reorder(300_000, 25 * MILLISECOND), *[b"%03d" % n for n in range(100)])
    assert heard != sorted(heard)
    assert sorted(heard) == [b"%03d" % n for n in range(100)]


def test_a_slow_path_delays_everything_and_keeps_the_order() -> None:
    world, n1, n2, flow, _ = talking(Fault(ONE_WAY, Slow(20 * MILLISECOND, 30 * MILLISECOND)))
    began = world.now
    packets = [b"%03d" % n for n in range(100)]
    for packet in packets:
        send(n1, flow, packet)
        world.run_for(MILLISECOND)
    world.run_for(SECOND)
    assert puppet(n2).packets() == packets
    assert puppet(n2).of(Arrived)[0].at - n2.clock_ns >= began + 20 * MILLISECOND


def test_a_narrow_place_spreads_a_burst_and_loses_what_its_queue_cannot_hold() -> None:
    rate = Rate(bytes_per_s=100_000, queue_bytes=5_000)
    world, n1, n2, flow, _ = talking(Fault(ONE_WAY, rate))
    began = world.now
    send(n1, flow, *[b"x" * 972] * 20)
    world.run_for(SECOND)
    arrivals = [item.at - n2.clock_ns - began for item in puppet(n2).of(Arrived)]
    assert len(arrivals) == 6  # One on the wire and five thousand bytes in the queue.
    assert 9 * MILLISECOND < arrivals[1] - arrivals[0] < 11 * MILLISECOND


def test_every_third_packet_is_dropped() -> None:
    world, n1, n2, flow, _ = talking(Fault(ONE_WAY, Every(3)))
    send(n1, flow, *[b"%d" % n for n in range(1, 8)])
    world.run_for(SECOND)
    assert puppet(n2).packets() == [b"1", b"2", b"4", b"5", b"7"]


def test_a_policer_drops_what_exceeds_its_rate_and_delays_nothing() -> None:
    world, n1, n2, flow, _ = talking(Fault(ONE_WAY, Packets(10)))
    send(n1, flow, *[b"x"] * 15)
    world.run_for(SECOND // 2)
    assert len(puppet(n2).packets()) == 10, "what one second allows passes as a burst"
    send(n1, flow, *[b"y"] * 15)
    world.run_for(SECOND)
    assert puppet(n2).packets()[10:] == [b"y"] * 5, "half a second later half as many"


def test_a_fault_keeps_its_state_when_another_one_is_added() -> None:
    rate = Rate(bytes_per_s=100_000, queue_bytes=50_000)
    world, n1, n2, flow, _ = talking(Fault(ONE_WAY, rate))
    began = world.now
    send(n1, flow, *[b"x" * 972] * 5)
    world.run_for(MILLISECOND)
    world.network.add(Fault(ONE_WAY, Pattern(b"never")))
    send(n1, flow, b"x" * 972)
    world.run_for(SECOND)
    last = puppet(n2).of(Arrived)[-1].at - n2.clock_ns - began
    assert last >= 60 * MILLISECOND, "the sixth packet waits behind five others"


def test_flapping_comes_and_goes() -> None:
    flapping = Fault(ONE_WAY, Blackout(), on_ns=100 * MILLISECOND, off_ns=100 * MILLISECOND)
    world, n1, n2, flow, _ = talking(flapping)
    for n in range(8):
        send(n1, flow, b"%d" % n)
        world.run_for(50 * MILLISECOND)
    assert puppet(n2).packets() == [b"2", b"3", b"6", b"7"]


def test_a_share_of_the_flows_suffers_always_and_the_others_never() -> None:
    world = World(3)
    hosts = [world.add_host(f"n{n}", Puppet) for n in range(41)]
    for n, host in enumerate(hosts):
        world.network.attach(host, "red", "red", ("127.1.0.1", 7000 + n))
        host.start()
    world.network.add(Fault(Where("red"), Blackout(), share_ppm=MILLION // 2))
    flows = [open_flow(world, hosts[0], peer, "udp") for peer in hosts[1:]]
    for _ in range(3):
        for flow in flows:
            send(hosts[0], flow, b"x")
        world.run_for(10 * MILLISECOND)
    counts = [len(puppet(host).packets()) for host in hosts[1:]]
    assert sorted(set(counts)) == [0, 3]
    assert 10 <= counts.count(0) <= 30


def test_a_datagram_above_the_mtu_does_not_leave_its_sender() -> None:
    world, n1, n2 = pair(mtu=1500)
    flow = open_flow(world, n1, n2, "udp")
    send(n1, flow, b"x" * (1501 - 28), b"x" * (1500 - 28))
    world.run_for(10 * MILLISECOND)
    assert [len(packet) for packet in puppet(n2).packets()] == [1500 - 28]


def test_packets_to_no_address_or_another_subnet_are_not_received() -> None:
    world, n1, n2 = pair()
    for target in (("127.1.0.99", 7000), n2.adapters["blue"].address):
        flow = open_flow(world, n1, n2, "udp", remote=target)
        send(n1, flow, b"x")
        world.run_for(10 * MILLISECOND)
    assert puppet(n2).heard == []


def test_a_transport_that_the_adapter_lacks_is_refused_with_a_reason() -> None:
    world, n1, n2 = pair(transports=("tcp",))
    n1.give("do", open_request("red", "udp", n2.adapters["red"].address))
    world.run_for(10 * MILLISECOND)
    (failed,) = puppet(n1).of(OpenFailed)
    assert failed.reason == "adapter red has no udp"


def test_a_closed_flow_is_gone_and_the_next_packet_makes_a_new_one() -> None:
    world, n1, n2, flow, back = talking()
    close(n2, back)
    world.run_for(10 * MILLISECOND)
    assert puppet(n2).of(FlowClosed) == [FlowClosed(back, "test")]
    send(n1, flow, b"again")
    world.run_for(10 * MILLISECOND)
    (opened,) = puppet(n2).of(FlowOpened)
    assert opened.flow != back
    assert puppet(n2).packets() == [b"again"]


def test_a_process_that_is_not_there_hears_nothing_and_its_next_one_has_new_flows() -> None:
    world, n1, n2, flow, _ = talking()
    n2.crash()
    send(n1, flow, b"lost")
    world.run_for(10 * MILLISECOND)
    n2.start()
    send(n1, flow, b"heard")
    world.run_for(10 * MILLISECOND)
    assert puppet(n2).packets() == [b"heard"]
    assert puppet(n2).of(FlowOpened)[0].inbound


def test_a_full_socket_buffer_loses_datagrams() -> None:
    world, n1, n2 = pair(profile=HostProfile(packets_max=10))
    flow = open_flow(world, n1, n2, "udp")
    n2.pause()
    for _ in range(50):
        send(n1, flow, b"x")
        world.run_for(MILLISECOND)
    n2.resume()
    world.run_for(10 * MILLISECOND)
    assert len(puppet(n2).packets()) < 12
    assert n2.dropped_packets >= 38
