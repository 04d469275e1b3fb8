"""Load on a group, up to its window."""

from __future__ import annotations

from typing import Any

from tests.unit.group.harness import FAST, World
from tests.unit.group.talking import texts

from holdfast.types import MILLISECOND

WINDOW = FAST["window_bytes"]


def held(world: World, name: str) -> int:
    """Bytes of all streams that a replica holds."""
    streams: dict[str, Any] = world.hosts[name].status["streams"]
    return sum(stream["held"] for stream in streams.values())


def pour(world: World, name: str, rounds: int, watch: list[str]) -> tuple[int, int]:
    """Send as fast as the source has room; (messages sent, most bytes that a watched replica or the source held)."""
    sent = most = 0
    for k in range(rounds):
        if world.hosts[name].source.held < WINDOW - 5000:
            world.send(name, texts(f"{k}", 20, size=200))
            sent += 20
        world.run(MILLISECOND)
        most = max([most, world.hosts[name].source.held, *(held(world, other) for other in watch)])
    return sent, most
