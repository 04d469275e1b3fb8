"""Nodes that publish while they join: `publish` returns when every other node can reach the instance.

A node that joins knows few others, and the nodes know of it at different times. Each test states a schedule in which an
instance would be published, and a complete outcome would lack it.
"""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from tests.support.overlay_world import FAST, World, node_id

from holdfast.overlay import tree_id
from holdfast.overlay.frames import MapUpdate
from holdfast.overlay.ids import owner_of, role_key
from holdfast.overlay.ports import Published
from holdfast.types import MILLISECOND, SECOND

KEY = role_key(tree_id("tree"), "role")
CONFIG = msgspec.structs.replace(FAST, mesh_all_up_to=32, refresh_ns=60 * SECOND)
SERVERS = ("one", "two", "three")


def ok(world: World, name: str, op: int) -> bool:
    done = world.published(name, op)
    assert done is None or done.ok, done
    return done is not None


def until_published(world: World, name: str, op: int, limit: int = 20 * SECOND) -> None:
    """Run no longer than it takes: what is sent next meets the nodes as they are then."""
    end = world.now + limit
    while not ok(world, name, op):
        assert world.now < end, f"{name} was not published"
        world.run(MILLISECOND)


def owner_among(*names: str) -> str:
    """The node that owns the entry of the role when these are there."""
    found = owner_of(KEY, sorted(node_id(name) for name in names))
    return next(name for name in names if node_id(name) == found)


def new_owner(*names: str) -> str:
    """A name whose node takes the entry over when it joins these."""
    return next(f"new{k}" for k in range(1000) if owner_among(*names, f"new{k}") == f"new{k}")


def test_a_node_that_joins_does_not_publish_before_it_has_met_the_domain() -> None:
    """b publishes while it knows only itself. It would register with itself and be a first instance beside a."""
    world = World(1, CONFIG)
    world.add("a")
    b = world.add("b")
    b.joins = True
    world.add("c")
    world.link("a", "c")
    world.run(2 * SECOND)
    until_published(world, "a", world.publish("a"))
    op = world.publish("b")
    world.run(200 * MILLISECOND)
    assert not ok(world, "b", op)
    world.link("b", "c")
    world.link("b", "a")
    until_published(world, "b", op)
    end = world.request("c", b"x", aggregate=True)
    assert end.kind == "done"
    assert not end.incomplete
    assert world.receivers(b"x") == {"a": 1, "b": 1}


def test_a_node_that_can_meet_no_other_publishes_after_a_while() -> None:
    """The addresses in `join` do not answer: the node works alone."""
    world = World(1, CONFIG)
    world.add("a").joins = True
    begin = world.now
    until_published(world, "a", world.publish("a"))
    assert CONFIG.join_ns <= world.now - begin <= CONFIG.join_ns + SECOND


def test_a_node_alone_publishes_at_once() -> None:
    world = World(1, CONFIG)
    world.add("a")
    assert ok(world, "a", world.publish("a"))


def test_a_neighbour_that_has_not_said_hello_holds_a_publish_back() -> None:
    """The link to a is up, but its first frames are late: b knows of a neighbour and not of its map."""
    world = World(1, CONFIG)
    for name in "ab":
        world.add(name)
    world.link("a", "b")
    world.stall("a", SECOND)
    world.run(100 * MILLISECOND)
    op = world.publish("b")
    world.run(500 * MILLISECOND)
    assert not ok(world, "b", op)
    until_published(world, "b", op)


def test_a_new_owner_asks_the_node_that_had_the_entry() -> None:
    """A node joins that owns the entry of a role, and publishes the role before the former owner has handed the entry
    over. It would find no entry and be a first instance as well."""
    world = World(1, CONFIG)
    for name in "abc":
        world.add(name)
    for pair in ("ab", "ac", "bc"):
        world.link(*pair)
    world.run(10 * SECOND)
    until_published(world, "a", world.publish("a"))
    new = new_owner("a", "b", "c")
    world.add(new).joins = True
    for name in "abc":
        world.link(new, name)
    until_published(world, new, world.publish(new))
    end = world.request("b", b"x", aggregate=True)
    assert end.kind == "done"
    assert world.receivers(b"x") == {"a": 1, new: 1}


