"""One turn: a batch of inputs passes through all machines of a node, up and then down.

The turn enforces three rules for all protocols:

- Output of a machine waits for its writes: a vote is never sent before it is on disk.
- Items emitted again wait for the next turn: no recursion, bounded work.
- A machine that raises affects only itself: its outputs are discarded and it is rebuilt from the store. A second
  failure soon after stops the unit, never the node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

from holdfast.machine.contract import NODE_STORE, Machine, Outbox
from holdfast.machine.deadlines import Deadlines
from holdfast.machine.results import Failure, Result
from holdfast.machine.writes import StoreFailed
from holdfast.types import SECOND, Nanos

FORGIVEN_AFTER = 60 * SECOND
"""A unit that fails twice within this time is stopped."""


class _StoreMark:
    """How far the writes of one store are durable, and whether its units must wait."""

    __slots__ = ("blocked", "committed", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.committed = 0
        self.blocked = False


class _Unit:
    __slots__ = ("deadline", "held", "last_write", "layer", "machine", "mark", "name")

    def __init__(self, name: str, machine: Machine, layer: int, mark: _StoreMark) -> None:
        self.name = name
        self.machine = machine
        self.layer = layer
        self.mark = mark
        self.deadline = machine.deadline
        """The deadline as registered in `Deadlines`."""
        self.last_write = 0
        self.held: list[tuple[int, str | None, Any]] = []
        """Outputs that wait for durable writes: (turn of the write, unit below or None for the driver, item)."""


class Turns:
    """Runs the machines of one node. The driver calls `run` with inputs and the time, and executes the result."""

    def __init__(
        self, rebuild: Callable[[str], Machine | None], layers: Sequence[str] = ("",)
    ) -> None:
        """`rebuild` returns a new machine for a unit that failed, or None if `add` provides it later or the unit is not
        rebuilt. `layers` are the names of all layers, lowest first."""
        self._rebuild = rebuild
        self._levels = {layer: level for level, layer in enumerate(layers)}
        self._top = len(layers)
        self._marks: dict[str, _StoreMark] = {}
        self._parked_up: dict[str, list[Any]] = {}
        self._parked_down: dict[str, list[Any]] = {}
        """Items for units of blocked stores; the units receive them when their store has room again."""
        self._units: dict[str, _Unit] = {}
        self._stopped: dict[str, Failure] = {}
        self._failed_at: dict[str, Nanos] = {}
        self._deadlines = Deadlines()
        self._carry_up: list[tuple[str, Any]] = []
        self._carry_down: list[tuple[str, Any]] = []
        self._holding: dict[str, _Unit] = {}
        self._out = Outbox()
        # Items for each unit in the running turn, by layer; empty between turns.
        self._ups: list[dict[str, list[Any]]] = [{} for _ in layers]
        self._downs: list[dict[str, list[Any]]] = [{} for _ in layers]
        self.number = 0
        self.unclaimed = 0
        """Items for units that do not exist; counted, never an error."""

    # -- units ---------------------------------------------------------------------------------------------------

    def add(self, name: str, machine: Machine) -> None:
        assert name not in self._units, f"unit {name} exists"
        if name in self._stopped:
            return
        self._units[name] = _Unit(name, machine, self._level(machine), self._mark(machine.store))
        self._deadlines.set(name, machine.deadline)

    def forgive(self, name: str) -> None:
        """A unit that was stopped may be added again: its service has read it from its store, and has waited."""
        self._stopped.pop(name, None)

    def _level(self, machine: Machine) -> int:
        assert machine.layer in self._levels, f"no subsystem declares layer {machine.layer!r}"
        return self._levels[machine.layer]

    def _mark(self, store: str) -> _StoreMark:
        if store not in self._marks:
            self._marks[store] = _StoreMark(store)
        return self._marks[store]

    def drop(self, name: str) -> None:
        if self._units.pop(name, None):
            self._holding.pop(name, None)
            self._parked_up.pop(name, None)
            self._parked_down.pop(name, None)
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

    def written(self, turn: int, store: str = NODE_STORE) -> bool:
        """All writes to a store up to and including `turn` are durable. Returns True if that releases items for the
        next turn."""
        mark = self._mark(store)
        assert turn >= mark.committed, "commits must be in turn order"
        mark.committed = turn
        return any(unit.mark is mark and unit.held[0][0] <= turn for unit in self._holding.values())

    def block(self, store: str, blocked: bool) -> bool:
        """Block or unblock a store. While it is blocked, its units do not run, and their items wait. Returns True if
        units that had to wait can continue now."""
        self._mark(store).blocked = blocked
        if blocked:
            return False
        names = [
            name
            for name, unit in self._units.items()
            if unit.mark.name == store and (name in self._parked_up or name in self._parked_down)
        ]
        for name in names:
            self._carry_up += [(name, item) for item in self._parked_up.pop(name, ())]
            self._carry_down += [(name, item) for item in self._parked_down.pop(name, ())]
            self._deadlines.set(name, self._units[name].deadline)
        return bool(names)

    def fail_store(self, store: str, reason: str) -> None:
        """A store other than the node's own has failed. Outputs that waited for its writes are discarded, and its units
        are notified. Turns submitted so far count as settled, so that later writes can be reported."""
        mark = self._mark(store)
        mark.committed = self.number
        for name, unit in self._units.items():
            if unit.mark is mark:
                unit.held.clear()
                self._holding.pop(name, None)
                self._carry_up.append((name, StoreFailed(store, reason)))
        self.block(store, blocked=False)

    def stores(self) -> list[str]:
        """The stores that units of this node write to, the node's own included."""
        return list(self._marks)

    def post(self, unit: str, item: Any) -> None:
        """Put an input in front of the inputs of the next turn."""
        self._carry_up.append((unit, item))

    def run(self, now: Nanos, inputs: Iterable[tuple[str, Any]]) -> Result:
        """Run `inputs` (unit, item) and all carried items through the machines."""
        self.number += 1
        result = Result(self.number, [], [], [], [], False, {})
        downs = self._downs
        # Carried items come first: they were emitted before anything that was held, or were meant to overtake it.
        if self._carry_down:
            carried, self._carry_down = self._carry_down, []
            for name, item in carried:
                self._hand_down(name, item, self._top, downs)
        if self._holding:
            self._release(result, downs)
        self._gather(now, inputs)
        self._pass_up(now, result, downs)
        if any(downs):
            self._pass_down(now, result, downs)
        result.more = bool(self._carry_up or self._carry_down)
        return result

    def _gather(self, now: Nanos, inputs: Iterable[tuple[str, Any]]) -> None:
        """Sort items by unit and layer, and add the units whose deadline has passed."""
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
                if unit is None:  # removed by a callback during the turn
                    self.unclaimed += len(items)
                    continue
                if unit.mark.blocked:
                    self._parked_up.setdefault(name, []).extend(items)
                    continue
                machine = unit.machine
                try:
                    if items:
                        machine.up(now, items, out)
                    if machine.deadline <= now:
                        machine.wake(now, out)
                        assert machine.deadline > now, f"{name} set a deadline in the past"
                except Exception as error:  # noqa: BLE001 whatever it raised, only this unit may suffer
                    self._fail(unit, error, items, now, result)
                    continue
                if out.ups:
                    self._hand_up(level, ups)
                if out.downs or out.effects or out.facts or out.writes:
                    # The pass down is still to come, so a unit may also request a call of its own `down`.
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
        for level in range(self._top - 1, -1, -1):
            layer = downs[level]
            if not layer:
                continue
            for name, items in layer.items():
                unit = units.get(name)
                if unit is None:
                    self.unclaimed += len(items)
                    continue
                if unit.mark.blocked:
                    self._parked_down.setdefault(name, []).extend(items)
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
        """Take the outputs of a unit: pass them on, or hold them until its writes are durable."""
        out = self._out
        if out.writes:
            self._take_writes(unit, out.writes, result)
        if unit.last_write > unit.mark.committed or unit.held:
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

    def _take_writes(self, unit: _Unit, writes: list[Any], result: Result) -> None:
        unit.last_write = result.number
        store = unit.mark.name
        if store == NODE_STORE:
            result.writes.extend(writes)
        elif store in result.store_writes:
            result.store_writes[store].extend(writes)
        else:
            result.store_writes[store] = list(writes)

    def _hold(
        self, unit: _Unit, level: int, result: Result, downs: list[dict[str, list[Any]]]
    ) -> None:
        """The unit has writes that are not durable; only immediate output may leave."""
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
        """Release outputs whose writes are durable now, in order."""
        for name, unit in list(self._holding.items()):
            ready = 0
            for after, target, item in unit.held:
                if after > unit.mark.committed:
                    break
                ready += 1
                if target is None:
                    result.effects.append(item)
                else:
                    self._hand_down(target, item, self._top, downs)
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
                error.add_note(f"rebuilding the unit failed as well: {second!r}")
                stopped = True
        failure = Failure(unit.name, error, inputs, now, stopped=stopped)
        result.failures.append(failure)
        if stopped:
            self._stopped[unit.name] = failure
        if machine is None:
            self._units.pop(unit.name, None)
            return
        unit.machine = machine
        unit.layer = self._level(machine)
        unit.mark = self._mark(machine.store)
        self._set_deadline(unit)
