"""The outputs of an application that a replica keeps until their destinations have them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from holdfast.group.log.entries import EVERYBODY
from holdfast.group.log.replicated_metadata import ReplicatedMetadata
from holdfast.group.log.values import Id
from holdfast.group.ports import Output

OVERHEAD: Final = 64
"""Counted for each output besides its bytes."""
NO_BOUND: Final = 1 << 60
FIRST: Final = 64
"""How many messages an application may have at once before its output rate is known."""


class OutputBuffer:
    """Per destination, in order. The same on every replica at the same place of the order, except for late ones."""

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
        """The destination that blocks; empty while there is room."""
        if not self.full:
            return ""
        name = max(
            self.queues, key=lambda name: sum(len(payload) for _, payload in self.queues[name])
        )
        return f"{name} does not accept its outputs, and the output buffer is full"

    def take(self, outputs: Iterable[Output], metadata: ReplicatedMetadata) -> None:
        """The application has created these. Those known to have arrived are not kept: another replica was faster."""
        for output in outputs:
            id_ = (output.position, output.k)
            if id_ > metadata.arrived(output.destination):
                queue = self.queues.setdefault(output.destination, deque())
                queue.append((id_, output.payload))
                self.bytes += len(output.payload) + OVERHEAD

    def mark(self, destination: str, upto: Id) -> None:
        """It is committed that the destination, or all of them, have everything up to `upto`."""
        for name in list(self.queues) if destination == EVERYBODY else (destination,):
            self._drop(name, upto)

    def _drop(self, destination: str, upto: Id) -> None:
        queue = self.queues.get(destination)
        while queue and queue[0][0] <= upto:
            self.bytes -= len(queue.popleft()[1]) + OVERHEAD
        if queue is not None and not queue:
            del self.queues[destination]

    def before(self, position: int) -> tuple[Output, ...]:
        """Outputs of messages before `position`, for a snapshot."""
        return tuple(
            Output(id_[0], id_[1], destination, payload)
            for destination, queue in self.queues.items()
            for id_, payload in queue
            if id_[0] < position
        )

    def restart(self, outputs: Iterable[Output], metadata: ReplicatedMetadata) -> None:
        """Continue after a restored snapshot."""
        self.queues.clear()
        self.bytes = 0
        self.take(outputs, metadata)


class ApplyWindow:
    """How many messages an application may have at once, so that there is room for its outputs.

    This is not known in advance. The estimate is its recent output rate; while it produces less, the estimate is halved
    each time it has processed as many messages as it may have at once.
    """

    __slots__ = ("_each", "_limit", "_since")

    def __init__(self, limit: int, first: int = FIRST) -> None:
        """`first`: the number of messages that the application may have at once before it has produced any output."""
        self._limit = limit
        self._each = limit // first
        """Estimated output bytes per message; 0: none."""
        self._since = 0
        """Messages with a lower rate."""

    def allowed(self, room: int) -> int:
        return max(1, room // self._each) if self._each else NO_BOUND

    @property
    def batch(self) -> int:
        """How many messages may be in one entry, which is delivered as a whole."""
        return self.allowed(self._limit)

    def note(self, messages: int, outputs: Sequence[Output]) -> None:
        """It has processed this many messages and created this many bytes."""
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
