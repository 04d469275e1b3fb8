"""Groups whose application has outputs."""

from __future__ import annotations

from typing import Any

from tests.unit.group.harness import Host, World, ready


def talking(destination: str, voters: int = 3, **settings: Any) -> World:
    """A group whose application answers every message with an output."""
    world = World(voters=voters, sources=1, payload_bytes=1000, **settings)
    world.start()
    for host in world.hosts.values():
        talk(host, destination)
    ready(world)
    return world


def talk(host: Host, destination: str) -> None:
    host.says = lambda message: [(destination, b"re: " + message)]


def heard(world: World, name: str = "s1") -> list[bytes]:
    return [output.payload for output in world.hosts[name].outputs]


def said(first: int, last: int) -> list[bytes]:
    return [b"re: %d" % k for k in range(first, last + 1)]
