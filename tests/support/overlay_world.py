"""The virtual network of overlay machines, for tests."""

from __future__ import annotations

from typing import Any

from holdfast.overlay.config import OverlayConfig
from holdfast.sim.overlay_world import FAST, PORT, Host, Session, World, node_id
from holdfast.types import SECOND, Nanos

__all__ = [
    "FAST",
    "PORT",
    "Host",
    "Session",
    "World",
    "count",
    "node_id",
    "publish",
    "world_of",
]


def world_of(
    *names: str,
    links: str = "",
    config: OverlayConfig = FAST,
    seed: int,
    settle_ns: Nanos = 2 * SECOND,
) -> World:
    """Nodes with the given links (`a-b b-c`), or else in a row, each linked to the next."""
    world = World(seed, config)
    for name in names:
        world.add(name)
    if links:
        for pair in links.split():
            world.link(*pair.split("-"))
    else:
        world.line(*names)
    world.run(settle_ns)
    return world


def publish(world: World, *names: str, **options: Any) -> None:
    """Publish a role on one node after the other."""
    for name in names:
        op = world.publish(name, **options)
        world.run(2 * SECOND)
        done = world.published(name, op)
        assert done is not None, name
        assert done.ok, done


def count(world: World, name: str, counter: str) -> int:
    """A counter of the overlay of a node."""
    return world.hosts[name].machine.hub.counters.get(counter, 0)
