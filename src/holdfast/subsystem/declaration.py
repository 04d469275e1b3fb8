"""A subsystem's declaration, and the contract between its IO-free part and the node core."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol, TypeVar

import msgspec

from holdfast.machine import NODE_STORE, Failure, Machine, Result, Turns
from holdfast.subsystem.config import NodeConfig, Section
from holdfast.subsystem.edge import Edge
from holdfast.subsystem.local import LocalNode
from holdfast.telemetry.facts import Fact
from holdfast.types import Nanos
from holdfast.wire.frames import Frame

Route = Callable[[Any], tuple[str, ...]]
"""The units that receive a frame. Units that a node does not have are skipped."""
Rows = list[tuple[bytes, bytes]]
Family = tuple[str, str, str, list[tuple[Mapping[str, object], Any]]]
"""A metric: name, kind (`gauge` or `counter`), help text, and (labels, value) for each sample."""
S = TypeVar("S")


class Table(msgspec.Struct, frozen=True):
    """A table of a store that is loaded before the node core is created."""

    name: str
    kept: bool = False
    """Whether its rows stay in memory for a unit that is rebuilt; otherwise only the first build receives them."""
    store: str = NODE_STORE


class Subscribers:
    """Which units hear which events of links. A unit subscribes by `Machine.hears`."""

    __slots__ = ("_units",)

    def __init__(self) -> None:
        self._units: dict[type, list[str]] = {}

    def add(self, unit: str, events: Iterable[type]) -> None:
        for event in events:
            units = self._units.setdefault(event, [])
            if unit not in units:
                units.append(unit)

    def remove(self, unit: str) -> None:
        for units in self._units.values():
            if unit in units:
                units.remove(unit)

    def of(self, event: type) -> Sequence[str]:
        """The units that subscribed to this type of event, in the order of subscription."""
        return self._units.get(event, ())

    def hears(self, unit: str, event: type) -> bool:
        return unit in self._units.get(event, ())

    def __contains__(self, unit: str) -> bool:
        return any(unit in units for units in self._units.values())


class Assembly(Protocol):
    """The interface of a node core for its services."""

    config: NodeConfig
    me: LocalNode
    turns: Turns
    subscribers: Subscribers
    flow_owners: dict[Any, str]
    """The unit that receives the packets of a flow directly; maintained by links."""
    tunables: Mapping[str, Any]
    """Settings that tests and benchmarks replace, by name of the subsystem."""
    wall_offset_ns: Nanos
    """`now` plus this is the time of day."""

    @property
    def now(self) -> Nanos: ...

    @property
    def routes(self) -> Mapping[type[Frame], Route]:
        """The units that receive each type of frame."""
        ...

    def rng(self, unit: str) -> Random:
        """The random numbers of one unit: the same for the same seed, node, incarnation and unit."""
        ...

    def entropy(self, count: int) -> bytes:
        """Bytes for keys."""
        ...

    def stored(self, table: str) -> Rows:
        """The rows of a table when the node started."""
        ...

    def add(self, unit: str) -> None:
        """Build a unit while the node runs."""
        ...

    def drop(self, unit: str) -> None:
        """End a unit while the node runs."""
        ...

    def service(self, kind: type[S]) -> S:
        """The service of another subsystem, one that is lower in the list."""
        ...


class Service:
    """The part of a subsystem without IO, inside one node core. Subclasses override what they need."""

    def units(self) -> Iterable[str]:
        """The units that exist from the start."""
        return ()

    def build(self, unit: str) -> Machine | None:
        """A new machine for a unit of this subsystem: at the start, by `Assembly.add`, and after a failure. None if the
        unit belongs to another subsystem. An exception stops the unit."""
        return None

    def unit_failed(self, failure: Failure, result: Result) -> None:
        """A unit of the node failed in this turn, or was stopped. Effects and facts may be added to the result."""

    def last_inputs(self) -> Iterable[tuple[str, Any]]:
        """Inputs of the last turn of a node that stops normally."""
        return ()

    def status(self, now: Nanos) -> Mapping[str, Any]:
        """Sections of the node's status, as plain values."""
        return {}


def _no_check(_config: NodeConfig, _source: str) -> None:
    """The types of its sections suffice."""


def _no_tables(_config: NodeConfig) -> Sequence[Table]:
    return ()


def _no_metrics(_status: Mapping[str, Any]) -> Iterable[Family]:
    return ()


@dataclass(frozen=True)
class Subsystem:
    """Everything that the other packages need to know about a subsystem."""

    name: str
    service: Callable[[Assembly], Service]
    layers: tuple[str, ...] = ()
    """The layers of its machines, lowest first, above those of all earlier subsystems."""
    sections: tuple[Section[Any], ...] = ()
    check: Callable[[NodeConfig, str], None] = _no_check
    """Checks what types cannot express; raises a `ConfigError` that names the file (second argument), the key and the
    valid form."""
    frames: Mapping[type[Frame], Route] = field(default_factory=dict)
    facts: tuple[type[Fact], ...] = ()
    tables: Callable[[NodeConfig], Sequence[Table]] = _no_tables
    metrics: Callable[[Mapping[str, Any]], Iterable[Family]] = _no_metrics
    """Metrics derived from a status."""
    edge: str | Callable[[], Edge] = ""
    """Creates the part with IO, or names it as `package.module:Class`: a subsystem may not import it."""
    sim_edge: str | Callable[[], Edge] = ""
    """The same for the simulator, if it differs."""
    checkers: str | Callable[[], Sequence[Any]] = ""
    """Creates the invariant checkers for simulated runs (`holdfast.sim.checkers.Checker`), or names the function."""
