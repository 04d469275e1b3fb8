"""The embedded store: one SQLite file for each transaction domain, write-ahead log, full sync.

The application's tables live in the same file, so that its statements, the messages it received and those it sends
commit together. Two connections share the file: one for the unit's batches, one for the application's transactions,
each used by one thread. A fair lock alternates them. A transaction that holds the lock for too long is rolled back.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from holdfast.dialog.records import ABORTED, BLOCK, COMMITTED, TABLES, TX
from holdfast.errors import (
    StoreDamaged,
    StoreError,
)
from holdfast.machine import Put, Write
from holdfast.stores.dialogs.fairlock import FairLock
from holdfast.stores.dialogs.memory import fenced
from holdfast.stores.dialogs.port import DISK, Ownership
from holdfast.stores.dialogs.sqlite_file import (
    CHECK_BYTES,
    COMMIT,
    EPOCH,
    checksum,
    connect,
    explained,
    roll_back,
    row_key,
    table_name,
)
from holdfast.stores.dialogs.sqlite_transaction import Guard, SqliteTransaction
from holdfast.stores.failure import refuse_after
from holdfast.stores.files import make_directory, sync_directory

SCHEMA: Final = 1
TRANSACTION_LIMIT_S: Final = 10.0
"""How long an application's transaction may hold the file, reads included."""
CHECKPOINT_BYTES: Final = 8 << 20
"""Written to the log since the last checkpoint before another thread makes one."""
LOG_BYTES: Final = 16 << 20
"""A log of this size is checkpointed by the commit itself. SQLite restarts the log only after a complete
checkpoint. The other thread cannot complete one while commits follow one another closely: the file would grow."""
_STORE = """CREATE TABLE holdfast_store (one INTEGER PRIMARY KEY CHECK (one = 1), schema INTEGER NOT NULL,
            id BLOB NOT NULL, epoch INTEGER NOT NULL, seq INTEGER NOT NULL)"""
_FENCE = "UPDATE holdfast_store SET seq = seq + 1 WHERE epoch = ?"
_PUT: Final = {t: f"INSERT OR REPLACE INTO {table_name(t)} VALUES (?, ?)" for t in TABLES}
_ERASE: Final = {t: f"DELETE FROM {table_name(t)} WHERE key >= ? AND key < ?" for t in TABLES}
_LOAD: Final = {t: f"SELECT key, value FROM {table_name(t)} ORDER BY key" for t in TABLES}
_READ: Final = {
    t: f"SELECT key, value FROM {table_name(t)} WHERE key >= ? AND key < ? ORDER BY key"
    for t in TABLES
}


