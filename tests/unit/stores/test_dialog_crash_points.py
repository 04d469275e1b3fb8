"""A crash at every point of a commit: all of it or nothing, with the application's table and with the unit's batch."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest
from tests.support.postgres import LOST, postgres

from holdfast.dialog.records import (
    BLOCK,
    COMMITTED,
    DIALOG,
    POSITION,
    STAGED,
    TAKEN,
    TX,
    number_key,
)
from holdfast.errors import StoreFenced, TransactionAborted, TransactionInDoubt
from holdfast.machine import Put
from holdfast.stores.dialogs.postgres import PostgresDialogStore, begin_transaction
from holdfast.stores.dialogs.postgres_batch import COPY_BYTES
from holdfast.stores.dialogs.sqlite import SqliteDialogStore
from holdfast.stores.dialogs.sqlite_file import PAGE_BYTES

KEY = b"t" * 16
INSERTS = [Put(TAKEN, b"taken", b"row"), Put(STAGED, b"staged", b"row"), Put(TX, KEY, COMMITTED)]
"""The rows of a transaction that received one message and sent another."""
FRAME_HEAD, PAGE = 24, PAGE_BYTES
"""Of the log of SQLite: a header of 32 bytes, then frames of a page each."""


def cuts(size: int, before: int) -> Iterator[int]:
    """Where a crash may end a log: at each frame, within its head, and within its page."""
    for end in range(before, size + 1, FRAME_HEAD + PAGE):
        yield from (cut for cut in (end, end + 8, end + FRAME_HEAD, end + 1000) if cut <= size)


def crashed(source: Path, target: Path, log_bytes: int, torn: bool) -> Path:
    """The file as a crash leaves it: a part of the log is on the disk. With `torn`, its last bytes are old ones."""
    target.mkdir()
    file = target / "d.sqlite"
    shutil.copy(source, file)
    log = Path(f"{source}-wal").read_bytes()
    rest = bytes(512) if torn else b""
    Path(f"{file}-wal").write_bytes(log[:log_bytes] + rest)
    return file


def found(file: Path) -> tuple[bool, ...]:
    """Which parts of the transaction are there: the application's row, then its rows in the store."""
    store = SqliteDialogStore(file, os.urandom)
    store.open()
    rows = [bool(store.load(table)) for table in (TAKEN, STAGED, TX)]
    store.close()
    db = sqlite3.connect(file)
    own = db.execute("SELECT count(*) FROM results").fetchone()[0] == 1
    db.close()
    return (own, *rows)


@pytest.mark.parametrize("torn", [False, True])
def test_a_transaction_on_sqlite_is_whole_wherever_its_log_ends(tmp_path: Path, torn: bool) -> None:
    file = tmp_path / "d.sqlite"
    store = SqliteDialogStore(file, os.urandom)
    epoch = store.open().epoch
    own = sqlite3.connect(file)
    own.execute("CREATE TABLE results (number INTEGER, body BLOB)")
    own.close()
    before = Path(f"{file}-wal").stat().st_size
    transaction = store.begin()
    # Several pages, so that the log has points between the statements.
    transaction.run(lambda db: db.execute("INSERT INTO results VALUES (1, zeroblob(20000))"))
    transaction.commit(INSERTS, epoch)
    size = Path(f"{file}-wal").stat().st_size
    outcomes = {
        cut: found(crashed(file, tmp_path / f"{cut}", cut, torn)) for cut in cuts(size, before)
    }
    store.close()
    assert len(outcomes) > 20
    assert set(outcomes.values()) == {(False,) * 4, (True,) * 4}, outcomes
    whole = [cut for cut, parts in outcomes.items() if all(parts)]
    assert whole == [size], "COMMIT returns when the last byte is on the disk, and not before"


