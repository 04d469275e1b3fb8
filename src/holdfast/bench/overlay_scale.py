"""Messages of the overlay compared with flooding, in the simulator, with the production code.

Flooding is a search without structure: every node forwards a message on all its links except the one on which it
arrived, so each link carries it about twice: links x 2 - (nodes - 1).
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.bench.report import Report
from holdfast.overlay import tree_id
from holdfast.overlay.ports import Connected, ConnectTo, FindInstances, FoundInstances
from holdfast.sim.overlay_world import FAST, World
from holdfast.types import MICROSECOND, SECOND

BUILDER: Final = ("Wave", "WaveAnswer", "Bulk", "Edge")
TREE: Final = tree_id("tree")
CODEC_NODES_MAX: Final = 300
"""In larger domains frames are counted, but not encoded."""


def measure(report: Report, nodes: int, realms: int = 1) -> None:
    """Fill in the figures of a domain of this size."""
    config = msgspec.structs.replace(FAST, refresh_ns=3600 * SECOND)
    world = World(1, config, codec=nodes <= CODEC_NODES_MAX)
    for k in range(nodes):
        world.add(f"n{k}", f"r{k % realms}")
    world.mesh()
    world.run(6 * SECOND)
    figures = report.figures
    degrees = [len(host.machine.hub.open_peers) for host in world.hosts.values()]
    flood = sum(degrees) - (nodes - 1)
    figures[f"links_per_node_max_{nodes}"] = max(degrees)
    figures[f"flood_messages_{nodes}"] = flood
    figures[f"publish_first_messages_{nodes}"] = _publish(world, "n2")
    figures[f"publish_next_messages_{nodes}"] = max(_publish(world, f"n{k}") for k in (7, 13, 29))
    figures[f"recover_by_search_messages_{nodes}"] = _recover_by_search(world, f"n{nodes - 1}")
    figures[f"recover_after_death_messages_{nodes}"] = _recover_after_death(world)
    _direct(report, world, nodes)
    figures[f"routes_per_node_max_{nodes}"] = max(
        host.machine.inspect.sizes()["routes"] for host in world.hosts.values() if host.alive
    )
    for name in ("publish_next", "recover_by_search", "recover_after_death"):
        ratio = figures[f"{name}_messages_{nodes}"] / flood
        report.ratios[f"{name}_{nodes}_vs_flooding"] = round(ratio, 4)


def _counted(world: World) -> int:
    return sum(world.by_type.get(name, 0) for name in BUILDER)


def _publish(world: World, name: str) -> int:
    world.by_type.clear()
    world.publish(name)
    world.run(SECOND)
    return _counted(world)


def _recover_by_search(world: World, name: str) -> int:
    """A node without a route to the role sends to it."""
    world.by_type.clear()
    world.request(name, b"first", run_ns=2 * SECOND)
    return _counted(world)


def _recover_after_death(world: World) -> int:
    """A node on the route between two instances dies; the next message repairs the route."""
    for host in world.hosts.values():
        tree = host.machine.cache.peek(TREE)
        if (
            tree is not None
            and len(tree.edges) > 1
            and host.machine.local.get(TREE, "role") is None
        ):
            world.kill(host.name)
            break
    world.run(2 * SECOND)
    world.by_type.clear()
    world.request("n1", b"repaired", run_ns=2 * SECOND)
    return _counted(world)


def _direct(report: Report, world: World, nodes: int) -> None:
    """Messages and virtual time of one request before and after a direct connection."""
    name = f"n{nodes - 2}"
    host = world.hosts[name]
    world.post(host, [FindInstances(1_000_001, TREE, "role")])
    world.run(2 * SECOND)
    found = host.told(FoundInstances)[-1]
    for state, tree in (("multi_hop", TREE), ("direct", b"")):
        if not tree:
            world.post(host, [ConnectTo(1_000_002, found.locations)])
            world.run(7 * SECOND)
            tree = host.told(Connected)[-1].tree
        world.by_type.clear()
        begin = world.now
        ended = len(host.ends)
        world.send_raw(name, tree, state.encode(), "role", aggregate=True)
        while len(host.ends) == ended:
            world.run(100 * MICROSECOND)
        took = world.now - begin
        report.figures[f"request_{state}_messages_{nodes}"] = world.by_type.get("Message", 0)
        report.figures[f"request_{state}_virtual_ms_{nodes}"] = round(took / 1e6, 2)
