"""The content disk of a simulated host: complete contents survive a crash, stages do not, and bytes can be
corrupted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.objects import ports
from holdfast.objects.ports import DiskDone
from holdfast.objects.values import CHUNK, ID, chunk_digest, content_digest, content_of

Key = tuple[bytes, bytes]


class ContentDisk:
    def __init__(self, capacity: int = 1 << 40) -> None:
        self.capacity = capacity
        self.marker = b""
        self.contents: dict[Key, tuple[bytearray, bytes]] = {}
        """Bytes and chunk list, by object and digest."""
        self.stages: dict[bytes, bytearray] = {}
        self.stage_bytes_max = 0
        self._jobs: dict[type, Callable[[Any], DiskDone]] = {
            ports.OpenStage: self._open,
            ports.WriteChunk: self._write,
            ports.CloseStage: self._close,
            ports.PatchStage: self._patch,
            ports.DropStage: self._drop_stage,
            ports.ReadChunk: self._read,
            ports.ReadList: self._list,
            ports.DropContent: self._drop,
            ports.VerifyContent: self._verify,
        }

    @property
    def used(self) -> int:
        staged = sum(len(stage) for stage in self.stages.values())
        return staged + sum(len(data) for data, _ in self.contents.values())

    def crash(self) -> None:
        self.stages.clear()

    def empty(self) -> None:
        self.contents.clear()
        self.stages.clear()
        self.marker = b""

    def rot(self, object_id: bytes) -> int:
        """Corrupt a byte of every content of an object; returns the number of contents."""
        keys = [key for key in self.contents if key[0] == object_id and len(self.contents[key][0])]
        for key in keys:
            self.contents[key][0][0] ^= 0xFF
        return len(keys)

    def run(self, job: Any) -> DiskDone:
        return self._jobs[type(job)](job)

    def _open(self, job: ports.OpenStage) -> DiskDone:
        if self.used + max(job.size, 0) > self.capacity:
            return DiskDone(job.token, "full", "no space left")
        self.stages[job.write] = bytearray()
        return DiskDone(job.token)

    def _write(self, job: ports.WriteChunk) -> DiskDone:
        stage = self.stages.get(job.write)
        if stage is None:
            return DiskDone(job.token, "missing", "no stage")
        if self.used + len(job.data) > self.capacity:
            return DiskDone(job.token, "full", "no space left")
        at = job.index * CHUNK
        stage[at : at + len(job.data)] = job.data
        return DiskDone(job.token)

    def _close(self, job: ports.CloseStage) -> DiskDone:
        stage = self.stages.pop(job.write, None)
        if stage is None:
            return DiskDone(job.token, "missing", "no stage")
        self.contents[job.object, job.content.digest] = (stage, job.chunks)
        return DiskDone(job.token)

    def _patch(self, job: ports.PatchStage) -> DiskDone:
        found = self.contents.get((job.object, job.base.digest))
        if found is None:
            return DiskDone(job.token, "missing", "the base is not here")
        if content_of(found[0])[0] != job.base:
            return DiskDone(job.token, "damaged", "the base is damaged")
        data = found[0][: job.size].ljust(job.size, b"\0")
        for offset, edit in job.edits:
            data[offset : offset + len(edit)] = edit
        if self.used + len(data) > self.capacity:
            return DiskDone(job.token, "full", "no space left")
        self.stages[job.write] = data
        return DiskDone(job.token, data=content_of(data)[1], size=len(data))

    def _drop_stage(self, job: ports.DropStage) -> DiskDone:
        self.stages.pop(job.write, None)
        return DiskDone(job.token)

    def _read(self, job: ports.ReadChunk) -> DiskDone:
        found = self.contents.get((job.object, job.content.digest))
        if found is None:
            return DiskDone(job.token, "missing", "no such content")
        at = job.index * CHUNK
        size = min(CHUNK, job.content.size - at)
        data = bytes(found[0][at : at + size])
        if len(data) < size:
            return DiskDone(job.token, "damaged", "the file is too short")
        return DiskDone(job.token, data=data)

    def _list(self, job: ports.ReadList) -> DiskDone:
        found = self.contents.get((job.object, job.content.digest))
        if found is None:
            return DiskDone(job.token, "missing", "no such content")
        return DiskDone(job.token, data=found[1])

    def _drop(self, job: ports.DropContent) -> DiskDone:
        self.contents.pop((job.object, job.digest), None)
        return DiskDone(job.token)

    def _verify(self, job: ports.VerifyContent) -> DiskDone:
        found = self.contents.get((job.object, job.content.digest))
        if found is None:
            return DiskDone(job.token, "missing", "no such content")
        data, chunks = found
        good = all(
            chunk_digest(data[k * CHUNK : (k + 1) * CHUNK]) == chunks[k * ID : (k + 1) * ID]
            for k in range(job.content.chunks)
        )
        if not good or content_digest(len(data), chunks) != job.content.digest:
            return DiskDone(job.token, "damaged", "the bytes do not match their digest")
        return DiskDone(job.token)