class SqliteDialogStore:
    """A `DialogStore` in one file."""

    durability = DISK

    def __init__(
        self, path: Path, entropy: Callable[[int], bytes], limit_s: float = TRANSACTION_LIMIT_S
    ) -> None:
        """Open the file, or make it. `entropy` makes the id of a new store."""
        self.path = path
        self.limit_s = limit_s
        self._lock = FairLock()
        self._epoch = 0
        self._failure: StoreError | None = None
        self._closed = False
        self._unchecked = 0
        try:
            make_directory(path.parent, private=True)
            self._db = connect(path)
            self._make(entropy)
            page_bytes = self._db.execute("PRAGMA page_size").fetchone()[0]
            self._db.execute(f"PRAGMA wal_autocheckpoint = {LOG_BYTES // page_bytes}")
            # Distributions overwrite what is deleted with zeros by default, so each message went to the log twice.
            self._db.execute("PRAGMA secure_delete = FAST")
            self._tx = connect(path)
            self._tx.execute("PRAGMA wal_autocheckpoint = 0")
            self._guard = Guard()
            self._tx.set_authorizer(self._guard)
        except sqlite3.Error as error:
            raise explained(error, path) from error
        except OSError as error:
            raise StoreError(
                f"store {path}: cannot be made ({error.strerror}); nothing was changed; check the directory"
            ) from error
        self._checkpoints = _Checkpoints(path)

    # -- the unit's side -----------------------------------------------------------------------------------------

    def open(self) -> Ownership:
        self._check_open()
        self._lock.acquire()
        try:
            db = self._db
            db.execute("BEGIN IMMEDIATE")
            db.execute("UPDATE holdfast_store SET epoch = epoch + 1, seq = seq + 1")
            store, epoch = db.execute("SELECT id, epoch FROM holdfast_store").fetchone()
            db.execute(COMMIT)
        except sqlite3.Error as error:
            roll_back(self._db)
            raise explained(error, self.path) from error
        finally:
            self._lock.release()
        self._epoch = epoch
        return Ownership(store, epoch)

    def load(self, table: str) -> list[tuple[bytes, bytes]]:
        return self._rows(table, _LOAD[table], ())

    def read(self, table: str, first: bytes, stop: bytes) -> list[tuple[bytes, bytes]]:
        return self._rows(table, _READ[table], (row_key(table, first), row_key(table, stop)))

    def _rows(
        self, table: str, statement: str, values: tuple[Any, ...]
    ) -> list[tuple[bytes, bytes]]:
        self._check_open()
        try:
            rows = self._db.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise explained(error, self.path) from error
        return [self._checked(table, key, value) for key, value in rows]

    def _checked(self, table: str, key: Any, value: bytes) -> tuple[bytes, bytes]:
        key = key.to_bytes(8, "big") if isinstance(key, int) else key
        body, check = value[:-CHECK_BYTES], value[-CHECK_BYTES:]
        if check != checksum(table, key, body):
            raise StoreDamaged(
                f"store {self.path} is damaged: a row of table {table} is not what was written, key {key.hex()}; "
                "restore the file from a backup; partners find out what is missing"
            )
        return key, body

    def commit(self, writes: Sequence[Write]) -> None:
        self._check_open()
        refuse_after(self._failure)
        self._lock.acquire()
        try:
            self._commit(writes)
        except sqlite3.Error as error:
            self._failure = explained(error, self.path)
            roll_back(self._db)
            raise self._failure from error
        except StoreError as error:
            self._failure = error
            roll_back(self._db)
            raise
        finally:
            self._lock.release()
        if self._unchecked >= CHECKPOINT_BYTES:
            self._unchecked = 0
            self._checkpoints.wanted.set()

    def _commit(self, writes: Sequence[Write]) -> None:
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        # rule: D-7e
        if db.execute(_FENCE, (self._epoch,)).rowcount != 1:
            raise fenced(db.execute(EPOCH).fetchone()[0], self._epoch)
        for write in writes:
            table = write.table
            if isinstance(write, Put):
                value = b"".join((write.value, checksum(table, write.key, write.value)))
                db.execute(_PUT[table], (row_key(table, write.key), value))
                self._unchecked += len(value) + 64
            else:
                db.execute(_ERASE[table], (row_key(table, write.first), row_key(table, write.stop)))
                self._unchecked += 4096
        db.execute(COMMIT)

    # -- the application's side ----------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """How many threads wait for the file."""
        return self._lock.waiting

    def begin(self) -> SqliteTransaction:
        self._check_open()
        return SqliteTransaction(self._tx, self._guard, self._lock, self.path, self.limit_s)

    def settle(self, tx: bytes) -> bool:
        """In one process there is no doubt; after a crash of it, this is the same question."""
        self._check_open()
        self._lock.acquire()
        try:
            db = self._tx
            db.execute("BEGIN IMMEDIATE")
            value = ABORTED + checksum(TX, tx, ABORTED)
            db.execute("INSERT OR IGNORE INTO holdfast_tx VALUES (?, ?)", (tx, value))
            found = db.execute("SELECT value FROM holdfast_tx WHERE key = ?", (tx,)).fetchone()[0]
            db.execute(COMMIT)
        except sqlite3.Error as error:
            roll_back(self._tx)
            raise explained(error, self.path) from error
        finally:
            self._lock.release()
        return bool(found[:-CHECK_BYTES] == COMMITTED)

    def close(self) -> None:
        """Commits are durable already; closing again does nothing."""
        if self._closed:
            return
        self._closed = True
        self._checkpoints.end()
        # Nothing is lost when the last checkpoint fails: the log is replayed at the next start.
        for db in (self._tx, self._db):
            with contextlib.suppress(sqlite3.Error):
                db.close()

    # -- opening -------------------------------------------------------------------------------------------------

    def _make(self, entropy: Callable[[int], bytes]) -> None:
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        try:
            found = db.execute(
                "SELECT name FROM sqlite_master WHERE name = 'holdfast_store'"
            ).fetchone()
            if found is None:
                db.execute(_STORE)
                db.execute(
                    "INSERT INTO holdfast_store VALUES (1, ?, ?, 0, 0)", (SCHEMA, entropy(8))
                )
            else:
                self._check_schema()
            for table in TABLES:
                # Blocks are appended and removed by range: a table by integer keeps them in line.
                form = "INTEGER PRIMARY KEY" if table == BLOCK else "BLOB PRIMARY KEY"
                tail = "" if table == BLOCK else " WITHOUT ROWID"
                db.execute(
                    f"CREATE TABLE IF NOT EXISTS {table_name(table)} (key {form}, value BLOB NOT NULL){tail}"
                )
            db.execute(COMMIT)
        except BaseException:
            roll_back(db)
            raise
        sync_directory(self.path.parent)

    def _check_schema(self) -> None:
        schema = self._db.execute("SELECT schema FROM holdfast_store").fetchone()[0]
        if schema != SCHEMA:
            raise StoreError(
                f"store {self.path} has schema {schema}, this Holdfast knows {SCHEMA}; it was not changed; run the "
                "version that wrote it"
            )

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"store {self.path} is closed; nothing was done")


class _Checkpoints:
    """Moves the log into the file from a connection of its own, so that no commit waits for it."""

    def __init__(self, path: Path) -> None:
        self.wanted = threading.Event()
        self._path = path
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="holdfast-checkpoint", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        db: sqlite3.Connection | None = None
        while self.wanted.wait() and not self._ended:
            self.wanted.clear()
            # It fails when the disk is full; the next commit will say so.
            with contextlib.suppress(sqlite3.Error):
                db = db or connect(self._path)
                db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        if db is not None:
            db.close()

    def end(self) -> None:
        self._ended = True
        self.wanted.set()
        self._thread.join()