def test_a_node_that_does_not_know_the_new_owner_yet_does_not_answer_it() -> None:
    """Two nodes with different maps: a does not know `new`, which owns the entry now. `new` publishes, and finds no
    entry at a. Then a publishes by its own map. Both would be first."""
    world = World(1, CONFIG)
    former = "a"
    new = new_owner("a", "b")
    if owner_among("a", "b") != "a":
        former = "b"
    other = "b" if former == "a" else "a"
    for name in ("a", "b"):
        world.add(name)
    world.link("a", "b")
    world.run(10 * SECOND)
    world.add(new).joins = True
    held: list[object] = []

    def no_map(sender, receiver, frame):  # type: ignore[no-untyped-def]
        if receiver.name == former and isinstance(frame, MapUpdate) and not held:
            rows = tuple(row for row in frame.rows if row.node != node_id(new))
            return [msgspec.structs.replace(frame, rows=rows)]
        return [frame]

    world.filter = no_map
    world.link(new, former)
    world.run(100 * MILLISECOND)
    first = world.publish(new)
    world.run(300 * MILLISECOND)
    second = world.publish(former)
    until_published(world, former, second)
    held.append(True)
    world.link(new, other)
    until_published(world, new, first)
    end = world.request(other, b"x", aggregate=True)
    assert end.kind == "done"
    assert world.receivers(b"x") == {former: 1, new: 1}


def test_after_the_death_of_an_owner_the_registered_instance_stays_first() -> None:
    """The owner of the entry dies. Before a has registered again, c publishes: it would be first with the new owner."""
    world = World(1, CONFIG)
    owner = new_owner("a", "b", "c")
    names = ("a", "b", "c", owner)
    for name in names:
        world.add(name)
    for k, name in enumerate(names):
        for other in names[:k]:
            world.link(name, other)
    world.run(10 * SECOND)
    until_published(world, "a", world.publish("a"))
    world.kill(owner)
    world.run(60 * MILLISECOND)
    until_published(world, "c", world.publish("c"))
    end = world.request("b", b"x", aggregate=True)
    assert end.kind == "done"
    assert world.receivers(b"x") == {"a": 1, "c": 1}


def tutorial(seed: int) -> None:
    """Four nodes start on a busy machine. Each server publishes as soon as the client has a link to it; then the
    client asks, while links are still coming up."""
    rng = Random(seed)
    world = World(seed, CONFIG)
    world.delay = (MILLISECOND, rng.choice([3, 20, 100]) * MILLISECOND)
    names = ("client", *SERVERS)
    for name in names:
        world.add(name).joins = name != "client"
    for k, name in enumerate(names):
        for other in names[:k]:
            pause = rng.randrange(rng.choice([10, 200, 1500])) * MILLISECOND
            world.at(pause, lambda name=name, other=other: world.link(name, other))  # type: ignore[misc]
    for _ in range(rng.randrange(6)):
        pause, stall = rng.randrange(2000) * MILLISECOND, rng.randrange(600) * MILLISECOND
        world.at(pause, lambda stall=stall: world.stall(rng.choice(names), stall))  # type: ignore[misc]
    for name in SERVERS:
        while not world.linked("client", name):
            world.run(MILLISECOND)
        until_published(world, name, world.publish(name))
    end = world.request("client", b"it", aggregate=True, run_ns=12 * SECOND)
    assert end.kind == "done", (seed, end)
    assert not end.incomplete
    assert sorted(data for _, data in end.replies) == [b"one", b"three", b"two"], seed
    assert world.receivers(b"it") == dict.fromkeys(SERVERS, 1), seed


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_a_request_right_after_the_last_publish_reaches_every_instance(first: int) -> None:
    for seed in range(first, first + 20):
        tutorial(seed)


def test_publishes_that_wait_go_on_in_their_order() -> None:
    world = World(1, CONFIG)
    host = world.add("a")
    host.joins = True
    ops = [world.publish("a", role=f"role{k}") for k in range(5)]
    world.run(CONFIG.join_ns + SECOND)
    assert [e.op for e in host.told(Published)] == ops


def test_data_that_overtakes_the_hello_is_not_lost() -> None:
    """The channels of a link have no common order. A message that came before the session was open would be dropped,
    and its sender would wait for the whole lifetime of the request."""
    world = World(5)
    world.skew = 200 * MILLISECOND
    for name in ("a", "b", "c"):
        world.add(name)
    world.line("a", "b", "c")
    world.run(3 * SECOND)
    world.publish("a")
    world.run(3 * SECOND)
    for name in ("b", "c"):
        world.cut("b", name if name != "b" else "a")
    world.run(SECOND)
    world.line("a", "b", "c")
    for k in range(50):
        world.at(k * 10 * MILLISECOND, lambda k=k: world.send("c", b"%d" % k, aggregate=True))
    world.run(5 * SECOND)
    ends = [e.kind for e in world.hosts["c"].ends]
    assert len(ends) == 50
    assert dict.fromkeys(ends) == {"not_found": None, "done": None}, (
        "before and after the links came up"
    )
    for host in world.hosts.values():
        assert host.machine.hub.counters.get("frames_before_hello", 0) == 0


def test_a_hello_that_comes_on_both_channels_heals_a_partition_once() -> None:
    world = World(5)
    world.skew = 200 * MILLISECOND
    for name in ("a", "b"):
        world.add(name)
        world.publish(name)
    world.run(SECOND)
    world.link("a", "b")
    world.run(5 * SECOND)
    for host in world.hosts.values():
        assert host.machine.partition.status()["unpartitions"] == 1
