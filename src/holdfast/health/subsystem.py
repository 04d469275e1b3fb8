"""Health as a subsystem: what each path carries, known to all nodes, and where traffic goes.

path_gossip          verdicts of all listeners, history, alarms, clients
health, stress       heartbeats, probes, and stress runs
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from holdfast.errors import ConfigError
from holdfast.health import frames as f
from holdfast.health.advice_config import AdviceConfig, anchor_advice, check_advice
from holdfast.health.config import LAN, WAN, HealthConfig
from holdfast.health.diagnostics import (
    DiagnosticsConfig,
    TuneSection,
    check_diagnostics,
    check_tune,
    health_config,
)
from holdfast.health.facts import RepairFact
from holdfast.health.metrics_text import path_metrics
from holdfast.health.monitor import HEALTH, HealthMachine
from holdfast.health.needs_config import NeedsFields, NeedsSection
from holdfast.health.placement.fitness import Placement
from holdfast.health.placement.needs import SetNeeds
from holdfast.health.ports import PATH_GOSSIP
from holdfast.health.probing.neighbourhood import Neighbourhood
from holdfast.health.stress.stress_machine import STRESS, StressMachine
from holdfast.health.table.path_gossip import PathGossipMachine
from holdfast.health.table.path_history import PATH_HISTORY, PathHistory
from holdfast.health.table.path_table import PathTable
from holdfast.health.table.queries import incidents, main_states
from holdfast.links.subsystem import LinkService
from holdfast.machine import Failure, Machine, Result
from holdfast.subsystem import Assembly, NodeConfig, Route, Section, Service, Subsystem, Table
from holdfast.telemetry.facts import PathFact
from holdfast.types import Nanos
from holdfast.wire.frames import Frame

PATHS_SHOWN: Final = 1_000
"""Paths in a status; `holdfast health` shows the whole table of a large domain."""

DIAGNOSTICS: Final = Section[DiagnosticsConfig](
    "diagnostics", DiagnosticsConfig, DiagnosticsConfig()
)
TUNE: Final = Section[tuple[TuneSection, ...]]("tune", tuple[TuneSection, ...], ())
ADVICE: Final = Section[AdviceConfig]("advice", AdviceConfig, AdviceConfig(), anchor_advice)
NEEDS: Final = Section[tuple[NeedsSection, ...]]("needs", tuple[NeedsSection, ...], ())


def health_of(config: NodeConfig) -> HealthConfig:
    """The preset with the changes of the configuration."""
    preset = LAN if config.preset == "lan" else WAN
    return health_config(preset, DIAGNOSTICS.of(config), TUNE.of(config))


def needs_of(config: NodeConfig, source: str = "configuration") -> list[SetNeeds]:
    """What the `[[needs]]` of the configuration ask for."""
    return [item for section in NEEDS.of(config) for item in section.items(source)]


class HealthService(Service):
    """Everything that a node knows of paths."""

    def __init__(self, node: Assembly) -> None:
        self._node = node
        self._links = node.service(LinkService)
        me, config = node.me, node.config
        self.config: HealthConfig = node.tunables.get("health") or health_of(config)
        # These outlive the units that use them: a rebuilt unit continues where it was.
        self.table = PathTable(me.node, me.incarnation)
        shapes = {subnet.name: subnet.neighbourhood for subnet in config.subnet}
        self.neighbourhood = Neighbourhood(me, shapes)
        self.history = PathHistory(node.stored(PATH_HISTORY))
        self.placement = Placement(me.node, me.sealed, self.history)
        self.placement.wall_offset_ns = node.wall_offset_ns
        for needs in needs_of(config):
            self.placement.set(needs)
        self._built: dict[str, bool] = {}
        self._links.mesh = self.neighbourhood
        self._links.living = self.table.living
        # The most recent ones: a stopped machine still reports what it knew.
        self.health: HealthMachine
        self.path_gossip: PathGossipMachine
        self.stress: StressMachine

    def units(self) -> Iterable[str]:
        return (HEALTH, STRESS, PATH_GOSSIP)

    def build(self, unit: str) -> Machine | None:
        node = self._node
        if unit in self._built:
            # It failed, perhaps in the middle of an update of what the units share.
            self.table.repair(node.now)
            self.neighbourhood.replan()
        mtus = {adapter.name: adapter.mtu for adapter in node.config.adapter}
        if unit == HEALTH:
            self.health = HealthMachine(
                node.me, self.config, mtus, self.placement, self.table, self.neighbourhood
            )
            self._built[unit] = True
            return self.health
        if unit == STRESS:
            self.stress = StressMachine(node.me.node, self.config, mtus)
            return self.stress
        if unit == PATH_GOSSIP:
            self.path_gossip = PathGossipMachine(
                self.table,
                self.neighbourhood,
                self._links,
                self.history,
                self.config.rows_ns,
                node.wall_offset_ns,
            )
            self._built[unit] = True
            return self.path_gossip
        return None

    def unit_failed(self, failure: Failure, result: Result) -> None:
        if failure.unit in self._built:
            result.writes += self.history.repair()

    def status(self, now: Nanos) -> Mapping[str, Any]:
        paths, left_out = main_states(self.path_gossip, now, PATHS_SHOWN)
        return {
            "paths": msgspec.to_builtins(paths),
            "paths_left_out": left_out,
            "lag_ms": self.health.lag_ms,
            "incidents": msgspec.to_builtins(incidents(self.path_gossip, now)),
            "advice": self.placement.advised.status(now),
        }


def _check(config: NodeConfig, source: str) -> None:
    check_diagnostics(DIAGNOSTICS.of(config), source)
    check_advice(ADVICE.of(config), source)
    for tune in TUNE.of(config):
        check_tune(tune, config.subnets, source)
    needs_of(config, source)
    for section in NEEDS.of(config):
        check_needs(config, f"{source}: [[needs]] of port {section.port}", section)


def check_needs(config: NodeConfig, where: str, needs: NeedsFields) -> None:
    """An adapter or subnet that this node does not have would never be found."""
    known = (
        ("adapter", [adapter.name for adapter in config.adapter]),
        ("subnet", config.subnets),
    )
    for key, names in known:
        value = getattr(needs, key)
        if value and value not in names:
            raise ConfigError(f"{where}: no adapter has {key} {value!r}; known: {', '.join(names)}")


def _tables(_config: NodeConfig) -> tuple[Table, ...]:
    return (Table(PATH_HISTORY, kept=True),)


def _to(unit: str) -> Callable[[Any], tuple[str, ...]]:
    units = (unit,)
    return lambda _: units


_ROUTES: Final[Mapping[type[Frame], Route]] = {
    **dict.fromkeys(
        (f.Heartbeat, f.Probe, f.Signature, f.SignatureAck, f.Notice, f.Settled, f.Confirm),
        _to(HEALTH),
    ),
    **dict.fromkeys((f.PathRows, f.TableDigest, f.RowsRequest), _to(PATH_GOSSIP)),
    **dict.fromkeys((f.StressOrder, f.StressProbe, f.StressCounts, f.StressReport), _to(STRESS)),
}

HEALTH_SUBSYSTEM: Final = Subsystem(
    name="health",
    service=HealthService,
    layers=("probing", "table"),
    sections=(DIAGNOSTICS, TUNE, NEEDS, ADVICE),
    check=_check,
    frames=_ROUTES,
    facts=(PathFact, RepairFact),
    tables=_tables,
    metrics=path_metrics,
    edge="holdfast.runtime.health:Health",
    sim_edge="holdfast.sim.edges:SimHealthEdge",
)