def test_a_batch_of_the_unit_is_whole_wherever_its_log_ends(tmp_path: Path) -> None:
    file = tmp_path / "d.sqlite"
    store = SqliteDialogStore(file, os.urandom)
    store.open()
    before = Path(f"{file}-wal").stat().st_size
    tables = (BLOCK, POSITION, DIALOG)
    store.commit([Put(table, number_key(1), bytes(9000)) for table in tables])
    size = Path(f"{file}-wal").stat().st_size
    states = []
    for cut in cuts(size, before):
        again = SqliteDialogStore(crashed(file, tmp_path / f"{cut}", cut, False), os.urandom)
        states.append([len(again.load(table)) for table in tables])
        again.close()
    store.close()
    assert [state for state in states if state not in ([0, 0, 0], [1, 1, 1])] == []
    assert states.count([1, 1, 1]) == 1
    assert states[-1] == [1, 1, 1]


# -- PostgreSQL --------------------------------------------------------------------------------------------------


class Cutter:
    """A proxy in front of the server that cuts the connection at one of the client's messages.

    `before`: the message does not reach the server. Otherwise it does, and its answer does not reach the client.
    """

    def __init__(
        self, socket: str, at: int, before: bool, then: Callable[[], None] | None = None
    ) -> None:
        self._socket = socket
        self._at = at
        self._before = before
        self._then = then
        """What happens between the cut and the time when the client notices it."""
        self.seen = 0
        self.armed = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, to_server = await asyncio.open_unix_connection(self._socket)
        answers = asyncio.ensure_future(_pass(upstream, writer))
        try:
            while data := await reader.read(1 << 16):
                cut = self.armed and self.seen == self._at
                self.seen += self.armed
                if not (cut and self._before):
                    if cut:
                        answers.cancel()
                    to_server.write(data)
                    await to_server.drain()
                if cut:
                    if not self._before:
                        # The server has acted on it when it answers.
                        await asyncio.wait_for(upstream.read(1), 10)
                    if self._then is not None:
                        await asyncio.to_thread(self._then)
                    break
        finally:
            answers.cancel()
            to_server.close()
            writer.close()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)


