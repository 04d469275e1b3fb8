"""What a machine is, and what it may ask for.

A machine is a *unit* of a node: one link, the health of all paths, one replica of one group. Units sit in layers.
In a turn each unit is called at most twice: once on the pass up (inputs from below, from beside and from the
application, then its deadline if it is due), once on the pass down (what the layers above want sent).
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from holdfast.types import NEVER, Nanos


class Put(msgspec.Struct, frozen=True, gc=False):
    """Make `value` durable under `(table, key)`. Keys of one table sort as bytes."""

    table: str
    key: bytes
    value: bytes


class Erase(msgspec.Struct, frozen=True, gc=False):
    """Remove every key of `table` in `[first, stop)`."""

    table: str
    first: bytes
    stop: bytes


Write = Put | Erase


class Outbox:
    """What the machine that is running now asks for. The turn empties it after each call, or discards it.

    Everything that leaves the machine downwards or outwards waits until all writes that the machine has asked for,
    in this turn and in earlier ones, are durable. `immediate=True` is for what promises nothing: probes, payload,
    requests to send again.
    """

    __slots__ = ("downs", "effects", "facts", "ups", "writes")

    def __init__(self) -> None:
        self.ups: list[tuple[str, Any]] = []
        self.downs: list[tuple[str, Any, bool]] = []
        self.effects: list[tuple[Any, bool]] = []
        self.writes: list[Write] = []
        self.facts: list[Any] = []

    def up(self, unit: str, item: Any) -> None:
        """Hand `item` to a unit of a higher layer in this turn; to any other unit in the next."""
        self.ups.append((unit, item))

    def down(self, unit: str, item: Any, immediate: bool = False) -> None:
        """Hand `item` to a unit of a lower layer, on the pass down of this turn. On the pass up a unit may hand
        something to itself: one call of `down` then serves that and what the layers above add."""
        self.downs.append((unit, item, immediate))

    def effect(self, item: Any, immediate: bool = False) -> None:
        """Ask the driver for something in the world: transmit, open, deliver to the application."""
        self.effects.append((item, immediate))

    def write(self, write: Write) -> None:
        """Make something durable. One commit serves all writes of the turn."""
        self.writes.append(write)

    def fact(self, fact: Any) -> None:
        """Record something for telemetry."""
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


class Machine:
    """Base of all machines. A subclass sets `layer`, overrides what it needs and keeps `deadline` current."""

    layer: ClassVar[int] = 0
    deadline: Nanos = NEVER

    def up(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        """Take a batch of inputs, in the order in which they came."""

    def wake(self, now: Nanos, out: Outbox) -> None:
        """`deadline` has come. Must move it into the future."""
        self.deadline = NEVER

    def down(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        """Take what the layers above want from this one."""
