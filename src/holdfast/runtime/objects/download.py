"""Reading an object into a file of this machine.

Content goes to a file beside the target, which is renamed when everything is verified. A read that can be resumed keeps
that file when it fails. Its name has the digest of the content, so a part of another version is not continued.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path

from holdfast.errors import HoldfastError, MisuseError
from holdfast.objects.values import CHUNK, chunk_digest, content_digest
from holdfast.runtime.objects.api import ObjectApi

Report = Callable[[int, int, str], object]


class Download:
    """One read into a file. With `resume`, it continues the partial file of an earlier read."""

    def __init__(self, objects: ObjectApi, path: str, file: Path, resume: bool) -> None:
        self._objects = objects
        self._path = path
        self._file = file
        self._resume = resume

    async def run(self, fresh: bool, report: Report) -> tuple[int, int]:
        """Returns the size and the edition."""
        digest = b""
        if self._resume:
            info = await self._objects.stat(self._path)
            digest = bytes.fromhex(
                info.digest
            )  # a loose object has none: it is read from its beginning
        name = f"{self._file.name}.{digest.hex()}.part" if digest else f"{self._file.name}.part"
        part = Part(self._file.with_name(name), digest)
        try:
            await asyncio.to_thread(part.open)
            try:
                edition = await self._read(part, fresh, report)
                await asyncio.to_thread(part.finish, self._file)
            except BaseException:
                await asyncio.to_thread(part.give_up)
                raise
        except OSError as error:
            why = error.strerror or str(error)
            raise MisuseError(f"{self._file} cannot be written: {why}; it is as it was") from error
        return part.size, edition

    async def _read(self, part: Part, fresh: bool, report: Report) -> int:
        first = len(part.chunks)
        async with self._objects.reading(
            self._path, fresh=fresh, first=first, digest=part.digest
        ) as reader:
            async for chunk in reader:
                await asyncio.to_thread(part.take, chunk)
                total = reader.value.content.size if reader.value is not None else -1
                report(part.size, total, self._path)
        return reader.edition


class Part:
    """The file that grows beside the target. Its methods are called on threads, because they wait for the disk: one
    that was cancelled may still run when the next one is called."""

    def __init__(self, path: Path, digest: bytes) -> None:
        self._path = path
        self._handle = -1
        self._lock = threading.Lock()
        self.digest = digest
        """Of the whole content; empty: it cannot be resumed."""
        self.size = 0
        self.chunks: list[bytes] = []
        """Digests of the chunks that are here, to verify the whole file: an earlier process wrote a part of it."""

    def open(self) -> None:
        with self._lock:
            self._handle = os.open(self._path, os.O_CREAT | os.O_RDWR, 0o666)
            try:
                self._claim()
                while self.digest and len(chunk := self._next_chunk()) == CHUNK:
                    self.chunks.append(chunk_digest(chunk))
                    self.size += CHUNK
                os.ftruncate(self._handle, self.size)
            except BaseException:
                self._close()
                raise

    def _claim(self) -> None:
        """One read at a time writes this file."""
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The read that had it may have renamed it just now.
            is_mine = os.path.samestat(os.fstat(self._handle), self._path.stat())
        except (BlockingIOError, FileNotFoundError):
            is_mine = False
        if not is_mine:
            raise MisuseError(f"another read is writing {self._path}; nothing was read")

    def _next_chunk(self) -> bytes:
        return os.pread(self._handle, CHUNK, self.size)

    def take(self, chunk: memoryview) -> None:
        """The next chunk, which is verified."""
        with self._lock:
            view = chunk
            while view:
                count = os.pwrite(self._handle, view, self.size)
                self.size, view = self.size + count, view[count:]
            if self.digest:
                self.chunks.append(chunk_digest(chunk))

    def finish(self, target: Path) -> None:
        with self._lock:
            if self.digest and content_digest(self.size, b"".join(self.chunks)) != self.digest:
                self._path.unlink(missing_ok=True)
                raise HoldfastError(
                    f"what an earlier read left in {self._path} was damaged; it was removed. Read again"
                )
            self._path.replace(target)
            self._close()

    def give_up(self) -> None:
        """Leave the file only to a read that resumes it."""
        with self._lock:
            if not self.digest and self._handle >= 0:
                self._path.unlink(missing_ok=True)
            self._close()

    def _close(self) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)
