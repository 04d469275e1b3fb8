"""The embedded store: one SQLite file, write-ahead log, full sync, used by one process alone.

`commit` is one transaction and one disk sync, however many writes it has. The lock is SQLite's own lock on the file,
held from opening to closing: the operating system frees it when the process ends, in whatever way it ends.

SQLite checks the form of its file, not what is in it. So each value has a checksum behind it, over its table, its key
and itself: a row that a disk changed is refused when it is read.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from msgspec.structs import astuple
from xxhash import xxh3_64_digest, xxh3_64_intdigest

from holdfast.errors import StoreDamaged, StoreError, StoreFull, StoreLocked
from holdfast.machine import Erase, Put, Write
from holdfast.stores.failure import refuse_after
from holdfast.stores.files import make_directory, sync_directory

FILE: Final = "node.sqlite"
SCHEMA: Final = 2
"""1 had no checksums."""
CHECK_BYTES: Final = 8
"""Of the checksum behind each value."""
APPLICATION_ID: Final = 0x486F6C64
"""`Hold`, in the header of the file: tells our files from other people's."""
PAGE_BYTES: Final = 16384
"""A row of more than a quarter of a page takes a page of its own: with SQLite's 4096, each message of 1000 bytes."""
LOCK_WAIT_S: Final = 0.2
"""How long an opener waits for another one: two that start together must not both give up."""

_PUT = "INSERT OR REPLACE INTO kv VALUES (?, ?, ?)"
_ERASE = "DELETE FROM kv WHERE tbl = ? AND key >= ? AND key < ?"
_LOAD = "SELECT key, value FROM kv WHERE tbl = ? ORDER BY key"
_TABLE = """CREATE TABLE kv (tbl TEXT NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL,
            PRIMARY KEY (tbl, key)) WITHOUT ROWID"""


