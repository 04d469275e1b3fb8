"""Files on this machine, or on a file system that is mounted on it."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from stat import S_ISREG

from holdfast.pipeline.storage.port import AlreadyThere, Missing, Stat, to_path, to_uri


class LocalStore:
    """`Store` over the operating system.

    A new file is written under a temporary name and linked to its final name: exclusive and whole in one step. With
    `links` off, or on a file system without hard links, the file is created exclusively and then filled.
    """

    def __init__(self, links: bool = True) -> None:
        self._links = links

    def files(self, uri: str) -> Iterator[Stat]:
        for folder, _, names in sorted(os.walk(to_path(uri))):
            for name in sorted(names):
                path = Path(folder, name)
                with contextlib.suppress(FileNotFoundError):  # A node has made room in this moment.
                    status = path.stat()
                    if not S_ISREG(status.st_mode):
                        continue  # Opening a pipe would wait for its writer.
                    yield Stat(to_uri(path), status.st_size, status.st_mtime_ns // 1_000_000)

    def folders(self, uri: str) -> list[str]:
        try:
            return sorted(entry.name for entry in os.scandir(to_path(uri)) if entry.is_dir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read(self, uri: str) -> bytes:
        try:
            return to_path(uri).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise Missing(uri) from None

    def create(self, uri: str, content: bytes) -> None:
        path = to_path(uri)
        path.parent.mkdir(parents=True, exist_ok=True)
        if self._links and self._link(path, content):
            return
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            raise AlreadyThere(uri) from None
        _fill(handle, content)
        _sync(path.parent)

    def replace(self, uri: str, content: bytes) -> None:
        path = to_path(uri)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not self._links:
            _fill(
                os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644), content
            )
            return
        with _draft(path, content) as draft:
            draft.replace(path)
        _sync(path.parent)

    def remove(self, uri: str) -> None:
        path = to_path(uri)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)

    def _link(self, path: Path, content: bytes) -> bool:
        """Whether the file system can link; raises `AlreadyThere`."""
        with _draft(path, content) as draft:
            try:
                os.link(draft, path)
            except FileExistsError:
                raise AlreadyThere(to_uri(path)) from None
            except OSError:
                return False
        _sync(path.parent)
        return True


@contextlib.contextmanager
def _draft(path: Path, content: bytes) -> Iterator[Path]:
    """A synced file with the content under a temporary name; gone afterwards."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.draft")
    try:
        _fill(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644), content)
        yield draft
    finally:
        draft.unlink(missing_ok=True)


def _fill(handle: int, content: bytes) -> None:
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
