"""The machine contract.

A machine is a *unit* of a node: one link, the health of all paths, one replica of one group. Units are arranged in
layers. In a turn, each unit is called at most twice: on the pass up with inputs from below, from the same layer and
from the application, and with its deadline if that has passed; on the pass down with requests of the layers above.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from mypy_extensions import mypyc_attr

from holdfast.types import NEVER, Nanos

NODE_STORE: Final = ""
"""The store that every node has."""


class Outbox:
    """The outputs of the running machine. The turn collects or discards them after each call.

    Everything that leaves the machine downwards or outwards waits until all writes of the machine, in this turn and in
    earlier ones, are durable. `immediate=True` is for output that promises nothing: probes, payload, retransmission
    requests.
    """

    __slots__ = ("downs", "effects", "facts", "ups", "writes")

    def __init__(self) -> None:
        self.ups: list[tuple[str, Any]] = []
        self.downs: list[tuple[str, Any, bool]] = []
        self.effects: list[tuple[Any, bool]] = []
        self.writes: list[Any] = []
        self.facts: list[Any] = []

    def up(self, unit: str, item: Any) -> None:
        """Pass `item` to a unit of a higher layer in this turn, or to any other unit in the next turn."""
        self.ups.append((unit, item))

    def down(self, unit: str, item: Any, immediate: bool = False) -> None:
        """Pass `item` to a unit of a lower layer on the pass down of this turn. On the pass up, a unit may pass items
        to itself, so that one call of `down` handles them together with those of the layers above."""
        self.downs.append((unit, item, immediate))

    def effect(self, item: Any, immediate: bool = False) -> None:
        """Request an effect from the driver: transmit, open, deliver to the application."""
        self.effects.append((item, immediate))

    def write(self, write: Any) -> None:
        """Make something durable in the machine's store: a `Write`, or an item that another store accepts. One commit
        serves all writes of the turn."""
        self.writes.append(write)

    def fact(self, fact: Any) -> None:
        """Record a fact for telemetry."""
        self.facts.append(fact)

    def clear(self) -> None:
        if self.ups:
            self.ups = []
        if self.downs:
            self.downs = []
        if self.effects:
            self.effects = []
        if self.writes:
            self.writes = []
        if self.facts:
            self.facts = []


@mypyc_attr(allow_interpreted_subclasses=True)
class Machine:
    """Base class of all machines. A subclass sets `layer`, overrides what it needs, and keeps `deadline` current."""

    layer: ClassVar[str] = ""
    """The name of its layer; the subsystems of a node define the order of layers."""
    hears: ClassVar[tuple[type, ...]] = ()
    """The events of links that its unit subscribes to."""
    store: str = NODE_STORE
    """The store that its writes go to. Its outputs wait for this store only."""
    deadline: Nanos = NEVER

    def up(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        """Process a batch of inputs, in order of arrival."""

    def wake(self, now: Nanos, out: Outbox) -> None:
        """`deadline` has passed. Must set a later one."""
        self.deadline = NEVER

    def down(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        """Process requests of the layers above."""
