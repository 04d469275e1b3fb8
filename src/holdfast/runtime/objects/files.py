"""The content of replicas on disk, in one thread.

    objects/disk                     the id of this disk
    objects/staging/<write>          content that is arriving; removed at every start
    objects/<xx>/<object>-<digest>   content, followed by the digests of its chunks

A content is synced, renamed to its place, and the directory is synced, before it is reported. Everything that waits is
done in one pass: the directories of several contents are synced together.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final

from holdfast.objects import ports
from holdfast.objects.ports import DiskDone
from holdfast.objects.values import CHUNK, ID, Content, chunk_digest, content_digest
from holdfast.stores.files import make_directory, place, sync_directory

OPEN_MAX: Final = 64
"""Contents that are kept open for readers; the least recently used one is closed."""
RESERVED_FROM: Final = 1 << 20
"""Content of at least this size gets its space before the first chunk is accepted."""
Job = Any


class ContentFiles:
    def __init__(self, folder: Path, reserve_bytes: int, answer: Callable[[Any], None]) -> None:
        """`answer` is called on the thread with inputs for the objects unit."""
        self._folder = folder
        self._reserve = reserve_bytes
        self._answer = answer
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._stages: dict[bytes, int] = {}
        self._open: dict[tuple[bytes, bytes], int] = {}
        self._answers: list[DiskDone] = []
        self._unsynced: dict[Path, None] = {}
        self.marker = b""
        """The id of the disk, once it is known."""
        self._handlers: dict[type, Callable[[Any], DiskDone]] = {
            ports.OpenStage: self._open_stage,
            ports.WriteChunk: self._write,
            ports.CloseStage: self._close,
            ports.PatchStage: self._patch,
            ports.DropStage: self._drop_stage,
            ports.ReadChunk: self._read,
            ports.ReadList: self._list,
            ports.DropContent: self._drop,
            ports.VerifyContent: self._verify,
        }
        self._thread = threading.Thread(target=self._run, name="holdfast-objects", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Called on the event loop. The machine bounds what waits: windows of chunks, stages, fetches."""
        self._jobs.put(job)

    def free_bytes(self) -> int:
        """Space for new content; called on any thread."""
        try:
            # At the very start the thread has not made the folder yet.
            found = os.statvfs(self._folder if self._folder.is_dir() else self._folder.parent)
        except OSError:
            return 0
        return max(found.f_bavail * found.f_frsize - self._reserve, 0)

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join(10)

    # -- on the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self.marker = self._prepare()
            self._answer(ports.DiskReady(self.marker))
        except OSError as error:
            self._answer(ports.DiskReady(b""))
            self._reserve = 1 << 62
            self._answers.append(DiskDone(0, "error", str(error)))
        while True:
            jobs = self._take()
            for job in jobs:
                if job is not None:
                    self._do(job)
            self._report()
            if None in jobs:
                break
        for handle in (*self._stages.values(), *self._open.values()):
            os.close(handle)

    def _take(self) -> list[Job | None]:
        jobs = [self._jobs.get()]
        with suppress(Empty):
            while len(jobs) < 1024:
                jobs.append(self._jobs.get_nowait())
        return jobs

    def _prepare(self) -> bytes:
        """Open the directory, and remove what an earlier process left unfinished. Returns the id of the disk."""
        make_directory(self._folder / "staging")
        for left in (self._folder / "staging").iterdir():
            left.unlink()
        marker = self._folder / "disk"
        return bytes.fromhex(marker.read_text().strip()) if marker.exists() else b""

    def _do(self, job: Job) -> None:
        if isinstance(job, ports.StampDisk):
            self._stamp(job)
            return
        try:
            done = self._handlers[type(job)](job)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            reason = "full" if full else "missing" if error.errno == errno.ENOENT else "error"
            done = DiskDone(job.token, reason, str(error))
        if done.token:
            self._answers.append(done)

    def _report(self) -> None:
        """Directories are synced before anything that was renamed in them is reported."""
        for directory in self._unsynced:
            sync_directory(directory)
        self._unsynced.clear()
        answers, self._answers = self._answers, []
        for done in answers:
            self._answer(done)

    def _stamp(self, job: ports.StampDisk) -> None:
        """A new disk: what is here belongs to replicas that do not exist any more."""
        for found in self._folder.glob("??/*"):
            found.unlink()
        temporary = self._folder / "disk.new"
        temporary.write_text(job.disk.hex())
        place(temporary, self._folder / "disk")
        self.marker = job.disk

    def _path(self, object_id: bytes, digest: bytes) -> Path:
        return self._folder / object_id[:1].hex() / f"{object_id.hex()}-{digest.hex()}"

    def _stage_path(self, write: bytes) -> Path:
        return self._folder / "staging" / write.hex()

    # -- stages --------------------------------------------------------------------------------------------------

    def _open_stage(self, job: ports.OpenStage) -> DiskDone:
        if job.size > 0 and job.size > self.free_bytes():
            return DiskDone(
                job.token, "full", f"{self.free_bytes()} bytes are free, {job.size} are needed"
            )
        old = self._stages.pop(job.write, None)
        if old is not None:
            os.close(old)
        handle = os.open(self._stage_path(job.write), os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o600)
        self._stages[job.write] = handle
        if job.size >= RESERVED_FROM:
            os.posix_fallocate(handle, 0, job.size)
        return DiskDone(job.token)

    def _write(self, job: ports.WriteChunk) -> DiskDone:
        handle = self._stages.get(job.write)
        if handle is None:
            return DiskDone(job.token, "missing", "the stage is gone")
        at, view = job.index * CHUNK, memoryview(job.data)
        while view:
            count = os.pwrite(handle, view, at)
            at, view = at + count, view[count:]
        return DiskDone(job.token)

    def _close(self, job: ports.CloseStage) -> DiskDone:
        handle = self._stages.pop(job.write, None)
        if handle is None:
            return DiskDone(job.token, "missing", "the stage is gone")
        try:
            os.pwrite(handle, job.chunks, job.content.size)
            os.ftruncate(handle, job.content.size + len(job.chunks))
            os.fdatasync(handle)
        finally:
            os.close(handle)
        final = self._path(job.object, job.content.digest)
        if not final.parent.is_dir():
            make_directory(final.parent)
        self._stage_path(job.write).replace(final)
        self._unsynced[final.parent] = None
        return DiskDone(job.token)

    def _patch(self, job: ports.PatchStage) -> DiskDone:
        """New content from a verified base."""
        base = self._verified(job.object, job.base)
        if base:
            return DiskDone(job.token, base, "the base content is not usable")
        source = self._handle(job.object, job.base.digest)
        self._open_stage(ports.OpenStage(write=job.write, size=job.size))
        handle = self._stages[job.write]
        left, at = min(job.base.size, job.size), 0
        while left > 0:
            piece = os.pread(source, min(left, 4 * CHUNK), at)
            os.pwrite(handle, piece, at)
            at, left = at + len(piece), left - len(piece)
        os.ftruncate(handle, job.size)
        for offset, data in job.edits:
            os.pwrite(handle, data, offset)
        chunks = b"".join(
            chunk_digest(os.pread(handle, min(CHUNK, job.size - first), first))
            for first in range(0, job.size, CHUNK)
        )
        return DiskDone(job.token, data=chunks, size=job.size)

    def _drop_stage(self, job: ports.DropStage) -> DiskDone:
        handle = self._stages.pop(job.write, None)
        if handle is not None:
            os.close(handle)
        self._stage_path(job.write).unlink(missing_ok=True)
        return DiskDone(job.token)

    # -- contents ------------------------------------------------------------------------------------------------

    def _handle(self, object_id: bytes, digest: bytes) -> int:
        key = (object_id, digest)
        handle = self._open.pop(key, None)
        if handle is None:
            handle = os.open(self._path(object_id, digest), os.O_RDONLY)
        self._open[key] = handle
        if len(self._open) > OPEN_MAX:
            os.close(self._open.pop(next(iter(self._open))))
        return handle

    def _read(self, job: ports.ReadChunk) -> DiskDone:
        handle = self._handle(job.object, job.content.digest)
        size = min(CHUNK, job.content.size - job.index * CHUNK)
        data = os.pread(handle, size, job.index * CHUNK)
        if len(data) < size:
            return DiskDone(job.token, "damaged", "the file is too short")
        return DiskDone(job.token, data=data)

    def _list(self, job: ports.ReadList) -> DiskDone:
        return DiskDone(job.token, data=self._chunks(job.object, job.content))

    def _chunks(self, object_id: bytes, content: Content) -> bytes:
        return os.pread(self._handle(object_id, content.digest), content.chunks * ID, content.size)

    def _drop(self, job: ports.DropContent) -> DiskDone:
        handle = self._open.pop((job.object, job.digest), None)
        if handle is not None:
            os.close(handle)
        self._path(job.object, job.digest).unlink(missing_ok=True)
        return DiskDone(job.token)

    def _verify(self, job: ports.VerifyContent) -> DiskDone:
        reason = self._verified(job.object, job.content)
        return DiskDone(job.token, reason, "the bytes do not match their digest" if reason else "")

    def _verified(self, object_id: bytes, content: Content) -> str:
        """Empty, or why the content on the disk is not what it should be."""
        chunks = self._chunks(object_id, content)
        if content_digest(content.size, chunks) != content.digest:
            return "damaged"
        handle = self._handle(object_id, content.digest)
        for index in range(content.chunks):
            size = min(CHUNK, content.size - index * CHUNK)
            data = os.pread(handle, size, index * CHUNK)
            if chunk_digest(data) != chunks[index * ID : (index + 1) * ID]:
                return "damaged"
        return ""
