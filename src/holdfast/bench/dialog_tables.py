"""The stores of the baseline of `holdfast bench dialog`: one row for each message, one commit for each batch.

Each has one table. A commit inserts a batch and deletes what came before a number, with the durability of the dialog
store of the same kind.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from holdfast.dialog.records import BLOCK
from holdfast.machine import Erase, Put
from holdfast.stores.dialogs.express import ExpressDialogStore

Rows = Sequence[tuple[int, bytes]]


class Table(Protocol):
    """The messages of one end, by number."""

    def commit(self, rows: Rows, below: int) -> None:
        """Insert the rows and delete all below a number, in one commit."""
        ...

    def close(self) -> None: ...


def open_table(kind: str, place: str, end: str) -> Table:
    """The table of one `end`, `near` or `far`. `place` is the directory, the socket of the daemon or the database."""
    if kind == "memory":
        return MemoryTable()
    if kind == "express":
        return ExpressTable(Path(place), f"bare-{end}")
    if kind == "postgres":
        return PostgresTable(place, f"bare_bench_{end}")
    return SqliteTable(Path(place) / end)


class MemoryTable:
    def __init__(self) -> None:
        self._rows: deque[tuple[int, bytes]] = deque()

    def __len__(self) -> int:
        return len(self._rows)

    def commit(self, rows: Rows, below: int) -> None:
        self._rows.extend(rows)
        while self._rows and self._rows[0][0] < below:
            self._rows.popleft()

    def close(self) -> None:
        self._rows.clear()


class ExpressTable:
    """Rows of the table of blocks in a store of the daemon, written by the client that dialogs use."""

    def __init__(self, path: Path, name: str) -> None:
        self._store = ExpressDialogStore(path, name)
        self._store.open()

    def commit(self, rows: Rows, below: int) -> None:
        puts = [Put(BLOCK, number.to_bytes(8, "big"), body) for number, body in rows]
        self._store.commit([*puts, Erase(BLOCK, bytes(8), below.to_bytes(8, "big"))])

    def close(self) -> None:
        self._store.close()


class SqliteTable:
    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("PRAGMA secure_delete = FAST")  # As the dialog store.
        self._db.execute("CREATE TABLE IF NOT EXISTS m (n INTEGER PRIMARY KEY, body BLOB)")

    def commit(self, rows: Rows, below: int) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany("INSERT INTO m VALUES (?, ?)", rows)
        self._db.execute("DELETE FROM m WHERE n < ?", (below,))
        self._db.execute("COMMIT")

    def close(self) -> None:
        self._db.close()


class PostgresTable:
    """Written with COPY, the fastest way in. The body is stored as it is, as in the dialog store."""

    def __init__(self, dsn: str, name: str) -> None:
        self._name = name
        self._runner = asyncio.Runner()
        self._db: Any = self._runner.run(self._open(dsn))

    async def _open(self, dsn: str) -> Any:
        import asyncpg

        db = await asyncpg.connect(dsn)
        await db.execute(f"DROP TABLE IF EXISTS {self._name}")
        await db.execute(f"CREATE TABLE {self._name} (n bigint PRIMARY KEY, body bytea)")
        await db.execute(f"ALTER TABLE {self._name} ALTER body SET STORAGE EXTERNAL")
        return db

    def commit(self, rows: Rows, below: int) -> None:
        self._runner.run(self._commit(rows, below))

    async def _commit(self, rows: Rows, below: int) -> None:
        async with self._db.transaction():
            await self._db.copy_records_to_table(self._name, records=rows)
            await self._db.execute(f"DELETE FROM {self._name} WHERE n < $1", below)

    def close(self) -> None:
        self._runner.run(self._drop())
        self._runner.close()

    async def _drop(self) -> None:
        await self._db.execute(f"DROP TABLE {self._name}")
        await self._db.close()
