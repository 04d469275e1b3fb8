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

from xxhash import xxh3_64_digest, xxh3_64_intdigest

from holdfast.dialog.records import ABORTED, BLOCK, COMMITTED, TABLES, TX
from holdfast.errors import (
    MisuseError,
    StoreDamaged,
    StoreError,
    StoreLocked,
    TransactionAborted,
)
from holdfast.machine import Put, Write
from holdfast.stores.dialogs.fairlock import FairLock
from holdfast.stores.dialogs.memory import conflict, fenced
from holdfast.stores.dialogs.port import DISK, Ownership
from holdfast.stores.failure import refuse_after
from holdfast.stores.files import make_directory, sync_directory
from holdfast.stores.sqlite import explain

SCHEMA: Final = 1
CHECK_BYTES: Final = 8
BUSY_S: Final = 5.0
TRANSACTION_LIMIT_S: Final = 10.0
"""How long an application's transaction may hold the file, reads included."""
CHECKPOINT_BYTES: Final = 8 << 20
"""Written to the log since the last checkpoint before another thread makes one."""
LOG_BYTES: Final = 16 << 20
"""A log of this size is checkpointed by the commit itself. SQLite restarts the log only after a complete
checkpoint. The other thread cannot complete one while commits follow one another closely: the file would grow."""
PAGE_BYTES: Final = 8192
"""Of a new file. Blocks take fewer pages than with the default of 4096, which makes large messages a third faster. Each
small commit writes some kilobytes more, which takes a twentieth longer."""

_STORE = """CREATE TABLE holdfast_store (one INTEGER PRIMARY KEY CHECK (one = 1), schema INTEGER NOT NULL,
            id BLOB NOT NULL, epoch INTEGER NOT NULL, seq INTEGER NOT NULL)"""
_FENCE = "UPDATE holdfast_store SET seq = seq + 1 WHERE epoch = ?"
_EPOCH = "SELECT epoch FROM holdfast_store"
# The text keeps them apart in the cache of prepared statements, where the guard would not see those of applications.
_COMMIT = "COMMIT -- of the store"
_ROLLBACK = "ROLLBACK -- of the store"


def _name(table: str) -> str:
    return f"holdfast_{table}"


_PUT: Final = {t: f"INSERT OR REPLACE INTO {_name(t)} VALUES (?, ?)" for t in TABLES}
_INSERT: Final = {t: f"INSERT INTO {_name(t)} VALUES (?, ?)" for t in TABLES}
_ERASE: Final = {t: f"DELETE FROM {_name(t)} WHERE key >= ? AND key < ?" for t in TABLES}
_LOAD: Final = {t: f"SELECT key, value FROM {_name(t)} ORDER BY key" for t in TABLES}
_READ: Final = {
    t: f"SELECT key, value FROM {_name(t)} WHERE key >= ? AND key < ? ORDER BY key" for t in TABLES
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
            self._db = _connect(path)
            self._make(entropy)
            page_bytes = self._db.execute("PRAGMA page_size").fetchone()[0]
            self._db.execute(f"PRAGMA wal_autocheckpoint = {LOG_BYTES // page_bytes}")
            # Distributions overwrite what is deleted with zeros by default, so each message went to the log twice.
            self._db.execute("PRAGMA secure_delete = FAST")
            self._tx = _connect(path)
            self._tx.execute("PRAGMA wal_autocheckpoint = 0")
            self._guard = _Guard()
            self._tx.set_authorizer(self._guard)
        except sqlite3.Error as error:
            raise _explained(error, path) from error
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
            db.execute(_COMMIT)
        except sqlite3.Error as error:
            _roll_back(self._db)
            raise _explained(error, self.path) from error
        finally:
            self._lock.release()
        self._epoch = epoch
        return Ownership(store, epoch)

    def load(self, table: str) -> list[tuple[bytes, bytes]]:
        return self._rows(table, _LOAD[table], ())

    def read(self, table: str, first: bytes, stop: bytes) -> list[tuple[bytes, bytes]]:
        return self._rows(table, _READ[table], (_key(table, first), _key(table, stop)))

    def _rows(
        self, table: str, statement: str, values: tuple[Any, ...]
    ) -> list[tuple[bytes, bytes]]:
        self._check_open()
        try:
            rows = self._db.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise _explained(error, self.path) from error
        return [self._checked(table, key, value) for key, value in rows]

    def _checked(self, table: str, key: Any, value: bytes) -> tuple[bytes, bytes]:
        key = key.to_bytes(8, "big") if isinstance(key, int) else key
        body, check = value[:-CHECK_BYTES], value[-CHECK_BYTES:]
        if check != _checksum(table, key, body):
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
            self._failure = _explained(error, self.path)
            _roll_back(self._db)
            raise self._failure from error
        except StoreError as error:
            self._failure = error
            _roll_back(self._db)
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
            raise fenced(db.execute(_EPOCH).fetchone()[0], self._epoch)
        for write in writes:
            table = write.table
            if isinstance(write, Put):
                value = b"".join((write.value, _checksum(table, write.key, write.value)))
                db.execute(_PUT[table], (_key(table, write.key), value))
                self._unchecked += len(value) + 64
            else:
                db.execute(_ERASE[table], (_key(table, write.first), _key(table, write.stop)))
                self._unchecked += 4096
        db.execute(_COMMIT)

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
            value = ABORTED + _checksum(TX, tx, ABORTED)
            db.execute("INSERT OR IGNORE INTO holdfast_tx VALUES (?, ?)", (tx, value))
            found = db.execute("SELECT value FROM holdfast_tx WHERE key = ?", (tx,)).fetchone()[0]
            db.execute(_COMMIT)
        except sqlite3.Error as error:
            _roll_back(self._tx)
            raise _explained(error, self.path) from error
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
                    f"CREATE TABLE IF NOT EXISTS {_name(table)} (key {form}, value BLOB NOT NULL){tail}"
                )
            db.execute(_COMMIT)
        except BaseException:
            _roll_back(db)
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


