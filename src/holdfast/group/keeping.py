"""The outputs of an application that a replica keeps, because their destinations may not have them yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from holdfast.group.entries import EVERYBODY
from holdfast.group.ports import Output
from holdfast.group.rulings import Id, Rulings

OVERHEAD: Final = 64
"""Counted for each output besides its bytes."""
NO_BOUND: Final = 1 << 60
FIRST: Final = 64
"""So many messages an application has at once before it is known how much it says."""


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
    def room(self) -> int:
        return self._limit - self.bytes

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


class Pace:
    """How many messages an application may have at once, so that there is room for what it says about them.

    Nobody knows that before it does. It is feared to say as much as it has lately; while it says less, half as much is
    feared each time that it has gone through as many messages as it may have at once.
    """

    __slots__ = ("_each", "_limit", "_since")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._each = limit // FIRST
        """Bytes that it is feared to say about a message; 0: nothing."""
        self._since = 0
        """Messages about which it has said less."""

    def allowed(self, room: int) -> int:
        return max(1, room // self._each) if self._each else NO_BOUND

    @property
    def batch(self) -> int:
        """How many messages may be in one entry, which is handed out as a whole."""
        return self.allowed(self._limit)

    def note(self, messages: int, outputs: Sequence[Output]) -> None:
        """It has gone through so many messages, and has said this."""
        said = 0
        if outputs:
            said = sum(len(output.payload) for output in outputs) + OVERHEAD * len(outputs)
        elif not self._each:
            return
        self._since += messages
        if messages and said >= self._each * messages:
            self._each = said // messages
            self._since = 0
        elif self._since >= self.batch:
            self._each //= 2
            self._since = 0
