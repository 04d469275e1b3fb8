"""What the simulator asks of a node: the same calls that the asyncio driver makes."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from holdfast.machine import Result
from holdfast.sim.seeds import chance, derive
from holdfast.stores.port import Store
from holdfast.types import Nanos


class Core(Protocol):
    """A node without IO. `holdfast.node.core.NodeCore` is one; tests have small ones of their own."""

    def start(self, now: Nanos) -> Result:
        """The first turn."""
        ...

    def turn(self, now: Nanos, inputs: list[tuple[str, Any]]) -> Result:
        """Take a batch of (unit, item) through the machines."""
        ...

    def written(self, turn: int) -> bool:
        """Writes up to `turn` are durable. True: something waited for that, so run a turn."""
        ...

    def next_deadline(self) -> Nanos: ...


class HostContext:
    """What a core may know of the machine it starts on. Made anew at every start."""

    __slots__ = ("_entropy", "boots", "name", "seed", "store", "wall_offset_ns")

    def __init__(
        self, world_seed: int, name: str, boots: int, store: Store, wall_offset_ns: int
    ) -> None:
        self.name = name
        self.boots = boots
        """How often this host has started, this time included."""
        self.seed = derive(world_seed, "core", name, boots)
        self.store = store
        self.wall_offset_ns = wall_offset_ns
        """Add it to the host's own monotonic time for the time of day (of a clock that may be wrong)."""
        self._entropy: Random = chance(world_seed, "entropy", name, boots)

    def load(self, table: str) -> list[tuple[bytes, bytes]]:
        """All rows of a table on the disk, by key."""
        return self.store.load(table)

    def entropy(self, count: int) -> bytes:
        """Bytes for keys. In the simulator they come from the seed, like everything else."""
        return self._entropy.randbytes(count)


Boot = Callable[[HostContext], Core]
"""Builds a core from what is on the disk: at the first start and after every stop or crash."""