class _Guard:
    """Refuses COMMIT, ROLLBACK and BEGIN while a function of the application uses the connection. `db.commit()`, `with
    db` and `executescript` would otherwise end the transaction, and its messages would not be part of it."""

    def __init__(self) -> None:
        self.active = False
        self.refused = False

    def __call__(self, action: int, *about: str | None) -> int:
        if not self.active or action != sqlite3.SQLITE_TRANSACTION:
            return sqlite3.SQLITE_OK
        self.refused = True
        # rule: D-10e
        return sqlite3.SQLITE_DENY


class SqliteTransaction:
    """The file is taken at the first statement, or at the commit if there is none before.

    When the time is over, a timer's thread ends the transaction: at once if the application is between two statements,
    otherwise as soon as the one that runs has been interrupted.
    """

    def __init__(
        self, db: sqlite3.Connection, guard: _Guard, lock: FairLock, path: Path, limit_s: float
    ) -> None:
        self._db = db
        self._guard = guard
        self._lock = lock
        self._path = path
        self._limit_s = limit_s
        self._begun = False
        self._over = False
        self._timer: threading.Timer | None = None
        self._late = False
        self.on_expired: Callable[[], None] | None = None
        """Called from another thread when the transaction was ended because its time was over."""
        self._using = threading.Lock()
        """Held while the application uses the connection, and by the thread that ends the transaction."""
        self._ending = threading.Lock()
        """The connection is not interrupted on behalf of a transaction that is over."""

    def run(self, act: Callable[[sqlite3.Connection], Any]) -> Any:
        """Call `act(db)`. It must neither commit nor roll back, and is prevented from it."""
        with self._using:
            self._begin()
            try:
                result = self._guarded(act)
            except sqlite3.Error as error:
                self._check_late(error)
                self._check_refused(error)
                raise
            finally:
                # Some errors make SQLite roll back. What follows would be committed one by one.
                # rule: D-10d
                if not self._db.in_transaction:
                    self._end()
            self._check_late()
            self._check_refused()
            return result

    def _guarded(self, act: Callable[[sqlite3.Connection], Any]) -> Any:
        guard = self._guard
        guard.active, guard.refused = True, False
        try:
            return act(self._db)
        finally:
            guard.active = False

    def _check_refused(self, error: sqlite3.Error | None = None) -> None:
        if self._guard.refused:
            raise MisuseError(
                "a function that is passed to `run` must not begin, commit or roll back (`db.commit()`, `with db` and "
                "`executescript` do): the transaction does, with its messages; nothing is committed yet"
            ) from error

    def commit(self, inserts: Sequence[Put], epoch: int) -> None:
        with self._using:
            self._begin()
            self._commit(inserts, epoch)

    def _commit(self, inserts: Sequence[Put], epoch: int) -> None:
        db = self._db
        try:
            now = db.execute(_EPOCH).fetchone()[0]
            # rule: D-7b
            if now != epoch:
                raise fenced(now, epoch)
            for row in inserts:
                value = b"".join((row.value, _checksum(row.table, row.key, row.value)))
                try:
                    db.execute(_INSERT[row.table], (_key(row.table, row.key), value))
                except sqlite3.IntegrityError as error:
                    raise conflict(row) from error
            db.execute(_COMMIT)
        except sqlite3.Error as error:
            self._undo()
            self._check_late(error)
            raise _explained(error, self._path) from error
        except BaseException:
            self._undo()
            raise
        self._end()
        self._late = False  # Interrupted too late: it is committed.

    def abort(self) -> None:
        with self._using:
            self._undo()

    def _undo(self) -> None:
        if self._begun and not self._over:
            _roll_back(self._db)
        self._end()

    def _begin(self) -> None:
        self._check_late()
        if self._over:
            raise TransactionAborted("the transaction is over; nothing took effect")
        if self._begun:
            return
        if not self._lock.acquire(self._limit_s):
            self._over = True
            raise StoreLocked(
                f"store {self._path}: another transaction held the file for {self._limit_s:g} s; nothing took effect"
            )
        self._begun = True
        try:
            self._db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            self._end()
            raise _explained(error, self._path) from error
        self._timer = threading.Timer(self._limit_s, self._expire)
        self._timer.daemon = True
        # rule: D-10b
        self._timer.start()

    def _expire(self) -> None:
        """Held for too long: whatever statement runs now, or next, fails; then the file is free."""
        if not self._using.acquire(blocking=False):
            self._interrupt()
            self._using.acquire()
        try:
            if not self._over:
                self._late = True
                self._undo()
        finally:
            self._using.release()
        if self._late and self.on_expired is not None:
            self.on_expired()

    def _interrupt(self) -> None:
        with self._ending:
            if self._over:
                return
            self._late = True
            self._db.interrupt()
            # Statements that have not begun are not interrupted: refuse them.
            # rule: D-10c
            self._db.set_progress_handler(lambda: 1, 1)

    def _check_late(self, error: sqlite3.Error | None = None) -> None:
        if self._late:
            self._undo()
            raise TransactionAborted(
                f"the transaction held store {self._path} for more than {self._limit_s:g} s and was rolled back; "
                "nothing took effect; do slow work outside of it"
            ) from error

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        with self._ending:
            held, self._over = self._begun and not self._over, True
            if held:
                with contextlib.suppress(sqlite3.Error):  # The store may have been closed.
                    self._db.set_progress_handler(None, 0)
                self._lock.release()


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
                db = db or _connect(self._path)
                db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        if db is not None:
            db.close()

    def end(self) -> None:
        self._ended = True
        self.wanted.set()
        self._thread.join()


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    db.execute(f"PRAGMA page_size = {PAGE_BYTES}")  # Ignored by a file that exists.
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    return db


def _explained(error: sqlite3.Error, path: Path) -> StoreError:
    return explain(error, path, "free some disk space; the node opens the store again by itself")


def _roll_back(db: sqlite3.Connection) -> None:
    with contextlib.suppress(sqlite3.Error):
        db.set_progress_handler(None, 0)
        if db.in_transaction:
            db.execute(_ROLLBACK)


def _key(table: str, key: bytes) -> bytes | int:
    """Blocks are numbered; SQLite's integers are signed."""
    if table != BLOCK:
        return key
    return min(int.from_bytes(key[:8].ljust(8, b"\x00"), "big"), (1 << 63) - 1)


def _checksum(table: str, key: bytes, value: bytes | memoryview) -> bytes:
    return xxh3_64_digest(value, xxh3_64_intdigest(key, xxh3_64_intdigest(table.encode())))
