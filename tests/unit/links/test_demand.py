"""What reaches the throttle of diagnostics, and the trust in paths, from outside: on whole cores."""

from __future__ import annotations

from typing import Any

from tests.unit.links.harness import World, connected

from holdfast.health.placement.needs import Needs, SetNeeds
from holdfast.health.ports import HEALTH, PATH_GOSSIP, ResetHistory
from holdfast.health.subsystem import HealthService
from holdfast.health.table.values import Filter, Subscribe, Unsubscribe
from holdfast.links.ports import SendChannel, link_unit
from holdfast.types import NEVER, SYNC, NodeId

NORMAL = 1000


def speed(world: World, node: str, subnet: str = "red", adapter: str = "red") -> int:
    return world.core(node).service(HealthService).health.throttle.speed(world.now, subnet, adapter)


def give(world: World, node: str, unit: str, item: Any) -> None:
    world.turn(node, [(unit, item)])
    world.run(0.3)


def test_paths_that_a_client_watches_are_measured_more_often_until_it_leaves() -> None:
    """H13: speed up by subscription."""
    world = connected()
    assert speed(world, "n1") == NORMAL
    give(world, "n1", PATH_GOSSIP, Subscribe(1, Filter(subnets=("red",))))
    assert speed(world, "n1") > NORMAL
    assert speed(world, "n1", "blue", "blue") == NORMAL
    give(world, "n1", PATH_GOSSIP, Unsubscribe(1))
    assert speed(world, "n1") == NORMAL


def test_diagnostics_leave_room_where_traffic_waits_and_come_back_afterwards() -> None:
    """H13: throttle by send-queue depth."""
    world = connected()
    link = world.link("n1", "n2")
    give(world, "n1", link.unit, SendChannel(16, [bytes(1000)]))
    (used,) = {
        flow.adapter
        for flow in link.flows.values()
        if flow.flow == link.inspect().sender.channels[16].flow
    }
    for path in world.all_paths():
        path.cut_tcp = path.cut_udp = True
    give(world, "n1", link.unit, SendChannel(16, [bytes(100_000)] * 200))
    assert speed(world, "n1", used, used) < NORMAL
    for path in world.all_paths():
        path.cut_tcp = path.cut_udp = False
    world.run(6)
    assert speed(world, "n1", used, used) == NORMAL


def test_a_reset_by_an_operator_makes_traffic_trust_the_path_again() -> None:
    """H11: an operator can reset a path's history after a repair."""
    world = connected()
    peer = NodeId(world.core("n2").me.node)
    core = world.core("n1")
    never = SetNeeds("test", SYNC, Needs(size=1200, move_back_ns=NEVER), peer)
    give(world, "n1", HEALTH, never)
    cut = world.path("n1", "n2", "red")
    cut.over = 1000
    world.run(3)
    cut.over = 0
    world.run(5)
    flows = [
        f
        for f in world.link("n1", "n2").flows.values()
        if f.adapter == "red" and not f.stream and not f.use
    ]
    assert [flow.fitness_for(SYNC).state for flow in flows] == [1], "held: it failed before"
    path = (core.me.node, "red", peer, "red")
    give(world, "n1", PATH_GOSSIP, ResetHistory(path, "ann", "new cable"))
    assert [flow.fitness_for(SYNC).state for flow in flows] == [0]
    assert link_unit(peer) in core.turns.units()
