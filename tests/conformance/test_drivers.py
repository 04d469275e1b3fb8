"""What every driver must do with a node: the same claims over real sockets and in the simulator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conformance.worlds import (
    GROUP,
    NAMES,
    SUBNETS,
    ConformanceWorld,
    SimulatedWorld,
    SocketWorld,
)

from holdfast.group.subsystem import GroupService


@pytest.fixture(params=["simulator", "sockets"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ConformanceWorld]:
    made: ConformanceWorld = (
        SimulatedWorld() if request.param == "simulator" else SocketWorld(tmp_path)
    )
    try:
        made.start()
        yield made
    finally:
        made.close()


def path_size(
    world: ConformanceWorld, watcher: str, sender: str, listener: str, subnet: str
) -> int:
    for path in world.core(watcher).status(0)["paths"]:
        key = (path["sender"], path["listener"], path["subnet"], path["transport"])
        if key == (sender, listener, subnet, "udp") and path["alive"]:
            return int(path["size"])
    return 0


def everybody_measured(world: ConformanceWorld) -> bool:
    """Every node knows every path in every direction, and all sizes pass."""
    return all(
        path_size(world, watcher, sender, listener, subnet) == 1500
        for watcher in NAMES
        for sender in NAMES
        for listener in NAMES
        for subnet in SUBNETS
        if sender != listener
    )


def states(world: ConformanceWorld, watcher: str) -> dict[str, str]:
    return {member["name"]: member["state"] for member in world.core(watcher).status(0)["members"]}


def all_equal(world: ConformanceWorld, count: int) -> bool:
    ledgers = [world.ledger(name).state for name in NAMES]
    return all(state == ledgers[0] and state.count == count for state in ledgers)


def test_nodes_that_know_one_address_find_all_members_on_every_path(
    world: ConformanceWorld,
) -> None:
    assert world.until(lambda: everybody_measured(world))
    for name in NAMES:
        assert states(world, name) == dict.fromkeys(NAMES, "up")


def test_a_channel_delivers_once_and_in_order(world: ConformanceWorld) -> None:
    assert world.until(lambda: states(world, "ann").get("ben") == "up")
    messages = [b"%d" % number * (number % 50) for number in range(3000)]
    world.send("ann", "ben", messages)
    assert world.until(lambda: len(world.received["ben"]) >= len(messages))
    assert world.received["ben"] == messages


def test_replicas_apply_the_same_messages_in_the_same_order(world: ConformanceWorld) -> None:
    for name in NAMES:
        world.multicast(name, [f"{name} {number}".encode() for number in range(200)])
    assert world.until(lambda: all_equal(world, 600))


def test_a_size_limit_in_one_direction_is_seen_by_all_and_routed_around(
    world: ConformanceWorld,
) -> None:
    assert world.until(lambda: everybody_measured(world))
    world.over("ann", "ben", "red", 1000)
    assert world.until(lambda: path_size(world, "cem", "ann", "ben", "red") == 1000)
    assert path_size(world, "cem", "ben", "ann", "red") == 1500
    large = [bytes([number % 256]) * 1400 for number in range(200)]
    world.send("ann", "ben", large)
    assert world.until(lambda: len(world.received["ben"]) >= len(large))
    assert world.received["ben"] == large
    assert states(world, "cem") == dict.fromkeys(NAMES, "up")
    world.heal()
    assert world.until(lambda: everybody_measured(world))


def test_a_subnet_that_goes_dark_stops_no_node(world: ConformanceWorld) -> None:
    assert world.until(lambda: everybody_measured(world))
    for sender in NAMES:
        for listener in NAMES:
            if sender != listener:
                world.silence(sender, listener, "red")
    for name in NAMES:
        world.multicast(name, [bytes(500)] * 100)
    assert world.until(lambda: all_equal(world, 300))
    assert world.until(lambda: path_size(world, "cem", "ann", "ben", "red") == 0)
    assert states(world, "cem") == dict.fromkeys(NAMES, "up")


def test_a_node_that_restarts_is_the_same_node_in_a_new_incarnation(
    world: ConformanceWorld,
) -> None:
    assert world.until(lambda: everybody_measured(world))
    node, incarnation = world.core("cem").me.node, world.core("cem").me.incarnation
    world.multicast("ann", [b"before"] * 50)
    assert world.until(lambda: all_equal(world, 50))
    world.end("cem")
    assert world.until(lambda: states(world, "ann")["cem"] in ("down", "left"))
    world.multicast("ann", [b"while it was away"] * 50)
    assert world.until(lambda: world.ledger("ben").state.count == 100)
    world.begin("cem")
    assert world.until(lambda: all_equal(world, 100))
    assert world.core("cem").me.node == node
    assert world.core("cem").me.incarnation == incarnation + 1
    world.multicast("cem", [b"after"] * 50)
    assert world.until(lambda: all_equal(world, 150))


def test_nothing_fails_on_the_way(world: ConformanceWorld) -> None:
    world.multicast("ben", [b"x"] * 10)
    assert world.until(lambda: all_equal(world, 10))
    for name in NAMES:
        assert world.core(name).turns.stopped == {}
        assert world.core(name).service(GroupService).groups.keys() == {GROUP}
