"""Transactions of applications: over several dialogs, and with SQLite and PostgreSQL their own tables.

async with node.dialogs.transaction() as tx:
    job = await dialog.receive(tx=tx)
    await tx.run(lambda db: db.execute("INSERT INTO results VALUES (?)", (job.body,)))
    await other.send(b"done", tx=tx)
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from holdfast.dialog import ports
from holdfast.errors import (
    HoldfastError,
    MisuseError,
    StoreError,
    TransactionAborted,
    TransactionInDoubt,
)
from holdfast.runtime.dialogs.api import shielded
from holdfast.runtime.dialogs.stores import Work
from holdfast.runtime.dialogs.transaction_scope import TransactionScope

if TYPE_CHECKING:
    from holdfast.runtime.dialogs.edge import DialogEdge
    from holdfast.runtime.dialogs.handles import Dialog, Message

SETTLE_EVERY_S: Final = 0.5


class Transaction(TransactionScope):
    """Use it as a context manager: it commits at the end, or aborts when the block raises.

    It spans one durable store; dialogs of memory stores follow its outcome.
    """

    def __init__(
        self, edge: DialogEdge, connection: Any, store: str, tx: bytes = b"", keep: bool = False
    ) -> None:
        super().__init__(edge.tracing)
        self.id = tx or secrets.token_bytes(16)
        self._keep = keep
        self._edge = edge
        self._given = connection
        self._store = store
        self._works: dict[str, Work] = {}
        self._durable = ""
        self._over = False
        self._joining = asyncio.Lock()
        self._epochs: dict[str, int] = {}
        """Of the owner of each store when it joined. The unit of a later owner knows nothing of this transaction."""
        self._lent: list[tuple[Dialog, list[Message]]] = []

    @property
    def connection(self) -> Any:
        """The PostgreSQL connection that the transaction runs on."""
        work = self._works.get(self._durable)
        if work is None or work.connection is None:
            raise MisuseError(
                "the transaction has no connection; name its postgres store in `transaction(store=...)`"
            )
        return work.connection

    async def run(self, act: Callable[[Any], Any]) -> Any:
        """Use the application's own tables: `act(db)` on the transaction's thread (SQLite)."""
        if not self._durable:
            await self.join(self._store or self._edge.default_store)
        return await self._works[self._durable or next(iter(self._works))].run(act)

    async def join(self, store: str) -> None:
        """A dialog of this store takes part."""
        async with self._joining:  # Two dialogs at once must not begin two transactions.
            await self._join(store)

    async def _join(self, store: str) -> None:
        if self._over:
            raise TransactionAborted("the transaction is over; nothing took effect")
        if store in self._works:
            return
        worker = self._edge.worker(store)
        # rule: D-11a
        if worker.durable and self._durable:
            raise MisuseError(
                f"a transaction spans one durable store: it uses {self._durable!r} already, so dialogs of {store!r} "
                "cannot take part; nothing was done"
            )
        connection = self._given if worker.durable else None
        self._epochs[store] = self._edge.epoch(store)
        self._works[store] = await worker.begin(connection)
        if worker.durable:
            self._durable = store

    def check_may_receive(self, store: str) -> None:
        """A delivery is recorded before it is handed over, which a transaction that holds the file would prevent."""
        work = self._works.get(store)
        if work is not None and work.holds_file:
            raise MisuseError(
                "with SQLite, receive before the first statement of the transaction: it holds the file from then on; "
                "nothing was received"
            )

    async def begin(self) -> None:
        if self._given is not None or self._store:
            await self.join(self._store or self._edge.default_store)

    def lend(self, dialog: Dialog, messages: list[Message]) -> None:
        """Messages that a cancelled receive gave back. They are given back again if this is aborted."""
        self._lent.append((dialog, messages))

    async def commit(self) -> None:
        """Make everything permanent. Raises `TransactionAborted`: nothing took effect."""
        self._check_over()
        # Whatever happens to this task, a transaction ends one way or the other, and its dialogs learn it.
        # rule: D-8b
        await shielded(self._commit())

    async def _commit(self) -> None:
        try:
            prepared = [(store, await self._prepared(store)) for store in self._works]
        except HoldfastError as error:
            await self._end(committed=False, counts=False)
            raise TransactionAborted(f"{error}") from error
        # The durable store decides; those in memory follow.
        # rule: D-11e
        prepared.sort(key=lambda item: item[0] != self._durable)
        for place, (store, rows) in enumerate(prepared):
            work = self._works.pop(store)
            try:
                await work.commit(rows.inserts, rows.epoch)
                committed = True
            except TransactionInDoubt:
                committed = await self._settled(store)
            except BaseException:
                if place == 0:
                    await self._end(committed=False, counts=False, stores=[s for s, _ in prepared])
                raise
            if not committed and place == 0:
                await self._end(committed=False, counts=False, stores=[s for s, _ in prepared])
                raise TransactionAborted(
                    "the database rolled the transaction back; nothing took effect"
                )
        await self._end(committed=True, counts=False, stores=[s for s, _ in prepared])

    async def _prepared(self, store: str) -> ports.Prepared:
        keep = self._keep and store == self._durable
        rows = await self._edge.ask(store, ports.Prepare(token=0, tx=self.id, keep=keep))
        assert isinstance(rows, ports.Prepared)
        if rows.epoch != self._epochs[store]:
            raise TransactionAborted(
                f"dialog store {store!r} was opened again during the transaction; nothing took effect"
            )
        return rows

    async def abort(self, counts: bool = True) -> None:
        """Undo everything. An abort by the application counts against the messages it received."""
        self._check_over()
        # rule: D-8c
        await shielded(self._end(committed=False, counts=counts))

    def _check_over(self) -> None:
        if self._over:
            raise TransactionAborted("the transaction is over; nothing took effect")
        self._over = True

    async def _end(self, committed: bool, counts: bool, stores: list[str] | None = None) -> None:
        names = stores if stores is not None else list(self._works)
        if not committed:
            for dialog, messages in reversed(self._lent):
                dialog.give_back(messages, first=True)
        self._lent.clear()
        for work in self._works.values():
            with contextlib.suppress(HoldfastError):
                await work.abort()
            # The database went away in the middle, which says nothing about the messages.
            counts = counts and not work.lost
        self._works.clear()
        for store in names:
            self._edge.tell(store, ports.Outcome(self.id, committed, counts))

    async def _settled(self, store: str) -> bool:
        """Ask until the database answers: the outcome must be known before anything else is done."""
        while True:
            try:
                return await self._edge.settle(store, self.id)
            except StoreError as error:
                if self._edge.stopped:
                    raise TransactionInDoubt(
                        f"the node stopped while the outcome of a commit was unknown ({error}); the transaction took "
                        "effect as a whole or not at all; look for it in your own tables"
                    ) from error
                await asyncio.sleep(SETTLE_EVERY_S)
