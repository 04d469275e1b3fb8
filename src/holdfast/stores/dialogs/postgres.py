"""The installation's store: PostgreSQL, local or remote, through asyncpg.

The unit's batches run on a connection of their own, with an event loop that runs in the thread that calls the store.
The application's transactions run on the application's loop, on a connection of a pool or on one that the application
brings.

Each batch first compares and increments `seq` under owner and epoch. After a lost connection the row is locked and
read: one more means that the batch was committed, the same means to repeat it, less means that the database lost
commits.

An application's transaction takes a key-share lock on the row, which lets the unit's batches pass and makes a new
owner wait. It inserts its id last. Doubt is settled by inserting the same id as aborted: the unique index waits for a
commit in progress.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, Final, TypeVar

import asyncpg

from holdfast.dialog.records import ABORTED, BLOCK, COMMITTED, STAGED, TABLES, TX
from holdfast.errors import (
    MisuseError,
    StoreError,
    StoreFull,
    TransactionAborted,
    TransactionInDoubt,
)
from holdfast.machine import Put, Write
from holdfast.stores.dialogs.memory import conflict, fenced
from holdfast.stores.dialogs.port import DISK, Ownership
from holdfast.stores.dialogs.postgres_batch import commit_checked, make_function, write_batch
from holdfast.stores.failure import refuse_after

T = TypeVar("T")
SCHEMA: Final = 1
RECONNECT_S: Final = 60.0
"""How long a batch waits for a database that is away before the store fails."""
RETRY_S: Final = 0.2
COMMAND_S: Final = 30.0
LOST: Final = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncio.TimeoutError,
    asyncio.IncompleteReadError,
)

_LIMITS = """
SET idle_in_transaction_session_timeout = '15s';
SET tcp_keepalives_idle = 5;
SET tcp_keepalives_interval = 5;
SET tcp_keepalives_count = 2"""
"""A large batch takes several round trips, and holds the row of the store from the first to the last. When the network
fails between them, the server must notice before `RECONNECT_S` is over, or the next connection waits for the row in
vain."""
_SYNCED: Final = """SELECT set_config('synchronous_commit', 'on', {local})
WHERE current_setting('synchronous_commit') = 'off'"""
"""A commit must be on the disk when it returns, also where the database or the role says otherwise."""
_STORAGE = (
    "SELECT attstorage FROM pg_attribute WHERE attrelid = $1::text::regclass AND attname = 'value'"
)
_EXTERNAL: Final = b"e"
_SHARE = "SELECT epoch FROM holdfast.store WHERE name = $1 AND epoch = $2 FOR KEY SHARE"
_WHERE = "SELECT owner, epoch, seq FROM holdfast.store WHERE name = $1 FOR UPDATE"


class PostgresDialogStore:
    """A `DialogStore` in a database. Several stores, told apart by name, can share one."""

    durability = DISK

    def __init__(
        self,
        dsn: str,
        entropy: Callable[[int], bytes],
        name: str = "default",
        reconnect_s: float = RECONNECT_S,
    ) -> None:
        self.dsn = dsn
        self.name = name
        self._entropy = entropy
        self._owner = entropy(16)
        self._reconnect_s = reconnect_s
        self._epoch = 0
        self._seq = 0
        self._failure: StoreError | None = None
        self._connection: Any = None
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._turn = threading.Lock()
        """One caller at a time uses the loop and the connection."""

    # -- the unit's side -----------------------------------------------------------------------------------------

    def open(self) -> Ownership:
        return self._wait(self._retried(self._open))

    async def _open(self) -> Ownership:
        await self._make()
        connection = self._connection
        async with connection.transaction():
            # Waits for transactions of the old owner that are committing: they share the key.
            await connection.fetchrow(_WHERE, self.name)
            row = await connection.fetchrow(
                "UPDATE holdfast.store SET owner = $2, epoch = epoch + 1, seq = seq + 1 WHERE name = $1 "
                "RETURNING id, epoch, seq",
                self.name,
                self._owner,
            )
        self._epoch, self._seq = row["epoch"], row["seq"]
        return Ownership(row["id"], row["epoch"])

    async def _make(self) -> None:
        connection = self._connection
        async with connection.transaction():
            # Two nodes that start together must not both make it.
            await connection.execute("SELECT pg_advisory_xact_lock(4866434431)")
            await connection.execute("CREATE SCHEMA IF NOT EXISTS holdfast")
            await connection.execute(
                "CREATE TABLE IF NOT EXISTS holdfast.store (name text PRIMARY KEY, id bytea NOT NULL, "
                "owner bytea NOT NULL, epoch bigint NOT NULL, seq bigint NOT NULL, schema integer NOT NULL)"
            )
            for table in TABLES:
                await connection.execute(
                    f"CREATE TABLE IF NOT EXISTS holdfast.{table} (store text NOT NULL, key bytea NOT NULL, "
                    "value bytea NOT NULL, PRIMARY KEY (store, key))"
                )
            for table in (BLOCK, STAGED):
                await _store_uncompressed(connection, table)
            await make_function(connection)
            await connection.execute(
                "INSERT INTO holdfast.store VALUES ($1, $2, $3, 0, 0, $4) ON CONFLICT DO NOTHING",
                self.name,
                self._entropy(8),
                self._owner,
                SCHEMA,
            )
        found = await connection.fetchval(
            "SELECT schema FROM holdfast.store WHERE name = $1", self.name
        )
        if found != SCHEMA:
            raise StoreError(
                f"store {self.name!r} has schema {found}, this Holdfast knows {SCHEMA}; it was not changed"
            )

    def load(self, table: str) -> list[tuple[bytes, bytes]]:
        statement = f"SELECT key, value FROM holdfast.{_known(table)} WHERE store = $1 ORDER BY key"
        return self._rows(statement, self.name)

    def read(self, table: str, first: bytes, stop: bytes) -> list[tuple[bytes, bytes]]:
        statement = (
            f"SELECT key, value FROM holdfast.{_known(table)} "
            "WHERE store = $1 AND key >= $2 AND key < $3 ORDER BY key"
        )
        return self._rows(statement, self.name, first, stop)

    def _rows(self, statement: str, *values: Any) -> list[tuple[bytes, bytes]]:
        async def fetch() -> list[tuple[bytes, bytes]]:
            return [(row[0], row[1]) for row in await self._connection.fetch(statement, *values)]

        return self._wait(self._retried(fetch))

    def commit(self, writes: Sequence[Write]) -> None:
        refuse_after(self._failure)
        try:
            self._wait(self._commit_surely(writes))
        except StoreError as error:
            self._failure = error
            raise

    async def _commit_surely(self, writes: Sequence[Write]) -> None:
        """Commit, whatever becomes of the connection; never twice."""
        in_doubt = False

        async def attempt() -> None:
            nonlocal in_doubt
            # rule: D-5a
            if in_doubt and await self._was_committed():
                return
            in_doubt = True
            await self._commit(writes)

        await self._retried(attempt)
        self._seq += 1

    async def _was_committed(self) -> bool:
        async with self._connection.transaction():
            row = await self._connection.fetchrow(_WHERE, self.name)
        # rule: D-5c
        if row is None or row["owner"] != self._owner or row["epoch"] != self._epoch:
            raise fenced(row["epoch"] if row else -1, self._epoch)
        # rule: D-5b
        if row["seq"] < self._seq:
            raise StoreError(
                f"the database lost commits of store {self.name!r} (it is at {row['seq']}, {self._seq} was reported); "
                "nothing more is written; partners find out what is missing"
            )
        return bool(row["seq"] == self._seq + 1)

    async def _commit(self, writes: Sequence[Write]) -> None:
        try:
            now = await write_batch(
                self._connection, self.name, self._owner, self._epoch, self._seq, writes
            )
        except TransactionAborted as error:
            raise StoreError(f"store {self.name!r}: {error}") from error
        if now is not None:
            raise fenced(now, self._epoch)

    # -- the connection ------------------------------------------------------------------------------------------

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        with self._turn:
            if self._closed:
                work.close()
                raise StoreError(f"store {self.name!r} is closed; nothing was done")
            return self._loop.run_until_complete(work)

    async def _retried(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do it on a live connection; again on a new one when it was lost."""
        end = self._loop.time() + self._reconnect_s
        while True:
            try:
                if self._connection is None:
                    self._connection = await asyncpg.connect(self.dsn, command_timeout=COMMAND_S)
                    await self._connection.execute(_LIMITS)
                    await self._connection.execute(_SYNCED.format(local="false"))
                return await work()
            except LOST as error:
                await self._drop()
                if self._loop.time() >= end:
                    raise StoreError(
                        f"the database of store {self.name!r} does not answer ({error!r}); the last batch may be there "
                        "or not; start the node again when the database is back"
                    ) from error
                await asyncio.sleep(RETRY_S)
            except asyncpg.DiskFullError as error:
                raise StoreFull(
                    f"the database of store {self.name!r} has no room: {error}"
                ) from error
            except asyncpg.PostgresError as error:
                raise StoreError(
                    f"the database of store {self.name!r} refused: {error!r}"
                ) from error

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                await _terminate(connection)

    def close(self) -> None:
        if self._closed:
            return
        # The caller's thread may have a running loop of its own, beside which this one cannot run.
        thread = threading.Thread(target=self._close, name="holdfast-postgres-close")
        thread.start()
        thread.join()

    def _close(self) -> None:
        with contextlib.suppress(Exception):
            self._wait(self._drop())
        with self._turn:
            self._closed = True
            self._loop.close()

    # -- the application's side ----------------------------------------------------------------------------------

    def begin(self) -> BlockingTransaction:
        """For callers without an event loop. Applications use `transaction`."""
        return BlockingTransaction(self)

    def settle(self, tx: bytes) -> bool:
        async def ask() -> bool:
            return await settle(self._connection, self.name, tx)

        return self._wait(self._retried(ask))

    async def transaction(self, connection: Any) -> PostgresTransaction:
        """Begin a transaction of the application on its own connection and event loop."""
        return await begin_transaction(connection, self.name)


