"""The map of links: which neighbours get a row, and when they need no copy of it."""

from __future__ import annotations

from typing import Any

from tests.support.overlay_world import Host, World, node_id

from holdfast.links.ports import Received
from holdfast.overlay.frames import MapRow, MapUpdate
from holdfast.types import MILLISECOND, SECOND


def star() -> tuple[World, dict[str, list[MapRow]]]:
    """The node `d` with three neighbours, and the rows of `far` that each of them gets from now on."""
    world = World()
    for name in ("d", "b", "c", "e"):
        world.add(name)
    for name in ("b", "c", "e"):
        world.link("d", name)
    world.run(SECOND)
    sent: dict[str, list[MapRow]] = {"b": [], "c": [], "e": []}

    def watch(sender: Host, receiver: Host, frame: Any) -> None:
        if sender.name == "d" and isinstance(frame, MapUpdate):
            sent[receiver.name] += [row for row in frame.rows if row.node == node_id("far")]

    world.watch = watch
    return world, sent


def row(version: int, incarnation: int = 1) -> MapRow:
    peers = (node_id("b"), node_id("c"))
    return MapRow(node_id("far"), incarnation, version, "default", True, peers)


def give(world: World, peer: str, one: MapRow) -> None:
    """`d` gets a row from a neighbour, and soon after passes it on."""
    world.post(world.hosts["d"], [Received(node_id(peer), [MapUpdate((one,))], world.now)])
    world.run(MILLISECOND)


def test_a_row_goes_to_the_neighbours_that_have_not_sent_it() -> None:
    """Without this a row crosses almost every link of the domain in both directions."""
    world, sent = star()
    give(world, "b", row(5))
    give(world, "c", row(5))
    world.run(SECOND)
    assert sent == {"b": [], "c": [], "e": [row(5)]}


def test_a_neighbour_that_sent_an_older_row_gets_the_newer_one() -> None:
    world, sent = star()
    give(world, "b", row(5))
    give(world, "c", row(6))
    world.run(SECOND)
    assert sent == {"b": [row(6)], "c": [], "e": [row(6)]}


def test_a_neighbour_that_sends_an_older_row_later_gets_the_newer_one() -> None:
    world, sent = star()
    give(world, "c", row(1, incarnation=2))
    give(world, "b", row(6))
    world.run(SECOND)
    newer = row(1, incarnation=2)
    assert sent == {"b": [newer], "c": [], "e": [newer]}


def test_a_row_that_is_repeated_later_is_not_passed_on_again() -> None:
    world, sent = star()
    give(world, "b", row(5))
    world.run(SECOND)
    give(world, "e", row(5))
    world.run(SECOND)
    assert sent == {"b": [], "c": [row(5)], "e": [row(5)]}


def test_a_neighbour_whose_session_began_since_gets_the_row_again() -> None:
    """Its unit may have been rebuilt after it sent the row, and may have forgotten it."""
    world, sent = star()
    world.run(50 * MILLISECOND)
    give(world, "b", row(5))
    world.rebuild("b")
    world.run(2 * SECOND)
    known = dict(world.hosts["b"].machine.topology.picture())
    assert any(one.node == node_id("far") for one in known)
    assert sent["b"], "b has forgotten it"


def test_a_domain_that_boots_spreads_each_row_in_few_versions() -> None:
    """A node gets a new row with each of its links. If each of them spread, a domain of n nodes would move n rows
    several times over every link."""
    world = World()
    for k in range(40):
        world.add(f"n{k}")
    world.mesh()
    world.run(2 * SECOND)
    machines = [host.machine for host in world.hosts.values()]
    assert all(machine.topology.size() == 40 for machine in machines)
    learned = sum(machine.topology.changes for machine in machines)
    own = sum(len(machine.hub.open_peers) for machine in machines)
    assert (learned - own) / (40 * 40) < 1.5
