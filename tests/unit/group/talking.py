"""A group that has started and talks: shared by tests of groups."""

from __future__ import annotations

from typing import Any

from tests.unit.group.harness import FAST, World, leader, ready

from holdfast.types import MILLISECOND


def started(*args: Any, **settings: Any) -> World:
    world = World(*args, **(FAST | settings))
    world.start()
    ready(world)
    return world


def texts(name: str, count: int, size: int = 20) -> list[bytes]:
    return [f"{name}:{k}".encode().ljust(size, b".") for k in range(count)]


def epoch_of(world: World) -> int:
    replica = world.hosts[leader(world)].replica
    assert replica is not None
    return replica.inspect().group_epoch


def talk(world: World, names: tuple[str, ...], rounds: int = 10, count: int = 5) -> int:
    """Everybody named sends, round by round; how many messages that makes."""
    for k in range(rounds):
        for name in names:
            world.send(name, texts(f"{name}/{k}", count))
        world.run(2 * MILLISECOND)
    return rounds * count * len(names)
