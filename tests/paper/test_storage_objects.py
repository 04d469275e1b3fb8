"""The paper on object replicas: linking three replicas, updating all of them, renaming over three trees.

The paper's procedures run on the overlay's trees and roles; here storage objects use them. Roles on trees themselves
are tested in `test_role_based_addressing`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.support.object_nodes import object_nodes
from tests.support.objects import created, no_failures, world_of

from holdfast.objects import ports
from holdfast.objects.frames import Accept, Decide, Look
from holdfast.objects.values import root_id
from holdfast.runtime.objects.finding import ROLE
from holdfast.sim.objects_world import node_id
from holdfast.types import SECOND


def test_three_replicas_are_linked_and_found_from_a_node_without_one(tmp_path: Path) -> None:
    """'Additional replicas may be linked to the existing replicas in a similar manner': each replica publishes its
    instance on the tree of the object, and a find from any node reaches all of them."""

    async def story() -> None:
        async with object_nodes(tmp_path, names="abcd") as nodes:
            a, *_, d = nodes
            made = await a.objects.create("/x", b"data", nodes=("a", "b", "c"))

            async def found() -> set[str]:
                places = await d.roles.find(ROLE, made.id)
                return {d.roles.reply_of(place.instance, b"").node for place in places}

            async with asyncio.timeout(30):
                while await found() != {"a", "b", "c"}:  # noqa: ASYNC110 it has no event
                    await asyncio.sleep(0.05)
            tree = await d.roles.connect(await d.roles.find(ROLE, made.id))
            assert tree.multi_hop == (), "one hop to each replica"
            first = await d.roles.search(ROLE, made.id)
            assert first in ("a", "b", "c"), "the location of the first replica is registered"
            d.objects.service.machine.parts.forget(made.id)
            opened = await d.objects.stat("", object_id=made.id)
            assert {replica.node for replica in opened.replicas} == {"a", "b", "c"}

    asyncio.run(story())


def test_an_update_reaches_every_replica_directly() -> None:
    """'It may be necessary to update the data in each replica': node E writes to all replicas over one hop, and no
    other node sees the messages."""
    world = world_of()
    value = created(world)
    hops: list[tuple[str, str]] = []

    def watch(sender: object, receiver: object, frame: object) -> object:
        if isinstance(frame, Accept | Decide) and frame.value.object == value.object:
            hops.append((sender.name, receiver.name))  # type: ignore[attr-defined]  # hosts of the world
        return frame

    world.filter = watch
    assert world.write("e", "/x", b"two").ok
    world.run(SECOND)
    assert set(hops) == {("e", "b"), ("e", "c"), ("e", "d")}
    assert sorted(world.holders(value.object)) == ["b", "c", "d"]
    no_failures(world)


def test_an_access_after_the_first_needs_no_search() -> None:
    world = world_of()
    value = created(world)
    assert world.read("e", "/x").ok
    world.frames.clear()
    again = world.do("e", ports.Read, path="", object=value.object)
    assert again.ok
    assert world.frames["Look"] <= 3
    assert world.frames.get("Fetch", 0) <= 1


def test_a_rename_touches_the_three_trees_of_object_old_parent_and_new_parent() -> None:
    """'A direct connection tree based on all these trees may be created, for example, to perform a rename': the mover
    talks to the replicas of the object, of its old parent and of its new parent, and to no other replica set."""
    world = world_of()
    assert world.mkdir("a", "/old").ok
    assert world.mkdir("a", "/new").ok
    value = created(world, path="/old/x")
    parents = [world.stat("a", path).value.object for path in ("/old", "/new")]
    trees = {value.object, *parents, root_id("holdfast")}
    touched: set[bytes] = set()

    def watch(_: object, __: object, frame: object) -> object:
        if isinstance(frame, Accept):
            touched.add(frame.value.object)
        elif isinstance(frame, Look):
            touched.add(frame.object)
        return frame

    world.filter = watch
    moved = world.do("e", ports.Move, source="/old/x", target="/new/y")
    assert moved.ok, moved.text
    assert touched <= trees
    assert {value.object, *parents} <= touched
    assert bytes(world.read("b", "/new/y").read) == b"one"
    assert world.read("b", "/old/x").refused == "not found"


def test_a_rename_is_seen_before_or_after_and_never_between() -> None:
    """Readers at both paths during a move: at every moment the object has exactly one name."""
    world = world_of()
    assert world.mkdir("a", "/old").ok
    assert world.mkdir("a", "/new").ok
    created(world, path="/old/x")
    move = world.start("e", ports.Move, source="/old/x", target="/new/y")
    rounds = 0
    while not move.done:
        rounds += 1
        at_new = world.do("b", ports.Stat, path="/new/y").ok
        at_old = world.do("b", ports.Stat, path="/old/x").ok
        assert not (at_new and at_old), "it was there, so it is not at the old place any more"
        at_old = world.do("b", ports.Stat, path="/old/x").ok
        at_new = world.do("b", ports.Stat, path="/new/y").ok
        assert at_old or at_new, "it had left the old place, so it is at the new one"
    assert rounds > 1
    assert move.ok, move.text
    assert bytes(world.read("b", "/new/y").read) == b"one"


def test_a_lost_replica_is_linked_again_on_another_node() -> None:
    """'A recovery process may be performed': a node that is gone is replaced, and the new replica is found."""
    world = world_of()
    value = created(world)
    world.kill("c")
    assert world.until(lambda: len(world.holders(value.object)) == 3, 60 * SECOND)
    world.run(3 * SECOND)
    published = [h.name for h in world.hosts.values() if h.alive and value.object in h.published]
    assert sorted(published) == sorted(world.holders(value.object))
    assert node_id("c") not in world.stat("a", "/x").value.nodes
