"""The file of an embedded store: how it is opened, and what its rows look like."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Final

from xxhash import xxh3_64_digest, xxh3_64_intdigest

from holdfast.dialog.records import BLOCK, TABLES
from holdfast.errors import StoreError
from holdfast.stores.sqlite import explain

CHECK_BYTES: Final = 8
BUSY_S: Final = 5.0
PAGE_BYTES: Final = 8192
"""Of a new file. Blocks take fewer pages than with the default of 4096, which makes large messages a third faster. Each
small commit writes some kilobytes more, which takes a twentieth longer."""

EPOCH: Final = "SELECT epoch FROM holdfast_store"
# The text keeps them apart in the cache of prepared statements, where the guard would not see those of applications.
COMMIT: Final = "COMMIT -- of the store"
ROLLBACK: Final = "ROLLBACK -- of the store"


def table_name(table: str) -> str:
    return f"holdfast_{table}"


INSERT: Final = {t: f"INSERT INTO {table_name(t)} VALUES (?, ?)" for t in TABLES}


def connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    db.execute(f"PRAGMA page_size = {PAGE_BYTES}")  # Ignored by a file that exists.
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    return db


def explained(error: sqlite3.Error, path: Path) -> StoreError:
    return explain(error, path, "free some disk space; the node opens the store again by itself")


def roll_back(db: sqlite3.Connection) -> None:
    with contextlib.suppress(sqlite3.Error):
        db.set_progress_handler(None, 0)
        if db.in_transaction:
            db.execute(ROLLBACK)


def row_key(table: str, key: bytes) -> bytes | int:
    """Blocks are numbered; SQLite's integers are signed."""
    if table != BLOCK:
        return key
    return min(int.from_bytes(key[:8].ljust(8, b"\x00"), "big"), (1 << 63) - 1)


def checksum(table: str, key: bytes, value: bytes | memoryview) -> bytes:
    return xxh3_64_digest(value, xxh3_64_intdigest(key, xxh3_64_intdigest(table.encode())))
