"""The embedded store: one SQLite file, write-ahead log, full sync, used by a single process.

`commit` is one transaction and one disk sync, however many writes it has. The lock is SQLite's lock on the file, held
from open to close. The operating system releases it when the process ends.

SQLite checks the structure of its file, not its contents. Each value therefore has a checksum over its table, its key
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
"""Version 1 had no checksums."""
CHECK_BYTES: Final = 8
"""Size of the checksum behind each value."""
APPLICATION_ID: Final = 0x486F6C64
"""`Hold`, in the file header: identifies our files."""
PAGE_BYTES: Final = 16384
"""A row of more than a quarter of a page takes its own page: with the SQLite default of 4096, every message of 1000
bytes."""
LOCK_WAIT_S: Final = 0.2
"""How long an opener waits for another one: if two start together, one must succeed."""

_PUT = "INSERT OR REPLACE INTO kv VALUES (?, ?, ?)"
_ERASE = "DELETE FROM kv WHERE tbl = ? AND key >= ? AND key < ?"
_LOAD_ALL = "SELECT key, value FROM kv WHERE tbl = ? ORDER BY key LIMIT ?"
"""Also finds a key of a wrong type, which sorts below every range."""
_LOAD = "SELECT key, value FROM kv WHERE tbl = ? AND key >= ? ORDER BY key LIMIT ?"
_LOAD_UPTO = "SELECT key, value FROM kv WHERE tbl = ? AND key >= ? AND key < ? ORDER BY key LIMIT ?"
_TABLE = """CREATE TABLE kv (tbl TEXT NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL,
            PRIMARY KEY (tbl, key)) WITHOUT ROWID"""


class SqliteStore:
    """The `Store` in `directory/node.sqlite`. Any thread may call it, one at a time."""

    def __init__(self, directory: Path, max_bytes: int | None = None) -> None:
        """Open or create the file. `max_bytes` limits it: beyond it, commits fail with `StoreFull`."""
        self.path = directory / FILE
        self._failure: StoreError | None = None
        self._closed = False
        whole = self.path.absolute()
        self._names = (whole, whole.with_name(f"{FILE}-wal"))
        self._opened: tuple[tuple[int, int] | None, ...] = ()
        """The files that existed when the store was opened."""
        try:
            make_directory(directory, private=True)  # rows contain messages of applications
        except OSError as error:
            raise StoreError(
                f"store {self.path}: cannot create its directory ({error.strerror}); nothing was "
                "changed; give the node a writable data directory"
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
                f"store {self.path}: its directory cannot be synced ({error.strerror}); nothing was "
                "started; check the disk and the permissions of the directory"
            ) from error
        except StoreError:
            self._db.close()
            raise

    def load(
        self, table: str, first: bytes = b"", stop: bytes = b"", limit: int = 0
    ) -> list[tuple[bytes, bytes]]:
        self._check_open()
        most = limit or -1  # SQLite interprets that as no limit
        try:
            if not first and not stop:
                rows = self._db.execute(_LOAD_ALL, (table, most)).fetchall()
            elif stop:
                rows = self._db.execute(_LOAD_UPTO, (table, first, stop, most)).fetchall()
            else:
                rows = self._db.execute(_LOAD, (table, first, most)).fetchall()
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
            # After the commit: what is reported as durable was in the directory when it was written.
            self._check_there()
        except sqlite3.Error as error:
            self._failure = explain(error, self.path)
            self._roll_back()
            raise self._failure from error
        except StoreError as error:
            self._failure = error
            raise
        except BaseException as error:
            self._failure = StoreError(f"store {self.path}: a commit was interrupted ({error!r})")
            self._roll_back()
            raise

    def close(self) -> None:
        """Release the file. Committed data is durable already; closing again does nothing."""
        self._closed = True
        # Nothing is lost if the last checkpoint fails: the log is replayed at the next start.
        with contextlib.suppress(sqlite3.Error):
            self._db.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"store {self.path} is closed; nothing was done")

    def _check_there(self) -> None:
        """The system allows writes to deleted files, whose contents would never be found again."""
        if self._files() != self._opened:
            raise StoreError(
                f"store {self.path} was removed, moved or replaced while it was in use: writes since "
                "then cannot be found, and this commit is not durable; restore the directory, or "
                "start the node with an empty one, and do not modify the directory while a node runs"
            )

    def _files(self) -> tuple[tuple[int, int] | None, ...]:
        """The files that exist now under our names."""
        return tuple(map(_identity, self._names))

    def _checked(self, table: str, key: object, value: object) -> tuple[bytes, bytes]:
        """The row without its checksum."""
        if isinstance(key, bytes) and isinstance(value, bytes):
            value, check = value[:-CHECK_BYTES], value[-CHECK_BYTES:]
            if check == _checksum(table, key, value):
                return key, value
        name = key.hex() if isinstance(key, bytes) else repr(key)
        found = f"a row of table {table} has a wrong checksum, key {name}"
        raise StoreDamaged(_damaged(self.path, found))

    def _roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    # -- opening -------------------------------------------------------------------------------------------------

    def _open(self, max_bytes: int | None) -> None:
        db = self._db
        db.execute(f"PRAGMA page_size = {PAGE_BYTES}")  # effective for a new file only
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        # Takes the lock before anything is read. With BEGIN EXCLUSIVE one of two openers wins; reading first would not
        # ensure that.
        db.execute("BEGIN EXCLUSIVE")
        application_id = self._number("PRAGMA application_id")
        version = self._number("PRAGMA user_version")
        tables = self._number("SELECT count(*) FROM sqlite_master")
        db.execute("ROLLBACK")
        # A file left empty by a crash between its creation and the first commit is ours.
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
                f"store {self.path} is an SQLite file of another program; it was not changed; give "
                "the node another data directory, or move the file away"
            )
        if version < SCHEMA:
            raise StoreError(
                f"store {self.path} was written by an earlier version of Holdfast (schema {version}, "
                f"this one needs {SCHEMA}); it was not changed; run the earlier version, or move the "
                "file away and start the node with an empty store"
            )
        if version > SCHEMA:
            raise StoreError(
                f"store {self.path} was written by a newer version of Holdfast (schema {version}, "
                f"this one supports up to {SCHEMA}); it was not changed; run the newer version, or "
                "give this node another data directory"
            )

    def _damage(self) -> str | None:
        """The errors found by SQLite's integrity check. It reads the file once, as loading does."""
        try:
            row = self._db.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.DatabaseError as error:
            return str(error)
        return None if row == ("ok",) else str(row[0])

    def _number(self, question: str) -> int:
        return int(self._db.execute(question).fetchone()[0])


