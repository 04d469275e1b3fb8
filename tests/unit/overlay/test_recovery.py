"""Repair of routes around nodes that failed: who is asked, and what must not be forgotten."""

from __future__ import annotations

import msgspec
from tests.support.overlay_world import FAST, World, node_id

from holdfast.overlay import tree_id
from holdfast.types import MILLISECOND, SECOND


def detour() -> World:
    """a-b-c-d, and a longer way a-e-f-c around b. a is the first instance; d is linked to it through b."""
    world = World(3)
    for name in "abcdef":
        world.add(name)
    world.line("a", "b", "c", "d")
    world.line("a", "e", "f", "c")
    world.run(3 * SECOND)
    world.publish("a")
    world.run(2 * SECOND)
    world.publish("d")
    world.run(3 * SECOND)
    assert world.request("a", b"before", aggregate=True).kind == "done"
    assert world.receivers(b"before") == {"a": 1, "d": 1}
    return world


def test_a_node_that_restarted_does_not_hide_the_piece_behind_it() -> None:
    """b dies and returns before a sends. It is alive, but has forgotten the route to d: asking it alone would find
    nothing, and a would take the role for built without d."""
    world = detour()
    world.kill("b")
    world.run(SECOND)
    world.restart("b")
    world.link("a", "b")
    world.run(3 * SECOND)
    end = world.request("a", b"after", aggregate=True)
    assert world.receivers(b"after") == {"a": 1, "d": 1}
    assert end.kind == "done"
    assert not end.incomplete


def test_a_unit_that_was_rebuilt_does_not_hide_the_piece_behind_it() -> None:
    """The same within one life of the node: only the overlay unit of b is new, and its links stay."""
    world = detour()
    world.rebuild("b")
    world.cut("b", "c")
    world.run(3 * SECOND)
    end = world.request("a", b"after", aggregate=True)
    assert world.receivers(b"after") == {"a": 1, "d": 1}
    assert end.kind == "done"


def test_neighbours_that_died_before_the_lost_node_are_looked_through() -> None:
    """c loses its link to b, and nothing repairs that; then b dies. The piece behind c is found by b's former links."""
    world = detour()
    world.cut("b", "c")
    world.run(SECOND)
    world.kill("b")
    world.run(2 * SECOND)
    world.request("a", b"after", aggregate=True)
    assert world.receivers(b"after") == {"a": 1, "d": 1}


def test_a_full_cache_of_trees_causes_no_traffic_of_its_own() -> None:
    """Instances on a and c have more trees in common than b between them may keep. If an eviction made them link again,
    b would build the tree again and evict another, and so on: 800 frames a second without any message."""
    world = World(1, msgspec.structs.replace(FAST, trees_max=3))
    for name in "abc":
        world.add(name)
    world.line("a", "b", "c")
    world.run(3 * SECOND)
    for k in range(8):
        for name in "ac":
            world.publish(name, tree=f"t{k}")
            world.run(SECOND)
    evicted = world.hosts["b"].machine.hub.counters["tree_evicted"]
    assert evicted >= 5
    frames = world.frames
    world.run(10 * SECOND)
    assert world.frames - frames < 150
    assert len(world.hosts["a"].machine.inspect.trees()) == 8, "trees of local roles stay"
    assert len(world.hosts["b"].machine.inspect.trees()) <= 3


