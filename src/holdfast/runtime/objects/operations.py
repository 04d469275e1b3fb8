"""Requests of applications that wait for their outcome, and the effects that concern them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from holdfast.errors import (
    HoldfastError,
    MisuseError,
    ObjectConflict,
    ObjectError,
    ObjectExists,
    ObjectInDoubt,
    ObjectNotFound,
    ObjectUnavailable,
    QueueFull,
)
from holdfast.objects import ports
from holdfast.runtime.objects.handles import Changed, Reading
from holdfast.runtime.objects.source import Source
from holdfast.subsystem import EffectHandler

_ERRORS: Final[dict[str, type[HoldfastError]]] = {
    "not found": ObjectNotFound,
    "unknown": ObjectNotFound,
    "exists": ObjectExists,
    "conflict": ObjectConflict,
    "in doubt": ObjectInDoubt,
    "unreachable": ObjectUnavailable,
    "full": ObjectUnavailable,
    "no root": ObjectUnavailable,
    "misuse": MisuseError,
    "busy": QueueFull,
}
OnProgress = Callable[[int, int, str], object]


class Operation:
    """One request that waits for its outcome."""

    __slots__ = ("changes", "future", "on_progress", "reading", "source", "write")

    def __init__(self) -> None:
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.source: Source | None = None
        self.reading: Reading | None = None
        self.changes: asyncio.Queue[Changed] | None = None
        self.on_progress: OnProgress | None = None
        self.write = b""

    def fail(self, error: HoldfastError) -> None:
        if self.reading is not None:
            self.reading.put(error)
            if not self.future.done():
                self.future.set_result(None)
        if not self.future.done():
            self.future.set_exception(error)


class Operations:
    """Bounded by the machine: it refuses more than `OPERATIONS_MAX`."""

    def __init__(self) -> None:
        self._running: dict[int, Operation] = {}

    def effects(self) -> Mapping[type, EffectHandler]:
        return {
            ports.Finished: self._finished,
            ports.Deliver: self._deliver,
            ports.Begun: self._begun,
            ports.Progress: self._progress,
            ports.Change: self._changed,
            ports.TasksLost: self._tasks_lost,
        }

    def __contains__(self, op: int) -> bool:
        return op in self._running

    def add(self, op: int, operation: Operation) -> None:
        self._running[op] = operation

    def forget(self, op: int) -> None:
        self._running.pop(op, None)

    def source(self, op: int) -> Source | None:
        """The content that an operation writes."""
        operation = self._running.get(op)
        return operation.source if operation is not None else None

    def end(self, error: HoldfastError) -> None:
        """All of them fail."""
        for operation in self._running.values():
            operation.fail(type(error)(*error.args))
        self._running.clear()

    def _finished(self, effect: ports.Finished) -> None:
        operation = self._running.pop(effect.op, None)
        if operation is None:
            return
        value = effect.value
        if isinstance(value, ports.Refused):
            operation.fail(_ERRORS.get(value.code, ObjectError)(value.text))
            return
        if operation.reading is not None:
            operation.reading.put(None)
        if not operation.future.done():
            operation.future.set_result(value)

    def _deliver(self, effect: ports.Deliver) -> None:
        operation = self._running.get(effect.op)
        if operation is not None and operation.reading is not None:
            operation.reading.put(effect.data)

    def _begun(self, effect: ports.Begun) -> None:
        operation = self._running.get(effect.op)
        if operation is None:
            return
        operation.write = effect.write
        if operation.reading is not None:
            operation.reading.value = effect.value
            operation.reading.begun.set()

    def _progress(self, effect: ports.Progress) -> None:
        operation = self._running.get(effect.op)
        if operation is not None and operation.on_progress is not None:
            operation.on_progress(effect.done, effect.total, effect.text)

    def _changed(self, effect: ports.Change) -> None:
        operation = self._running.get(effect.op)
        if operation is None or operation.changes is None:
            return
        if operation.changes.full():
            operation.changes.get_nowait()  # an application that is slow sees only the newest ones
        operation.changes.put_nowait(Changed(effect.version, effect.deleted))

    def _tasks_lost(self, _: ports.TasksLost) -> None:
        self.end(ObjectInDoubt("the objects unit was restarted; read to find out what took effect"))
