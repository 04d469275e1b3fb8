"""The interface of a node to the simulator: the same calls that the asyncio driver makes."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from holdfast.machine import NODE_STORE, Result
from holdfast.sim.disk import Disk
from holdfast.sim.seeds import chance, derive
from holdfast.stores.port import Store
from holdfast.types import Nanos


class Core(Protocol):
    """A node without IO. `holdfast.node.core.NodeCore` is one; tests have small ones."""

    def start(self, now: Nanos) -> Result:
        """The first turn."""
        ...

    def turn(self, now: Nanos, inputs: list[tuple[str, Any]]) -> Result:
        """Run a batch of (unit, item) through the machines."""
        ...

    def written(self, turn: int) -> bool:
        """Writes up to `turn` are durable. True: something waited for that, so run a turn."""
        ...

    def next_deadline(self) -> Nanos: ...


class HostContext:
    """The information about its machine that a core receives. Created at every start."""

    __slots__ = ("_disk_of", "_entropy", "boots", "name", "seed", "store", "wall_offset_ns")

    def __init__(
        self,
        world_seed: int,
        name: str,
        boots: int,
        store: Store,
        wall_offset_ns: int,
        disk_of: Callable[[str], Disk],
    ) -> None:
        self.name = name
        self.boots = boots
        """How often this host has started, including this time."""
        self.seed = derive(world_seed, "core", name, boots)
        self.store = store
        self.wall_offset_ns = wall_offset_ns
        """Offset from the monotonic time of the host to the wall clock (which may be wrong)."""
        self._disk_of = disk_of
        self._entropy: Random = chance(world_seed, "entropy", name, boots)

    def load(self, table: str, store: str = NODE_STORE) -> list[tuple[bytes, bytes]]:
        """All rows of a table on the disk of a store, by key."""
        return self._disk_of(store).rows(table)

    def entropy(self, count: int) -> bytes:
        """Bytes for keys. In the simulator they are derived from the seed."""
        return self._entropy.randbytes(count)


Boot = Callable[[HostContext], Core]
"""Builds a core from what is on the disk: at the first start and after every stop or crash."""
