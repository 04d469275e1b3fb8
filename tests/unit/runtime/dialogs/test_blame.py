"""Which errors count against the messages of a transaction."""

from __future__ import annotations

import asyncio
import sqlite3

import asyncpg
import pytest

from holdfast.errors import MisuseError, SendTimeout, StoreFull
from holdfast.runtime.dialogs.blame import is_infrastructure


def sqlite_error(code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError("?")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    "error",
    [
        asyncio.CancelledError(),
        SendTimeout(""),
        StoreFull(""),
        sqlite_error(sqlite3.SQLITE_FULL),
        sqlite_error(sqlite3.SQLITE_IOERR_WRITE),
        asyncpg.AdminShutdownError(""),
        asyncpg.DiskFullError(""),
        asyncpg.ConnectionFailureError(""),
    ],
)
def test_rule_14_infrastructure_does_not_count(error: BaseException) -> None:
    assert is_infrastructure(error)


@pytest.mark.parametrize(
    "error",
    [
        None,
        ZeroDivisionError(),
        MisuseError(""),
        sqlite3.ProgrammingError("raised by the module, without a code"),
        sqlite_error(sqlite3.SQLITE_CONSTRAINT_UNIQUE),
        asyncpg.UniqueViolationError(""),
        asyncpg.DeadlockDetectedError(""),
    ],
)
def test_rule_14_what_may_be_the_messages_fault_counts(error: BaseException | None) -> None:
    assert not is_infrastructure(error)
