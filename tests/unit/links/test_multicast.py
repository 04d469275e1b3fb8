"""The multicast group of an adapter: whose packets are believed, and what becomes of all others."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.health.frames import Heartbeat, Probe
from holdfast.links.multicast import MulticastMachine
from holdfast.links.ports import (
    Arrived,
    FlowClosed,
    FlowLost,
    FlowOpened,
    FlowReady,
    MulticastKey,
    OpenFlow,
    PeerDown,
    PeerUp,
    Reannounce,
    Received,
    SendFrame,
    Transmit,
)
from holdfast.machine import Outbox
from holdfast.subsystem import LocalNode, Subscribers
from holdfast.types import SECOND, SYNC, FlowId, NodeId
from holdfast.wire.frames import AdapterInfo, Bye, Frame
from holdfast.wire.packet import Packet, read_head

GROUP = "239.255.0.1:7401"
FLOW = FlowId(9)
NOW = 1000 * SECOND
KEYS = {number: bytes([number]) * 32 for number in (1, 2, 3)}


def node(number: int) -> NodeId:
    return NodeId(bytes([number]) * 16)


class Group:
    """The unit `multicast/red` of one node."""

    def __init__(
        self, number: int = 1, *, sealed: bool = True, group: str = GROUP, incarnation: int = 1
    ) -> None:
        adapter = AdapterInfo("red", "red", f"10.0.0.{number}", 7400, ("udp",), group)
        self.me = LocalNode(node(number), f"n{number}", "lab", incarnation, (adapter,), sealed)
        self.number = number
        routes: dict[type, Any] = {kind: lambda _: ("health",) for kind in (Heartbeat, Probe, Bye)}
        subscribers = Subscribers()
        subscribers.add("health", (FlowReady, FlowLost))
        self.machine = MulticastMachine(self.me, adapter, KEYS[number], routes, subscribers, NOW)
        self.give(FlowOpened(FLOW, "red", "multicast", "239.255.0.1", 7401, False))

    def give(self, *items: Any) -> list[Any]:
        """What it tells the units above."""
        out = Outbox()
        self.machine.up(NOW, list(items), out)
        assert out.effects == []
        return [item for unit, item in out.ups if unit == "health"]

    def meet(self, other: Group, key: bytes | None = None) -> list[Any]:
        told = self.give(PeerUp(other.me.node, other.me.member))
        if self.me.sealed:
            told += self.give(MulticastKey(other.me.node, key or KEYS[other.number]))
        return told

    def send(self, *frames: Frame, size: int = 0) -> list[bytes]:
        out = Outbox()
        self.machine.down(NOW, [SendFrame(frame, SYNC, None, size) for frame in frames], out)
        packets: list[bytes] = []
        for effect, immediate in out.effects:
            assert isinstance(effect, Transmit)
            assert (effect.flow, immediate) == (FLOW, True)
            packets += [bytes(packet) for packet in effect.packets]
        return packets

    def hear(self, *packets: bytes) -> list[Received]:
        return self.give(Arrived(FLOW, [memoryview(packet) for packet in packets], NOW))


def pair(*, sealed: bool = True) -> tuple[Group, Group]:
    one, other = Group(1, sealed=sealed), Group(2, sealed=sealed)
    one.meet(other)
    other.meet(one)
    return one, other


def probe(code: int = 1) -> Probe:
    return Probe(code, 1500, 0, 0, memoryview(b"\x55"))


both_modes = pytest.mark.parametrize("sealed", [False, True])


# -- who is there ------------------------------------------------------------------------------------------------


def test_the_group_is_joined_at_the_start() -> None:
    machine, out = Group().machine, Outbox()
    machine._flow = None
    machine.wake(NOW, out)
    assert out.effects == [
        (OpenFlow("red", "multicast", "239.255.0.1", 7401, "multicast/red"), False)
    ]


@both_modes
def test_a_peer_that_shares_the_group_is_a_flow_of_its_own(sealed: bool) -> None:
    one, other, third = (Group(number, sealed=sealed) for number in (1, 2, 3))
    told = one.meet(other) + one.meet(third)
    assert [type(item) for item in told] == [FlowReady, FlowReady]
    assert [(r.peer, r.adapter, r.remote_adapter, r.transport) for r in told] == [
        (node(2), "red", "red", "multicast"),
        (node(3), "red", "red", "multicast"),
    ]
    assert told[0].flow != told[1].flow
    assert max(told[0].flow, told[1].flow) < 0, "numbers of the driver are above zero"


def test_no_node_is_announced_without_a_key() -> None:
    one, other = Group(1), Group(2)
    assert one.give(PeerUp(other.me.node, other.me.member)) == []


def test_a_sender_of_another_multicast_group_is_no_flow() -> None:
    assert Group(1).meet(Group(2, group="239.255.0.2:7401")) == []


def test_flows_are_lost_with_the_session_and_with_the_group() -> None:
    one, other = pair()
    (lost,) = one.give(PeerDown(other.me.node, "silent"))
    assert isinstance(lost, FlowLost)
    (ready,) = one.meet(other)
    out = Outbox()
    one.machine.up(NOW, [FlowClosed(FLOW, "left")], out)
    assert ("health", FlowLost(other.me.node, ready.flow, "left")) in out.ups
    assert one.machine.deadline > NOW


def test_a_unit_that_was_rebuilt_is_told_again() -> None:
    one, other = pair()
    (again,) = one.give(Reannounce("health"))
    assert again.peer == other.me.node


# -- packets -----------------------------------------------------------------------------------------------------


@both_modes
@pytest.mark.parametrize("size", [200, 576, 1500, 9000])
def test_a_probe_is_just_as_long_as_it_should_be_and_shows_its_pattern(
    sealed: bool, size: int
) -> None:
    one, other = pair(sealed=sealed)
    (packet,) = one.send(probe(), size=size)
    assert len(packet) == size - 28
    assert b"\x55" * 64 in packet
    (received,) = other.hear(packet)
    assert (received.peer, received.frames[0].code) == (one.me.node, 1)


def test_what_is_no_probe_is_sealed() -> None:
    one, other = pair()
    (packet,) = one.send(Heartbeat(77, 0x5555555555555555, 0))
    assert b"\x55" * 8 not in packet
    assert [received.frames for received in other.hear(packet)] == [
        [Heartbeat(77, 0x5555555555555555, 0)]
    ]


def test_what_is_handed_over_for_each_peer_is_sent_once() -> None:
    one, _ = pair()
    assert len(one.send(probe(), probe(), probe(2), size=600)) == 2


@both_modes
def test_a_packet_is_taken_once(sealed: bool) -> None:
    one, other = pair(sealed=sealed)
    (packet,) = one.send(probe(), size=600)
    assert len(other.hear(packet, packet)[0].frames) == 1
    assert other.hear(packet) == []
    assert other.machine.rejected == {"replay": 2}


def test_a_packet_is_taken_once_also_when_the_session_restarted() -> None:
    one, other = pair()
    (packet,) = one.send(probe(), size=600)
    assert other.hear(packet)
    other.give(PeerDown(one.me.node, "silent"))
    other.meet(one)
    assert other.hear(packet) == []


def test_a_unit_that_was_rebuilt_uses_no_number_again() -> None:
    one, other = pair()
    packets = one.send(*map(probe, range(100)), size=600)
    again = Group(1)
    out = Outbox()
    again.machine.down(NOW + SECOND, [SendFrame(probe(), SYNC, None, 600)], out)
    packets += [bytes(packet) for effect, _ in out.effects for packet in effect.packets]
    heads = [read_head(packet[16:]) for packet in packets]
    numbers = [head.number for head in heads if isinstance(head, Packet)]
    assert len(set(numbers)) == 101
    assert sum(len(received.frames) for received in other.hear(*packets)) == 101


def test_our_own_packets_come_back_unheard() -> None:
    one, _ = pair()
    assert one.hear(*one.send(probe(), size=600)) == []
    assert one.machine.rejected == {}


def test_only_heartbeats_and_probes_are_taken_from_a_group() -> None:
    one, other = pair()
    assert other.hear(*one.send(Bye())) == []


# -- strangers and liars -----------------------------------------------------------------------------------------


def test_a_wrong_key_is_refused() -> None:
    one, other = pair()
    other.give(MulticastKey(one.me.node, b"z" * 32))
    assert other.hear(*one.send(probe(), size=600)) == []
    assert other.machine.rejected == {"seal": 1}


def test_a_peer_cannot_speak_for_another_one() -> None:
    one, other, third = Group(1), Group(2), Group(3)
    for peer in (one, third):
        other.meet(peer)
    (packet,) = third.send(probe(), size=600)
    assert other.hear(one.me.node + packet[16:]) == []
    assert other.machine.rejected == {"seal": 1}


def test_a_plain_packet_in_a_sealed_domain_is_refused() -> None:
    _, other = pair()
    plain = Group(1, sealed=False)
    assert other.hear(*plain.send(probe(), size=600)) == []
    assert other.machine.rejected == {"seal": 1}


@both_modes
def test_another_incarnation_is_refused(sealed: bool) -> None:
    _, other = pair(sealed=sealed)
    assert other.hear(*Group(1, sealed=sealed, incarnation=2).send(probe(), size=600)) == []
    assert other.machine.rejected == {"session": 1}


def test_a_stranger_is_counted_and_forgotten() -> None:
    _, other = pair()
    for number in range(1000):
        assert other.hear(number.to_bytes(16, "big") + bytes(100)) == []
    assert other.machine.rejected == {"stranger": 1000}
    assert len(other.machine._peers) == 1


@both_modes
def test_any_flipped_bit_is_noticed(sealed: bool) -> None:
    one, other = pair(sealed=sealed)
    (packet,) = one.send(probe(), size=160)
    for bit in range(8 * len(packet)):
        damaged = bytearray(packet)
        damaged[bit // 8] ^= 1 << bit % 8
        assert other.hear(bytes(damaged)) == []
    assert other.hear(packet), "what was damaged has not moved the window"


@both_modes
@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=300), known=st.booleans())
def test_no_bytes_whatever_harm_it(sealed: bool, data: bytes, known: bool) -> None:
    one, other = pair(sealed=sealed)
    assert other.hear((one.me.node if known else b"") + data) == []
    assert other.hear(*one.send(probe(), size=600))
