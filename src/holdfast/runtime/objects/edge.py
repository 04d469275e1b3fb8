"""`node.objects`: the edge of objects. It carries out what the objects unit asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from inspect import isawaitable
from pathlib import Path
from typing import Any, ClassVar

from holdfast.errors import HoldfastError, NodeStopped, QueueFull
from holdfast.links.subsystem import LinkService
from holdfast.machine import Failure
from holdfast.objects import ports
from holdfast.objects.config import OBJECTS, ObjectsSection
from holdfast.objects.ports import UNIT
from holdfast.objects.subsystem import ObjectService
from holdfast.runtime.admin.desk import AdminDesk
from holdfast.runtime.dialogs.edge import DialogEdge
from holdfast.runtime.objects.api import ObjectApi
from holdfast.runtime.objects.conditions import ConditionWatch
from holdfast.runtime.objects.control import ObjectControl
from holdfast.runtime.objects.files import ContentFiles
from holdfast.runtime.objects.finding import Finder
from holdfast.runtime.objects.operations import Operation, Operations
from holdfast.runtime.objects.source import Source
from holdfast.runtime.roles import Roles
from holdfast.subsystem import Control, Edge, EffectHandler, Port
from holdfast.types import DATA
from holdfast.wire.frames import MemberInfo


class ObjectEdge(ObjectApi, Edge):
    name: ClassVar[str] = "objects"

    def __init__(self) -> None:
        super().__init__()
        self._port: Port | None = None
        self._ended: HoldfastError = NodeStopped("the node is not running; nothing was done")
        self._operations = Operations()
        self._files: ContentFiles | None = None
        self._section = ObjectsSection()
        self._links: LinkService
        self._service: ObjectService
        self._roles: Roles | None = None
        self._dialogs: DialogEdge | None = None
        self._finder: Finder | None = None
        self._conditions: ConditionWatch | None = None
        self._desk: AdminDesk | None = None
        self._tasks: dict[asyncio.Task[Any], None] = {}

    # -- the driver's side ---------------------------------------------------------------------------------------

    def meet(self, edges: Sequence[Edge]) -> None:
        self._roles = next((edge for edge in edges if isinstance(edge, Roles)), None)
        self._dialogs = next((edge for edge in edges if isinstance(edge, DialogEdge)), None)

    def effects(self) -> Mapping[type, EffectHandler]:
        effects: dict[type, EffectHandler] = dict.fromkeys(
            (*ports.DISK_JOBS, ports.StampDisk), self._disk_job
        )
        effects |= self._operations.effects()
        return effects | {
            ports.ReadSource: self._read_source,
            ports.Locate: self._locate,
            ports.Publish: self._publish,
            ports.ResolveConflict: lambda effect: self._start(self._run_handler(effect)),
            ports.AdminWork: self._administer,
        }

    def control(self) -> Mapping[str, Control]:
        handlers = dict(ObjectControl(self).handlers())
        if self._desk is not None:
            handlers |= self._desk.handlers()
        return handlers

    def attach(self, port: Port) -> None:
        self._port = port
        self._links = port.core.service(LinkService)
        self._service = port.core.service(ObjectService)
        self._section = OBJECTS.of(port.config)
        if self._service.config.store:
            folder = Path(port.config.data) / "objects"
            reserve = self._section.space_reserve_mb << 20
            answer = lambda item: port.answer_from_thread(UNIT, item)
            self._files = ContentFiles(folder, reserve, answer)
        self._finder = Finder(self._roles, lambda item: port.answer(UNIT, item))
        self._conditions = ConditionWatch(self, port, self._section, self._files)
        self._desk = AdminDesk(self, port, self._dialogs)
        self._start(self._conditions.run())

    def unit_failed(self, failure: Failure) -> None:
        if failure.unit != UNIT or failure.stopped or self._port is None:
            return
        # Before the id is read, the disk would look like a new one, and its replicas would be given up.
        if self._files is not None and self._files.is_ready:
            self._port.answer(UNIT, ports.DiskReady(self._files.marker))

    def halt(self, error: HoldfastError) -> None:
        self._port, self._ended = None, error
        self._operations.end(error)
        if self._desk is not None:
            self._desk.close()
        for task in self._tasks:
            task.cancel()

    def close(self) -> None:
        if self._files is not None:
            self._files.close()
            self._files = None

    # -- for the other parts ---------------------------------------------------------------------------------------

    @property
    def service(self) -> ObjectService:
        if self._port is None:
            raise self._ended
        return self._service

    @property
    def conditions(self) -> ConditionWatch | None:
        return self._conditions

    @property
    def admin(self) -> AdminDesk:
        """Moving everything off a node."""
        if self._desk is None or self._port is None:
            raise type(self._ended)(*self._ended.args)
        return self._desk

    def name_of(self, node: bytes) -> str:
        return self._links.name_of(node)

    def members(self) -> Sequence[MemberInfo]:
        return self._links.members()

    def node_id(self, name: str) -> bytes:
        return self._links.member_id(name)

    # -- requests --------------------------------------------------------------------------------------------------

    def offer(self, request: ports.Request, operation: Operation) -> None:
        if self._port is None:
            raise type(self._ended)(*self._ended.args)
        if not self._port.offer(UNIT, request, cls=DATA):
            raise QueueFull("too much waits for this node; nothing was done")
        self._operations.add(request.op, operation)

    def cancel(self, op: int) -> None:
        self._operations.forget(op)
        if self._port is not None:
            self._port.answer(UNIT, ports.Cancel(op))

    def taken(self, op: int, chunks: int) -> None:
        if self._port is not None and op in self._operations:
            self._port.answer(UNIT, ports.Taken(op, chunks))

    # -- effects ---------------------------------------------------------------------------------------------------

    def _disk_job(self, job: Any) -> None:
        if self._files is not None:
            self._files.submit(job)
        elif self._port is not None and isinstance(job, ports.DiskJob) and job.token:
            self._port.answer(UNIT, ports.DiskDone(job.token, "error", "this node has no disk"))

    def _read_source(self, effect: ports.ReadSource) -> None:
        source = self._operations.source(effect.op)
        if source is not None:
            self._start(self._give_chunk(source, effect))

    async def _give_chunk(self, source: Source, effect: ports.ReadSource) -> None:
        try:
            data, reason = await source.chunk(effect.index), ""
        except Exception as error:  # noqa: BLE001 the source is the application's: its error is the outcome
            data, reason = b"", repr(error)
        if self._port is not None:
            self._port.answer(UNIT, ports.SourceChunk(effect.token, data, reason))

    def _locate(self, effect: ports.Locate) -> None:
        if self._finder is not None:
            self._start(self._finder.locate(effect))

    def _publish(self, effect: ports.Publish) -> None:
        if self._finder is not None and self._finder.publish(effect):
            self._start(self._finder.work())

    async def _run_handler(self, effect: ports.ResolveConflict) -> None:
        if self.handler is None:
            answer = ports.Resolved(effect.token, reason="no conflict handler is set")
        else:
            try:
                result = self.handler(effect.name, effect.versions)
                if isawaitable(result):
                    result = await result
                answer = ports.Resolved(effect.token, result, result is None)
            except Exception as error:  # noqa: BLE001 the handler is the application's: both versions stay
                answer = ports.Resolved(effect.token, reason=repr(error))
        if self._port is not None:
            self._port.answer(UNIT, answer)

    def _administer(self, effect: ports.AdminWork) -> None:
        self._start(self._answer_administration(effect))

    async def _answer_administration(self, effect: ports.AdminWork) -> None:
        assert self._desk is not None
        done = await self._desk.answer(effect)
        if self._port is not None:
            self._port.answer(UNIT, done)

    def _start(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
