"""Transactions of an application that uses the daemon.

With memory, express and SQLite stores the daemon commits. With a postgres store the application does, on a connection
of its own: the daemon gives it the rows, and its own statements commit with them.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from holdfast.dialog import ports
from holdfast.errors import (
    HoldfastError,
    MisuseError,
    NodeStopped,
    StoreError,
    TransactionAborted,
    TransactionInDoubt,
)
from holdfast.runtime.dialogs.api import shielded
from holdfast.runtime.dialogs.daemon_frames import ABORT
from holdfast.runtime.dialogs.daemon_session import OWN
from holdfast.runtime.dialogs.stores import Work
from holdfast.runtime.dialogs.transaction_scope import TransactionScope

if TYPE_CHECKING:
    from holdfast.runtime.dialogs.handles import Dialog, Message
    from holdfast.runtime.dialogs.remote import RemoteDialogs

SETTLE_EVERY_S: Final = 0.5


class RemoteTransaction(TransactionScope):
    """Use it as a context manager: it commits at the end, or aborts when the block raises."""

    def __init__(self, dialogs: RemoteDialogs, connection: Any, store: str) -> None:
        super().__init__(dialogs.tracing)
        self._dialogs = dialogs
        self._given = connection
        self._store = store
        self._stores: dict[str, None] = {}
        self._durable = ""
        self._over = False
        self._work: Work | None = None
        self._joining = asyncio.Lock()
        self._connection = 0
        """The connection to the daemon that it began on."""
        self._lent: list[tuple[Dialog, list[Message]]] = []
        own = connection is not None or self._kind(store or dialogs.default_store) == "postgres"
        self.own = own
        """The application commits it."""
        first = OWN if own else bytes((secrets.randbelow(255),))
        self.id = first + secrets.token_bytes(15)

    def _kind(self, store: str) -> str:
        found = [kind for name, kind, *_ in self._dialogs.welcome.stores if name == store]
        return found[0] if found else ""

    def _dsn(self, store: str) -> str:
        return next(dsn for name, _, dsn, _ in self._dialogs.welcome.stores if name == store)

    @property
    def connection(self) -> Any:
        """The PostgreSQL connection that the transaction runs on."""
        if self._work is None:
            raise MisuseError(
                "the transaction has no connection; name its postgres store in `transaction(store=...)`"
            )
        return self._work.connection

    async def run(self, act: Callable[[Any], Any]) -> Any:
        """Await `act(connection)` (PostgreSQL)."""
        if self._work is None:
            raise MisuseError(
                "through a daemon, own tables take part with a postgres store only; nothing was done; run the node in "
                "the application to use SQLite"
            )
        return await self._work.run(act)

    async def join(self, store: str) -> None:
        """A dialog of this store takes part."""
        async with self._joining:  # Two dialogs at once must not begin two transactions.
            await self._join(store)

    async def _join(self, store: str) -> None:
        if self._over:
            raise TransactionAborted("the transaction is over; nothing took effect")
        if not self._stores:
            self._connection = self._dialogs.connections
        self._check_connection()
        if store in self._stores:
            return
        kind = self._kind(store)
        if (kind == "postgres") != self.own or (self.own and self._stores):
            raise MisuseError(
                f"a transaction spans one durable store: dialogs of {store!r} cannot take part; nothing was done; name "
                "the store in `transaction(store=...)`"
            )
        if kind != "memory" and self._durable:
            raise MisuseError(
                f"a transaction spans one durable store: it uses {self._durable!r} already, so dialogs of {store!r} "
                "cannot take part; nothing was done"
            )
        if self.own:
            self._work = await self._dialogs.postgres(store, self._dsn(store)).begin(self._given)
        self._stores[store] = None
        if kind != "memory":
            self._durable = store

    def _check_connection(self) -> None:
        """The daemon aborts a transaction with its connection. What follows must not commit without the rest."""
        if self._stores and self._connection != self._dialogs.connections:
            raise TransactionAborted(
                "the connection to the daemon was lost during the transaction; nothing took effect"
            )

    def lend(self, dialog: Dialog, messages: list[Message]) -> None:
        """Messages that a cancelled receive gave back. They are given back again if this is aborted."""
        self._lent.append((dialog, messages))

    def check_may_receive(self, store: str) -> None:
        """Nothing prevents it: the daemon holds no file for this transaction before its commit."""

    async def begin(self) -> None:
        if self.own:
            await self.join(self._store or self._postgres_store())

    def _postgres_store(self) -> str:
        names = [name for name, kind, *_ in self._dialogs.welcome.stores if kind == "postgres"]
        if not names:
            raise MisuseError("a connection needs a postgres store; the daemon has none")
        return names[0]

    async def commit(self) -> None:
        """Make everything permanent. Raises `TransactionAborted`: nothing took effect."""
        self._check_over()
        await shielded(self._commit())

    async def _commit(self) -> None:
        try:
            self._check_connection()
        except TransactionAborted:
            await self._abort(counts=False)
            raise
        try:
            if self._work is not None:
                await self._commit_own(self._work)
            elif self._stores:
                await self._dialogs.commit(self.id, self._durable)
        except TransactionInDoubt:
            raise
        except BaseException:
            self._give_back()
            raise

    def _give_back(self) -> None:
        for dialog, messages in reversed(self._lent):
            dialog.give_back(messages, first=True)
        self._lent.clear()

    async def _commit_own(self, work: Work) -> None:
        store = self._durable
        prepare = ports.Prepare(token=0, tx=self.id, keep=True)
        try:
            prepared = await self._dialogs.ask(store, prepare)
        except HoldfastError as error:
            await work.abort()
            self._dialogs.tell(store, ports.Outcome(self.id, False, counts=False))
            raise TransactionAborted(f"{error}") from error
        try:
            await work.commit(prepared.inserts, prepared.epoch)
            committed = True
        except TransactionInDoubt:
            committed = await self._settled(store)
        except BaseException:
            self._dialogs.tell(store, ports.Outcome(self.id, False, counts=False))
            raise
        self._dialogs.tell(store, ports.Outcome(self.id, committed, counts=False))
        self._dialogs.tell(store, ports.Forget(self.id))
        if not committed:
            raise TransactionAborted(
                "the database rolled the transaction back; nothing took effect"
            )

    async def _settled(self, store: str) -> bool:
        while True:
            try:
                return await self._dialogs.outcome(store, self.id)
            except StoreError:
                await asyncio.sleep(SETTLE_EVERY_S)
            except NodeStopped as error:
                raise TransactionInDoubt(
                    "the connection to the daemon was closed while the outcome of a commit was unknown; the "
                    "transaction took effect as a whole or not at all; look for it in your own tables"
                ) from error

    async def abort(self, counts: bool = True) -> None:
        """Undo everything. An abort by the application counts against the messages it received."""
        self._check_over()
        await shielded(self._abort(counts))

    async def _abort(self, counts: bool) -> None:
        self._give_back()
        if self._work is not None:
            await self._work.abort()
            counts = counts and not self._work.lost
            self._dialogs.tell(self._durable, ports.Outcome(self.id, False, counts))
        elif self._stores:
            await self._dialogs.call(ABORT, body=(b"1" if counts else b"0") + self.id)

    def _check_over(self) -> None:
        if self._over:
            raise TransactionAborted("the transaction is over; nothing took effect")
        self._over = True
