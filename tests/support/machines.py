"""Stand-ins for machines in a running node: one that fails, and one that watches the inputs of the real one.

A test never assigns to a method of a machine: compiled machines do not allow it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from holdfast.machine import Machine, Outbox
from holdfast.machine.turn import Turns
from holdfast.types import NEVER, Nanos


class Failing(Machine):
    """Raises on any input."""

    def __init__(self, inner: Machine, text: str = "a bug") -> None:
        self.layer = inner.layer  # type: ignore[misc]  # that of the machine it stands in for
        self.deadline = inner.deadline
        self._text = text

    def up(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        raise ValueError(self._text)

    def wake(self, now: Nanos, out: Outbox) -> None:
        raise ValueError(self._text)

    def down(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        raise ValueError(self._text)


class Watched(Machine):
    """Passes every call on, and calls `see` with it first: (`up`, `wake` or `down`, inputs)."""

    def __init__(self, inner: Machine, see: Callable[[str, list[Any]], None]) -> None:
        self.layer = inner.layer  # type: ignore[misc]  # that of the machine it stands in for
        self.inner = inner
        self.deadline = inner.deadline
        self._see = see

    def up(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        self._see("up", inputs)
        self.inner.up(now, inputs, out)
        self.deadline = self.inner.deadline

    def wake(self, now: Nanos, out: Outbox) -> None:
        self._see("wake", [])
        self.inner.wake(now, out)
        self.deadline = self.inner.deadline

    def down(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        self._see("down", inputs)
        self.inner.down(now, inputs, out)
        self.deadline = self.inner.deadline


class Bug(list[bytes]):
    """Messages that raise whenever they are read. For units whose machine must not be replaced."""

    def __init__(self, text: str = "a bug") -> None:
        super().__init__([b""])
        self._text = text

    def __iter__(self) -> Iterator[bytes]:
        raise ValueError(self._text)

    def __len__(self) -> int:
        raise ValueError(self._text)


def fail(turns: Turns, unit: str, text: str = "a bug") -> None:
    """The next call of the unit raises. The node rebuilds it from its store then, as after any bug."""
    _replace(turns, unit, lambda machine: Failing(machine, text))


def watch(turns: Turns, unit: str, see: Callable[[str, list[Any]], None]) -> None:
    """Call `see` with all inputs of the unit from now on."""
    _replace(turns, unit, lambda machine: Watched(machine, see))


def _replace(turns: Turns, unit: str, make: Callable[[Machine], Machine]) -> None:
    machine = turns.machine(unit)
    assert machine is not None, f"there is no unit {unit}"
    stand_in = make(machine)
    turns.drop(unit)
    turns.add(unit, stand_in)
    assert stand_in.deadline <= NEVER