class SqliteStore:
    """The `Store` in `directory/node.sqlite`. Any thread may call it, one at a time."""

    def __init__(self, directory: Path, max_bytes: int | None = None) -> None:
        """Open the file, or make it. `max_bytes` bounds it: beyond, commits fail with `StoreFull`."""
        self.path = directory / FILE
        self._failure: StoreError | None = None
        self._closed = False
        whole = self.path.absolute()
        self._names = (whole, whole.with_name(f"{FILE}-wal"))
        self._opened: tuple[tuple[int, int] | None, ...] = ()
        """Which files were there when it was opened."""
        try:
            make_directory(directory)
        except OSError as error:
            raise StoreError(
                f"store {self.path}: cannot make its directory ({error.strerror}); nothing was changed; "
                "give the node a data directory that it may write to"
            ) from error
        try:
            self._db = sqlite3.connect(
                self.path, timeout=LOCK_WAIT_S, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise explain(error, self.path) from error
        try:
            self._open(max_bytes)
        except sqlite3.Error as error:
            self._db.close()
            raise explain(error, self.path) from error
        except OSError as error:
            self._db.close()
            raise StoreError(
                f"store {self.path}: its directory cannot be synced ({error.strerror}); nothing was started; check the "
                "disk and the rights on the directory"
            ) from error
        except StoreError:
            self._db.close()
            raise

    def load(self, table: str) -> list[tuple[bytes, bytes]]:
        self._check_open()
        try:
            rows = self._db.execute(_LOAD, (table,)).fetchall()
        except sqlite3.Error as error:
            raise explain(error, self.path) from error
        return [self._checked(table, key, value) for key, value in rows]

    def commit(self, writes: Sequence[Write]) -> None:
        self._check_open()
        refuse_after(self._failure)
        if not writes:
            return
        db = self._db
        try:
            db.execute("BEGIN IMMEDIATE")
            for kind, run in groupby(writes, type):
                rows = map(astuple, run)
                db.executemany(_STATEMENTS[kind], _sealed(rows) if kind is Put else rows)
            db.execute("COMMIT")
            # After it: what is reported as durable was in the directory when it was written.
            self._check_there()
        except sqlite3.Error as error:
            self._failure = explain(error, self.path)
            self._roll_back()
            raise self._failure from error
        except StoreError as error:
            self._failure = error
            raise
        except BaseException as error:
            self._failure = StoreError(f"store {self.path}: a commit was broken off ({error!r})")
            self._roll_back()
            raise

    def close(self) -> None:
        """Give the file free. What was committed is durable already; closing again does nothing."""
        self._closed = True
        # Nothing is lost when the last checkpoint fails: the log is replayed at the next start.
        with contextlib.suppress(sqlite3.Error):
            self._db.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"store {self.path} is closed; nothing was done")

    def _check_there(self) -> None:
        """The system lets us write on to files that were removed: nobody would ever find what is in them."""
        if self._files() != self._opened:
            raise StoreError(
                f"store {self.path} was removed, moved or replaced while it was in use: nobody can find what was "
                "written since, this commit is not durable; put the directory back, or let the node start empty, and "
                "leave the directory alone while a node runs"
            )

    def _files(self) -> tuple[tuple[int, int] | None, ...]:
        """Which files are there now under the names of ours."""
        return tuple(map(_identity, self._names))

    def _checked(self, table: str, key: object, value: object) -> tuple[bytes, bytes]:
        """The row without its checksum."""
        if isinstance(key, bytes) and isinstance(value, bytes):
            value, check = value[:-CHECK_BYTES], value[-CHECK_BYTES:]
            if check == _checksum(table, key, value):
                return key, value
        name = key.hex() if isinstance(key, bytes) else repr(key)
        found = f"a row of table {table} is not what was written, key {name}"
        raise StoreDamaged(_damaged(self.path, found))

    def _roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    # -- opening -------------------------------------------------------------------------------------------------

    def _open(self, max_bytes: int | None) -> None:
        db = self._db
        db.execute(f"PRAGMA page_size = {PAGE_BYTES}")  # Counts for a new file only.
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        # Takes the lock before anything is read. BEGIN EXCLUSIVE lets one of two openers win; reading first would not.
        db.execute("BEGIN EXCLUSIVE")
        application_id = self._number("PRAGMA application_id")
        version = self._number("PRAGMA user_version")
        tables = self._number("SELECT count(*) FROM sqlite_master")
        db.execute("ROLLBACK")
        # A file that a crash left between its creation and the first commit is empty, and ours.
        new = not (application_id or version or tables)
        if not new:
            self._check_ours(application_id, version)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        if new:
            self._make()
        elif found := self._damage():
            raise StoreDamaged(_damaged(self.path, found))
        if max_bytes is not None:
            pages = max(1, max_bytes // self._number("PRAGMA page_size"))
            db.execute(f"PRAGMA max_page_count = {pages}")
        self._opened = self._files()

    def _make(self) -> None:
        db = self._db
        db.execute("BEGIN EXCLUSIVE")
        db.execute(_TABLE)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {SCHEMA}")
        db.execute("COMMIT")
        sync_directory(self.path.parent)

    def _check_ours(self, application_id: int, version: int) -> None:
        if application_id != APPLICATION_ID:
            raise StoreDamaged(
                f"store {self.path} is an SQLite file of another program; it was not changed; "
                "give the node another data directory, or move that file away"
            )
        if version < SCHEMA:
            raise StoreError(
                f"store {self.path} was written by an earlier Holdfast (schema {version}, this one needs {SCHEMA}); "
                "it was not changed; run the earlier version, or move the file away and let the node start empty"
            )
        if version > SCHEMA:
            raise StoreError(
                f"store {self.path} was written by a newer Holdfast (schema {version}, this one knows up to {SCHEMA}); "
                "it was not changed; run the newer version, or give this node another data directory"
            )

    def _damage(self) -> str | None:
        """What SQLite's own check finds wrong. It reads the file once; loading does so as well."""
        try:
            row = self._db.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.DatabaseError as error:
            return str(error)
        return None if row == ("ok",) else str(row[0])

    def _number(self, question: str) -> int:
        return int(self._db.execute(question).fetchone()[0])


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file has the name; None when there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _checksum(table: str, key: bytes, value: bytes) -> bytes:
    """Of a row. Its place is part of it: a row in the place of another one is damaged too."""
    return xxh3_64_digest(value, xxh3_64_intdigest(key, xxh3_64_intdigest(table.encode())))


def _sealed(rows: Iterable[tuple[str, bytes, bytes]]) -> Iterator[tuple[str, bytes, bytes]]:
    for table, key, value in rows:
        yield table, key, b"".join((value, _checksum(table, key, value)))  # Values may be views.


_STATEMENTS: Final[dict[type[Write], str]] = {Put: _PUT, Erase: _ERASE}


def explain(error: sqlite3.Error, path: Path) -> StoreError:
    """SQLite's error as ours: whose fault, what took effect, what to do."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in _LOCKED:
        return StoreLocked(
            f"store {path} is in use by another process; nothing was changed; stop that process "
            f"(`fuser {path}` names it), or give this node a data directory of its own"
        )
    if code == sqlite3.SQLITE_FULL:
        return StoreFull(
            f"store {path}: no room ({error}): this commit was not made, everything reported before it is safe; "
            "free some disk space and start the node again"
        )
    if code in _BROKEN:
        return StoreDamaged(_damaged(path, str(error)))
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    return StoreError(
        f"store {path} failed: {error} ({name}); everything reported before is safe, the write that failed may be "
        "there or not after a restart; check the disk and the rights on the directory"
    )


def _damaged(path: Path, found: str) -> str:
    return (
        f"store {path} is damaged or no store ({found}); it was not changed; check the disk, move the file away and "
        "let the node start empty, or restore a copy"
    )


_LOCKED: Final = frozenset((sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED))
_BROKEN: Final = frozenset((sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB))
