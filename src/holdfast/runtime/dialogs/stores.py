"""Opens the dialog stores that the configuration names, and runs transactions of applications on them."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Protocol

from holdfast.dialog.section import StoreConfig
from holdfast.errors import MisuseError, SetupError, TransactionAborted
from holdfast.machine import Put
from holdfast.stores.dialogs import MemoryDialogStore, SqliteDialogStore
from holdfast.stores.dialogs.express import ExpressDialogStore
from holdfast.stores.dialogs.memory import Shelf
from holdfast.stores.dialogs.port import PROCESS, DialogStore
from holdfast.stores.dialogs.sqlite_transaction import SqliteTransaction

STORE_METHODS: Final = ("open", "load", "read", "commit", "begin", "settle", "close")


def make_store(config: StoreConfig, data: str, shelf: Shelf | None = None) -> DialogStore:
    """Open a store; called off the event loop. `shelf` is the memory of an earlier run of the same process."""
    if config.kind == "memory":
        return MemoryDialogStore(os.urandom(8), shelf=shelf)
    if config.kind == "sqlite":
        path = Path(config.path) if config.path else Path(data) / f"dialogs-{config.name}.sqlite"
        return SqliteDialogStore(path, os.urandom, config.transaction_limit_s)
    if config.kind == "express":
        return ExpressDialogStore(Path(config.path), config.name)
    if config.kind != "postgres":
        return third_party(config)
    try:
        from holdfast.stores.dialogs.postgres import PostgresDialogStore
    except ImportError as error:
        raise SetupError(
            "a postgres store needs asyncpg: pip install 'holdfast[postgres]'"
        ) from error
    return PostgresDialogStore(config.dsn, os.urandom, config.name)


def third_party(config: StoreConfig) -> DialogStore:
    """A third-party store: `package.module:Class`, called with its name and its options."""
    module, _, attribute = config.kind.partition(":")
    try:
        made = getattr(importlib.import_module(module), attribute)(config.name, **config.options)
    except Exception as error:
        raise SetupError(
            f"dialog store {config.name!r}: {config.kind} cannot be made ({error!r}); check `kind` and `options`"
        ) from error
    missing = [method for method in STORE_METHODS if not callable(getattr(made, method, None))]
    if missing:
        raise SetupError(
            f"dialog store {config.name!r}: {config.kind} lacks {', '.join(missing)}; see holdfast.testing.stores"
        )
    store: DialogStore = made
    return store


class Work(Protocol):
    """A transaction on one store, from the event loop."""

    connection: Any

    @property
    def holds_file(self) -> bool:
        """The store's writer cannot write until it ends."""
        ...

    @property
    def lost(self) -> bool:
        """It was aborted, and its connection to the database was gone."""
        ...

    async def run(self, act: Callable[[Any], Any]) -> Any: ...
    async def commit(self, inserts: Sequence[Put], epoch: int) -> None: ...
    async def abort(self) -> None: ...


class Worker(Protocol):
    """Makes transactions on one store."""

    durable: bool

    async def begin(self, connection: Any) -> Work: ...
    def close(self) -> None: ...