class PostgresTransaction:
    """A transaction on the application's connection, which is `connection`."""

    def __init__(self, connection: Any, name: str) -> None:
        self.connection = connection
        self._name = name
        self._over = False
        self.lost = False
        """It was aborted, and the connection was gone."""

    async def commit(self, inserts: Sequence[Put], epoch: int) -> None:
        """The fence first, the id last, and the tag of COMMIT is looked at."""
        if self._over:
            raise TransactionAborted("the transaction is over; nothing took effect")
        connection = self.connection
        # rule: D-8d
        if not connection.is_in_transaction():
            # The rows of the transaction would be committed one by one.
            self._over = True
            raise TransactionAborted(
                "the application or the database has ended the transaction on its connection: own statements may have "
                "been committed, the messages were not; leave BEGIN, COMMIT and ROLLBACK to `transaction()`"
            )
        try:
            found = await connection.fetchval(_SHARE, self._name, epoch)
            # rule: D-7a
            if found is None:
                now = await connection.fetchval(
                    "SELECT epoch FROM holdfast.store WHERE name = $1", self._name
                )
                raise fenced(now, epoch)
            for row in inserts:
                await self._insert(row)
        except asyncpg.PostgresError as error:
            await self.abort()
            raise TransactionAborted(
                f"the database refused a statement of the transaction ({error}); nothing took effect"
            ) from error
        except LOST as error:
            # Lost before COMMIT was sent: the server rolls back.
            await self.abort()
            raise TransactionAborted(
                f"the connection was lost before the commit ({error!r}); nothing took effect"
            ) from error
        except BaseException:
            await self.abort()
            raise
        self._over = True
        try:
            await commit_checked(connection)
        except LOST as error:
            raise TransactionInDoubt(
                f"the connection was lost during COMMIT ({error!r}); the outcome is being asked for"
            ) from error
        except asyncpg.PostgresError as error:
            raise TransactionAborted(
                f"the database refused the commit ({error}); nothing took effect"
            ) from error

    async def _insert(self, row: Put) -> None:
        try:
            await self.connection.execute(
                f"INSERT INTO holdfast.{_known(row.table)} VALUES ($1, $2, $3)",
                self._name,
                row.key,
                bytes(row.value),
            )
        except asyncpg.UniqueViolationError as error:
            raise conflict(row) from error

    async def abort(self) -> None:
        if self._over:
            return
        self._over = True
        try:
            await self.connection.execute("ROLLBACK")
        except Exception:  # noqa: BLE001 whatever the reason, the server rolls back by itself
            self.lost = True


