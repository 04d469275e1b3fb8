"""Dialogs on PostgreSQL with the application's own tables: embedded, with a connection of one's own, and remote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.support.dialog_nodes import nodes, run
from tests.support.postgres import LOST, postgres

from holdfast import connect_dialogs
from holdfast.errors import MisuseError, TransactionAborted
from holdfast.runtime.dialogs.api import DialogApi
from holdfast.runtime.dialogs.stores import PostgresWorker


@pytest.fixture(scope="module")
def dsn() -> Iterator[str]:
    with postgres() as server:
        yield server.get_uri()


def section(dsn: str, name: str) -> str:
    return f"""
[[dialogs.store]]
name = "{name}"
kind = "postgres"
dsn = "{dsn}"
[[dialogs.route]]
service = "orders"
nodes = ["ben"]
"""


def test_a_message_and_a_row_of_the_application_commit_together(tmp_path: Path, dsn: str) -> None:
    """`tx.connection` of the store's pool, and a connection that the application brings."""

    async def work() -> None:
        own = await asyncpg.connect(dsn)
        await own.execute("CREATE TABLE done (body bytea)")
        sections = {name: section(dsn, f"{name}1") for name in ("ann", "ben")}
        async with nodes(tmp_path, "ann", "ben", special=sections) as (ann, ben):
            listener = await ben.dialogs.listen("orders")
            near = await ann.dialogs.open("orders")
            far = await listener.next()
            await near.send_many([b"1", b"2", b"3"])
            async with ben.dialogs.transaction(store="ben1") as tx:
                job = await far.receive(tx=tx)
                await tx.connection.execute("INSERT INTO done VALUES ($1)", job.body)
                await far.send(b"done 1", tx=tx)

            async def aborted() -> None:
                async with ben.dialogs.transaction(connection=own, store="ben1") as tx:
                    job = await far.receive(tx=tx)
                    await own.execute("INSERT INTO done VALUES ($1)", job.body)
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await aborted()
            async with ben.dialogs.transaction(connection=own, store="ben1") as tx:
                assert tx.connection is own
                job = await far.receive(tx=tx)
                assert (job.body, job.attempt) == (b"2", 2)
                await own.execute("INSERT INTO done VALUES ($1)", job.body)
            assert (await near.receive(timeout_s=10)).body == b"done 1"
            rows = await own.fetch("SELECT body FROM done ORDER BY body")
            assert [row["body"] for row in rows] == [b"1", b"2"]
        await own.close()

    run(work, 60)


def test_an_application_at_the_daemon_commits_with_its_own_connection(
    tmp_path: Path, dsn: str
) -> None:
    """The daemon gives it the rows; its statements and the messages are one transaction of the database."""

    async def work() -> None:
        own = await asyncpg.connect(dsn)
        await own.execute("CREATE TABLE remote_done (body bytea)")
        sections = {name: section(dsn, f"{name}2") for name in ("ann", "ben")}
        async with (
            nodes(tmp_path, "ann", "ben", special=sections) as (ann, _),
            connect_dialogs(tmp_path / "ben") as dialogs,
        ):
            listener = await dialogs.listen("orders")
            near = await ann.dialogs.open("orders")
            far = await listener.next()
            await near.send_many([b"1", b"2"])

            async def aborted() -> None:
                async with dialogs.transaction(store="ben2") as tx:
                    job = await far.receive(tx=tx)
                    await tx.connection.execute("INSERT INTO remote_done VALUES ($1)", job.body)
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await aborted()
            async with dialogs.transaction(store="ben2") as tx:
                job = await far.receive(tx=tx)
                await tx.connection.execute("INSERT INTO remote_done VALUES ($1)", job.body)
                await far.send(b"done", tx=tx)
            assert (await near.receive(timeout_s=10)).body == b"done"
            rows = await own.fetch("SELECT body FROM remote_done")
            assert [row["body"] for row in rows] == [b"1"]
            async with dialogs.transaction(store="ben2") as tx:  # without a dialog
                await tx.connection.execute("INSERT INTO remote_done VALUES ('own')")
            assert await own.fetchval("SELECT count(*) FROM remote_done") == 2
            with pytest.raises(MisuseError, match="no connection"):
                _ = dialogs.transaction().connection
        await own.close()

    run(work, 60)


async def end_connection(own: Any, connection: Any) -> None:
    """As an administrator, or a fail-over, ends it."""
    pid = await connection.fetchval("SELECT pg_backend_pid()")
    await own.execute("SELECT pg_terminate_backend($1, 5000)", pid)


@pytest.mark.parametrize("remote", [False, True])
def test_rule_14_a_connection_that_is_lost_does_not_count_against_the_message(
    tmp_path: Path, dsn: str, remote: bool
) -> None:
    """The database restarts whenever the job is processed: the job must not become poison."""
    names = {name: f"{name}{3 + remote}" for name in ("ann", "ben")}

    async def work() -> None:
        own = await asyncpg.connect(dsn)
        sections = {name: section(dsn, store) for name, store in names.items()}
        async with (
            nodes(tmp_path, "ann", "ben", special=sections) as (ann, ben),
            connect_dialogs(tmp_path / "ben") as application,
        ):
            dialogs: DialogApi = application if remote else ben.dialogs
            listener = await dialogs.listen("orders", poison_after=1)
            near = await ann.dialogs.open("orders")
            far = await listener.next()
            await near.send(b"job")

            async def cut_off() -> None:
                async with dialogs.transaction(store=names["ben"]) as tx:
                    assert (await far.receive(tx=tx)).body == b"job"
                    await end_connection(own, tx.connection)
                    await tx.connection.execute("SELECT 1")

            for _ in range(2):
                with pytest.raises(LOST):
                    await cut_off()
            async with dialogs.transaction(store=names["ben"]) as tx:
                assert (await far.receive(tx=tx, timeout_s=10)).body == b"job"
        await own.close()

    run(work, 60)


def test_a_database_that_is_away_refuses_to_begin_with_an_error_of_ours(
    tmp_path: Path, dsn: str
) -> None:
    """And not with whatever its driver raises while the server restarts."""

    async def work() -> None:
        away = PostgresWorker(f"postgresql:///postgres?host={tmp_path}", "orders")
        with pytest.raises(TransactionAborted, match="'orders' does not begin"):
            await away.begin(None)
        own, ended = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
        await end_connection(own, ended)
        with pytest.raises(TransactionAborted, match="nothing took effect"):
            await PostgresWorker(dsn, "orders").begin(ended)
        await own.close()

    run(work)