class ThreadWorker:
    """For stores whose calls block: one thread, one transaction that has begun at a time, in order."""

    def __init__(self, store: DialogStore, durable: bool) -> None:
        self.durable = durable
        self._store = store
        self._pool = ThreadPoolExecutor(1, "holdfast-transactions")
        self._turn = asyncio.Lock()

    async def begin(self, connection: Any) -> Work:
        if connection is not None:
            raise MisuseError("only a postgres store takes a connection of the application")
        return ThreadWork(self._store, self._pool, self._turn)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class ThreadWork:
    connection: Any = None
    lost = False

    def __init__(self, store: DialogStore, pool: ThreadPoolExecutor, turn: asyncio.Lock) -> None:
        self._store = store
        self._pool = pool
        self._turn = turn
        self._tx: Any = None
        self._has_turn = False
        self._over = False
        self._beginning = asyncio.Lock()

    @property
    def holds_file(self) -> bool:
        return self._has_turn

    async def _begun(self) -> Any:
        async with self._beginning:  # Two statements at once must not begin two transactions.
            if self._tx is None:
                await self._turn.acquire()
                self._has_turn = True
                try:
                    self._tx = self._begin()
                except BaseException:
                    self._give_turn()
                    raise
        return self._tx

    def _begin(self) -> Any:
        if self._over:
            raise TransactionAborted("the transaction is over; nothing took effect")
        tx = self._store.begin()
        if isinstance(tx, SqliteTransaction):
            loop = asyncio.get_running_loop()
            tx.on_expired = lambda: _call_soon(loop, self._give_turn)
        return tx

    def _give_turn(self) -> None:
        """Let the next transaction begin. One whose time is over has given its turn already."""
        if self._has_turn:
            self._has_turn = False
            self._turn.release()

    async def run(self, act: Callable[[Any], Any]) -> Any:
        """Call `act(db)` on the transaction's thread."""
        tx = await self._begun()
        result = await self._in_thread(tx.run, act)
        if inspect.iscoroutine(result):
            result.close()
            raise MisuseError(
                "with SQLite, `run` takes a plain function, which it calls on the thread of the transaction; nothing "
                "of this coroutine function was executed"
            )
        return result

    async def commit(self, inserts: Sequence[Put], epoch: int) -> None:
        tx = await self._begun()
        self._over = True
        try:
            await self._in_thread(tx.commit, inserts, epoch)
        finally:
            self._give_turn()

    async def abort(self) -> None:
        self._over = True
        if self._tx is not None:
            try:
                await self._in_thread(self._tx.abort)
            except TransactionAborted:
                # The worker is closed. Its file must be free for the store that is opened next.
                await asyncio.to_thread(self._tx.abort)
            finally:
                self._give_turn()

    async def _in_thread(self, act: Callable[..., Any], *values: Any) -> Any:
        """Call `act` on the transaction's thread. Raises `TransactionAborted` if the worker was closed before."""
        closed = TransactionAborted(
            "the dialog store failed or was closed during the transaction; nothing took effect"
        )
        try:
            future = self._pool.submit(act, *values)
        except RuntimeError:
            raise closed from None
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if future.cancelled() and task is not None and not task.cancelling():
                raise closed from None
            raise


def _call_soon(loop: asyncio.AbstractEventLoop, act: Callable[[], None]) -> None:
    """From another thread; a loop that is closed has no transactions any more."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(act)


class PostgresWorker:
    """Transactions on the application's event loop: on a pool's connection, or on one that it brings."""

    durable = True

    def __init__(self, dsn: str, name: str) -> None:
        self._dsn = dsn
        self._name = name
        self._pool: Any = None
        self._making = asyncio.Lock()

    async def begin(self, connection: Any) -> Work:
        from holdfast.stores.dialogs.postgres import begin_transaction, not_begun

        if connection is not None:
            return PostgresWork(await begin_transaction(connection, self._name), None)
        with not_begun(self._name):
            own = await self._acquired()
        try:
            return PostgresWork(await begin_transaction(own, self._name), self._pool)
        except BaseException:
            await self._pool.release(own)
            raise

    async def _acquired(self) -> Any:
        async with self._making:
            if self._pool is None:
                import asyncpg

                self._pool = await asyncpg.create_pool(self._dsn, min_size=0, max_size=10)
        return await self._pool.acquire()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.terminate()


class PostgresWork:
    def __init__(self, tx: Any, pool: Any) -> None:
        self._tx = tx
        self._pool = pool
        self.connection: Any = tx.connection
        self.holds_file = False

    @property
    def lost(self) -> bool:
        return bool(self._tx.lost)

    async def run(self, act: Callable[[Any], Any]) -> Any:
        """Await `act(connection)`."""
        return await act(self.connection)

    async def commit(self, inserts: Sequence[Put], epoch: int) -> None:
        try:
            await self._tx.commit(inserts, epoch)
        finally:
            await self._release()

    async def abort(self) -> None:
        await self._tx.abort()
        await self._release()

    async def _release(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            try:
                await pool.release(self.connection)
            except Exception as error:  # noqa: BLE001 the outcome is known; the pool makes a new connection
                del error


def make_worker(config: StoreConfig, store: DialogStore) -> Worker:
    if config.kind == "postgres":
        return PostgresWorker(config.dsn, config.name)
    return ThreadWorker(store, durable=store.durability != PROCESS)


NOT_BEGUN = TransactionAborted("the transaction has not begun; use `async with`")
