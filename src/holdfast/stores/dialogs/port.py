"""The interface of a dialog store. Third parties can add one; `holdfast.testing.stores` is its conformance suite.

A store holds tables of bytes to bytes (`holdfast.dialog.records`). One owner uses it at a time: opening takes the
store over with a higher epoch, and everything that an earlier owner tries afterwards is refused. The unit's batches
and the application's transactions both check the epoch, so a frozen process that wakes up changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import msgspec

from holdfast.machine import Put, Write

PROCESS: Final = "process"
"""State lives as long as the application's process."""
DAEMON: Final = "daemon"
"""State survives the application's process, not that of the daemon or the machine."""
DISK: Final = "disk"
"""State survives the machine, as far as its disk does."""


class Ownership(msgspec.Struct, frozen=True):
    """A store that was taken over."""

    store: bytes
    """Its id, 8 bytes; made once."""
    epoch: int


class StoreTransaction(Protocol):
    """An application's transaction. It is over after `commit` or `abort`."""

    def run(self, act: Callable[[Any], Any]) -> Any:
        """Use the application's own tables. Stores without any refuse."""
        ...

    def commit(self, inserts: Sequence[Put], epoch: int) -> None:
        """Check the epoch, insert the rows, each new, the last one last, and commit everything.

        Raises `StoreFenced`, `TransactionConflict` (a row exists) or another `StoreError`: nothing took effect. Raises
        `TransactionInDoubt` when the outcome is not known: ask `DialogStore.settle`.
        """
        ...

    def abort(self) -> None:
        """Undo everything. Never raises."""
        ...


class DialogStore(Protocol):
    """Every method blocks, so it is called off the event loop. `commit` and `read` are called by one thread."""

    durability: str

    def open(self) -> Ownership:
        """Take the store over: the epoch grows, an earlier owner is fenced out."""
        ...

    def load(self, table: str) -> list[tuple[bytes, bytes]]:
        """All rows of a table, by key."""
        ...

    def read(self, table: str, first: bytes, stop: bytes) -> list[tuple[bytes, bytes]]:
        """The rows `[first, stop)` of a table, by key."""
        ...

    def commit(self, writes: Sequence[Write]) -> None:
        """Make all writes durable, or none, under the fence."""
        ...

    def begin(self) -> StoreTransaction:
        """Begin a transaction of the application. May wait for another one."""
        ...

    def settle(self, tx: bytes) -> bool:
        """Whether a transaction in doubt was committed. If it was not, it never will be."""
        ...

    def close(self) -> None: ...
