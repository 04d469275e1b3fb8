"""Flows that measure: agreed on, and of just the kind that they say, over real sockets and in the simulator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.worlds import NAMES, SUBNETS, ConformanceWorld, SimulatedWorld, SocketWorld

from holdfast.health.frames import Probe
from holdfast.links.flow import FlowState
from holdfast.links.multicast import MulticastMachine
from holdfast.links.ports import Received, SendFrame, link_unit, multicast_unit
from holdfast.links.subsystem import LinkService
from holdfast.machine import Machine, Outbox
from holdfast.types import SYNC, Nanos

USES = {"", "alt", "frag", "mss:536", "mss:960", "mss:1240", "mss:1460"}
FLOWS = {
    "udp",
    "tcp",
    *(f"{'tcp' if use.startswith('mss') else 'udp'} {use}" for use in USES if use),
}


class Watch(Machine):
    """Stands before the unit `health` of a node, and keeps the probes that this is given."""

    layer = "probing"

    def __init__(self, world: ConformanceWorld, name: str) -> None:
        self.probes: list[tuple[int, int]] = []
        """(flow, size) of each probe that came in."""
        turns = world.core(name).turns
        inner = turns.machine("health")
        assert inner is not None
        self._inner = inner
        self.deadline = inner.deadline
        turns.drop("health")
        turns.add("health", self)

    def up(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        for item in inputs:
            if isinstance(item, Received) and item.flow is not None:
                probes = [frame for frame in item.frames if isinstance(frame, Probe)]
                self.probes += [(item.flow, frame.size) for frame in probes if not frame.pair]
        self._inner.up(now, inputs, out)
        self.deadline = self._inner.deadline

    def wake(self, now: Nanos, out: Outbox) -> None:
        self._inner.wake(now, out)
        self.deadline = self._inner.deadline

    def down(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        self._inner.down(now, inputs, out)
        self.deadline = self._inner.deadline


@pytest.fixture(params=["simulator", "sockets"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ConformanceWorld]:
    made: ConformanceWorld = (
        SimulatedWorld() if request.param == "simulator" else SocketWorld(tmp_path)
    )
    try:
        made.start()
        yield made
    finally:
        made.close()


def flows(world: ConformanceWorld, name: str, peer: str, subnet: str) -> dict[str, FlowState]:
    """The agreed flows of a path, by transport and use."""
    link = world.core(name).service(LinkService).link(world.core(peer).me.node)
    if link is None:
        return {}
    return {
        f"{flow.info.transport} {flow.use}".strip(): flow
        for flow in link.flows.values()
        if flow.ready and flow.adapter == subnet and flow.close_at > 1 << 62
    }


def settled(world: ConformanceWorld, subnet: str = "red") -> bool:
    """All three have agreed on every flow, and on one only. A twin that is being opened or closed may still replace the
    one that is used."""
    return all(
        flows(world, name, peer, subnet).keys() == FLOWS
        and flow_count(world, name, peer, subnet) == len(FLOWS)
        for name in NAMES
        for peer in NAMES
        if name != peer
    )


Ends = dict[tuple[str, str], dict[str, FlowState]]
"""The agreed flows of ann and ben, by (node, peer)."""


def settle(world: ConformanceWorld, subnet: str = "red") -> Ends:
    """Wait for that, and return the flows of the same moment: one may be replaced at any time."""
    found: Ends = {}

    def look() -> bool:
        if not settled(world, subnet):
            return False
        found.update(
            {ends: flows(world, *ends, subnet) for ends in (("ann", "ben"), ("ben", "ann"))}
        )
        return True

    assert world.until(look)
    return found


def flow_count(world: ConformanceWorld, name: str, peer: str, subnet: str) -> int:
    """The flows of a path, with those that are being opened or closed."""
    link = world.core(name).service(LinkService).link(world.core(peer).me.node)
    return 0 if link is None else sum(f.adapter == subnet for f in link.flows.values())


def probe(world: ConformanceWorld, name: str, unit: str, flow: int | None, size: int) -> None:
    """One that belongs to no basic, which is how these tests tell theirs from those of health."""
    frame = Probe(1, size, 0, 0, memoryview(b"\x5a"))
    world.core(name).turns._carry_down.append((unit, SendFrame(frame, SYNC, flow, size)))  # type: ignore[arg-type]
    world.wake(name)


def test_both_ends_agree_on_a_flow_for_everything_that_is_measured(world: ConformanceWorld) -> None:
    for subnet in SUBNETS:
        ends = settle(world, subnet)
        near, far = ends["ann", "ben"], ends["ben", "ann"]
        assert near.keys() == far.keys()
        assert {flow.use for flow in near.values()} == USES


@pytest.mark.parametrize(
    ("use", "size"),
    [
        ("udp", 1500),
        ("udp alt", 1500),
        ("udp frag", 1500),
        ("udp frag", 9000),
        *((f"tcp mss:{mss}", mss + 40) for mss in (536, 960, 1240, 1460)),
    ],
)
def test_a_probe_arrives_on_the_flow_that_it_was_sent_on(
    world: ConformanceWorld, use: str, size: int
) -> None:
    open_flows = settle(world)
    watches = {name: Watch(world, name) for name in ("ann", "ben")}
    for name, peer in open_flows:
        unit = link_unit(world.core(peer).me.node)
        probe(world, name, unit, open_flows[name, peer][use].flow, size)
    for name, peer in open_flows:
        there = open_flows[name, peer][use].flow
        assert world.until(lambda n=name: watches[n].probes != [])  # type: ignore[misc]
        assert watches[name].probes == [(there, size)]


def test_both_ends_number_what_they_send_on_a_connection_that_measures(
    world: ConformanceWorld,
) -> None:
    """In a plain domain, too: what the end that accepted it sends is not taken for what the other has sent before."""
    open_flows = settle(world)
    watches = {name: Watch(world, name) for name in ("ann", "ben")}
    inbound = {f.inbound for found in open_flows.values() for f in found.values() if f.stream}
    assert inbound == {True, False}
    for _ in range(20):
        for name, peer in open_flows:
            for mss in (536, 1460):
                flow = open_flows[name, peer][f"tcp mss:{mss}"].flow
                probe(world, name, link_unit(world.core(peer).me.node), flow, mss + 40)
    assert world.until(lambda: all(len(watch.probes) >= 40 for watch in watches.values()))
    for name, peer in open_flows:
        for mss in (536, 1460):
            there = open_flows[name, peer][f"tcp mss:{mss}"].flow
            assert watches[name].probes.count((there, mss + 40)) == 20
        link = world.core(name).service(LinkService).link(world.core(peer).me.node)
        assert link is not None
        assert link.rejected == {}


def test_fragments_that_are_lost_hurt_nothing_else(world: ConformanceWorld) -> None:
    open_flows = settle(world)["ann", "ben"]
    watch = Watch(world, "ben")
    world.lose("ann", "ben", "red", "frag")
    unit = link_unit(world.core("ben").me.node)
    probe(world, "ann", unit, open_flows["udp frag"].flow, 4000)
    for use in ("udp frag", "udp", "udp alt"):
        probe(world, "ann", unit, open_flows[use].flow, 1400)
    assert world.until(lambda: len(watch.probes) == 3)
    assert [size for _, size in watch.probes] == [1400] * 3


def member_flow(world: ConformanceWorld, name: str, peer: str) -> int | None:
    """The flow under which a node knows another one that shares its group."""
    group = world.core(name).turns.machine(multicast_unit("red"))
    assert isinstance(group, MulticastMachine)
    member = group._peers.get(world.core(peer).me.node)
    return None if member is None else member.flow


def everybody_shares(world: ConformanceWorld) -> bool:
    return all(
        member_flow(world, name, peer) is not None
        for name in NAMES
        for peer in NAMES
        if name != peer
    )


def test_one_packet_to_the_group_reaches_each_member_once(world: ConformanceWorld) -> None:
    assert world.until(lambda: everybody_shares(world))
    watches = {name: Watch(world, name) for name in NAMES}
    for size in (576, 1500):
        probe(world, "ann", multicast_unit("red"), None, size)
    assert world.until(lambda: all(len(watches[name].probes) == 2 for name in ("ben", "cem")))
    for name in ("ben", "cem"):
        flow = member_flow(world, name, "ann")
        assert watches[name].probes == [(flow, 576), (flow, 1500)]
    assert watches["ann"].probes == []


def test_multicast_that_is_lost_hurts_nothing_else(world: ConformanceWorld) -> None:
    assert world.until(lambda: settled(world) and everybody_shares(world))
    watch = Watch(world, "ben")
    world.lose("ann", "ben", "red", "multicast")
    flow = flows(world, "ann", "ben", "red")["udp"].flow
    probe(world, "ann", multicast_unit("red"), None, 576)
    probe(world, "ann", link_unit(world.core("ben").me.node), flow, 1400)
    assert world.until(lambda: watch.probes != [])
    assert [size for _, size in watch.probes] == [1400]
    world.heal()
    probe(world, "ann", multicast_unit("red"), None, 576)
    assert world.until(lambda: len(watch.probes) == 2)


def test_data_never_uses_a_flow_that_only_measures(world: ConformanceWorld) -> None:
    assert world.until(lambda: settled(world))
    world.silence("ann", "ben", "blue")
    world.lose("ann", "ben", "red", "udp")
    messages = [bytes([number % 256]) * 900 for number in range(500)]
    world.send("ann", "ben", messages)
    assert world.until(lambda: len(world.received["ben"]) >= len(messages))
    link = world.core("ann").service(LinkService).link(world.core("ben").me.node)
    assert link is not None
    for channel in link.status()["channels"]:
        assert channel["path"] in ("", "red/red/tcp", "blue/blue/tcp", "blue/blue/udp")
