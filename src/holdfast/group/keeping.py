"""The outputs of an application that a replica keeps, because their destinations may not have them yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from holdfast.group.entries import EVERYBODY
from holdfast.group.ports import Output
from holdfast.group.rulings import Id, Rulings

OVERHEAD: Final = 64
"""Counted for each output besides its bytes."""


class Kept:
    """Per destination, in order. The same on every replica at the same place of the order, but for what is late."""

    __slots__ = ("_limit", "bytes", "queues")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.bytes = 0
        self.queues: dict[str, deque[tuple[Id, bytes]]] = {}

    @property
    def full(self) -> bool:
        return self.bytes >= self._limit

    @property
    def why_full(self) -> str:
        """Who is waited for; empty while there is room."""
        if not self.full:
            return ""
        name = max(
            self.queues, key=lambda name: sum(len(payload) for _, payload in self.queues[name])
        )
        return f"{name} does not take its outputs, and no more of them are kept"

    def take(self, outputs: Iterable[Output], rulings: Rulings) -> None:
        """The application has said these. What is known to have arrived is not kept: another replica was faster."""
        for output in outputs:
            id_ = (output.position, output.k)
            if id_ > rulings.arrived(output.destination):
                queue = self.queues.setdefault(output.destination, deque())
                queue.append((id_, output.payload))
                self.bytes += len(output.payload) + OVERHEAD

    def mark(self, destination: str, upto: Id) -> None:
        """It is decided that the destination, or everybody, has everything up to `upto`."""
        for name in list(self.queues) if destination == EVERYBODY else (destination,):
            self._drop(name, upto)

    def _drop(self, destination: str, upto: Id) -> None:
        queue = self.queues.get(destination)
        while queue and queue[0][0] <= upto:
            self.bytes -= len(queue.popleft()[1]) + OVERHEAD
        if queue is not None and not queue:
            del self.queues[destination]

    def before(self, position: int) -> tuple[Output, ...]:
        """What came from messages before `position`, for a state that is given to another replica."""
        return tuple(
            Output(id_[0], id_[1], destination, payload)
            for destination, queue in self.queues.items()
            for id_, payload in queue
            if id_[0] < position
        )

    def restart(self, outputs: Iterable[Output], rulings: Rulings) -> None:
        """Go on after a state that was put in."""
        self.queues.clear()
        self.bytes = 0
        self.take(outputs, rulings)
