"""Stores of dialogs: in the application's memory, in SQLite, in PostgreSQL, in a daemon of its own.

`port` says what a dialog store is, and `holdfast.testing.stores` when one is right. `postgres` is not imported here:
it loads asyncpg.
"""

from holdfast.stores.dialogs.express import ExpressDialogStore
from holdfast.stores.dialogs.memory import MemoryDialogStore
from holdfast.stores.dialogs.port import DAEMON, DISK, PROCESS, DialogStore, Ownership
from holdfast.stores.dialogs.sqlite import SqliteDialogStore

__all__ = [
    "DAEMON",
    "DISK",
    "PROCESS",
    "DialogStore",
    "ExpressDialogStore",
    "MemoryDialogStore",
    "Ownership",
    "SqliteDialogStore",
]
