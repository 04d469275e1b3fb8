"""One turn: a batch of inputs through all machines of a node, one pass up and one pass down.

The turn is where three promises are kept, once for all protocols:

- what a machine sends waits for what it wrote (a vote never leaves before it is on disk);
- what is raised again waits for the next turn (no recursion, bounded work);
- a machine that raises loses its own part of the turn, and nobody else's: its outputs are discarded, it is
  rebuilt from the store, and a second failure soon after stops that unit, never the node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import msgspec

from holdfast.machine.contract import Machine, Outbox, Write
from holdfast.machine.deadlines import Deadlines
from holdfast.types import SECOND, Nanos

LAYERS = 8
FORGIVEN_AFTER = 60 * SECOND
"""A unit that fails twice within this time is stopped."""


class Failure(msgspec.Struct, frozen=True):
    """A machine raised. `inputs` is what it was given, for replay; `stopped` says that it will not run again."""

    unit: str
    error: BaseException
    inputs: list[Any]
    at: Nanos
    stopped: bool


class Result(msgspec.Struct):
    """What one turn asks of the driver. Writes are committed together and in turn order."""

    number: int
    writes: list[Write]
    effects: list[Any]
    facts: list[Any]
    failures: list[Failure]
    more: bool
    """Something waits for the next turn: run it without waiting for an input."""


class _Unit:
    __slots__ = ("deadline", "held", "last_write", "layer", "machine", "name")

    def __init__(self, name: str, machine: Machine) -> None:
        self.name = name
        self.machine = machine
        self.layer = machine.layer
        self.deadline = machine.deadline
        """As `Deadlines` knows it."""
        self.last_write = 0
        self.held: list[tuple[int, str | None, Any]] = []
        """What waits for durable writes: (turn of the write, unit below or None for the driver, item)."""


class Turns:
    """Runs the machines of one node. The driver calls `run` with inputs and the time and does what it returns."""

    def __init__(self, rebuild: Callable[[str], Machine | None]) -> None:
        """`rebuild` gives a fresh machine for a unit that failed, or None if it comes later by `add`, or never."""
        self._rebuild = rebuild
        self._units: dict[str, _Unit] = {}
        self._stopped: dict[str, Failure] = {}
        self._failed_at: dict[str, Nanos] = {}
        self._deadlines = Deadlines()
        self._carry_up: list[tuple[str, Any]] = []
        self._carry_down: list[tuple[str, Any]] = []
        self._holding: dict[str, _Unit] = {}
        self._out = Outbox()
        # What each unit is handed in the turn that runs now, by layer; empty between turns.
        self._ups: list[dict[str, list[Any]]] = [{} for _ in range(LAYERS)]
        self._downs: list[dict[str, list[Any]]] = [{} for _ in range(LAYERS)]
        self.number = 0
        self.committed = 0
        self.unclaimed = 0
        """Items for units that do not exist (any more); counted, never an error."""

    # -- units ---------------------------------------------------------------------------------------------------

    def add(self, name: str, machine: Machine) -> None:
        assert name not in self._units, f"unit {name} exists"
        assert 0 <= machine.layer < LAYERS
        if name in self._stopped:
            return
        self._units[name] = _Unit(name, machine)
        self._deadlines.set(name, machine.deadline)

    def drop(self, name: str) -> None:
        if self._units.pop(name, None):
            self._holding.pop(name, None)
            self._deadlines.set(name, 1 << 63)

    def machine(self, name: str) -> Machine | None:
        unit = self._units.get(name)
        return unit.machine if unit else None

    def units(self) -> list[str]:
        return list(self._units)

    @property
    def stopped(self) -> dict[str, Failure]:
        return dict(self._stopped)

    def next_deadline(self) -> Nanos:
        return self._deadlines.next()

    # -- the turn ------------------------------------------------------------------------------------------------

    def written(self, turn: int) -> bool:
        """All writes up to and including `turn` are durable. True when that sets something free for the next turn."""
        assert turn >= self.committed, "commits are in turn order"
        self.committed = turn
        return any(unit.held[0][0] <= turn for unit in self._holding.values())

    def post(self, unit: str, item: Any) -> None:
        """Put an input in front of the next turn's."""
        self._carry_up.append((unit, item))

    def run(self, now: Nanos, inputs: Iterable[tuple[str, Any]]) -> Result:
        """Take `inputs` (unit, item) and everything that waited through the machines."""
        self.number += 1
        result = Result(self.number, [], [], [], [], False)
        downs = self._downs
        # Carried items first: they were asked for before anything that was held, or were meant to overtake it.
        if self._carry_down:
            carried, self._carry_down = self._carry_down, []
            for name, item in carried:
                self._hand_down(name, item, LAYERS, downs)
        if self._holding:
            self._release(result, downs)
        self._gather(now, inputs)
        self._pass_up(now, result, downs)
        if any(downs):
            self._pass_down(now, result, downs)
        result.more = bool(self._carry_up or self._carry_down)
        return result

    def _gather(self, now: Nanos, inputs: Iterable[tuple[str, Any]]) -> None:
        """Sort what there is to take by unit and layer, and add the units whose time has come."""
        units, ups = self._units, self._ups
        if self._carry_up:
            carried, self._carry_up = self._carry_up, []
            inputs = chain(carried, inputs)
        for name, item in inputs:
            unit = units.get(name)
            if unit is None:
                self.unclaimed += 1
            elif name in (layer := ups[unit.layer]):
                layer[name].append(item)
            else:
                layer[name] = [item]
        if self._deadlines.next() <= now:
            for name in self._deadlines.due(now):
                ups[units[name].layer].setdefault(name, [])

    def _pass_up(self, now: Nanos, result: Result, downs: list[dict[str, list[Any]]]) -> None:
        units, ups = self._units, self._ups
        out = self._out
        for level, layer in enumerate(ups):
            if not layer:
                continue
            for name, items in layer.items():
                unit = units.get(name)
                if unit is None:  # Dropped by a callback in the middle of the turn.
                    self.unclaimed += len(items)
                    continue
                machine = unit.machine
                try:
                    if items:
                        machine.up(now, items, out)
                    if machine.deadline <= now:
                        machine.wake(now, out)
                        assert machine.deadline > now, f"{name} asked to be woken in the past"
                except Exception as error:  # noqa: BLE001 whatever it raised, only this unit may suffer
                    self._fail(unit, error, items, now, result)
                    continue
                if out.ups:
                    self._hand_up(level, ups)
                if out.downs or out.effects or out.facts or out.writes:
                    # The pass down is still to come, so a unit may also ask for a call of its own `down`.
                    self._collect(unit, level + 1, result, downs)
                if machine.deadline != unit.deadline:
                    self._set_deadline(unit)
            layer.clear()

    def _hand_up(self, level: int, ups: list[dict[str, list[Any]]]) -> None:
        units, out = self._units, self._out
        for target, item in out.ups:
            unit = units.get(target)
            if unit is None:
                self.unclaimed += 1
            elif unit.layer <= level:
                self._carry_up.append((target, item))
            elif target in (layer := ups[unit.layer]):
                layer[target].append(item)
            else:
                layer[target] = [item]
        out.ups = []

    def _set_deadline(self, unit: _Unit) -> None:
        unit.deadline = unit.machine.deadline
        self._deadlines.set(unit.name, unit.deadline)

    def _pass_down(self, now: Nanos, result: Result, downs: list[dict[str, list[Any]]]) -> None:
        units = self._units
        out = self._out
        for level in range(LAYERS - 1, -1, -1):
            layer = downs[level]
            if not layer:
                continue
            for name, items in layer.items():
                unit = units.get(name)
                if unit is None:
                    self.unclaimed += len(items)
                    continue
                machine = unit.machine
                try:
                    machine.down(now, items, out)
                except Exception as error:  # noqa: BLE001 whatever it raised, only this unit may suffer
                    self._fail(unit, error, items, now, result)
                    continue
                if out.ups:
                    self._carry_up.extend(out.ups)
                    out.ups = []
                if out.downs or out.effects or out.facts or out.writes:
                    self._collect(unit, level, result, downs)
                if machine.deadline != unit.deadline:
                    self._set_deadline(unit)
            layer.clear()

    def _hand_down(
        self, target: str, item: Any, level: int, downs: list[dict[str, list[Any]]]
    ) -> None:
        unit = self._units.get(target)
        if unit is None:
            self.unclaimed += 1
            return
        if unit.layer >= level:
            self._carry_down.append((target, item))
        elif target in (layer := downs[unit.layer]):
            layer[target].append(item)
        else:
            layer[target] = [item]

    # -- writes before sends -------------------------------------------------------------------------------------

    def _collect(
        self, unit: _Unit, level: int, result: Result, downs: list[dict[str, list[Any]]]
    ) -> None:
        """Move what the unit asked for out of the outbox: on its way, or held until its writes are durable."""
        out = self._out
        if out.writes:
            result.writes.extend(out.writes)
            unit.last_write = result.number
        if unit.last_write > self.committed or unit.held:
            self._hold(unit, level, result, downs)
        else:
            units = self._units
            for target, item, _ in out.downs:
                below = units.get(target)
                if below is None or below.layer >= level:
                    self._hand_down(target, item, level, downs)
                elif target in (layer := downs[below.layer]):
                    layer[target].append(item)
                else:
                    layer[target] = [item]
            if out.effects:
                result.effects += [effect for effect, _ in out.effects]
        if out.facts:
            result.facts += out.facts
        out.clear()

    def _hold(
        self, unit: _Unit, level: int, result: Result, downs: list[dict[str, list[Any]]]
    ) -> None:
        """The unit has writes that are not durable: only what promises nothing may go."""
        held = unit.held
        for target, item, immediate in self._out.downs:
            if immediate:
                self._hand_down(target, item, level, downs)
            else:
                held.append((unit.last_write, target, item))
        for effect, immediate in self._out.effects:
            if immediate:
                result.effects.append(effect)
            else:
                held.append((unit.last_write, None, effect))
        if held:
            self._holding[unit.name] = unit

    def _release(self, result: Result, downs: list[dict[str, list[Any]]]) -> None:
        """Let go of what waited for writes that are durable now, in the order in which it was asked for."""
        for name, unit in list(self._holding.items()):
            ready = 0
            for after, target, item in unit.held:
                if after > self.committed:
                    break
                ready += 1
                if target is None:
                    result.effects.append(item)
                else:
                    self._hand_down(target, item, LAYERS, downs)
            del unit.held[:ready]
            if not unit.held:
                del self._holding[name]

    # -- a machine that raises -----------------------------------------------------------------------------------

    def _fail(
        self, unit: _Unit, error: Exception, inputs: list[Any], now: Nanos, result: Result
    ) -> None:
        self._out.clear()
        before = self._failed_at.get(unit.name)
        stopped = before is not None and now - before < FORGIVEN_AFTER
        self._failed_at[unit.name] = now
        self._holding.pop(unit.name, None)
        unit.held.clear()
        self._deadlines.set(unit.name, 1 << 63)
        machine: Machine | None = None
        if not stopped:
            try:
                machine = self._rebuild(unit.name)
            except Exception as second:  # noqa: BLE001 a unit that cannot be rebuilt stops, and only that unit
                error.add_note(f"rebuilding it failed too: {second!r}")
                stopped = True
        failure = Failure(unit.name, error, inputs, now, stopped=stopped)
        result.failures.append(failure)
        if stopped:
            self._stopped[unit.name] = failure
        if machine is None:
            self._units.pop(unit.name, None)
            return
        unit.machine = machine
        unit.layer = machine.layer
        self._set_deadline(unit)
