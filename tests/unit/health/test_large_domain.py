"""In a large domain a node has links to its neighbours only, and to whom it talks; it still knows everything."""

from __future__ import annotations

import pytest
from tests.unit.links.harness import World

from holdfast.health.subsystem import HealthService
from holdfast.links.ports import NeedLink
from holdfast.links.subsystem import LinkService
from holdfast.node.core import NodeCore
from holdfast.types import SECOND, NodeId

REST_S = 4
RING = '[[subnet]]\nname = "red"\nneighbourhood = "ring"'


def soon(core: NodeCore) -> None:
    """Links rest sooner, so that less has to be simulated."""
    core.service(LinkService).directory.rest_ns = REST_S * SECOND


def village(count: int, more: str = RING) -> World:
    world = World(count, adapters=("red",), more=more, tune=soon)
    world.run(2 * REST_S + 8)
    return world


def linked(world: World, name: str) -> list[str]:
    names = {node.id: node.name for node in world.nodes.values()}
    core = world.core(name)
    ids = [NodeId(bytes.fromhex(u[5:])) for u in core.turns.units() if u.startswith("link/")]
    return sorted(names[node] for node in ids)


def everybody_knows_all(world: World) -> bool:
    tables = [
        core.service(HealthService).table for node in world.nodes.values() if (core := node.core)
    ]
    truth = {k: row for t in tables for k, row in t.rows.items() if k[2] == t.me}
    return all(table.rows == truth for table in tables)


def test_links_are_made_to_neighbours_only_and_all_nodes_have_the_whole_table() -> None:
    """H19. n1, by whom all joined, lets the links that it does not need rest."""
    world = village(12)
    for number in range(1, 13):
        near = {f"n{(number - 1 + step) % 12 + 1}" for step in (-2, -1, 1, 2)}
        assert linked(world, f"n{number}") == sorted(near)
    assert everybody_knows_all(world)
    assert len(world.core("n1").service(HealthService).table.rows) == 12 * 4 * 2
    states = {member["state"] for member in world.core("n1").status(world.now)["members"]}
    assert states == {"up"}
    assert not any(world.path_changes(name)[-1].alive is False for name in world.nodes)


def test_a_link_is_made_on_demand_and_probed_and_rests_when_it_is_not_needed() -> None:
    """H7, H19: any path in use is probed whatever the neighbourhood."""
    world = village(12)
    assert not world.up("n1", "n7")
    world.turn("n1", [("directory", NeedLink(world.nodes["n7"].id))])
    world.run_until(lambda: world.up("n1", "n7") and world.up("n7", "n1"), 5)
    world.send("n1", "n7", [b"hello"])
    world.run(3)
    assert world.messages("n7", "n1") == [b"hello"]
    row = world.row("n4", "n1", "n7")
    assert row is not None
    assert row.size == 1500, "n4 knows too what passes there"
    world.run(3 * REST_S)
    assert world.up("n1", "n7"), "n7 does not need it, but n1 does"
    del world.core("n1").service(LinkService).directory.needed[world.nodes["n7"].id]
    world.core("n1").service(LinkService).directory._look = True
    world.run(3 * REST_S)
    assert "n7" not in linked(world, "n1")
    assert "n1" not in linked(world, "n7")
    assert world.row("n4", "n1", "n7") is None, "unknown again"
    assert everybody_knows_all(world)


def test_a_dead_node_is_known_to_be_dead_by_nodes_without_a_link_to_it() -> None:
    """H8, and its place in the ring is bridged."""
    world = village(12)
    world.kill("n6", silent=True)
    world.kill("n7", silent=True)
    world.run(20)
    for name in ("n1", "n5", "n8", "n12"):
        alive = world.core(name).service(HealthService).table.living()
        assert world.nodes["n6"].id not in alive
        assert len(alive) == 10
    assert world.up("n5", "n8"), "neighbours now"
    assert world.up("n5", "n9")
    world.start("n6")
    world.run_until(
        lambda: world.nodes["n6"].id in world.core("n12").service(HealthService).table.living(), 30
    )


def test_a_node_that_leaves_is_removed_by_all_and_nothing_looks_dead() -> None:
    world = village(10)
    node = world.nodes["n4"]
    assert node.core is not None
    world._done(node, node.core.stop(world.now))
    world.kill("n4")
    world.run(12)
    for name in world.nodes:
        if name != "n4":
            members = {m["name"]: m["state"] for m in world.core(name).status(world.now)["members"]}
            assert members["n4"] == "left"
            assert all(
                node.id not in (k[0], k[2])
                for k in world.core(name).service(HealthService).table.rows
            )
            assert world.core(name).status(world.now)["incidents"] == []
    assert everybody_knows_all(world)


@pytest.mark.parametrize("count", [3, 11])
def test_on_a_hypercube_no_node_has_more_links_than_dimensions(count: int) -> None:
    world = village(count, RING.replace("ring", "hypercube"))
    assert max(len(linked(world, name)) for name in world.nodes) <= (count - 1).bit_length()
    assert everybody_knows_all(world)


def test_members_of_a_group_have_links_whatever_the_neighbourhood() -> None:
    voters = '["n1", "n5", "n9"]'
    group = f'\n[[group]]\nname = "book"\nvoters = {voters}\nleader = "n1"\napplication = "x:Y"'
    world = village(12, RING + group)
    assert linked(world, "n2") == sorted(["n12", "n1", "n3", "n4", "n5", "n9"])
