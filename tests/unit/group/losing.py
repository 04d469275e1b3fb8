"""Groups that lose messages, and what comes of it: shared by tests about loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.unit.group.harness import World, node_id, ready

from holdfast.group.frames import Payload
from holdfast.group.loss.actions import Action
from holdfast.group.loss.loss_info import LossInfo
from holdfast.types import MILLISECOND, SECOND

FAST = {
    "gone_ns": 100 * MILLISECOND,
    "nack_retry_ns": 8 * MILLISECOND,
    "recover_ns": 50 * MILLISECOND,
    "seek_ns": 5 * MILLISECOND,
    "close_delay_ns": 50 * MILLISECOND,
}


def losing(world: World, numbers: range, *targets: str, source: str = "s1") -> None:
    """Payload of `source` that has any of `numbers` never reaches `targets`, whoever sends it."""

    def drop(_sender: str, target: str, frame: Any) -> bool:
        if not isinstance(frame, Payload) or frame.stream.source != node_id(source):
            return False
        lost = range(frame.first, frame.first + frame.count)
        return target in targets and any(number in numbers for number in lost)

    world.drop = drop


def lossy(voters: int = 3, sources: int = 1, **settings: Any) -> World:
    world = World(voters=voters, sources=sources, payload_bytes=1000, **(FAST | settings))
    world.start()
    ready(world)
    return world


def send(world: World, count: int, source: str = "s1", start: int = 1, **note: Any) -> None:
    """One message per frame, numbered."""
    for k in range(start, start + count):
        world.send(source, [b"%d" % k + b"." * 600], **note)


def numbers(world: World, name: str = "n1") -> list[int]:
    return [item.number for item in world.hosts[name].app.got]


def answer(world: World, action: Action | Callable[[LossInfo], Action | None] | None) -> None:
    for host in world.hosts.values():
        host.on_loss = action if callable(action) else lambda _, said=action: said


def brought(world: World, name: str) -> dict[str, int]:
    """How many messages a replica has recovered, by where they came from."""
    replica = world.hosts[name].replica
    assert replica is not None
    return replica.inspect().recovery.brought


def delivered(world: World, expected: list[int], limit_ns: int = 5 * SECOND) -> None:
    """Every replica delivers just these numbers."""
    replicas = [name for name, host in world.hosts.items() if host.replica]
    world.run_until(lambda: all(numbers(world, n) == expected for n in replicas), limit_ns)
    world.check()


ALL = ("n1", "n2", "n3")


def ignoring(world: World) -> list[Any]:
    return [row["what"] for row in world.hosts["n1"].status["ignoring"]]


def leader(world: World) -> str:
    names = [
        n for n, host in world.hosts.items() if host.replica and host.status["state"] == "leading"
    ]
    return names[-1] if names else ""


def only_from_source(world: World) -> None:
    """What `drop` loses, it loses on the way from the source; replicas can give it to each other."""
    drop = world.drop
    assert drop is not None
    world.drop = lambda a, b, frame: a == "s1" and drop(a, b, frame)
