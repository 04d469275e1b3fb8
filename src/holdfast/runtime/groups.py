"""The edge of groups: the API for applications. It runs the applications and delivers their outputs."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from time import monotonic_ns
from typing import Any, Final, cast

from holdfast.errors import HoldfastError, MisuseError, NodeStopped, SourceEnded
from holdfast.group.application import JOBS, Job
from holdfast.group.config import replica_unit, services_unit, source_unit
from holdfast.group.ports import (
    Applied,
    Output,
    OutputsReady,
    Replica,
    SendOutputs,
    SourceRoom,
    StopOutputs,
)
from holdfast.group.services.ports import ServiceNotice
from holdfast.group.streams.source import SourceMachine
from holdfast.group.subsystem import GroupService
from holdfast.machine import Failure
from holdfast.runtime.applications import application_of
from holdfast.runtime.driver import Driver
from holdfast.runtime.handles import Group, again
from holdfast.runtime.operating import ask_group
from holdfast.runtime.outputs import Answer, OutputDesk
from holdfast.runtime.services import ServiceBook
from holdfast.runtime.traced_group import TracedGroup
from holdfast.runtime.tracing import Traced
from holdfast.runtime.worker import AppWorker
from holdfast.subsystem import Control, Edge, EffectHandler, Port
from holdfast.types import SECOND

log = logging.getLogger("holdfast")

ANSWER_BYTES: Final = 256 << 10
"""Progress of an application by less than this does not wake the event loop."""
RETURN_NS: Final = 5 * SECOND
"""How long a stop waits for running applications."""


class GroupEdge(Edge, Traced):
    """Sources and applications of a node's groups."""

    def __init__(self) -> None:
        self.applications: Mapping[str, Replica] = {}
        """Given by the program; others are named in the configuration."""
        self.workers: dict[str, AppWorker] = {}
        self.outputs = OutputDesk(self._answer_outputs)
        self._driver: Driver | None = None
        self._service: GroupService
        self._ended: HoldfastError = NodeStopped("the node is not running; nothing was sent")
        self._handles: dict[str, Group] = {}
        self._books: dict[str, ServiceBook] = {}
        """Requests for locks and barriers, by unit."""
        self._jobs: dict[str, list[Job]] = {}
        """Work for applications from the running turn."""

    # -- for the driver ------------------------------------------------------------------------------------------

    def effects(self) -> Mapping[type, EffectHandler]:
        effects: dict[type, EffectHandler] = {SourceRoom: self._room, ServiceNotice: self._served}
        effects |= dict.fromkeys(JOBS, self._apply)
        effects |= dict.fromkeys((OutputsReady, SendOutputs, StopOutputs), self.outputs.take)
        return effects

    def control(self) -> Mapping[str, Control]:
        return {"group": lambda request: ask_group(self._drive(), request)}

    def attach(self, port: Port) -> None:
        driver = self._driver = cast("Driver", port)
        self._service = driver.core.service(GroupService)
        self.outputs.open()
        name = driver.config.name
        for group in self._service.groups.values():
            if name in group.replicas:
                unit = replica_unit(group.name)
                application = application_of(driver.config, group.name, self.applications)
                self.workers[unit] = AppWorker(
                    group.name, application, partial(_answer, driver, unit)
                )

    def before_turn(self) -> None:
        for handle in self._handles.values():
            handle.hand_over()

    def after_turn(self) -> None:
        """Pass work to the applications, after everything that others wait for."""
        if not self._jobs:
            return
        self._drive().expect_answers()
        for unit in list(self._jobs):
            # Removed one by one: after an interrupt, the next turn passes on the rest.
            jobs = self._jobs.pop(unit)
            worker = self.workers.get(unit)
            if worker is None:
                continue
            try:
                worker.submit(jobs)
            except Exception:
                log.exception(
                    "%s: work could not be passed to its application",
                    unit,
                    extra={"event": "application_not_reached", "subsystem": "group", "unit": unit},
                )

    def _apply(self, job: Job) -> None:
        if job.unit in self._jobs:
            self._jobs[job.unit].append(job)
        else:
            self._jobs[job.unit] = [job]

    def _room(self, room: SourceRoom) -> None:
        handle = self._handles.get(room.unit)
        if handle is not None:
            handle.queued(room.held, room.taken)
            handle.settled(room.settled)

    def _served(self, notice: ServiceNotice) -> None:
        book = self._books.get(notice.unit)
        if book is not None:
            book.take(notice)

    def unit_failed(self, failure: Failure) -> None:
        """The messages of a failed source are lost: inform its senders."""
        if failure.stopped:
            self.outputs.take(
                StopOutputs(failure.unit)
            )  # a stopped replica can no longer report it
        if failure.unit in self._books:
            self._books[failure.unit].fail(f"the unit {failure.unit} failed: {failure.error!r}")
        handle = self._handles.pop(failure.unit, None)
        if handle is not None:
            what = (
                "restart the node"
                if failure.stopped
                else "get the group from the node again, and repeat messages that must not be lost"
            )
            handle.end(
                SourceEnded(
                    f"the source of group {handle.name} failed: {failure.error!r}; up to {handle.pending} bytes of "
                    f"messages that it had accepted may be lost; {what}"
                )
            )

    def _answer_outputs(self, unit: str, answer: Answer) -> None:
        if self._driver is not None:
            self._driver.answer(unit, answer)

    def halt(self, error: HoldfastError) -> None:
        self.outputs.close()
        self._driver, self._ended = None, error
        for handle in self._handles.values():
            handle.end(again(error))
        self._handles.clear()
        for book in self._books.values():
            book.end(again(error))
        self._books.clear()

    def close(self) -> None:
        """Wait for running applications, with one time limit for all of them."""
        workers, self.workers = self.workers, {}
        for worker in workers.values():
            worker.close(0)
        until = monotonic_ns() + RETURN_NS
        for unit, worker in workers.items():
            if not worker.close(max(0, until - monotonic_ns()) / SECOND):
                log.error(
                    "%s: the application did not return within %d s; its thread is abandoned",
                    unit,
                    RETURN_NS // SECOND,
                    extra={"event": "application_abandoned", "subsystem": "group", "unit": unit},
                )

    # -- for applications ----------------------------------------------------------------------------------------

    def group(self, name: str) -> Group:
        """A handle for sending messages to the group `name`."""
        driver = self._drive()
        if name not in self._service.groups:
            raise MisuseError(f"the configuration of this node has no group {name!r}")
        unit, turns = source_unit(name), driver.core.turns
        if unit not in self._handles:
            if (failure := turns.stopped.get(unit)) is not None:
                raise SourceEnded(
                    f"the source of group {name} failed twice and is stopped: {failure.error!r}; nothing "
                    "was sent; restart the node"
                )
            source = turns.machine(unit)
            assert isinstance(source, SourceMachine)
            config = self._service.groups[name]
            book = self._books.setdefault(services_unit(name), ServiceBook(driver, config))
            stream = source.stream.stream
            # Decided once, so that sending costs nothing more in a process that does not trace.
            self._handles[unit] = (
                Group(driver, config, stream, book)
                if self.tracing is None
                else TracedGroup(self.tracing, driver, config, stream, book)
            )
        return self._handles[unit]

    def on_outputs(self, group: str, callback: Callable[[Output], None]) -> None:
        """Call `callback(output)` with outputs of the application of `group` for `node:` and the name of this node:
        each once and in order, on the event loop."""
        self.outputs.listen(group, callback)

    def send_outputs(self, group: str, send: Callable[[Output], Awaitable[None]]) -> None:
        """While this node leads `group`, await `send(output)` for outputs to destinations that are not nodes: in order
        per destination, at least once, and again after it raised or the leader changed."""
        self.outputs.send_with(group, send)

    def _drive(self) -> Driver:
        if self._driver is None:
            raise again(self._ended)
        return self._driver


def _answer(driver: Driver, unit: str, item: Any) -> None:
    """On the worker's thread."""
    patient = type(item) is Applied and item.size < ANSWER_BYTES and not item.outputs
    driver.answer_from_thread(unit, item, patient)
