"""A unit that is built again after a failure, and disks that do not belong to the store."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.support.objects import created, world_of

from holdfast.machine import Outbox, ReadTable, TableRead
from holdfast.objects import ports
from holdfast.objects.machine import ObjectMachine
from holdfast.objects.ports import DISK_TABLE, TABLE
from holdfast.sim.objects_world import FAST, ObjectWorld, node_id


def rebuilt(world: ObjectWorld, name: str, **rows: Any) -> ObjectMachine:
    rng = Random(1)
    return ObjectMachine(node_id(name), name, FAST, rng, rng.randbytes, now=world.now, **rows)


def test_a_unit_that_was_built_again_reads_its_votes_from_the_store() -> None:
    """What the node loaded at its start is old by then: a vote that was cast since would be forgotten."""
    world = world_of()
    value = created(world)
    host = world.hosts["b"]
    machine = rebuilt(world, "b", rows=None, disk_rows=None)
    out = Outbox()
    machine.up(world.now, [ports.DiskReady(host.disk.marker)], out)
    asked = [effect.table for effect, _ in out.effects if isinstance(effect, ReadTable)]
    assert asked == [DISK_TABLE, TABLE]
    assert machine.inspect(value.object).reason == "unknown", "it has no vote before it has read"
    tables = [TableRead(name, sorted(host.tables[name].items())) for name in asked]
    machine.up(world.now, tables, Outbox())
    state = machine.inspect(value.object)
    assert state.reason == ""
    assert state.decided == host.machine.inspect(value.object).decided
    assert machine.hub.disk == host.machine.hub.disk


def test_a_store_that_was_lost_makes_the_disk_a_new_one() -> None:
    """The content is there, and the votes are not: such a replica must not vote."""
    world = world_of()
    value = created(world)
    old = world.hosts["b"].machine.hub.disk
    machine = rebuilt(world, "b")
    out = Outbox()
    machine.up(world.now, [ports.DiskReady(world.hosts["b"].disk.marker)], out)
    assert machine.hub.disk != old
    assert any(isinstance(effect, ports.StampDisk) for effect, _ in out.effects)
    assert not machine.registers.mine(value)


def test_rows_that_cannot_be_read_are_as_lost_as_their_disk() -> None:
    world = world_of()
    value = created(world)
    host = world.hosts["b"]
    machine = rebuilt(
        world,
        "b",
        rows=[(value.object, b"\xff garbage")],
        disk_rows=host.tables[DISK_TABLE].items(),
    )
    machine.up(world.now, [ports.DiskReady(host.disk.marker)], Outbox())
    assert machine.inspect(value.object).reason == "unknown"
    assert machine.status()["counts"]["emptied"] == 1