def _identity(path: Path) -> tuple[int, int] | None:
    """The file with this name; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _checksum(table: str, key: bytes, value: bytes) -> bytes:
    """Checksum of a row. It includes the place, so a row in the wrong place is damaged too."""
    return xxh3_64_digest(value, xxh3_64_intdigest(key, xxh3_64_intdigest(table.encode())))


def _sealed(rows: Iterable[tuple[str, bytes, bytes]]) -> Iterator[tuple[str, bytes, bytes]]:
    for table, key, value in rows:
        yield table, key, b"".join((value, _checksum(table, key, value)))  # values may be views


_STATEMENTS: Final[dict[type[Write], str]] = {Put: _PUT, Erase: _ERASE}


def explain(
    error: sqlite3.Error, path: Path, when_full: str = "free some disk space and restart the node"
) -> StoreError:
    """Translate an SQLite error: what failed, what took effect, what to do."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in _LOCKED:
        return StoreLocked(
            f"store {path} is in use by another process; nothing was changed; stop that process "
            f"(`fuser {path}` shows it), or give this node its own data directory"
        )
    if code == sqlite3.SQLITE_FULL:
        return StoreFull(
            f"store {path}: no space left ({error}): this commit was not made, everything "
            f"reported before it is safe; {when_full}"
        )
    if code in _BROKEN:
        return StoreDamaged(_damaged(path, str(error)))
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    return StoreError(
        f"store {path} failed: {error} ({name}); everything reported before is safe, the "
        "failed write may or may not be stored; check the disk and the permissions of the "
        "directory"
    )


def _damaged(path: Path, found: str) -> str:
    return (
        f"store {path} is damaged or not a store ({found}); it was not changed; check the "
        "disk, move the file away and start the node with an empty store, or restore a copy"
    )


_LOCKED: Final = frozenset((sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED))
_BROKEN: Final = frozenset((sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB))
