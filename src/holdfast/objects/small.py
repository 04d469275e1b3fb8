"""Small contents of replicas: rows of the node's store instead of files.

A write brings a small content together with the version. The replica records both in one commit, so there is one sync
instead of three, and many writes share it. The total is bounded: the oldest contents are moved to files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from holdfast.machine import Put
from holdfast.objects.config import SMALL_MAX
from holdfast.objects.hub import Hub
from holdfast.objects.ports import (
    TABLE,
    CloseStage,
    DiskDone,
    DropContent,
    OpenStage,
    ReadChunk,
    ReadList,
    VerifyContent,
    WriteChunk,
)
from holdfast.objects.records import decode_content, encode_content
from holdfast.objects.values import ID, Content, chunk_digest, content_of

SPILLS_MAX: Final = 16
"""Contents that are being moved to files at a time."""
OVERFLOW: Final = 4
"""A node whose files take nothing keeps this many times the total, and refuses more."""
Key = tuple[bytes, bytes]
Then = Callable[[DiskDone], None]
Job = Callable[[Callable[[int], Any], Then], None]


class SmallContents:
    def __init__(self, hub: Hub, job: Job) -> None:
        self._hub = hub
        self._job = job
        self._data: dict[Key, bytes] = {}
        """By object and digest, oldest first."""
        self._spilling: dict[Key, list[Then]] = {}
        """Contents that are being moved to files, and what waits for that."""
        self.total = 0
        self.counted = 0
        """The total when the free space of the disk was last reported: what came later takes space from it."""

    def load(self, rows: Iterable[tuple[bytes, bytes]]) -> list[Key]:
        """Rows of another disk, and damaged ones, are erased. Returns the contents that are lost."""
        lost: list[Key] = []
        for key, value in rows:
            if len(key) != 2 * ID:
                continue
            row = decode_content(value)
            intact = row is not None and content_of(row.data)[0].digest == key[ID:]
            if row is None or not intact or row.disk != self._hub.disk:
                self._hub.erase(key)
                lost.append((key[:ID], key[ID:]))
                continue
            self._data[key[:ID], key[ID:]] = row.data
            self.total += len(row.data)
        return lost

    def get(self, object_id: bytes, digest: bytes) -> bytes | None:
        return self._data.get((object_id, digest))

    def refuses(self, content: Content, data: memoryview, free_bytes: int) -> str:
        """Why a content that a peer sent is not taken."""
        if len(data) > SMALL_MAX:
            return "hostile"
        if content_of(data)[0] != content:
            return "checksum"
        is_full = self.total + len(data) > OVERFLOW * self._hub.config.small_total
        taken = max(self.total - self.counted, 0) + len(data)
        return "full" if is_full or taken > free_bytes else ""

    def keep(self, object_id: bytes, digest: bytes, data: bytes) -> None:
        """Keep a content. It is durable when the write of this turn is."""
        if (object_id, digest) in self._data:
            return
        self._data[object_id, digest] = data
        self.total += len(data)
        row = encode_content(self._hub.disk, data)
        self._hub.out.write(Put(TABLE, object_id + digest, row))

    def drop(self, object_id: bytes, digest: bytes) -> bool:
        """Forget a content; False if it is not here."""
        data = self._data.pop((object_id, digest), None)
        if data is None:
            return False
        self.total -= len(data)
        self._hub.erase(object_id + digest)
        return True

    # -- files -----------------------------------------------------------------------------------------------------

    def spill_oldest(self) -> None:
        """Move the oldest contents to files while there are too many bytes."""
        over = self.total - self._hub.config.small_total
        for key, data in self._data.items():
            if over <= 0 or len(self._spilling) >= SPILLS_MAX:
                return
            over -= len(data)
            if key not in self._spilling:
                self.spill(key, _ignore)

    def spill(self, key: Key, then: Then) -> None:
        """Move a content to a file."""
        waiting = self._spilling.setdefault(key, [])
        waiting.append(then)
        if len(waiting) > 1:
            return
        object_id, data = key[0], self._data[key]
        write = self._hub.new_id()
        content, chunks = content_of(data)
        opened = lambda token: OpenStage(token=token, write=write, size=content.size)
        written = lambda token: WriteChunk(token=token, write=write, index=0, data=data)
        closed = lambda token: CloseStage(
            token=token, write=write, object=object_id, content=content, chunks=chunks
        )
        # The jobs are done in order. If the first ones fail, the last one does.
        self._job(opened, _ignore)
        self._job(written, _ignore)
        self._job(closed, lambda done: self._spilled(key, done))

    def _spilled(self, key: Key, done: DiskDone) -> None:
        if not done.reason and not self.drop(*key):
            # It was deleted meanwhile, before the file was there.
            self._hub.effect(DropContent(object=key[0], digest=key[1]))
        for then in self._spilling.pop(key):
            then(done)

    def answer(self, job: Any) -> DiskDone | None:
        """Work that needs no disk, because its content is here."""
        if not isinstance(job, ReadChunk | ReadList | VerifyContent):
            return None
        data = self._data.get((job.object, job.content.digest))
        if data is None:
            return None
        if len(data) != job.content.size:
            return DiskDone(job.token, "damaged", "the content has another size")
        if isinstance(job, ReadList):
            return DiskDone(job.token, data=chunk_digest(data))
        return DiskDone(job.token, data=data if isinstance(job, ReadChunk) else b"")


def edited(data: bytes, edits: tuple[tuple[int, bytes], ...], size: int) -> bytes:
    """A content after a patch."""
    made = bytearray(data[:size].ljust(size, b"\0"))
    for offset, edit in edits:
        made[offset : offset + len(edit)] = edit
    return bytes(made)


def _ignore(_: DiskDone) -> None:
    """Nothing waits for it."""
