"""Helpers of the tests of objects: a world that has settled, and shorthands."""

from __future__ import annotations

from typing import Any

from holdfast.objects.frames import RegisterState
from holdfast.objects.ports import TABLE
from holdfast.objects.values import ID, Value
from holdfast.sim.objects_world import ObjectWorld, node_id
from holdfast.types import SECOND


def world_of(seed: int = 1, **options: Any) -> ObjectWorld:
    options.setdefault("root", ("a", "c", "e"))
    world = ObjectWorld(seed, **options)
    world.run(SECOND)
    return world


def created(world: ObjectWorld, path: str = "/x", data: bytes = b"one", **options: Any) -> Value:
    """A new object, created at node a; by default with replicas on b, c and d."""
    options.setdefault("nodes", tuple(node_id(name) for name in "bcd"))
    call = world.create("a", path, data, **options)
    assert call.ok, call.text
    value: Value = call.value.value
    # Wait until every replica knows the decision and the name is checked.
    world.run(3 * SECOND)
    return value


def register(world: ObjectWorld, node: str, value: Value) -> RegisterState:
    return world.hosts[node].machine.inspect(value.object)


def stored(world: ObjectWorld) -> set[bytes]:
    """Objects with content on a node: in a file, or in its store."""
    files = {key[0] for host in world.hosts.values() for key in host.disk.contents}
    rows = {key[:ID] for host in world.hosts.values() for key in host.tables.get(TABLE, {})}
    return files | rows


def no_failures(world: ObjectWorld) -> None:
    for host in world.hosts.values():
        assert host.failures == [], host.name
