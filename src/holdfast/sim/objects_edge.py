"""Objects on a simulated host: a content disk in memory, and no applications."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from holdfast.objects import ports
from holdfast.objects.ports import UNIT
from holdfast.sim.host import Host
from holdfast.sim.objects_disk import ContentDisk
from holdfast.subsystem import Edge, EffectHandler, Port

DISKS = "object disks"


class SimObjectEdge(Edge):
    """Tests watch outcomes with `Host.on`."""

    def __init__(self) -> None:
        self._host: Host
        self.disk = ContentDisk()

    def attach(self, port: Port) -> None:
        self._host = cast("Host", port)
        # The disk belongs to the machine, which outlives the process.
        disks: dict[str, Any] = self._host.world.__dict__.setdefault("object_disks", {})
        self.disk = disks.setdefault(self._host.name, self.disk)
        self.disk.crash()
        self._host.give(UNIT, ports.DiskReady(self.disk.marker))

    def effects(self) -> Mapping[type, EffectHandler]:
        effects: dict[type, EffectHandler] = dict.fromkeys(ports.DISK_JOBS, self._work)
        effects[ports.StampDisk] = self._stamp
        effects[ports.Locate] = lambda e: self._host.answer(UNIT, ports.Located(e.token, ()))
        effects[ports.ReadSource] = self._no_source
        effects[ports.ResolveConflict] = self._no_handler
        effects[ports.AdminWork] = self._no_administration
        ignored = (
            ports.Deliver, ports.Begun, ports.Progress, ports.Finished, ports.Change, ports.Publish, ports.TasksLost,
        )  # fmt: skip
        effects |= dict.fromkeys(ignored, _ignore)
        return effects

    def _work(self, job: Any) -> None:
        done = self.disk.run(job)
        if job.token:
            self._host.answer(UNIT, done)

    def _stamp(self, effect: ports.StampDisk) -> None:
        self.disk.empty()
        self.disk.marker = effect.disk

    def _no_source(self, effect: ports.ReadSource) -> None:
        self._host.answer(UNIT, ports.SourceChunk(effect.token, b"", "no application"))

    def _no_handler(self, effect: ports.ResolveConflict) -> None:
        self._host.answer(UNIT, ports.Resolved(effect.token, reason="no application"))

    def _no_administration(self, work: ports.AdminWork) -> None:
        done = ports.AdminDone(work.peer, work.call, "a simulated host has no administration")
        self._host.answer(UNIT, done)


def _ignore(_: object) -> None:
    """No application of this host asked for it."""
