"""Domains of a hundred and of a thousand nodes: publish, search, request, a tenth of the nodes dies, recovery.

The paper claims that publishing and recovery reach few nodes, where a flood reaches all of them. The run counts builder
messages for each operation and compares them with a flood over all links.
"""

from __future__ import annotations

import sys
from random import Random

import msgspec
import pytest
from tests.property.overlay_disturbance import check_ends, check_reach
from tests.support.overlay_world import FAST, World

from holdfast.overlay import tree_id
from holdfast.overlay.ports import SearchResult, SearchRole
from holdfast.types import SECOND

BUILDER = ("Wave", "WaveAnswer", "Bulk", "Edge")
TREE = tree_id("tree")


def builder_messages(world: World) -> int:
    return sum(world.by_type.get(name, 0) for name in BUILDER)


def publish(world: World, name: str) -> int:
    """Builder messages of one publish."""
    world.by_type.clear()
    op = world.publish(name)
    world.run(SECOND)
    done = world.published(name, op)
    assert done is not None, name
    assert done.ok, (name, done)
    return builder_messages(world)


def search(world: World, name: str) -> int:
    world.by_type.clear()
    op = world.op()
    world.post(world.hosts[name], [SearchRole(op, TREE, "role")])
    world.run(SECOND)
    found = [e for e in world.hosts[name].told(SearchResult) if e.op == op]
    assert found, name
    assert found[0].ok
    assert found[0].entry is not None
    return builder_messages(world)


def request(world: World, sender: str, mark: str) -> tuple[int, int]:
    """Builder messages and copies of one request to all instances, each of which gets it once."""
    world.by_type.clear()
    check_reach(world, [sender], "role", mark)
    return builder_messages(world), world.by_type.get("Message", 0)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("nodes", "realms"), [(100, 3), pytest.param(1000, 6, marks=pytest.mark.campaign)]
)
def test_a_large_domain_publishes_finds_asks_and_recovers(
    nodes: int, realms: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """O1 and rule 20: the links of a node grow with k + log n. The cost of an operation does not grow with n."""
    rng = Random(5)
    # No periodic refreshes: only the messages of the operations are counted, and nothing else repairs routes.
    world = World(5, msgspec.structs.replace(FAST, refresh_ns=3600 * SECOND), codec=False)
    for k in range(nodes):
        world.add(f"n{k}", f"r{k % realms}")
    world.mesh()
    world.run(7 * SECOND)
    machines = [host.machine for host in world.hosts.values()]
    assert all(machine.topology.status()["reachable"] == nodes for machine in machines)
    degrees = [len(machine.hub.open_peers) for machine in machines]
    assert max(degrees) <= 2 * (FAST.successors + nodes.bit_length())
    flood = sum(degrees) - (nodes - 1)
    last = f"n{nodes - 1}"
    holders = [f"n{k}" for k in range(7, nodes, nodes // 10)]
    counted: dict[str, object] = {"links": max(degrees), "flood": flood}
    published = counted["publish"] = [publish(world, name) for name in holders]
    searched = counted["search"] = [search(world, name) for name in ("n0", f"n{nodes // 3}", last)]
    asked = counted["request without a route"] = request(world, "n0", "first")
    known = counted["request with a route"] = request(world, "n0", "again")
    for name in rng.sample([n for n in world.hosts if n not in ("n0", holders[0])], nodes // 10):
        world.kill(name)
    world.run(20 * SECOND)
    repaired = counted["request after the failures"] = request(world, "n0", "after")
    alive = [name for name, host in world.hosts.items() if host.alive]
    check_reach(world, [*rng.sample(alive, 3), world.holders()[-1]], "role", "all")
    world.run(15 * SECOND)
    check_ends(world)
    with capsys.disabled():
        sys.stdout.write(f"\n{nodes} nodes: {counted}\n")
    assert known[0] == 0, "a built role needs no builder messages"
    assert max(published) <= 60, counted
    assert max(searched) <= 30, counted
    assert asked[0] <= 40, counted
    assert repaired[0] < flood, counted
    sizes = [world.hosts[name].machine.inspect.sizes() for name in alive]
    assert max(size["routes"] for size in sizes) <= 20
    assert max(size["waves"] for size in sizes) == 0
