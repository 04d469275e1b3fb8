"""What applications use of `node.objects`: create, read, write, delete, watch, and moving replicas.

await node.objects.create("/reports/may", b"...", replicas=3)
data = await node.objects.read("/reports/may")
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Final

from holdfast.errors import MisuseError
from holdfast.objects import ports
from holdfast.objects.values import DIRECTORY, FILE, ID, LOOSE, STRICT, Value
from holdfast.runtime.objects.handles import (
    Changed,
    Object,
    ObjectInfo,
    PlanStep,
    Reading,
    ReplicaInfo,
)
from holdfast.runtime.objects.operations import OnProgress, Operation
from holdfast.runtime.objects.source import Data, Source
from holdfast.runtime.tracing import CLIENT, Traced

Handler = Callable[[str, tuple[bytes | None, ...]], Any]


_SPANS: Final[dict[type, str]] = {
    ports.Create: "object.create",
    ports.Write: "object.write",
    ports.Patch: "object.patch",
    ports.Delete: "object.delete",
    ports.Move: "object.move",
    ports.Stat: "object.stat",
    ports.ListNames: "object.list",
}
"""What is traced; administration is not."""


class ObjectApi(Traced):
    """Makes requests and gives their outcome. The edge carries them."""

    def __init__(self) -> None:
        self._ops = count(1)
        self.handler: Handler | None = None

    # -- what the edge does ----------------------------------------------------------------------------------------

    def offer(self, request: ports.Request, operation: Operation) -> None:
        """Give a request to the objects unit; raises when it cannot."""
        raise NotImplementedError

    def cancel(self, op: int) -> None:
        """The outcome of a request is not wanted any more."""
        raise NotImplementedError

    def taken(self, op: int, chunks: int) -> None:
        """The application has taken this many chunks of a read."""
        raise NotImplementedError

    def name_of(self, node: bytes) -> str:
        raise NotImplementedError

    def node_id(self, name: str) -> bytes:
        raise NotImplementedError

    # -- create, write, delete -----------------------------------------------------------------------------------

    async def create(
        self,
        path: str,
        data: Data = b"",
        *,
        replicas: int = 0,
        mode: str = "strict",
        size: int = -1,
        resume: bytes = b"",
        on_progress: OnProgress | None = None,
        nodes: Sequence[str] = (),
    ) -> Object:
        """Create an object with `replicas` replicas. `data` is bytes, the path of a file, or an async iterator.

        `resume` is an id of 16 random bytes. A call with the id of one that failed sends only what is missing.
        Raises `ObjectExists`, `ObjectUnavailable` and `ObjectInDoubt`.
        """
        if mode not in ("strict", "loose"):
            raise MisuseError(f"mode is 'strict' or 'loose', not {mode!r}; nothing was created")
        _check_resume(resume)
        source = Source(data)
        code = LOOSE if mode == "loose" else STRICT
        chosen = tuple(self.node_id(name) for name in nodes)
        known = size if size >= 0 else source.size
        request = ports.Create(
            op=next(self._ops), path=path, size=known, replicas=replicas, mode=code, kind=FILE, write=resume,
            nodes=chosen,
        )  # fmt: skip
        done: ports.Written = await self._do(request, source, on_progress)
        return Object(self, path, done.value)

    async def mkdir(self, path: str) -> Object:
        """Create a directory."""
        done: ports.Written = await self._do(
            ports.Create(op=next(self._ops), path=path, size=0, kind=DIRECTORY)
        )
        return Object(self, path, done.value)

    async def write(
        self,
        path: str,
        data: Data,
        *,
        edition: int | None = None,
        size: int = -1,
        resume: bytes = b"",
        on_progress: OnProgress | None = None,
        object_id: bytes = b"",
    ) -> int:
        """Replace the content; returns the new edition. Raises `ObjectConflict` when another writer was first."""
        _check_resume(resume)
        source = Source(data)
        request = ports.Write(
            op=next(self._ops), path=path, object=object_id, size=size if size >= 0 else source.size,
            edition=edition or 0, write=resume,
        )  # fmt: skip
        done: ports.Written = await self._do(request, source, on_progress)
        return done.value.edition

    async def patch(
        self, path: str, offset: int, data: bytes, *, base: str = "", object_id: bytes = b""
    ) -> int:
        """Change a part of the content: up to 1 MiB at an offset. `base` is the digest that the content must have."""
        if offset < 0:
            raise MisuseError("an offset is not negative; nothing was changed")
        edits = ((offset, bytes(data)),)
        wanted = bytes.fromhex(base)
        request = ports.Patch(
            op=next(self._ops), path=path, object=object_id, edits=edits, base=wanted
        )
        done: ports.Written = await self._do(request)
        return done.value.edition

    async def delete(self, path: str, *, edition: int | None = None) -> None:
        """Delete an object, or a directory that is empty."""
        await self._do(ports.Delete(op=next(self._ops), path=path, edition=edition or 0))

    async def move(self, source: str, target: str) -> None:
        """Give an object another name or directory, atomically."""
        await self._do(ports.Move(op=next(self._ops), source=source, target=target))

    # -- read ----------------------------------------------------------------------------------------------------

    async def open(self, path: str) -> Object:
        """Find an object. Accesses through the result need no search."""
        found: ports.Description = await self._do(ports.Stat(op=next(self._ops), path=path))
        return Object(self, path, found.value)

    async def read(self, path: str, *, fresh: bool = True) -> bytes:
        """The whole content. `fresh=False` gives the version of the nearest replica, which may be old."""
        async with self.reading(path, fresh=fresh) as reader:
            return b"".join([bytes(chunk) async for chunk in reader])

    @asynccontextmanager
    async def reading(
        self,
        path: str,
        *,
        fresh: bool = True,
        object_id: bytes = b"",
        first: int = 0,
        digest: bytes = b"",
    ) -> AsyncIterator[Reading]:
        """Read in chunks, with little memory: `async for chunk in reader`. `first` and `digest` resume a read."""
        if self.tracing is None:
            async with self._reading(path, fresh, object_id, first, digest) as reader:
                yield reader
            return
        # Not current in the block: the application's own spans there are no parts of the read.
        span = self.tracing.begin("object.read", CLIENT, path=path)
        try:
            async with self._reading(path, fresh, object_id, first, digest) as reader:
                yield reader
        except Exception as error:
            self.tracing.fail(span, error)
            raise
        finally:
            span.end()

    @asynccontextmanager
    async def _reading(
        self, path: str, fresh: bool, object_id: bytes, first: int, digest: bytes
    ) -> AsyncIterator[Reading]:
        op = next(self._ops)
        reader = Reading(self, op, first)
        operation = Operation()
        operation.reading = reader
        request = ports.Read(
            op=op, path=path, object=object_id, fresh=fresh, first=first, digest=digest
        )
        self.offer(request, operation)
        try:
            yield reader
        finally:
            if not operation.future.done():
                self.cancel(op)
            elif not operation.future.cancelled():
                operation.future.exception()

    async def stat(self, path: str, *, object_id: bytes = b"") -> ObjectInfo:
        """An object as it is now, with the state of every replica."""
        request = ports.Stat(op=next(self._ops), path=path, object=object_id)
        return self._info(path, await self._do(request))

    async def list(self, path: str = "/") -> list[str]:
        """The names in a directory; directories end with `/`."""
        found: ports.Names = await self._do(ports.ListNames(op=next(self._ops), path=path))
        return [name + ("/" if kind == DIRECTORY else "") for name, _, kind in found.names]

    async def watch(self, path: str, *, object_id: bytes = b"") -> AsyncIterator[Changed]:
        """The current edition, then every newer one that is seen; ends when the object is deleted."""
        op = next(self._ops)
        operation = Operation()
        changes: asyncio.Queue[Changed] = asyncio.Queue(1024)
        operation.changes = changes
        self.offer(ports.WatchChanges(op=op, path=path, object=object_id), operation)
        ended = asyncio.ensure_future(_outcome(operation.future))
        try:
            while True:
                getting = asyncio.ensure_future(changes.get())
                await asyncio.wait((getting, ended), return_when=asyncio.FIRST_COMPLETED)
                if getting.done():
                    yield getting.result()
                    continue
                getting.cancel()
                ended.result()
                return
        finally:
            ended.cancel()
            if not operation.future.done():
                self.cancel(op)

    def on_conflict(self, handler: Handler) -> None:
        """Called with the name and the concurrent versions of a loose object (None: deleted). What it returns, bytes
        or None to delete, replaces them. If it raises, all versions stay."""
        self.handler = handler

    # -- administration --------------------------------------------------------------------------------------------

    async def repair(self, path: str) -> ObjectInfo:
        """Verify every replica of an object, byte by byte, and repair those that are late or damaged."""
        return self._info(path, await self._do(ports.Repair(op=next(self._ops), path=path)))

    async def drain(
        self,
        node: str,
        *,
        dry_run: bool = False,
        undo: bool = False,
        mark: bool = False,
        skip_blocked: bool = False,
        by_policy: bool = False,
        on_progress: OnProgress | None = None,
    ) -> tuple[PlanStep, ...]:
        """Move every replica of objects off a node; `admin.drain` moves groups and dialogs too. With `dry_run`, only
        the plan; with `mark`, the node only takes no new ones. Cancelling stops it between two steps; the steps that
        were done stay."""
        request = ports.Drain(
            op=next(self._ops), node=self.node_id(node), dry_run=dry_run, undo=undo, mark=mark,
            skip_blocked=skip_blocked, by_policy=by_policy,
        )  # fmt: skip
        plan: ports.Plan = await self._do(request, None, on_progress)
        return tuple(self._step(step) for step in plan.steps)

    async def move_replica(
        self, path: str, source: str, target: str = "", *, dry_run: bool = False
    ) -> tuple[PlanStep, ...]:
        """Move one replica of an object to another node; without `target`, to the best one."""
        request = ports.MoveReplica(
            op=next(self._ops), path=path, source=self.node_id(source),
            target=self.node_id(target) if target else b"", dry_run=dry_run,
        )  # fmt: skip
        plan: ports.Plan = await self._do(request)
        return tuple(self._step(step) for step in plan.steps)

    async def ask_node(self, node: bytes, verb: str, body: bytes = b"") -> bytes:
        """Ask the administration of a node. Raises `ObjectUnavailable` when it does not answer, `ObjectError` when it
        refuses."""
        request = ports.AskNode(op=next(self._ops), node=node, verb=verb, body=body)
        answer: bytes = await self._do(request)
        return answer

    def _step(self, step: ports.Step) -> PlanStep:
        add = self.name_of(step.add) if step.add else ""
        return PlanStep(
            step.object.hex(), step.name, add, self.name_of(step.remove), step.size, step.state, step.reason
        )  # fmt: skip

    def _info(self, path: str, found: ports.Description) -> ObjectInfo:
        value: Value = found.value
        replicas = tuple(
            ReplicaInfo(self.name_of(replica.node), replica.state, replica.version)
            for replica in found.replicas
        )
        return ObjectInfo(
            path, value.object.hex(), value.edition, value.version, found.size, value.content.digest.hex(),
            value.kind == DIRECTORY, "loose" if value.mode == LOOSE else "strict", value.wanted, replicas,
            max(found.siblings - 1, 0),
        )  # fmt: skip

    async def _do(
        self,
        request: ports.Request,
        source: Source | None = None,
        on_progress: OnProgress | None = None,
    ) -> Any:
        name = _SPANS.get(type(request))
        if self.tracing is None or name is None:
            return await self._perform(request, source, on_progress)
        path = request.source if isinstance(request, ports.Move) else getattr(request, "path", "")
        with self.tracing.span(name, CLIENT, path=path):
            return await self._perform(request, source, on_progress)

    async def _perform(
        self, request: ports.Request, source: Source | None, on_progress: OnProgress | None
    ) -> Any:
        operation = Operation()
        operation.source = source
        operation.on_progress = on_progress
        self.offer(request, operation)
        try:
            return await operation.future
        except asyncio.CancelledError:
            self.cancel(request.op)
            raise
        finally:
            if source is not None:
                source.close()


def _check_resume(write: bytes) -> None:
    if write and len(write) != ID:
        raise MisuseError(f"`resume` is a write id of {ID} bytes; nothing was written")


async def _outcome(future: asyncio.Future[Any]) -> Any:
    return await asyncio.shield(future)
