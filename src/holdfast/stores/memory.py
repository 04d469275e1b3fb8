"""An in-memory store, for tests and for nodes without durable state."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from holdfast.errors import StoreError, StoreFull
from holdfast.machine import Put, Write
from holdfast.stores.failure import refuse_after


class Tables:
    """The contents of a memory store. They outlive the store, so that a second store can open them."""

    __slots__ = ("keys", "rows", "size")

    def __init__(self) -> None:
        self.rows: dict[str, dict[bytes, bytes]] = {}
        self.keys: dict[str, list[bytes]] = {}
        """Sorted keys, so that erasing a range costs only what it erases."""
        self.size = 0

    def put(self, table: str, key: bytes, value: bytes) -> bytes | None:
        """Set one row. Returns the previous value."""
        rows = self.rows.setdefault(table, {})
        keys = self.keys.setdefault(table, [])
        before = rows.get(key)
        if before is not None:
            self.size -= len(key) + len(before)
        elif not keys or key > keys[-1]:
            keys.append(key)
        else:
            insort(keys, key)
        rows[key] = value
        self.size += len(key) + len(value)
        return before

    def erase(self, table: str, first: bytes, stop: bytes) -> list[tuple[bytes, bytes]]:
        """Remove the rows in `[first, stop)`. Returns the removed rows."""
        keys = self.keys.get(table, [])
        begin, end = bisect_left(keys, first), bisect_left(keys, stop)
        gone = keys[begin:end]
        if not gone:
            return []
        del keys[begin:end]
        rows = self.rows[table]
        removed = [(key, rows.pop(key)) for key in gone]
        self.size -= sum(len(key) + len(value) for key, value in removed)
        return removed


class MemoryStore:
    """Keeps rows as long as its `tables` live: durable until the process ends."""

    def __init__(self, tables: Tables | None = None, max_bytes: int = 1 << 40) -> None:
        """Pass the `tables` of an earlier store to reopen it. Above `max_bytes`, commits fail with `StoreFull`."""
        self.tables = Tables() if tables is None else tables
        self._max_bytes = max_bytes
        self._failure: StoreError | None = None
        self._closed = False

    def load(
        self, table: str, first: bytes = b"", stop: bytes = b"", limit: int = 0
    ) -> list[tuple[bytes, bytes]]:
        self._check_open()
        rows, keys = self.tables.rows.get(table, {}), self.tables.keys.get(table, [])
        begin = bisect_left(keys, first)
        end = bisect_left(keys, stop) if stop else len(keys)
        if limit:
            end = min(end, begin + limit)
        return [(key, rows[key]) for key in keys[begin:end]]

    def commit(self, writes: Sequence[Write]) -> None:
        self._check_open()
        refuse_after(self._failure)
        undo: list[tuple[str, bytes, bytes | None]] = []
        try:
            self._apply(writes, undo)
            if self.tables.size > self._max_bytes:
                raise StoreFull(
                    f"the in-memory store is full ({self._max_bytes} bytes): this commit was not made, "
                    "earlier ones are safe; give the store more room and restart the node"
                )
        except BaseException as error:
            self._undo(undo)
            self._failure = error if isinstance(error, StoreError) else StoreError(repr(error))
            raise

    def _apply(self, writes: Sequence[Write], undo: list[tuple[str, bytes, bytes | None]]) -> None:
        tables = self.tables
        for write in writes:
            table = write.table
            if isinstance(write, Put):
                # A copy, because a view would keep the whole packet alive.
                key, value = bytes(write.key), bytes(write.value)
                undo.append((table, key, tables.put(table, key, value)))
            else:
                removed = tables.erase(table, write.first, write.stop)
                undo.extend((table, key, before) for key, before in removed)

    def _undo(self, undo: list[tuple[str, bytes, bytes | None]]) -> None:
        for table, key, before in reversed(undo):
            if before is None:
                self.tables.erase(table, key, key + b"\0")
            else:
                self.tables.put(table, key, before)

    def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the in-memory store is closed; nothing was done")
