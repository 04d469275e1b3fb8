"""The store in the application's memory: the fastest, and lost with the process.

Transactions have the same semantics as in the durable stores: rows of a transaction are not visible before it
commits, and it commits wholly or not at all.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.dialog.records import ABORTED, COMMITTED, TX
from holdfast.errors import (
    MisuseError,
    StoreError,
    StoreFenced,
    StoreFull,
    TransactionConflict,
)
from holdfast.machine import Put, Write
from holdfast.stores.dialogs.port import PROCESS, Ownership
from holdfast.stores.memory import Tables


class Shelf:
    """Contents of a memory store. The express daemon keeps one for each of its stores."""

    def __init__(self, store: bytes) -> None:
        self.store = store
        self.epoch = 0
        self.seq = 0
        self.tables = Tables()
        self.lock = threading.Lock()

    def open(self) -> Ownership:
        with self.lock:
            self.epoch += 1
            return Ownership(self.store, self.epoch)

    def read(self, table: str, first: bytes, stop: bytes | None) -> list[tuple[bytes, bytes]]:
        with self.lock:
            keys = self.tables.keys.get(table, [])
            rows = self.tables.rows.get(table, {})
            end = len(keys) if stop is None else bisect_left(keys, stop)
            return [(key, rows[key]) for key in keys[bisect_left(keys, first) : end]]

    def commit(self, writes: Sequence[Write], epoch: int, bytes_max: int) -> None:
        with self.lock:
            self._check(epoch)
            size = sum(len(w.key) + len(w.value) for w in writes if isinstance(w, Put))
            if self.tables.size + size > bytes_max:
                raise StoreFull(
                    f"the memory store is full ({bytes_max} bytes); this commit was not made, everything before it is"
                )
            for write in writes:
                if isinstance(write, Put):
                    self.tables.put(write.table, write.key, bytes(write.value))
                else:
                    self.tables.erase(write.table, write.first, write.stop)
            self.seq += 1

    def insert(self, inserts: Sequence[Put], epoch: int) -> None:
        with self.lock:
            self._check(epoch)
            for row in inserts:
                # rule: D-7d
                if row.key in self.tables.rows.get(row.table, {}):
                    raise conflict(row)
            for row in inserts:
                self.tables.put(row.table, row.key, bytes(row.value))

    def settle(self, tx: bytes) -> bool:
        with self.lock:
            found = self.tables.rows.get(TX, {}).get(tx)
            if found is None:
                self.tables.put(TX, tx, ABORTED)
            return found == COMMITTED

    def _check(self, epoch: int) -> None:
        # rule: D-7c
        if epoch != self.epoch:
            raise fenced(self.epoch, epoch)


def fenced(now: int, epoch: int) -> StoreFenced:
    return StoreFenced(
        f"the store has a new owner (epoch {now}, this one has {epoch}); nothing was written; stop this process, or "
        "let it open the store again"
    )


def conflict(row: Put) -> TransactionConflict:
    return TransactionConflict(
        f"a row of table {row.table} exists already: the message was processed, or the transaction settled, before; "
        "nothing took effect"
    )


class MemoryDialogStore:
    """A `DialogStore` that lives as long as its shelf."""

    durability = PROCESS

    def __init__(self, store: bytes, bytes_max: int = 1 << 40, shelf: Shelf | None = None) -> None:
        """`store` is the id; with the shelf of an earlier store, that one is opened again."""
        self._shelf = shelf or Shelf(store)
        self._bytes_max = bytes_max
        self._epoch = 0
        self._closed = False

    @property
    def shelf(self) -> Shelf:
        return self._shelf

    def open(self) -> Ownership:
        ownership = self._shelf.open()
        self._epoch = ownership.epoch
        return ownership

    def load(self, table: str) -> list[tuple[bytes, bytes]]:
        self._check_open()
        return self._shelf.read(table, b"", None)

    def read(self, table: str, first: bytes, stop: bytes) -> list[tuple[bytes, bytes]]:
        self._check_open()
        return self._shelf.read(table, first, stop)

    def commit(self, writes: Sequence[Write]) -> None:
        self._check_open()
        self._shelf.commit(writes, self._epoch, self._bytes_max)

    def begin(self) -> MemoryTransaction:
        self._check_open()
        return MemoryTransaction(self._shelf)

    def settle(self, tx: bytes) -> bool:
        self._check_open()
        return self._shelf.settle(tx)

    def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the store is closed; nothing was done")


class MemoryTransaction:
    """Nothing is held before the commit: what the transaction sends and receives is the unit's business."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def run(self, act: Callable[[Any], Any]) -> Any:
        raise MisuseError("this store has no tables of the application; use SQLite or PostgreSQL")

    def commit(self, inserts: Sequence[Put], epoch: int) -> None:
        self._shelf.insert(inserts, epoch)

    def abort(self) -> None:
        """Nothing was done."""
