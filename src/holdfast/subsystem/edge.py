"""The side of a subsystem that faces applications and operators.

An edge performs the effects of its subsystem's machines, answers the control socket and provides the API for
applications. The asyncio driver and the simulator run the same contract, so an edge that uses only its `Port` runs
under both.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from holdfast.errors import HoldfastError
from holdfast.machine import Failure
from holdfast.types import SYNC, Nanos

if TYPE_CHECKING:
    from holdfast.subsystem.config import NodeConfig
    from holdfast.subsystem.declaration import Assembly

EffectHandler = Callable[[Any], None]
Control = Callable[[dict[str, Any]], dict[str, Any] | Awaitable[dict[str, Any]]]
"""Answers one kind of request of the control socket. Raises a `HoldfastError` to refuse a request."""
TableReader = Callable[[list[tuple[bytes, bytes]]], None]


class StoreWriter(Protocol):
    """Commits the writes of one store, in turn order, off the event loop."""

    @property
    def full(self) -> bool:
        """Whether its units must wait until something is written."""
        ...

    def submit(self, turn: int, writes: Any) -> None:
        """Commit the writes of a turn, after those of earlier turns."""
        ...

    def close(self) -> None: ...


class Port(Protocol):
    """The interface of a driver for edges while a node runs."""

    @property
    def core(self) -> Assembly: ...

    @property
    def config(self) -> NodeConfig: ...

    def clock(self) -> Nanos:
        """The monotonic time of the node."""
        ...

    def offer(self, unit: str, item: Any, size: int = 64, cls: int = SYNC) -> bool:
        """Queue an input for a unit. Returns False if its class is full; nothing was queued then."""
        ...

    def answer(self, unit: str, item: Any) -> None:
        """Queue an answer that a unit waits for, even if its class is full. Not thread-safe."""
        ...

    def answer_from_thread(self, unit: str, item: Any, patient: bool = False) -> None:
        """The same from any thread. A patient answer may wait a few milliseconds for the next turn."""
        ...

    def expect_answers(self) -> None:
        """Work was passed to a thread: schedule a turn in a few milliseconds that collects patient answers."""
        ...

    def use_store(self, store: str, writer: StoreWriter) -> None:
        """From now on, `writer` commits the writes of units to `store`. It reports to `written` and `write_failed`."""
        ...

    def written(self, turn: int, store: str = "") -> None:
        """From any thread: the writes of a store up to `turn` are durable."""
        ...

    def write_failed(self, error: HoldfastError, store: str = "") -> None:
        """From any thread: a write failed. The node's own store stops the node; any other store fails its units."""
        ...


class Edge:
    """Base class of all edges: created once per node, attached for each run. Subclasses override what they need."""

    name: ClassVar[str] = ""
    """The attribute of `Node` under which applications find this edge; empty: none."""

    def meet(self, edges: Sequence[Edge]) -> None:
        """All edges of the node exist: keep references to those that this one uses."""

    def effects(self) -> Mapping[type, EffectHandler]:
        """The function that performs each type of effect of the subsystem's machines."""
        return {}

    def control(self) -> Mapping[str, Control]:
        """Answers to the control socket, by the request's `do`."""
        return {}

    def attach(self, port: Port) -> None:
        """A run begins: the core exists, and its first turn has not run yet."""

    def before_turn(self) -> None:
        """Called before each turn: pass on the requests of applications since the last one."""

    def after_turn(self) -> None:
        """Called when all effects of a turn have been performed."""

    def unit_failed(self, failure: Failure) -> None:
        """A unit of the node failed, or was stopped."""

    def halt(self, error: HoldfastError) -> None:
        """The run ends: no further turn takes place. End every handle with `error`; may be called twice."""

    def close(self) -> None:
        """Called off the event loop after `halt`: wait for threads, close files."""
