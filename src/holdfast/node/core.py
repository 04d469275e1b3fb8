"""One node without IO: the machines of all subsystems, and the turn that runs them.

The subsystems declare the machines, their subscriptions and the routes of their frames (`holdfast.node.subsystems`);
the core only assembles them. A driver (sockets or simulator) feeds `turn` and executes the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any, TypeVar
from zlib import crc32

from holdfast.errors import MisuseError
from holdfast.links.config import timing_of
from holdfast.links.ports import Arrived
from holdfast.machine import LAG_NS_MIN, NODE_STORE, Lagged, Machine, Result, Turns
from holdfast.node.subsystems import SUBSYSTEMS
from holdfast.subsystem import (
    LocalNode,
    NodeConfig,
    Route,
    Rows,
    Service,
    Subscribers,
    Subsystem,
    Table,
)
from holdfast.telemetry.facts import NodeFact
from holdfast.types import FlowId, Nanos, NodeId
from holdfast.wire.codec import learn
from holdfast.wire.frames import Frame

S = TypeVar("S")


class NodeCore:
    """The assembly of all subsystems of one node."""

    def __init__(
        self,
        config: NodeConfig,
        node: NodeId,
        incarnation: int,
        seed: int,
        entropy: Callable[[int], bytes],
        stored: Mapping[str, Rows] | None = None,
        now: Nanos = 0,
        *,
        tunables: Mapping[str, Any] | None = None,
        wall_offset_ns: Nanos = 0,
        subsystems: Sequence[Subsystem] = SUBSYSTEMS,
    ) -> None:
        """`stored` has the rows of `tables`; `tunables` replaces settings of subsystems, by name; `wall_offset_ns`
        added to `now` is the time of day."""
        self.config = config
        self.me = LocalNode(
            node=node,
            name=config.name,
            domain=config.domain,
            incarnation=incarnation,
            adapters=config.adapters(),
            sealed=config.security.mode == "tls",
            timing=timing_of(config),
        )
        self.subsystems = tuple(subsystems)
        self.entropy = entropy
        self.tunables: Mapping[str, Any] = tunables or {}
        self.wall_offset_ns = wall_offset_ns
        self.routes: dict[type[Frame], Route] = {}
        self.subscribers = Subscribers()
        self.flow_owners: dict[FlowId, str] = {}
        self._seed = seed
        self._now = now
        self._lag_ns: Nanos = 0
        self._stored = dict(stored or {})
        self._services: dict[str, Service] = {}
        self._owners: dict[str, Service] = {}
        """The service that built each unit."""
        layers = [layer for subsystem in subsystems for layer in subsystem.layers]
        self.turns = Turns(self._build, layers)
        for subsystem in subsystems:
            learn(subsystem.frames)
            self.routes.update(subsystem.frames)
            self._services[subsystem.name] = subsystem.service(self)
        for service in self._services.values():
            for unit in service.units():
                self.add(unit)
        # Only the first build gets rows of tables that are not kept: they may be large.
        kept = [table.name for s in subsystems for table in s.tables(config) if table.kept]
        self._stored = {table: self._stored.get(table, []) for table in kept}

    @staticmethod
    def tables(
        config: NodeConfig, subsystems: Sequence[Subsystem] = SUBSYSTEMS, store: str = NODE_STORE
    ) -> list[str]:
        """The tables of a store that must be loaded before a core can be created."""
        tables: Iterable[Table] = (table for s in subsystems for table in s.tables(config))
        return [table.name for table in tables if table.store == store]

    # -- for services (`holdfast.subsystem.Assembly`) ------------------------------------------------------------

    @property
    def now(self) -> Nanos:
        return self._now

    def rng(self, unit: str) -> Random:
        text = f"{self._seed}/{self.me.node.hex()}/{self.me.incarnation}/{unit}".encode()
        return Random(crc32(text) << 32 | crc32(text[::-1]))

    def stored(self, table: str) -> Rows:
        return self._stored.get(table, [])

    def service(self, kind: type[S]) -> S:
        for service in self._services.values():
            if isinstance(service, kind):
                return service
        raise MisuseError(f"no subsystem below has a {kind.__name__}; check the order of the list")

    def add(self, unit: str) -> None:
        machine = self._build(unit)
        assert machine is not None, f"no subsystem builds unit {unit}"
        self.turns.add(unit, machine)
        self.subscribers.add(unit, machine.hears)

    def drop(self, unit: str) -> None:
        self.turns.drop(unit)
        self.subscribers.remove(unit)
        self._owners.pop(unit, None)

    def _build(self, unit: str) -> Machine | None:
        """A new machine for a unit: at the start, and after a failure."""
        owner = self._owners.get(unit)
        if owner is not None:
            return owner.build(unit)
        for service in self._services.values():
            machine = service.build(unit)
            if machine is not None:
                self._owners[unit] = service
                return machine
        return None

    # -- for the driver ------------------------------------------------------------------------------------------

    def start(self, now: Nanos) -> Result:
        """The first turn."""
        self._now = now
        result = self.turns.run(now, [])
        result.facts.append(NodeFact(now, "start", f"incarnation {self.me.incarnation}"))
        return result

    def turn(self, now: Nanos, inputs: Iterable[tuple[str, Any]]) -> Result:
        self._now = now
        owners = self.flow_owners
        # Packets of a flow that has an owner go directly to it: the acceptor would only pass them on.
        straight = [
            (owners.get(item.flow, unit), item) if type(item) is Arrived else (unit, item)
            for unit, item in inputs
        ]
        if self._lag_ns >= LAG_NS_MIN:
            late = Lagged(self._lag_ns)
            straight[:0] = [(unit, late) for unit in self.subscribers.of(Lagged)]
        self._lag_ns = 0
        result = self.turns.run(now, straight)
        if result.failures:
            self._handle_failures(now, result)
        return result

    def lagged(self, lag_ns: Nanos) -> None:
        """A turn is late, or the last one took long. The next one notifies the units that hear `Lagged`."""
        self._lag_ns = max(self._lag_ns, lag_ns)

    def _handle_failures(self, now: Nanos, result: Result) -> None:
        for failure in list(result.failures):
            event = "unit_stopped" if failure.stopped else "unit_failed"
            result.facts.append(NodeFact(now, event, f"{failure.unit}: {failure.error!r}"))
            for service in self._services.values():
                service.unit_failed(failure, result)
            if failure.stopped:
                self.subscribers.remove(failure.unit)
        result.more = True

    def stop(self, now: Nanos) -> Result:
        """The last turn of a node that stops normally."""
        inputs = [item for service in self._services.values() for item in service.last_inputs()]
        return self.turn(now, inputs)

    def written(self, turn: int, store: str = NODE_STORE) -> bool:
        return self.turns.written(turn, store)

    def next_deadline(self) -> Nanos:
        return self.turns.next_deadline()

    def status(self, now: Nanos) -> dict[str, Any]:
        """The part of the status that the core provides."""
        status: dict[str, Any] = {"stopped_units": list(self.turns.stopped)}
        for service in self._services.values():
            status.update(service.status(now))
        return status
