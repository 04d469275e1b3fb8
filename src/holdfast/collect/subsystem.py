"""The collection of telemetry as a subsystem."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from holdfast.collect.collect_machine import CollectMachine
from holdfast.collect.frames import ANSWERS, REQUESTS
from holdfast.collect.ports import COLLECT
from holdfast.machine import Machine
from holdfast.subsystem import Assembly, Service, Subsystem
from holdfast.types import Nanos


class CollectService(Service):
    def __init__(self, node: Assembly) -> None:
        self.machine = CollectMachine()

    def units(self) -> Iterable[str]:
        return (COLLECT,)

    def build(self, unit: str) -> Machine | None:
        if unit != COLLECT:
            return None
        self.machine = CollectMachine()
        return self.machine

    def status(self, now: Nanos) -> Mapping[str, Any]:
        machine = self.machine
        return {"collect": {"answered": machine.answered, "refused": machine.refused}}


COLLECT_SUBSYSTEM: Final = Subsystem(
    name="collect",
    service=CollectService,
    layers=("collect",),
    frames=dict.fromkeys((*REQUESTS, *ANSWERS), lambda _: (COLLECT,)),
    edge="holdfast.runtime.collect:CollectEdge",
    sim_edge="holdfast.sim.edges:SimCollectEdge",
)
