"""A transaction of the application on the file of an embedded store."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import MisuseError, StoreLocked, TransactionAborted
from holdfast.machine import Put
from holdfast.stores.dialogs.fairlock import FairLock
from holdfast.stores.dialogs.memory import conflict, fenced
from holdfast.stores.dialogs.sqlite_file import (
    COMMIT,
    EPOCH,
    INSERT,
    checksum,
    explained,
    roll_back,
    row_key,
)


class Guard:
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
        self, db: sqlite3.Connection, guard: Guard, lock: FairLock, path: Path, limit_s: float
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
            now = db.execute(EPOCH).fetchone()[0]
            # rule: D-7b
            if now != epoch:
                raise fenced(now, epoch)
            for row in inserts:
                value = b"".join((row.value, checksum(row.table, row.key, row.value)))
                try:
                    db.execute(INSERT[row.table], (row_key(row.table, row.key), value))
                except sqlite3.IntegrityError as error:
                    raise conflict(row) from error
            db.execute(COMMIT)
        except sqlite3.Error as error:
            self._undo()
            self._check_late(error)
            raise explained(error, self._path) from error
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
            roll_back(self._db)
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
            raise explained(error, self._path) from error
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
