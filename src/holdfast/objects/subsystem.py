"""Objects as a subsystem of a node: one unit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from holdfast.links.subsystem import LinkService
from holdfast.machine import Failure, Machine, Result
from holdfast.objects.config import OBJECTS, ObjectsConfig, check_objects, settings_of
from holdfast.objects.facts import ObjectFact, ObjectOpFact
from holdfast.objects.frames import OBJECT_FRAMES
from holdfast.objects.machine import LAYER, ObjectMachine
from holdfast.objects.ports import DISK_TABLE, TABLE, UNIT, TasksLost
from holdfast.objects.values import DIRECTORY, LOOSE
from holdfast.overlay.subsystem import OverlayService
from holdfast.subsystem import Assembly, Family, NodeConfig, Service, Subsystem, Table
from holdfast.subsystem.metrics import Samples, part
from holdfast.types import Nanos

SHOWN_MAX: Final = 200
"""Replicas in a status; `holdfast objects where` shows any of them."""


class ObjectService(Service):
    def __init__(self, node: Assembly) -> None:
        self._node = node
        self._links = node.service(LinkService)
        config = node.config
        self.config: ObjectsConfig = node.tunables.get("objects") or settings_of(
            OBJECTS.of(config), config.domain, config.data
        )
        self._builds = 0
        self.machine: ObjectMachine
        """As it was made last: one that has stopped still says what it knew."""

    def units(self) -> Iterable[str]:
        return (UNIT,)

    def build(self, unit: str) -> Machine | None:
        if unit != UNIT:
            return None
        node = self._node
        self._builds += 1
        first = self._builds == 1
        # Rows of the start are old when the unit is built again: it reads its table then.
        self.machine = ObjectMachine(
            node.me.node,
            node.me.name,
            self.config,
            node.rng(f"{unit}/{self._builds}"),
            node.entropy,
            node.stored(TABLE) if first else None,
            node.stored(DISK_TABLE) if first else None,
            node.service(OverlayService).config.realm,
            node.now,
        )
        return self.machine

    def unit_failed(self, failure: Failure, result: Result) -> None:
        if failure.unit == UNIT:
            result.effects.append(TasksLost())

    def status(self, now: Nanos) -> Mapping[str, Any]:
        machine = self.machine
        return {"objects": {**machine.status(), "shown": self._shown()}}

    def _shown(self) -> list[dict[str, Any]]:
        rows = []
        for object_id, record in machine_records(self.machine):
            value = record.decided
            if value is None or value.deleted:
                continue
            rows.append(
                {
                    "id": object_id.hex(),
                    "name": value.name or "/",
                    "directory": value.kind == DIRECTORY,
                    "mode": "loose" if value.mode == LOOSE else "strict",
                    "edition": value.edition,
                    "version": value.version,
                    "size": max(
                        [value.content.size, *(s.content.size for s in record.siblings)], default=0
                    ),
                    "wanted": value.wanted,
                    "sound": self.machine.registers.sound(record),
                    "nodes": [self._links.name_of(node) for node in value.nodes],
                    "conflicts": max(len(record.siblings) - 1, 0),
                }
            )
            if len(rows) >= SHOWN_MAX:
                break
        return rows


def machine_records(machine: ObjectMachine) -> Iterable[tuple[bytes, Any]]:
    return iter(machine.registers)


def object_metrics(status: Mapping[str, Any]) -> Iterable[Family]:
    """Metrics from a status."""
    objects = part(status, "objects")
    if not objects:
        return
    for key, text in (
        ("replicas", "Replicas on this node."),
        ("sound", "Replicas on this node that have the decided content."),
        ("operations", "Operations of applications in progress."),
        ("repairs", "Repairs in progress."),
    ):
        yield f"holdfast_object_{key}", "gauge", text, [({}, objects.get(key, 0))]
    counts: Samples = [
        ({"event": event}, count) for event, count in part(objects, "counts").items()
    ]
    yield "holdfast_object_events_total", "counter", "Events of objects and replicas.", counts


def _tables(_config: NodeConfig) -> tuple[Table, ...]:
    return (Table(TABLE), Table(DISK_TABLE))


OBJECT_SUBSYSTEM: Final = Subsystem(
    name="objects",
    service=ObjectService,
    layers=(LAYER,),
    sections=(OBJECTS,),
    check=check_objects,
    frames=dict.fromkeys(OBJECT_FRAMES, lambda _: (UNIT,)),
    facts=(ObjectFact, ObjectOpFact),
    tables=_tables,
    metrics=object_metrics,
    edge="holdfast.runtime.objects.edge:ObjectEdge",
    sim_edge="holdfast.sim.objects_edge:SimObjectEdge",
)
