"""Edges of subsystems on a simulated host, where they differ from those of the asyncio driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from holdfast.collect.ports import Answered, Asked, PeerGone
from holdfast.errors import MisuseError
from holdfast.group.application import JOBS
from holdfast.group.config import OUTPUT_RECEIVER
from holdfast.group.ports import (
    OutputsReady,
    SendOutputs,
    SourceRoom,
    StopOutputs,
)
from holdfast.group.services.ports import ServiceNotice
from holdfast.links.ports import PortReady, PortRefused, PortRoom, SessionBegun, SessionEnded
from holdfast.overlay.ports import OVERLAY_EFFECTS
from holdfast.sim.application import Worker
from holdfast.sim.host import Host
from holdfast.sim.seeds import chance
from holdfast.subsystem import Edge, EffectHandler, Port


def _ignore(_: object) -> None:
    """No application of this host asked for it. Tests and checkers watch it with `Host.on` and `World.check`."""


class SimLinkEdge(Edge):
    """Ports without listeners."""

    def effects(self) -> Mapping[type, EffectHandler]:
        ignored = (PortReady, PortRefused, PortRoom, SessionBegun, SessionEnded)
        return dict.fromkeys(ignored, _ignore)


class SimHealthEdge(Edge):
    """No subscribers."""


class SimCollectEdge(Edge):
    """No files: requests of peers are not answered."""

    def effects(self) -> Mapping[type, EffectHandler]:
        return dict.fromkeys((Asked, Answered, PeerGone), _ignore)


class SimOverlayEdge(Edge):
    """No applications use roles here. Tests watch the effects with `Host.on`."""

    def effects(self) -> Mapping[type, EffectHandler]:
        return dict.fromkeys(OVERLAY_EFFECTS, _ignore)


class SimGroupEdge(Edge):
    """Applications that take virtual time."""

    def __init__(self) -> None:
        self._host: Host

    def attach(self, port: Port) -> None:
        self._host = cast("Host", port)

    def effects(self) -> Mapping[type, EffectHandler]:
        effects: dict[type, EffectHandler] = {OutputsReady: self._take_outputs}
        effects |= dict.fromkeys(JOBS, self._work)
        effects |= dict.fromkeys((SourceRoom, SendOutputs, StopOutputs, ServiceNotice), _ignore)
        return effects

    def _work(self, job: Any) -> None:
        host = self._host
        worker = host.workers.get(job.unit)
        if worker is None:
            if host.application is None:
                raise MisuseError(f"host {host.name} has no application for {job.unit}")
            random = chance(host.world.seed, "worker", host.name, job.unit)
            replica = host.application(job.unit)
            worker = Worker(host, job.unit, replica, random, host.profile.apply_ns)
            host.workers[job.unit] = worker
        worker.give(job)

    def _take_outputs(self, effect: OutputsReady) -> None:
        self._host.give(OUTPUT_RECEIVER, effect.taken())