async def begin_transaction(connection: Any, name: str) -> PostgresTransaction:
    if connection.is_in_transaction():
        raise MisuseError("the connection is in a transaction already; nothing was begun")
    with not_begun(name):
        await connection.execute(f"BEGIN; {_SYNCED.format(local='true')}")
    return PostgresTransaction(connection, name)


@contextlib.contextmanager
def not_begun(name: str) -> Iterator[None]:
    """Whatever the database or its driver raises here, no transaction has begun."""
    try:
        yield
    except (*LOST, asyncpg.PostgresError) as error:
        raise TransactionAborted(
            f"the database of store {name!r} does not begin a transaction ({error!r}); nothing took effect; try again"
        ) from error


async def settle(connection: Any, name: str, tx: bytes) -> bool:
    """Whether a transaction was committed. The insert waits for a commit in progress, and bars a later one."""
    # rule: D-6b
    await connection.execute(
        f"INSERT INTO holdfast.{TX} VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", name, tx, ABORTED
    )
    found = await connection.fetchval(
        f"SELECT value FROM holdfast.{TX} WHERE store = $1 AND key = $2", name, tx
    )
    return bool(found == COMMITTED)


class BlockingTransaction:
    """A transaction on a connection of its own, for callers without an event loop."""

    def __init__(self, store: PostgresDialogStore) -> None:
        self._store = store
        self._tx: PostgresTransaction | None = None

    def run(self, act: Callable[[Any], Awaitable[Any]]) -> Any:
        """Await `act(connection)` on the store's loop."""

        async def work() -> Any:
            return await act((await self._begun()).connection)

        return self._store._wait(work())

    async def _begun(self) -> PostgresTransaction:
        if self._tx is None:
            connection = await asyncpg.connect(self._store.dsn, command_timeout=COMMAND_S)
            self._tx = await begin_transaction(connection, self._store.name)
        return self._tx

    def commit(self, inserts: Sequence[Put], epoch: int) -> None:
        async def work() -> None:
            tx = await self._begun()
            try:
                await tx.commit(inserts, epoch)
            finally:
                await _terminate(tx.connection)

        self._store._wait(work())

    def abort(self) -> None:
        async def work() -> None:
            if self._tx is not None:
                await self._tx.abort()
                await _terminate(self._tx.connection)

        self._store._wait(work())


async def _store_uncompressed(connection: Any, table: str) -> None:
    """The server's pglz takes longer to compress messages than to write them, also when it finds that it cannot. They
    stay only until they are acknowledged."""
    found = await connection.fetchval(_STORAGE, f"holdfast.{table}")
    if found != _EXTERNAL:
        await connection.execute(
            f"ALTER TABLE holdfast.{table} ALTER COLUMN value SET STORAGE EXTERNAL"
        )


async def _terminate(connection: Any) -> None:
    """Close the socket now: the loop runs only while the store is used."""
    connection.terminate()
    await asyncio.sleep(0)


def _known(table: str) -> str:
    assert table in TABLES, f"no table {table}"
    return table