def test_a_route_that_moves_does_not_cut_off_what_was_reached_along_the_old_way() -> None:
    """Found by a run with 200 nodes. y is linked over s; when that link fails, a message for y and one for x meet at c,
    the circle is broken, and from then on y is reached on the way to x. Then x gets a shorter way that does not lead
    through c. Unless y links again, it is missing from every send."""
    world = World(7)
    for name in "abcsxy":
        world.add(name)
    world.line("a", "b", "c", "x")
    world.line("a", "s", "y", "c")
    world.run(3 * SECOND)
    for name in "ayx":
        world.publish(name)
        world.run(2 * SECOND)
    world.link("s", "c")
    world.cut("s", "y")
    world.run(2 * SECOND)
    for k in range(3):
        world.request("a", b"during %d" % k, aggregate=True)
        assert world.receivers(b"during %d" % k) == {"a": 1, "x": 1, "y": 1}
    world.link("b", "x")
    world.run(2 * SECOND)
    x = world.hosts["x"].machine
    role = x.local.get(tree_id("tree"), "role")
    assert role is not None
    role.relink = True
    moved = world.hosts["b"].machine.inspect
    world.at(1, lambda: x.registrar.again(role))
    for k in range(40):
        # While it links: before, when the route has just moved, and after.
        world.send("a", b"meanwhile %d" % k, aggregate=True)
        world.run(20 * MILLISECOND)
    assert node_id("x") in moved.routes(tree_id("tree"), "role").values(), "the route has moved"
    world.run(5 * SECOND)
    for k in range(40):
        assert world.receivers(b"meanwhile %d" % k) == {"a": 1, "x": 1, "y": 1}, k
    end = world.request("a", b"after", aggregate=True)
    assert world.receivers(b"after") == {"a": 1, "x": 1, "y": 1}
    assert not end.incomplete


def test_a_recovery_that_excludes_its_own_instance_does_not_hide_it() -> None:
    """a recovers and finds d behind c. c has lost its route to a as well, but a does not answer its own question, so
    c asks again when a message needs it."""
    world = World(5)
    for name in "abcd":
        world.add(name)
    world.line("a", "c", "d")
    world.run(2 * SECOND)
    for name in "ad":
        world.publish(name)
        world.run(2 * SECOND)
    world.line("a", "b", "c")
    world.run(2 * SECOND)
    world.cut("a", "c")
    world.run(SECOND)
    for name in "abcd":
        end = world.request(name, f"from {name}".encode(), aggregate=True)
        assert world.receivers(f"from {name}".encode()) == {"a": 1, "d": 1}, name
        assert end.kind == "done"


def test_the_neighbours_of_a_dead_node_make_few_colours() -> None:
    """Each of them sees that the node is gone. If each made a colour and spread it, a death would cost a flood for
    each link of the dead node."""
    world = World(3, msgspec.structs.replace(FAST, refresh_ns=600 * SECOND))
    for k in range(40):
        world.add(f"n{k}")
    world.mesh()
    world.run(3 * SECOND)
    world.publish("n1")
    world.run(SECOND)
    world.by_type.clear()
    world.kill("n7")
    world.run(3 * SECOND)
    alive = [host.machine for host in world.hosts.values() if host.alive]
    links = sum(len(machine.hub.open_peers) for machine in alive)
    assert len({machine.partition.colour for machine in alive}) == 1
    assert sum(machine.hub.counters.get("partitions", 0) for machine in alive) <= 3
    assert world.by_type["Colour"] <= 3 * links


def test_a_route_that_nothing_was_heard_of_is_not_the_only_way_to_others() -> None:
    """Found by random meshes. A circle a-b-f-c-d-a is broken between c and d. From then on c, which links to d, is
    reached over b and f, on their routes to d; the answer of d comes on the other way. Both routes are removed as
    wrong, because nothing was heard of d on them. Unless b and f also ask their neighbours there, c is missing."""
    world = World(5)
    for name in "abcdf":
        world.add(name)
    world.line("a", "d")
    world.link("d", "c", 30 * MILLISECOND)
    world.line("c", "f", "b")
    world.run(3 * SECOND)
    for name in "dcba":
        world.publish(name)
        world.run(2 * SECOND)
    world.link("a", "b")
    world.run(2 * SECOND)
    world.hosts["a"].machine.builder.unbuild(tree_id("tree"), "role", node_id("b"))
    for k in range(3):
        end = world.request("a", b"%d" % k, aggregate=True)
        assert world.receivers(b"%d" % k) == dict.fromkeys("abcd", 1), k
        assert end.kind == "done"
    assert world.hosts["b"].machine.hub.counters["routes_unheard"]
