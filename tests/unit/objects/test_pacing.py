"""The rate of repairs: of one node within a copy, and of all nodes of the domain together."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
from tests.support.objects import created, no_failures, world_of

from holdfast.objects.frames import Offer, Piece
from holdfast.objects.pacing import BURST
from holdfast.objects.values import Value
from holdfast.sim.objects_world import FAST, ObjectWorld
from holdfast.types import SECOND

MB = 1 << 20


def limited(own_mb: int, domain_mb: int) -> ObjectWorld:
    config = msgspec.structs.replace(
        FAST, repair_bytes_per_s=own_mb * MB, repair_domain_bytes_per_s=domain_mb * MB
    )
    return world_of(config=config)


class Traffic:
    """Content that arrives at nodes, by time."""

    def __init__(self, world: ObjectWorld) -> None:
        self.pieces: list[tuple[int, str, int]] = []
        self.marks: list[tuple[str, bool]] = []
        self._world = world
        world.filter = self._see

    def _see(self, sender: Any, receiver: Any, frame: Any) -> Any:
        if isinstance(frame, Piece):
            self.pieces.append((self._world.now, receiver.name, len(frame.data)))
        elif isinstance(frame, Offer):
            self.marks.append((sender.name, frame.repairing))
        return frame

    def receivers(self) -> set[str]:
        return {name for _, name, _ in self.pieces}

    def total(self) -> int:
        return sum(size for _, _, size in self.pieces)

    def seconds(self) -> float:
        return (self.pieces[-1][0] - self.pieces[0][0]) / SECOND


def whole(world: ObjectWorld, values: list[Value]) -> bool:
    return all(len(world.holders(value.object)) == 3 for value in values)


def test_one_copy_keeps_to_the_rate_of_its_node() -> None:
    """A large object is one copy: without a pace inside of it, the limit would hold between copies only."""
    world = limited(own_mb=2, domain_mb=256)
    value = created(world, data=Random(1).randbytes(14 * MB))
    traffic = Traffic(world)
    world.kill("d")
    assert world.until(lambda: whole(world, [value]), 120 * SECOND)
    expected = (14 * MB - BURST - MB) / (2 * MB)  # The last chunk is waited for by no other.
    assert expected <= traffic.seconds() <= 1.5 * expected
    no_failures(world)


def test_nodes_that_repair_at_once_share_the_rate_of_the_domain() -> None:
    """A node dies that had replicas of many objects. Each of the others could take the whole rate."""
    world = limited(own_mb=4, domain_mb=4)
    values = [created(world, f"/x{n}", Random(n).randbytes(12 * MB)) for n in range(4)]
    traffic = Traffic(world)
    world.kill("d")
    assert world.until(lambda: whole(world, values), 300 * SECOND)
    assert traffic.receivers() == {"a", "e"}, "both remaining nodes take replicas"
    # A burst each, what was on its way before the announcements, and the last chunks: no other waits for them.
    free = 2 * BURST + 4 * MB
    assert traffic.total() <= free + traffic.seconds() * 4 * MB
    assert traffic.total() >= 48 * MB
    no_failures(world)
    # When it is over, no node takes a share any more.
    world.run(10 * SECOND)
    for name in "abce":
        machine = world.hosts[name].machine
        assert not machine.members.repairing
        assert machine.members.others_repairing() == 0
        assert machine.status()["repair_bytes_per_s"] == 4 * MB


def test_a_small_repair_neither_waits_nor_announces_anything() -> None:
    world = limited(own_mb=1, domain_mb=1)
    value = created(world, data=bytes(MB))
    traffic = Traffic(world)
    world.kill("d")
    assert world.until(lambda: whole(world, [value]), 60 * SECOND)
    assert traffic.seconds() < 0.1
    assert not any(repairing for _, repairing in traffic.marks)


def test_a_node_that_dies_while_it_repairs_leaves_its_share_to_the_others() -> None:
    world = limited(own_mb=4, domain_mb=4)
    for n in range(4):
        created(world, f"/x{n}", Random(n).randbytes(12 * MB))
    world.kill("d")
    a, e = world.hosts["a"].machine, world.hosts["e"].machine
    assert world.until(
        lambda: bool(a.members.repairing and a.members.others_repairing()), 60 * SECOND
    )
    assert a.status()["repair_bytes_per_s"] == 2 * MB
    assert e.members.repairing
    world.kill("e")
    assert a.status()["repair_bytes_per_s"] == 4 * MB
