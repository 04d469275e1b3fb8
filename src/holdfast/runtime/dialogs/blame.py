"""Whether an error that ended a transaction says something about the messages in it.

An abort counts as an attempt of the message that was received, and too many attempts make it poison. A full disk or a
database that restarts would make every message poison.
"""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Final

from holdfast.errors import DialogError, StoreError

SQLITE: Final = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
)
POSTGRES: Final = ("08", "53", "57", "58")
"""Classes of SQLSTATE: connection, resources, operator intervention, system. A deadlock (40) counts: it may be the
message that causes it."""


def is_infrastructure(error: BaseException | None) -> bool:
    """Whether it is about the disk, the database or the dialog, or the task was cancelled."""
    if isinstance(error, (asyncio.CancelledError, DialogError, StoreError)):
        return True
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", None)
        return code is not None and code & 0xFF in SQLITE
    return str(getattr(error, "sqlstate", None))[:2] in POSTGRES
