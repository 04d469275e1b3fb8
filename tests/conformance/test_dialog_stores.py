"""The conformance suite of dialog stores, on every store of Holdfast."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.postgres import postgres

from holdfast.stores.dialogs import MemoryDialogStore, SqliteDialogStore
from holdfast.stores.dialogs.express import ExpressDialogStore
from holdfast.stores.dialogs.memory import Shelf
from holdfast.stores.dialogs.port import DialogStore
from holdfast.stores.dialogs.postgres import PostgresDialogStore
from holdfast.testing.stores import DialogStoreSuite


class TestMemory(DialogStoreSuite):
    def make(self) -> DialogStore:
        if not hasattr(self, "shelf"):
            self.shelf = Shelf(b"shelf id")
        return MemoryDialogStore(b"", shelf=self.shelf)


class TestSqlite(DialogStoreSuite):
    has_tables = True

    def make(self) -> DialogStore:
        return SqliteDialogStore(self.directory / "dialogs.sqlite", os.urandom)

    def create_own(self, store: DialogStore) -> None:
        assert isinstance(store, SqliteDialogStore)
        db = sqlite3.connect(store.path)
        db.execute("CREATE TABLE own (text TEXT)")
        db.commit()
        db.close()

    def write_own(self, transaction: Any, text: str) -> None:
        transaction.run(lambda db: db.execute("INSERT INTO own VALUES (?)", (text,)))

    def read_own(self, store: DialogStore) -> list[str]:
        assert isinstance(store, SqliteDialogStore)
        db = sqlite3.connect(store.path)
        rows = db.execute("SELECT text FROM own ORDER BY rowid").fetchall()
        db.close()
        return [text for (text,) in rows]


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("express") / "socket"
    process = subprocess.Popen([sys.executable, "-m", "holdfast.stores.dialogs.express", str(path)])
    for _ in range(200):
        if path.exists():
            break
        time.sleep(0.05)
    yield path
    process.terminate()
    process.wait()


class TestExpress(DialogStoreSuite):
    @pytest.fixture(autouse=True)
    def _daemon(self, daemon: Path, request: pytest.FixtureRequest) -> None:
        self.path, self.name = daemon, request.node.name

    def make(self) -> DialogStore:
        return ExpressDialogStore(self.path, self.name)


@pytest.fixture(scope="session")
def database() -> Iterator[str]:
    with postgres() as server:
        yield server.get_uri()


class TestPostgres(DialogStoreSuite):
    has_tables = True

    @pytest.fixture(autouse=True)
    def _database(self, database: str, request: pytest.FixtureRequest) -> None:
        self.dsn, self.name = database, request.node.name[:60]

    def make(self) -> DialogStore:
        return PostgresDialogStore(self.dsn, os.urandom, self.name, reconnect_s=5)

    def create_own(self, store: DialogStore) -> None:
        transaction: Any = store.begin()

        async def create(connection: Any) -> None:
            await connection.execute(f'CREATE TABLE "own_{self.name}" (n serial, text text)')
            await connection.execute("COMMIT")

        transaction.run(create)
        transaction.abort()

    def write_own(self, transaction: Any, text: str) -> None:
        async def write(connection: Any) -> None:
            await connection.execute(f'INSERT INTO "own_{self.name}" (text) VALUES ($1)', text)

        transaction.run(write)

    def read_own(self, store: DialogStore) -> list[str]:
        transaction: Any = store.begin()

        async def read(connection: Any) -> list[str]:
            rows = await connection.fetch(f'SELECT text FROM "own_{self.name}" ORDER BY n')
            return [row["text"] for row in rows]

        rows: list[str] = transaction.run(read)
        transaction.abort()
        return rows
