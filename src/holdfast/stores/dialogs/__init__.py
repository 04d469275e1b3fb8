"""Stores of dialogs: in the application's memory, in SQLite, in PostgreSQL, in a daemon of its own.

`port` says what a dialog store is, and `holdfast.testing.stores` when one is right. Two modules are not imported here:
`postgres` loads asyncpg, and `express` is run with `python -m`.
"""

from holdfast.stores.dialogs.memory import MemoryDialogStore
from holdfast.stores.dialogs.port import DAEMON, DISK, PROCESS, DialogStore, Ownership
from holdfast.stores.dialogs.sqlite import SqliteDialogStore

__all__ = [
    "DAEMON",
    "DISK",
    "PROCESS",
    "DialogStore",
    "MemoryDialogStore",
    "Ownership",
    "SqliteDialogStore",
]
