"""Groups as a subsystem: sources, replicas, and the receiver of their outputs.

messages/<group>     the message log of a replica
replica/<group>      one replica
source/<group>       sends messages to all replicas
services/<group>     asks for locks and barriers
outputs              takes what applications of groups send to this node
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from holdfast.errors import MisuseError
from holdfast.group.config import (
    OUTPUT_RECEIVER,
    GroupConfig,
    log_unit,
    replica_unit,
    services_unit,
    source_unit,
    units_for,
)
from holdfast.group.facts import LeaseFact, LockFact, StabilityFact
from holdfast.group.frames import GROUP_FRAMES
from holdfast.group.log.journal import journal_tables
from holdfast.group.metrics import group_metrics
from holdfast.group.outputs.output_receiver import TABLE as OUTPUTS
from holdfast.group.outputs.output_receiver import OutputReceiverMachine
from holdfast.group.replica import ReplicaMachine
from holdfast.group.section import GROUPS, check_groups, groups_of, needs_of_groups
from holdfast.group.services.client import ServiceClient
from holdfast.group.services.frames import SERVICE_FRAMES
from holdfast.group.streams.message_log import MessageLog, log_tables
from holdfast.group.streams.source import SourceMachine
from holdfast.health.subsystem import HealthService
from holdfast.links.subsystem import LinkService
from holdfast.machine import Machine
from holdfast.stability.frames import STABILITY_FRAMES
from holdfast.subsystem import Assembly, NodeConfig, Rows, Service, Subsystem, Table
from holdfast.telemetry.facts import DeliveryFact, GroupFact, OrderFact
from holdfast.types import Nanos


class GroupService(Service):
    """All groups that a node uses."""

    def __init__(self, node: Assembly) -> None:
        self._node = node
        self.groups = {group.name: group for group in groups_of(node.config)}
        self._streams_begun: dict[str, int] = {}
        links, health = node.service(LinkService), node.service(HealthService)
        self._paths = health.table.rows.values
        for group in self.groups.values():
            links.always_linked += group.replicas
        for needs in needs_of_groups(node.config):
            health.placement.set(needs)

    def units(self) -> Iterable[str]:
        yield OUTPUT_RECEIVER
        for group in self.groups.values():
            yield source_unit(group.name)
            if group.mode == "majority":
                yield services_unit(group.name)
            if self._node.me.name in group.replicas:
                yield replica_unit(group.name)
                if group.message_log_bytes:
                    yield log_unit(group.name)

    def build(self, unit: str) -> Machine | None:
        node, me = self._node, self._node.me
        kind, _, name = unit.partition("/")
        if unit == OUTPUT_RECEIVER:
            return OutputReceiverMachine(me.node, node.stored(OUTPUTS))
        if kind == "messages":
            return MessageLog(self.groups[name], me.node, self._stored(self.groups[name]))
        if kind == "source":
            # A failed source starts another stream: its numbers start at 1 again.
            stream = self._streams_begun.get(name, 0)
            self._streams_begun[name] = stream + 1
            return SourceMachine(
                config=self.groups[name],
                node=me.node,
                name=me.name,
                incarnation=me.incarnation,
                rng=node.rng(unit),
                stream=stream,
            )
        if kind == "services":
            return ServiceClient(
                config=self.groups[name],
                node=me.node,
                name=me.name,
                incarnation=me.incarnation,
                rng=node.rng(unit),
            )
        if kind == "replica":
            if node.turns.machine(unit) is not None:
                # The others rely on what it acknowledged, which was in the memory it just lost.
                raise MisuseError(
                    f"a replica cannot be rebuilt while its node runs: restart node {me.name}"
                )
            return ReplicaMachine(
                config=self.groups[name],
                node=me.node,
                name=me.name,
                incarnation=me.incarnation,
                rng=node.rng(unit),
                stored=self._stored(self.groups[name]),
                paths=self._paths,
            )
        return None

    def _stored(self, group: GroupConfig) -> dict[str, Rows]:
        return {table: self._node.stored(table) for table in _tables_of(group)}

    def status(self, now: Nanos) -> Mapping[str, Any]:
        machines = list(map(self._node.turns.machine, self._node.turns.units()))
        groups = []
        for name in self.groups:
            replica = self._node.turns.machine(replica_unit(name))
            if isinstance(replica, ReplicaMachine):
                groups.append(_status(name, replica.status()))
        sources = [m.status() for m in machines if isinstance(m, SourceMachine)]
        return {"groups": groups, "sources": sources}


def _status(name: str, status: dict[str, Any]) -> dict[str, Any]:
    peers = [{"name": peer, **progress} for peer, progress in status["peers"].items()]
    return {"name": name, **status, "peers": peers, "digest": f"{status['digest']:08x}"}


def _tables_of(group: GroupConfig) -> list[str]:
    logs = log_tables(group.name) if group.message_log_bytes else ()
    return [*journal_tables(group), *logs]


def _tables(config: NodeConfig) -> list[Table]:
    replicas = [group for group in groups_of(config) if config.name in group.replicas]
    tables = [Table(name) for group in replicas for name in _tables_of(group)]
    return [Table(OUTPUTS, kept=True), *tables]


GROUP_SUBSYSTEM: Final = Subsystem(
    name="group",
    service=GroupService,
    layers=("source", "replica", "message_log", "services"),
    sections=(GROUPS,),
    check=check_groups,
    frames=dict.fromkeys((*GROUP_FRAMES, *STABILITY_FRAMES, *SERVICE_FRAMES), units_for),
    facts=(OrderFact, DeliveryFact, GroupFact, StabilityFact, LeaseFact, LockFact),
    tables=_tables,
    metrics=group_metrics,
    edge="holdfast.runtime.groups:GroupEdge",
    sim_edge="holdfast.sim.edges:SimGroupEdge",
)
