"""Dialogs that a node hosts for applications: the same API through a Unix socket, for those that send and exit."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.dialog_nodes import SQLITE, nodes, run
from tests.support.relay import cut_relay

from holdfast import connect_dialogs
from holdfast.errors import (
    DialogEnded,
    MisuseError,
    NodeStopped,
    SendTimeout,
    TransactionAborted,
)
from holdfast.runtime.control import ask
from holdfast.runtime.dialogs.remote import RemoteDialogs


def test_an_application_sends_and_exits(tmp_path: Path) -> None:
    """The application is a process of its own. It is gone before there is a partner; the daemon delivers."""
    script = f"""
import asyncio, holdfast
async def main():
    async with holdfast.connect_dialogs({str(tmp_path / "ann")!r}) as dialogs:
        dialog = await dialogs.open("orders", wait=False)
        await dialog.send_many([b"one", b"two"])
asyncio.run(main())
"""

    async def work() -> None:
        async with nodes(tmp_path, "ann", "ben") as (ann, ben):
            ann.dialogs.repair_with("no-partner", lambda _dialog, _fault: listen_and_reroute(ben))
            child = await asyncio.to_thread(
                lambda: subprocess.run([sys.executable, "-c", script], timeout=20, check=False)
            )
            assert child.returncode == 0
            got: list[bytes] = []
            while len(got) < 2:
                got += [m.body for m in (await ben.dialogs.receive_any(5))[1]]
            assert got == [b"one", b"two"]

    run(work)


async def listen_and_reroute(ben: object) -> str:
    await ben.dialogs.listen("orders")  # type: ignore[attr-defined]
    return "reroute"


@asynccontextmanager
async def pair(tmp_path: Path) -> AsyncIterator[tuple[RemoteDialogs, RemoteDialogs]]:
    """Two applications, each with a node that hosts its dialogs."""
    async with (
        nodes(tmp_path, "ann", "ben"),
        connect_dialogs(tmp_path / "ann") as near,
        connect_dialogs(tmp_path / "ben") as far,
    ):
        yield near, far


def test_the_api_is_the_same_as_embedded(tmp_path: Path) -> None:
    """Open, accept, send, receive, iterate, request, transactions, delete, complete, errors."""

    async def work() -> None:
        async with pair(tmp_path) as (near, far):
            listener = await far.listen("orders", quota_messages=4)
            dialog = await near.open("orders", profile="batch", quota_messages=4)
            other = await listener.next()
            assert other.id == dialog.id
            assert await dialog.send_many([b"1", b"2", b"3"]) == 0
            assert [m.body for m in await other.receive_many(2)] == [b"1", b"2"]
            await other.delete(1)
            answer = asyncio.create_task(dialog.request(b"question", timeout_s=10))
            assert (await other.receive(timeout_s=10)).body == b"question"
            await other.send(b"answer")
            assert (await answer).body == b"answer"
            for n in range(8):
                await dialog.send(b"%d" % n)
            with pytest.raises(SendTimeout, match="nothing was sent"):
                await dialog.send(b"9", timeout_s=0.05)
            for _ in range(8):
                await other.receive(timeout_s=10)
            await dialog.complete()
            await other.complete()
            await dialog.completed(10)
            with pytest.raises(DialogEnded):
                await dialog.send(b"late")

    run(work)


def test_a_transaction_through_the_daemon(tmp_path: Path) -> None:
    """Committed: all of it. Aborted: nothing, and the message comes again with its attempt counted."""

    async def work() -> None:
        async with pair(tmp_path) as (near, far):
            listener = await far.listen("orders")
            dialog = await near.open("orders")
            other = await listener.next()
            await dialog.send_many([b"job 1", b"job 2"])

            async def aborted() -> None:
                async with far.transaction() as tx:
                    await other.receive(tx=tx)
                    await other.send(b"never", tx=tx)
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await aborted()
            async with far.transaction() as tx:
                job = await other.receive(tx=tx)
                assert (job.body, job.attempt) == (b"job 1", 2)
                await other.send(b"done", tx=tx)
            assert (await dialog.receive(timeout_s=10)).body == b"done"
            async with far.transaction() as tx:
                _, jobs = await far.receive_any(1, tx=tx)
                assert [job.body for job in jobs] == [b"job 2"]

    run(work)


def test_a_request_that_is_repeated_after_a_lost_connection_takes_effect_once(
    tmp_path: Path,
) -> None:
    """The connection is cut between a request and its answer, again and again. Each message is sent once."""

    async def work() -> None:
        async with nodes(tmp_path, "ann", "ben") as (_, ben):
            listener = await ben.dialogs.listen("orders")
            async with (
                cut_relay(tmp_path / "ann" / "dialogs.sock", tmp_path / "relay.sock") as relay,
                connect_dialogs(tmp_path / "relay.sock") as dialogs,
            ):
                dialog = await dialogs.open("orders")
                far = await listener.next()
                for n in range(20):
                    relay.swallow_answers = n % 2 == 0
                    sending = asyncio.ensure_future(dialog.send(b"%d" % n))
                    if relay.swallow_answers:
                        await relay.swallowed.wait()
                        relay.cut()
                    await sending
                got: list[bytes] = []
                while len(got) < 20:
                    got += [m.body for m in await far.receive_many(50, timeout_s=10)]
                assert got == [b"%d" % n for n in range(20)]
                assert relay.connections >= 10

    run(work)


def test_a_connection_lost_before_the_commit_request_aborts(tmp_path: Path) -> None:
    """Rule 12. The message is available to the next application, and what was sent never leaves."""

    async def work() -> None:
        async with nodes(tmp_path, "ann", "ben") as (ann, _):
            listener = await ann.dialogs.listen("echo")
            async with (
                cut_relay(tmp_path / "ben" / "dialogs.sock", tmp_path / "relay.sock") as relay,
                connect_dialogs(tmp_path / "relay.sock") as dialogs,
            ):
                dialog = await dialogs.open("holdfast://ann/echo")
                far = await listener.next()
                await far.send(b"job")

                async def cut() -> None:
                    async with dialogs.transaction() as tx:
                        assert (await dialog.receive(tx=tx)).body == b"job"
                        await dialog.send(b"reply", tx=tx)
                        relay.cut()

                with pytest.raises(TransactionAborted, match="nothing took effect"):
                    await cut()
                again = await dialog.receive(timeout_s=10)
                assert (again.body, again.attempt) == (b"job", 1), "not the application's fault"
                await dialog.send(b"second")
                assert (await far.receive(timeout_s=10)).body == b"second"

    run(work)


def test_a_commit_is_settled_after_the_daemon_was_restarted(tmp_path: Path) -> None:
    """The daemon ends between the commit and its answer. The application learns that it was committed."""

    async def work() -> None:
        async with nodes(tmp_path, "ann", "ben") as (ann, ben):
            listener = await ann.dialogs.listen("echo")
            async with (
                cut_relay(tmp_path / "ben" / "dialogs.sock", tmp_path / "relay.sock") as relay,
                connect_dialogs(tmp_path / "relay.sock") as dialogs,
            ):
                dialog = await dialogs.open("holdfast://ann/echo")
                far = await listener.next()
                await far.send(b"job")
                tx = dialogs.transaction()
                await dialog.receive(tx=tx, timeout_s=10)
                await dialog.send(b"reply", tx=tx)
                relay.swallow_answers = True
                relay.swallowed.clear()
                committing = asyncio.ensure_future(tx.commit())
                await relay.swallowed.wait()
                await ben.stop()
                relay.cut()
                relay.swallow_answers = False
                await ben.start()
                await committing
                assert (await far.receive(timeout_s=15)).body == b"reply"
                assert await dialog.receive_many(1, timeout_s=0.1) == []

    run(work)


def test_a_dialog_is_leased_to_one_application(tmp_path: Path) -> None:
    async def work() -> None:
        async with nodes(tmp_path, "ann", "ben") as (_, ben):
            await ben.dialogs.listen("orders")
            async with connect_dialogs(tmp_path / "ann") as one:
                dialog = await one.open("orders")
                async with connect_dialogs(tmp_path / "ann") as two:
                    with pytest.raises(MisuseError, match="another application"):
                        await two.reactivate(dialog.id)
            async with connect_dialogs(tmp_path / "ann") as three:
                again = await until_free(three, dialog.id)
                await again.send(b"mine now")
            _, messages = await ben.dialogs.receive_any(1, timeout_s=10)
            assert [m.body for m in messages] == [b"mine now"]

    run(work)


async def until_free(dialogs: RemoteDialogs, dialog: bytes) -> object:
    while True:
        try:
            return await dialogs.reactivate(dialog)
        except MisuseError:
            await asyncio.sleep(0.005)


def test_a_service_is_taken_while_its_application_is_away(tmp_path: Path) -> None:
    """The next application gets the dialogs that were opened meanwhile, with their messages."""

    async def work() -> None:
        async with nodes(tmp_path, "ann", "ben") as (ann, _):
            async with connect_dialogs(tmp_path / "ben") as first:
                await first.listen("orders")
            dialog = await ann.dialogs.open("orders")
            await dialog.send(b"while you were away")
            async with connect_dialogs(tmp_path / "ben") as second:
                listener = await listen_when_free(second)
                far = await listener.next()
                assert (await far.receive(timeout_s=10)).body == b"while you were away"

    run(work)


async def listen_when_free(dialogs: RemoteDialogs) -> object:
    while True:
        try:
            return await dialogs.listen("orders")
        except MisuseError:
            await asyncio.sleep(0.005)


def test_without_a_daemon_the_error_says_so(tmp_path: Path) -> None:
    async def work() -> None:
        with pytest.raises(NodeStopped, match="no node hosts dialogs"):
            await connect_dialogs(tmp_path / "none.sock", timeout_s=0.1).start()

    run(work)


def test_garbage_from_an_application_is_refused_and_harms_no_other(tmp_path: Path) -> None:
    async def work() -> None:
        async with nodes(tmp_path, "ann", "ben") as (_, ben):
            await ben.dialogs.listen("orders")
            for garbage in (b"\x00\x00\x00\x04abcd", b"\xff" * 64, b"\x00\x00\x00\x01"):
                reader, writer = await asyncio.open_unix_connection(
                    tmp_path / "ann" / "dialogs.sock"
                )
                writer.write(garbage)
                writer.write_eof()
                assert await reader.read() == b""
                writer.close()
            async with connect_dialogs(tmp_path / "ann") as dialogs:
                await (await dialogs.open("orders")).send(b"fine")

    run(work)


def test_a_service_of_the_configuration_is_taken_from_the_start(tmp_path: Path) -> None:
    """`[[dialogs.service]]`: no application has ever connected when the first dialog is opened."""
    section = SQLITE + '[[dialogs.service]]\nname = "orders"\nprofile = "batch"\n'

    async def work() -> None:
        async with nodes(tmp_path, "ann", "ben", dialogs=section) as (ann, _):
            dialog = await ann.dialogs.open("orders")
            await dialog.send(b"early")
            async with connect_dialogs(tmp_path / "ben") as dialogs:
                listener = await dialogs.listen("orders", profile="batch")
                far = await listener.next()
                assert (await far.receive(timeout_s=10)).body == b"early"
                shown = await asyncio.to_thread(ask, tmp_path / "ben" / "control.sock", LIST)
                assert shown["daemon"]["connected"] == 1
                assert shown["daemon"]["leases"] == 1

    run(work)


LIST = {"do": "dialogs"}
