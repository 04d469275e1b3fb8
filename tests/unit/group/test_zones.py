"""Zones: subsets of the replicas that filter delivery only (rule 14 in docs/design/services.md)."""

from __future__ import annotations

import pytest
from tests.unit.group.harness import World

from holdfast.errors import ConfigError
from holdfast.group.config import GroupConfig
from holdfast.group.streams.message_metadata import zone_of, zone_topic
from holdfast.types import MILLISECOND, SECOND

ZONES = {"east": ("n1", "n2"), "west": ("n3", "n4")}


def told(world: World, name: str) -> list[bytes]:
    return world.hosts[name].messages


def mixed(world: World, sender: str = "n1") -> None:
    world.send(sender, [b"all 1"])
    world.send(sender, [b"east 1", b"east 2"], topic=zone_topic("east", ""))
    world.send(sender, [b"west 1"], topic=zone_topic("west", "prices"))
    world.send(sender, [b"all 2"])


def test_only_the_replicas_of_a_zone_deliver_its_messages_at_the_same_positions() -> None:
    world = World(voters=4, zones=ZONES)
    world.start()
    world.run(SECOND)
    mixed(world)
    world.run(SECOND)
    east, west = [b"all 1", b"east 1", b"east 2", b"all 2"], [b"all 1", b"west 1", b"all 2"]
    assert [told(world, name) for name in ("n1", "n2", "n3", "n4")] == [east, east, west, west]
    positions = {
        name: [(item.position, item.message) for item in world.hosts[name].app.got]
        for name in ("n1", "n3")
    }
    assert positions["n1"][-1] == positions["n3"][-1] == (5, b"all 2")
    digests = {host.status["digest"] for host in world.hosts.values()}
    assert len(digests) == 1, "the order is the same everywhere"


def test_messages_to_other_zones_are_freed_like_all_others() -> None:
    world = World(voters=4, zones=ZONES)
    world.start()
    world.run(SECOND)
    for _ in range(10):
        mixed(world)
        world.run(50 * MILLISECOND)
    world.run(2 * SECOND)
    assert all(stream["held"] == 0 for stream in world.hosts["n3"].status["streams"].values())


def test_a_replica_takes_a_state_only_from_one_in_the_same_zones() -> None:
    """It would lack what its zone was sent."""
    world = World(voters=4, zones=ZONES)
    world.start()
    world.run(SECOND)
    for _ in range(10):
        mixed(world)
        world.run(50 * MILLISECOND)
    world.run(2 * SECOND)
    world.restart("n3")
    world.run_until(lambda: world.hosts["n3"].status["memory"] == "whole", 10 * SECOND)
    mixed(world)
    world.run(SECOND)
    assert told(world, "n3") == told(world, "n4")
    assert told(world, "n3").count(b"west 1") == 11


def test_without_a_replica_in_its_zones_a_replica_waits() -> None:
    world = World(voters=4, zones=ZONES)
    world.start()
    world.run(SECOND)
    for _ in range(10):
        mixed(world)
        world.run(50 * MILLISECOND)
    world.run(2 * SECOND)
    world.cut("n3", "n4")
    world.restart("n3")
    world.run(3 * SECOND)
    assert told(world, "n3") == []
    world.heal("n3", "n4")
    world.run_until(lambda: told(world, "n3") == told(world, "n4"), 20 * SECOND)


@pytest.mark.parametrize(
    ("zones", "text"),
    [
        ({"east": ("n1", "n9")}, "'n9' is not one of its replicas"),
        ({"": ("n1", "n2")}, "needs a name"),
        ({"a/b": ("n1", "n2")}, "without '/'"),
        ({"x" * 65: ("n1", "n2")}, "1 to 64 characters"),
        ({"east": ("n1",)}, "no other replica is in the same zones as n1 (east)"),
        ({"east": ("n1", "n2", "n3")}, "no other replica is in the same zones as n4 (none)"),
    ],
)
def test_bad_zones_are_refused(zones: dict[str, tuple[str, ...]], text: str) -> None:
    with pytest.raises(ConfigError, match="group book") as caught:
        GroupConfig("book", ("n1", "n2", "n3", "n4"), zones=zones)
    assert text in str(caught.value)


def test_a_topic_names_the_zone() -> None:
    assert zone_of(zone_topic("east", "")) == zone_of(zone_topic("east", "prices")) == "east"
    assert zone_of("prices") == zone_of("") == ""
