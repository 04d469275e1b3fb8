"""What applications hold: an object, its description, a read in progress."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.objects.values import DIRECTORY, LOOSE, Content, Value

if TYPE_CHECKING:
    from holdfast.runtime.objects.api import ObjectApi
    from holdfast.runtime.objects.source import Data


class ReplicaInfo(msgspec.Struct, frozen=True):
    node: str
    state: str
    """`sound`, `late`, `damaged`, `repaired`, `emptied` or `unreachable`."""
    version: int = 0


class ObjectInfo(msgspec.Struct, frozen=True):
    """An object as it is now."""

    path: str
    id: str
    edition: int
    """Counts changes that users see; give it to `write` to change only this edition."""
    version: int
    """Counts all decisions, those about replicas included."""
    size: int
    digest: str
    directory: bool
    mode: str
    wanted: int
    """The number of replicas that it is meant to have."""
    replicas: tuple[ReplicaInfo, ...]
    conflicts: int = 0
    """Concurrent versions of a loose object beyond the first."""


class Changed(msgspec.Struct, frozen=True):
    """A watched object has a newer edition."""

    edition: int
    deleted: bool = False


class PlanStep(msgspec.Struct, frozen=True):
    """One step of a plan: an instance is added before one is removed."""

    object: str
    """The id of the object or the dialog; the name of the group."""
    name: str
    add: str
    """The node that gets it; empty: none is needed."""
    remove: str
    size: int
    state: str
    """`planned`, `done`, `failed` or `blocked`."""
    reason: str = ""
    kind: str = "object"
    """`object`, `group` or `dialog`."""


class Object:
    """An object that was opened: its replicas are known, so an access takes no search."""

    def __init__(self, edge: ObjectApi, path: str, value: Value) -> None:
        self._edge = edge
        self.path = path
        self.id = value.object
        self.edition = value.edition
        self.is_directory = value.kind == DIRECTORY
        self.is_loose = value.mode == LOOSE

    def __repr__(self) -> str:
        return f"<Object {self.path} edition {self.edition}>"

    async def read(self, *, fresh: bool = True) -> bytes:
        """The whole content, verified. `fresh=False` reads the nearest replica, which may be old."""
        async with self._edge.reading(self.path, fresh=fresh, object_id=self.id) as reader:
            data = b"".join([bytes(chunk) async for chunk in reader])
            self.edition = reader.edition
        return data

    async def write(self, data: Data, *, edition: int | None = None, size: int = -1) -> int:
        """Replace the content; returns the new edition. Without `edition`, on top of the one that is current when the
        write starts. Raises `ObjectConflict` when another writer was first."""
        self.edition = await self._edge.write(
            self.path, data, edition=edition, size=size, object_id=self.id
        )
        return self.edition

    async def patch(self, offset: int, data: bytes, *, base: str = "") -> int:
        """Change a part of the content."""
        self.edition = await self._edge.patch(self.path, offset, data, base=base, object_id=self.id)
        return self.edition

    async def stat(self) -> ObjectInfo:
        return await self._edge.stat(self.path, object_id=self.id)

    async def delete(self, *, edition: int | None = None) -> None:
        await self._edge.delete(self.path, edition=edition)

    def watch(self) -> AsyncIterator[Changed]:
        return self._edge.watch(self.path, object_id=self.id)


class Reading:
    """A read in progress: an async iterator over verified chunks, in order."""

    def __init__(self, edge: ObjectApi, op: int, first: int = 0) -> None:
        self._edge = edge
        self._op = op
        self._chunks: asyncio.Queue[Any] = asyncio.Queue()
        """Bounded by the machine: it sends on when chunks are taken."""
        self._taken = first
        """Chunks that are behind the application, those before the first one that it asked for included."""
        self.value: Value | None = None
        self.content = Content()
        self.begun = asyncio.Event()

    @property
    def edition(self) -> int:
        return self.value.edition if self.value is not None else 0

    def put(self, item: Any) -> None:
        self._chunks.put_nowait(item)

    def __aiter__(self) -> Reading:
        return self

    async def __anext__(self) -> memoryview:
        item = await self._chunks.get()
        if isinstance(item, BaseException):
            self._chunks.put_nowait(item)
            raise item
        if item is None:
            self._chunks.put_nowait(None)
            raise StopAsyncIteration
        self._taken += 1
        self._edge.taken(self._op, self._taken)
        return memoryview(item)
