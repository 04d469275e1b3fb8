"""Checkers fed by hand."""

from __future__ import annotations

from collections.abc import Callable

from tests.sim.toys import STEADY, Puppet

from holdfast.group.frames import StreamId
from holdfast.group.ports import (
    Apply,
    Batch,
    Replica,
)
from holdfast.sim.checkers import (
    Checker,
)
from holdfast.sim.host import Host
from holdfast.sim.ledger import Ledger
from holdfast.sim.world import World
from holdfast.types import MILLISECOND

UNIT = "replica/book"


RED, BLUE = StreamId(b"red", 1, 0), StreamId(b"blue", 1, 0)


def checked(
    *checkers: Checker,
    application: Callable[[str], Replica] = lambda _: Ledger(),
    seed: int = 5,
) -> tuple[World, Host, Host]:
    world = World(seed, replay="holdfast sim run --seed 5 --scenario mine")
    for checker in checkers:
        world.check(checker)
    hosts = [world.add_host(name, Puppet, STEADY, application) for name in ("n1", "n2")]
    for host in hosts:
        host.start()
    return world, hosts[0], hosts[1]


def apply(
    host: Host, position: int, first: int, *messages: bytes, stream: StreamId = RED, size: int = 10
) -> None:
    views = [memoryview(message) for message in messages]
    batch = Batch(position, stream, first, views)
    host.give("do", Apply(UNIT, position, 0, batch, size))
    host.world.run_for(10 * MILLISECOND)