@asynccontextmanager
async def cut_at(
    socket: str, at: int, before: bool, then: Callable[[], None] | None = None
) -> AsyncIterator[tuple[Cutter, str]]:
    cutter = Cutter(socket, at, before, then)
    server = await asyncio.start_server(cutter.serve, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        yield cutter, f"postgresql://postgres@127.0.0.1:{port}/postgres"
    finally:
        server.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    with postgres() as server:
        yield server


def socket_of(server: Any) -> str:
    [directory] = parse_qs(urlsplit(server.get_uri()).query)["host"]
    [socket] = map(str, Path(directory).glob(".s.PGSQL.*[0-9]"))
    return socket


@pytest.mark.parametrize("size", [1, COPY_BYTES])
@pytest.mark.parametrize("before", [True, False])
def test_rule_5_a_batch_on_postgresql_is_committed_once_wherever_its_connection_is_cut(
    server: Any, before: bool, size: int
) -> None:
    """Cut behind the commit, a batch that is written again without asking meets a fence that has moved on."""
    name = f"batch {before} {size}"

    async def attempt(at: int) -> bool:
        """Gives whether all points were passed."""
        async with cut_at(socket_of(server), at, before) as (cutter, dsn):
            store = PostgresDialogStore(dsn, os.urandom, name)
            await asyncio.to_thread(store.open)
            cutter.armed = True
            key = number_key(at)
            batch = [Put(BLOCK, key, bytes(size)), Put(DIALOG, key, b"row")]
            await asyncio.to_thread(store.commit, batch)
            await asyncio.to_thread(store.commit, [Put(POSITION, key, b"next")])
            cutter.armed = False
            for table in (BLOCK, DIALOG, POSITION):
                rows = await asyncio.to_thread(store.load, table)
                assert [row for row, _ in rows] == [number_key(n) for n in range(at + 1)]
            await asyncio.to_thread(store.close)
            return cutter.seen <= at

    async def every_point() -> int:
        for at in count():
            if await attempt(at):
                return at
        raise AssertionError

    assert asyncio.run(every_point()) >= 2, "a batch is at least one message each way"


def test_rule_5_a_batch_in_doubt_is_not_taken_for_the_takeover_of_another_owner(
    server: Any,
) -> None:
    """Both add one to the number of the store."""
    name = "doubt"

    def take_over() -> None:
        other = PostgresDialogStore(server.get_uri(), os.urandom, name)
        other.open()
        other.close()

    async def run() -> None:
        async with cut_at(socket_of(server), 0, True, take_over) as (cutter, dsn):
            store = PostgresDialogStore(dsn, os.urandom, name)
            await asyncio.to_thread(store.open)
            cutter.armed = True
            with pytest.raises(StoreFenced):
                await asyncio.to_thread(store.commit, [Put(DIALOG, b"a", b"row")])
            cutter.armed = False
            assert await asyncio.to_thread(store.load, DIALOG) == []
            await asyncio.to_thread(store.close)

    asyncio.run(run())


@pytest.mark.parametrize("before", [True, False])
def test_a_transaction_on_postgresql_is_whole_wherever_its_connection_is_cut(
    server: Any, before: bool
) -> None:
    """The application is told what is true: committed, aborted, or in doubt, which asking settles."""
    store = PostgresDialogStore(server.get_uri(), os.urandom, f"cut {before}")
    epoch = store.open().epoch
    socket = socket_of(server)

    async def attempt(at: int) -> tuple[str, bool, bool]:
        """What the application is told, what asking says, and whether all points were passed."""
        key, mark = b"%016d" % at, at
        inserts = [
            Put(TAKEN, b"taken%d" % at, b"row"),
            Put(STAGED, b"staged%d" % at, b"row"),
            Put(TX, key, COMMITTED),
        ]
        async with cut_at(socket, at, before) as (cutter, dsn):
            connection = await asyncpg.connect(dsn)
            transaction = await begin_transaction(connection, store.name)
            cutter.armed = True
            try:
                await connection.execute(f"INSERT INTO results VALUES ('{before}', {mark})")
                await transaction.commit(inserts, epoch)
                told = "committed"
            except TransactionInDoubt:
                told = "in doubt"
            except TransactionAborted:
                told = "aborted"
            except LOST:
                told = "aborted"  # By the application's own statement.
            connection.terminate()
        settled = await asyncio.to_thread(store.settle, key)
        own = await asyncpg.connect(server.get_uri())
        rows = await own.fetchval(
            "SELECT count(*) FROM results WHERE run = $1 AND mark = $2", f"{before}", mark
        )
        await own.close()
        parts = [bool(rows)]
        for table, row in ((TAKEN, inserts[0].key), (STAGED, inserts[1].key)):
            parts.append(bool(await asyncio.to_thread(store.read, table, row, row + b"\0")))
        assert parts == [settled] * 3, f"cut at {at}: told {told}, settled {settled}, {parts}"
        return told, settled, cutter.seen <= at

    async def every_point() -> list[tuple[str, bool]]:
        outcomes = []
        for at in count():
            told, settled, passed = await attempt(at)
            outcomes.append((told, settled))
            if passed:
                return outcomes
        raise AssertionError

    async def prepare() -> None:
        own = await asyncpg.connect(server.get_uri())
        await own.execute("CREATE TABLE IF NOT EXISTS results (run text, mark bigint)")
        await own.close()

    asyncio.run(prepare())
    outcomes = asyncio.run(every_point())
    store.close()
    told = [word for word, _ in outcomes]
    commit = told.index("in doubt")
    assert commit > 5, "the fence, each row and COMMIT have messages of their own"
    assert outcomes[:commit] == [("aborted", False)] * commit
    assert outcomes[commit] == ("in doubt", not before)
    assert set(outcomes[commit + 1 :]) == {("committed", True)}
