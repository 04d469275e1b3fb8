"""The content of replicas on disk.

    objects/disk                     the id of this disk
    objects/staging/<write>          content that is arriving; removed at every start
    objects/<xx>/<object>-<digest>   content, followed by the digests of its chunks

A content is synced, renamed to its place, and the directory is synced, before it is reported. Everything that waits is
done in one pass: the directories of several contents are synced together. One thread does the work in order. A second
one verifies and patches whole contents, because a large one would delay all chunks of other writes.
"""

from __future__ import annotations

import errno
import logging
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
SLOW: Final = (ports.PatchStage, ports.VerifyContent)
"""Jobs that read a whole content."""
Job = Any
log = logging.getLogger("holdfast")


class StageFile:
    """A stage that is open, and how many bytes of it have their space."""

    __slots__ = ("handle", "reserved")

    def __init__(self, handle: int, reserved: int) -> None:
        self.handle = handle
        self.reserved = reserved


class ContentFiles:
    def __init__(self, folder: Path, reserve_bytes: int, answer: Callable[[Any], None]) -> None:
        """`answer` is called on the thread with inputs for the objects unit."""
        self._folder = folder
        self._reserve = reserve_bytes
        self._answer = answer
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._slow_jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._stages: dict[bytes, StageFile] = {}
        self._open: dict[tuple[bytes, bytes], int] = {}
        self._answers: list[DiskDone] = []
        self._renamed: list[tuple[int, Path]] = []
        """Contents that are at their place, in a directory that is not synced yet, by the token of their job."""
        self._unusable = ""
        """Why this disk is not used."""
        self.marker = b""
        """The id of the disk; empty for a new one."""
        self.is_ready = False
        """Whether the id has been read."""
        self._prepared = threading.Event()
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
        self._threads = [
            threading.Thread(target=run, name="holdfast-objects", daemon=True)
            for run in (self._run, self._run_slow)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job) -> None:
        """Called on the event loop. The machine bounds what waits: windows of chunks, stages, fetches."""
        (self._slow_jobs if isinstance(job, SLOW) else self._jobs).put(job)

    def free_bytes(self) -> int:
        """Space for new content; called on any thread."""
        if self._unusable:
            return 0
        try:
            # At the very start the thread has not made the folder yet.
            found = os.statvfs(self._folder if self._folder.is_dir() else self._folder.parent)
        except OSError:
            return 0
        return max(found.f_bavail * found.f_frsize - self._reserve, 0)

    def close(self) -> None:
        self._jobs.put(None)
        self._slow_jobs.put(None)
        for thread in self._threads:
            thread.join(10)

    # -- on the threads ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self.marker = self._prepare()
            self.is_ready = True
            self._answer(ports.DiskReady(self.marker))
        except (OSError, ValueError) as error:
            # Without its id this may look like an emptied disk, and all replicas here would be given up.
            self._give_up(f"cannot be read: {error}")
        finally:
            self._prepared.set()
        while True:
            jobs = self._take()
            for job in jobs:
                if job is not None:
                    self._do(job)
            self._report()
            if None in jobs:
                break
        for handle in (*(stage.handle for stage in self._stages.values()), *self._open.values()):
            os.close(handle)

    def _run_slow(self) -> None:
        self._prepared.wait()  # until it is known whether this disk is used
        while (job := self._slow_jobs.get()) is not None:
            self._answer(self._done(job))

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

    def _give_up(self, why: str) -> None:
        self._unusable = why
        log.error(
            "the directory of objects %s %s; this node holds no replicas until it is restarted. Nothing was deleted",
            self._folder,
            why,
            extra=_fields("directory_unusable"),
        )

    def _do(self, job: Job) -> None:
        if isinstance(job, ports.StampDisk):
            try:
                self._stamp(job)
            except OSError as error:
                self._give_up(f"cannot be written: {error}")
            return
        done = self._done(job)
        if done.token:
            self._answers.append(done)

    def _done(self, job: Job) -> DiskDone:
        """Do one job. An exception is its outcome, and the thread goes on."""
        if self._unusable:
            return DiskDone(job.token, "error", self._unusable)
        try:
            done = self._handlers[type(job)](job)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            reason = "full" if full else "missing" if error.errno == errno.ENOENT else "error"
            done = DiskDone(job.token, reason, str(error))
        except Exception as error:
            log.exception(
                "disk work of objects failed: %s",
                type(job).__name__,
                extra=_fields("disk_work_failed"),
            )
            done = DiskDone(job.token, "error", repr(error))
        if done.reason and isinstance(job, ports.OpenStage | ports.CloseStage | ports.PatchStage):
            self._discard(job.write)
        return done

    def _report(self) -> None:
        """Directories are synced before anything that was renamed in them is reported."""
        failed: dict[int, str] = {}
        for directory in dict.fromkeys(directory for _, directory in self._renamed):
            try:
                sync_directory(directory)
            except OSError as error:
                failed |= {
                    token: str(error) for token, where in self._renamed if where == directory
                }
        self._renamed.clear()
        answers, self._answers = self._answers, []
        for done in answers:
            why = failed.get(done.token)
            self._answer(done if why is None else DiskDone(done.token, "error", why))

    def _stamp(self, job: ports.StampDisk) -> None:
        """A new disk: what is here belongs to replicas that do not exist any more."""
        for found in self._folder.glob("??/*"):
            found.unlink()
        temporary = self._folder / "disk.new"
        with temporary.open("w") as out:
            out.write(job.disk.hex())
            out.flush()
            os.fsync(out.fileno())
        place(temporary, self._folder / "disk")
        self.marker = job.disk

    def _path(self, object_id: bytes, digest: bytes) -> Path:
        return self._folder / object_id[:1].hex() / f"{object_id.hex()}-{digest.hex()}"

    def _stage_path(self, write: bytes) -> Path:
        return self._folder / "staging" / write.hex()

    # -- stages --------------------------------------------------------------------------------------------------

    def _open_stage(self, job: ports.OpenStage) -> DiskDone:
        if job.size > 0 and job.size > (free := self.free_bytes()):
            return DiskDone(job.token, "full", f"{free} bytes are free, {job.size} are needed")
        self._discard(job.write)
        handle = os.open(self._stage_path(job.write), os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o600)
        self._stages[job.write] = StageFile(handle, max(job.size, 0))
        if job.size >= RESERVED_FROM:
            os.posix_fallocate(handle, 0, job.size)
        return DiskDone(job.token)

    def _write(self, job: ports.WriteChunk) -> DiskDone:
        stage = self._stages.get(job.write)
        if stage is None:
            return DiskDone(job.token, "missing", "the stage is gone")
        at, size = job.index * CHUNK, len(job.data)
        if at + size > stage.reserved and size > (free := self.free_bytes()):
            return DiskDone(job.token, "full", f"{free} bytes are free, {size} are needed")
        _put(stage.handle, job.data, at)
        return DiskDone(job.token)

    def _close(self, job: ports.CloseStage) -> DiskDone:
        stage = self._stages.get(job.write)
        if stage is None:
            return DiskDone(job.token, "missing", "the stage is gone")
        _put(stage.handle, job.chunks, job.content.size)
        os.ftruncate(stage.handle, job.content.size + len(job.chunks))
        os.fdatasync(stage.handle)
        final = self._path(job.object, job.content.digest)
        if not final.parent.is_dir():
            make_directory(final.parent)
        self._stage_path(job.write).replace(final)
        del self._stages[job.write]
        os.close(stage.handle)
        self._renamed.append((job.token, final.parent))
        return DiskDone(job.token)

    def _patch(self, job: ports.PatchStage) -> DiskDone:
        """New content from a verified base."""
        source = os.open(self._path(job.object, job.base.digest), os.O_RDONLY)
        try:
            if _wrong(source, job.base):
                return DiskDone(job.token, "damaged", "the base content is not usable")
            opened = self._open_stage(
                ports.OpenStage(token=job.token, write=job.write, size=job.size)
            )
            if opened.reason:
                return opened
            handle = self._stages[job.write].handle
            left, at = min(job.base.size, job.size), 0
            while left > 0:
                piece = os.pread(source, min(left, 4 * CHUNK), at)
                _put(handle, piece, at)
                at, left = at + len(piece), left - len(piece)
        finally:
            os.close(source)
        os.ftruncate(handle, job.size)
        for offset, data in job.edits:
            _put(handle, data, offset)
        chunks = b"".join(
            chunk_digest(os.pread(handle, min(CHUNK, job.size - first), first))
            for first in range(0, job.size, CHUNK)
        )
        return DiskDone(job.token, data=chunks, size=job.size)

    def _drop_stage(self, job: ports.DropStage) -> DiskDone:
        self._discard(job.write)
        return DiskDone(job.token)

    def _discard(self, write: bytes) -> None:
        """A stage that is not used any more must not keep its space."""
        stage = self._stages.pop(write, None)
        if stage is not None:
            os.close(stage.handle)
            self._stage_path(write).unlink(missing_ok=True)

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
        handle = self._handle(job.object, job.content.digest)
        return DiskDone(job.token, data=_chunk_list(handle, job.content))

    def _drop(self, job: ports.DropContent) -> DiskDone:
        handle = self._open.pop((job.object, job.digest), None)
        if handle is not None:
            os.close(handle)
        self._path(job.object, job.digest).unlink(missing_ok=True)
        return DiskDone(job.token)

    def _verify(self, job: ports.VerifyContent) -> DiskDone:
        handle = os.open(self._path(job.object, job.content.digest), os.O_RDONLY)
        try:
            if _wrong(handle, job.content):
                return DiskDone(job.token, "damaged", "the bytes do not match their digest")
        finally:
            os.close(handle)
        return DiskDone(job.token)


def _put(handle: int, data: bytes | memoryview, at: int) -> None:
    """Write everything: the system may take a part of it."""
    view = memoryview(data)
    while view:
        count = os.pwrite(handle, view, at)
        at, view = at + count, view[count:]


def _chunk_list(handle: int, content: Content) -> bytes:
    return os.pread(handle, content.chunks * ID, content.size)


def _wrong(handle: int, content: Content) -> bool:
    """Whether the content of a file is not what it should be."""
    chunks = _chunk_list(handle, content)
    if content_digest(content.size, chunks) != content.digest:
        return True
    for index in range(content.chunks):
        data = os.pread(handle, min(CHUNK, content.size - index * CHUNK), index * CHUNK)
        if chunk_digest(data) != chunks[index * ID : (index + 1) * ID]:
            return True
    return False


def _fields(event: str) -> dict[str, str]:
    return {"event": event, "subsystem": "objects"}
