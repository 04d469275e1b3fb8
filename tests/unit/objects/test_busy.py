"""Objects that are written all the time: replicas are moved and replaced all the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support.objects import created, no_failures, world_of

from holdfast.objects import ports
from holdfast.objects.values import Value
from holdfast.sim.objects_world import Call, ObjectWorld, node_id
from holdfast.types import MILLISECOND, SECOND


def write_until(world: ObjectWorld, value: Value, size: int, over: Callable[[], bool]) -> Call:
    """Write the object again and again at one node, the next write right after the last one. Returns the last one."""
    number, end = 0, world.now + 10 * SECOND
    call = Call(None)
    call.done = True
    while not over():
        assert world.now < end, f"{number} writes, and it is not over"
        if call.done:
            assert not call.refused, call.text
            number += 1
            data = b"%d" % number
            call = world.start(
                "a", ports.Write, data.ljust(size, b"."), path="", object=value.object, size=size
            )
        world.run(MILLISECOND // 10)
    world.wait(call)
    assert call.ok, call.text
    return call


@pytest.mark.parametrize("size", [100, 50_000])
def test_a_drain_of_an_object_that_is_written_all_the_time_ends(size: int) -> None:
    """The last writer takes one round trip, and a change of the replica set more: it would always come too late."""
    world = world_of()
    value = created(world)
    drain = world.start("e", ports.Drain, node=node_id("b"))
    last = write_until(world, value, size, lambda: drain.done)
    assert {step.state for step in drain.value.steps} == {"done"}, drain.value.steps
    assert bytes(world.read("e", "/x").read) == last.data
    assert node_id("b") not in world.stat("a", "/x").value.nodes
    no_failures(world)


def test_a_lost_replica_of_an_object_that_is_written_all_the_time_is_replaced() -> None:
    world = world_of()
    value = created(world)
    world.kill("d")

    def is_whole() -> bool:
        now = world.hosts["b"].machine.registers.decided(value.object)
        return now is not None and node_id("d") not in now.nodes and len(now.nodes) == 3

    last = write_until(world, value, 100, is_whole)
    assert bytes(world.read("e", "/x").read) == last.data
    no_failures(world)


def test_writers_that_are_far_apart_do_not_overtake_each_other_until_their_deadline() -> None:
    """A round trip takes longer than the first back-off. All would be in doubt in the end."""
    for seed in (0, 1):
        world = world_of(seed)
        value = created(world)
        world.delay_ns = 60 * MILLISECOND
        calls = [
            world.start(
                node, ports.Write, node.encode(), path="", object=value.object, size=1, edition=1
            )
            for node in "bcde"
        ]
        world.wait(*calls)
        assert sorted(call.refused for call in calls) == ["", "conflict", "conflict", "conflict"]
