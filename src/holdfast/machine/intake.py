"""The bounded input queue of a node, with synchronisation first."""

from __future__ import annotations

from collections import deque
from typing import Any

from holdfast.types import CLASSES, SYNC


class Intake:
    """Inputs that wait for a turn, in one queue per traffic class, each bounded in bytes.

    `offer` refuses what does not fit; the caller then waits or reports it: a transport stops reading, `try_send` of an
    application returns False. `take` returns a batch that is bounded in bytes, `SYNC` first.
    """

    __slots__ = ("_queues", "_waiting", "bound", "waiting")

    def __init__(self, bound: int = 16 << 20, reserve: int = 4 << 20) -> None:
        self.bound = dict.fromkeys(CLASSES, bound)
        self.bound[SYNC] = bound + reserve
        self._queues: dict[int, deque[tuple[str, Any, int]]] = {cls: deque() for cls in CLASSES}
        self._waiting = dict.fromkeys(CLASSES, 0)
        self.waiting = 0

    def offer(self, cls: int, unit: str, item: Any, size: int) -> bool:
        """Queue an input of `size` bytes for `unit`. Returns False if its class is full."""
        if self._waiting[cls] and self._waiting[cls] + size > self.bound[cls]:
            return False
        self._queues[cls].append((unit, item, size))
        self._waiting[cls] += size
        self.waiting += 1
        return True

    def force(self, cls: int, unit: str, item: Any, size: int) -> None:
        """Queue an input that has already happened and cannot be refused. The caller must then stop its source."""
        self._queues[cls].append((unit, item, size))
        self._waiting[cls] += size
        self.waiting += 1

    def take(self, limit: int = 1 << 20) -> list[tuple[str, Any]]:
        """A batch of about `limit` bytes, with at least one input if there is any."""
        batch: list[tuple[str, Any]] = []
        for cls in CLASSES:
            queue = self._queues[cls]
            while queue and limit > 0:
                unit, item, size = queue.popleft()
                self._waiting[cls] -= size
                limit -= size
                batch.append((unit, item))
        self.waiting -= len(batch)
        return batch

    def room(self, cls: int) -> int:
        """Bytes of room in the queue of class `cls`."""
        return max(0, self.bound[cls] - self._waiting[cls])
