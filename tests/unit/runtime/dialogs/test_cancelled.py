"""Calls that are cancelled, overlap, or meet a store that fails: nothing is lost, doubled or left hanging."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from tests.support.dialog_nodes import nodes, run
from tests.support.object_nodes import until
from tests.support.relay import cut_relay

from holdfast import connect_dialogs
from holdfast.dialog import ports
from holdfast.errors import DialogError, StoreError, TransactionAborted, TransactionInDoubt
from holdfast.runtime.dialogs import daemon_session
from holdfast.runtime.dialogs.remote import RECEIVES_MAX
from holdfast.runtime.dialogs.stores import ThreadWorker
from holdfast.stores.dialogs.sqlite import SqliteDialogStore

# -- receiving ---------------------------------------------------------------------------------------------------


def test_a_loop_over_messages_takes_only_what_it_has_seen(tmp_path: Path) -> None:
    """Rule 15: what is removed from the store is only what was asked for. The loop ends; the rest is still there."""

    async def work() -> None:
        async with nodes(tmp_path, "ann", "ben") as (ann, ben):
            listener = await ben.dialogs.listen("orders", store="memory")
            near = await ann.dialogs.open("orders", store="memory")
            far = await listener.next()
            await near.send_many([b"1", b"2", b"3"])
            await until(lambda: _ready(ben, far.id) == 3)
            async for message in far:
                assert message.body == b"1"
                break
            assert _ready(ben, far.id) == 2, "still in the store"
            assert [m.body for m in await far.receive_many(5)] == [b"2", b"3"]

    run(work)


def _ready(node: Any, dialog: bytes) -> int:
    manager = node.dialogs.service.manager("memory")
    end = manager.inspect(dialog)
    return int(end.available) if end is not None else 0


def test_a_message_of_a_cancelled_receive_goes_to_the_next_one_of_any_kind(tmp_path: Path) -> None:
    """It left the store before it was handed over, so it is given back here."""

    async def work() -> None:
        async with nodes(tmp_path, "ann", "ben") as (ann, ben):
            listener = await ben.dialogs.listen("orders", store="memory")
            near = await ann.dialogs.open("orders", store="memory")
            far = await listener.next()
            api = ben.dialogs

            def lost(number: int) -> None:
                taken = ports.Taken(far.id, [ports.Message(number, memoryview(b"%d" % number))])
                api.take_back("memory", taken)

            waiting = asyncio.create_task(api.receive_any(1, store="memory"))
            await until(lambda: bool(api._waiting))
            lost(0)
            found, messages = await asyncio.wait_for(waiting, 5)
            assert (found, [m.body for m in messages]) == (far, [b"0"])
            lost(1)
            assert (await api.receive_any(1, store="memory"))[1][0].body == b"1"
            lost(2)
            tx = api.transaction()
            assert (await far.receive(tx=tx)).body == b"2"
            await tx.abort()
            async with api.transaction() as tx:
                assert (await far.receive(tx=tx, timeout_s=5)).body == b"2", "aborted: it is back"
            assert await far.receive_many(1, timeout_s=0) == [], "committed: it is gone"
            assert not api.given_back
            await near.terminate()

    run(work)


def test_an_open_that_is_cancelled_leaves_no_dialog(tmp_path: Path) -> None:
    async def work() -> None:
        async with nodes(tmp_path, "ann", "ben") as (ann, ben):
            await ben.dialogs.listen("orders")
            await ann.dialogs.stores.ready["default"].wait()
            manager = ann.dialogs.service.manager("default")
            assert manager is not None
            opening = asyncio.create_task(ann.dialogs.open("orders"))
            await asyncio.sleep(0)
            assert ann.dialogs._waiting
            opening.cancel()  # The request is on its way.
            with pytest.raises(asyncio.CancelledError):
                await opening
            await until(lambda: manager.core.counter == 1 and not manager.core.dialogs)

    run(work)


def test_cancelled_requests_leave_nothing_behind(tmp_path: Path) -> None:
    """Each request that waits for an answer is kept until it has one."""

    async def work() -> None:
        async with nodes(tmp_path, "ann", "ben") as (ann, ben):
            listener = await ben.dialogs.listen("orders", store="memory")
            near = await ann.dialogs.open("orders", store="memory", quota_messages=1)
            far = await listener.next()
            calls = [
                far.receive,
                lambda: ben.dialogs.receive_any(1, store="memory"),
            ]
            for call in calls:
                task = asyncio.create_task(call())
                await until(lambda: bool(ben.dialogs._waiting))
                task.cancel()
                await until(lambda: not ben.dialogs._waiting)
            await near.terminate()

    run(work)


# -- transactions ------------------------------------------------------------------------------------------------


def test_two_statements_at_once_begin_one_transaction(tmp_path: Path) -> None:
    """The second would wait for the first one's turn, without end."""
    store = SqliteDialogStore(tmp_path / "d.sqlite", os.urandom)
    store.open()

    async def work() -> None:
        worker = ThreadWorker(store, durable=True)
        first = await worker.begin(None)
        await asyncio.wait_for(
            asyncio.gather(
                first.run(lambda db: db.execute("CREATE TABLE own (x)")),
                first.run(lambda db: db.execute("INSERT INTO own VALUES (1)")),
            ),
            5,
        )
        second = await worker.begin(None)
        waiting = asyncio.ensure_future(second.run(lambda db: db.execute("SELECT 1")))
        await asyncio.sleep(0)
        await second.abort()
        await first.abort()
        with pytest.raises(TransactionAborted, match="over"):
            await waiting
        third = await worker.begin(None)
        await asyncio.wait_for(third.run(lambda db: db.execute("SELECT 1")), 5)
        worker.close()
        with pytest.raises(TransactionAborted, match="nothing took effect"):
            await third.run(lambda db: db.execute("SELECT 1"))
        await third.abort()
        assert not store._lock._held, "the file is free for the next owner"

    asyncio.run(work())
    store.close()


def test_two_dialogs_at_once_join_one_transaction(tmp_path: Path) -> None:
    """A store whose transactions take time to begin: the second join must not begin another one."""

    async def work() -> None:
        async with nodes(tmp_path, "ann", "ben") as (ann, _):
            await ann.dialogs.stores.ready["default"].wait()
            begun: list[object] = []
            worker = ann.dialogs.worker("default")
            begin = worker.begin

            async def slowly(connection: Any) -> Any:
                made = await begin(connection)
                begun.append(made)
                await asyncio.sleep(0)
                return made

            worker.begin = slowly  # type: ignore[method-assign]
            tx = ann.dialogs.transaction()
            await asyncio.gather(tx.join("default"), tx.join("default"))
            assert len(begun) == 1
            await tx.abort()

    run(work)


def test_a_transaction_does_not_commit_under_a_later_owner_of_its_store(tmp_path: Path) -> None:
    """The unit that knew what it had received is gone. The application's own rows must not commit without it."""

    async def work() -> None:
        async with nodes(tmp_path, "ann", "ben") as (ann, ben):
            listener = await ben.dialogs.listen("orders")
            near = await ann.dialogs.open("orders")
            far = await listener.next()
            await near.send(b"job")
            tx = ben.dialogs.transaction()
            assert (await far.receive(tx=tx)).body == b"job"
            await take_over(tmp_path, ben)
            # As with a connection of the application: nothing tells it that the store was opened again.
            for name, work in tx._works.items():
                replaced = await ben.dialogs.worker(name).begin(None)
                work.__dict__.update(replaced.__dict__)
            with pytest.raises(TransactionAborted, match="opened again"):
                await tx.commit()
            assert (await far.receive(timeout_s=10)).body == b"job"

    run(work)


async def take_over(tmp_path: Path, node: Any) -> None:
    """Another process takes the file, so the node's unit is fenced out and begins anew."""
    edge = node.dialogs
    epoch = edge.epoch("default")
    other = SqliteDialogStore(tmp_path / "ben" / "dialogs-default.sqlite", os.urandom)
    await asyncio.to_thread(other.open)
    other.close()
    with pytest.raises(DialogError):
        await edge.open("orders", wait=False)
    await until(lambda: edge.epoch("default") > epoch + 1)


def test_every_request_learns_that_the_store_failed(tmp_path: Path) -> None:
    """Also those that name no dialog: their answers are discarded with the unit."""

    async def work() -> None:
        async with nodes(tmp_path, "ann", "ben") as (_, ben):
            waiting = asyncio.create_task(ben.dialogs.receive_any(1))
            await until(lambda: bool(ben.dialogs._waiting))
            await asyncio.wait_for(take_over(tmp_path, ben), 10)
            with pytest.raises(DialogError, match="store failed"):
                await asyncio.wait_for(waiting, 5)

    run(work)


def test_a_commit_whose_task_is_cancelled_is_carried_out(tmp_path: Path) -> None:
    """Rule 8, also for an application that calls `commit` itself."""

    async def work() -> None:
        async with nodes(tmp_path, "ann", "ben") as (ann, ben):
            listener = await ben.dialogs.listen("orders")
            near = await ann.dialogs.open("orders")
            far = await listener.next()
            tx = ann.dialogs.transaction()
            await near.send(b"all", tx=tx)
            committing = asyncio.create_task(tx.commit())
            await asyncio.sleep(0)
            committing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await committing
            assert (await far.receive(timeout_s=10)).body == b"all"

    run(work)


def test_an_abort_whose_task_is_cancelled_is_carried_out(tmp_path: Path) -> None:
    """Rule 8. The message and the file of the transaction would stay taken."""

    async def work() -> None:
        async with nodes(tmp_path, "ann", "ben") as (ann, ben):
            listener = await ben.dialogs.listen("orders")
            near = await ann.dialogs.open("orders")
            far = await listener.next()
            await near.send(b"job")
            tx = ben.dialogs.transaction()
            assert (await far.receive(tx=tx)).body == b"job"
            await tx.run(lambda db: db.execute("CREATE TABLE own (n INTEGER)"))
            aborting = asyncio.create_task(tx.abort())
            await asyncio.sleep(0)
            aborting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await aborting
            async with ben.dialogs.transaction() as again:
                assert (await far.receive(tx=again, timeout_s=5)).body == b"job"
                await again.run(lambda db: db.execute("CREATE TABLE own (n INTEGER)"))

    run(work)


def test_doubt_ends_when_the_node_stops(tmp_path: Path) -> None:
    """The database is away: asking for the outcome would go on without end."""

    async def work() -> None:
        async with nodes(tmp_path, "ann", "ben") as (ann, _):
            await ann.dialogs.stores.ready["memory"].wait()
            tx = ann.dialogs.transaction()
            await tx.join("memory")

            async def in_doubt(*_: object) -> None:
                raise TransactionInDoubt("the connection was lost during COMMIT")

            async def away(*_: object) -> bool:
                raise StoreError("the database does not answer")

            tx._works["memory"].commit = in_doubt  # type: ignore[method-assign]
            ann.dialogs.settle = away  # type: ignore[method-assign]
            committing = asyncio.create_task(tx.commit())
            await asyncio.sleep(0.05)
            assert not committing.done()
            await ann.stop()
            with pytest.raises(TransactionInDoubt, match="as a whole or not at all"):
                await asyncio.wait_for(committing, 5)

    run(work)


# -- applications at the daemon ----------------------------------------------------------------------------------


def test_a_transaction_does_not_outlive_its_connection_in_part(tmp_path: Path) -> None:
    """Rule 12. The daemon has aborted what came before; what the application adds must not commit alone."""

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
                tx = dialogs.transaction()
                assert (await dialog.receive(tx=tx)).body == b"job"
                before = dialogs.connections
                relay.cut()
                await until(lambda: dialogs.connections > before)
                with pytest.raises(TransactionAborted, match="lost during the transaction"):
                    await dialog.send(b"half", tx=tx)
                with pytest.raises(TransactionAborted, match="lost during the transaction"):
                    await tx.commit()
                assert (await dialog.receive(timeout_s=10)).body == b"job"
                assert await far.receive_many(1, timeout_s=0.05) == []

    run(work)


def test_a_message_does_not_stay_leased_when_the_notice_of_its_hand_over_is_lost(
    tmp_path: Path,
) -> None:
    """Without at-most-once the application says when it has a message. In order, the next one waits for that."""

    async def work() -> None:
        async with nodes(tmp_path, "ann", "ben") as (ann, _):
            listener = await ann.dialogs.listen("echo", **NOT_AT_MOST_ONCE)
            async with (
                cut_relay(tmp_path / "ben" / "dialogs.sock", tmp_path / "relay.sock") as relay,
                connect_dialogs(tmp_path / "relay.sock") as dialogs,
            ):
                dialog = await dialogs.open("holdfast://ann/echo", **NOT_AT_MOST_ONCE)
                far = await listener.next()
                await far.send_many([b"1", b"2"])
                put = dialogs._put
                dialogs._put = lambda data: None if b"HandedOver" in data else put(data)  # type: ignore[method-assign]
                assert (await dialog.receive(timeout_s=10)).body == b"1"
                dialogs._put = put  # type: ignore[method-assign]
                relay.cut()
                assert (await dialog.receive(timeout_s=10)).body == b"2"

    run(work)


NOT_AT_MOST_ONCE = {"at_least_once": True, "at_most_once": False, "in_order": True}


def test_messages_of_a_lost_receive_reach_an_application_that_uses_transactions(
    tmp_path: Path,
) -> None:
    """They wait in the daemon. A transaction, and a receive from any dialog, get them before later ones."""

    async def work() -> None:
        async with nodes(tmp_path, "ann", "ben") as (ann, ben):
            listener = await ann.dialogs.listen("echo")
            async with connect_dialogs(tmp_path / "ben") as dialogs:
                dialog = await dialogs.open("holdfast://ann/echo")
                await listener.next()
                daemon = ben.dialogs.daemon
                assert daemon is not None
                taken = ports.Taken(dialog.id, [ports.Message(0, memoryview(b"orphan"))])
                daemon.keep_orphans("default", taken)
                tx = dialogs.transaction()
                assert (await dialog.receive(tx=tx, timeout_s=5)).body == b"orphan"
                await tx.abort()
                found, messages = await dialogs.receive_any(1, timeout_s=5)
                assert (found, [m.body for m in messages]) == (dialog, [b"orphan"])
                assert not daemon.orphans

    run(work)


def test_receives_that_wait_do_not_hold_up_a_send(tmp_path: Path) -> None:
    """Each of them waits for an answer to that send."""

    async def work() -> None:
        async with nodes(tmp_path, "ann", "ben") as (ann, _):
            listener = await ann.dialogs.listen("echo")
            async with connect_dialogs(tmp_path / "ben") as dialogs:
                dialog = await dialogs.open("holdfast://ann/echo")
                far = await listener.next()
                waiting = [asyncio.ensure_future(dialog.receive()) for _ in range(RECEIVES_MAX)]
                await until(lambda: dialogs._receives == RECEIVES_MAX)
                with pytest.raises(DialogError, match="nothing was received"):
                    await dialog.receive()
                dialogs._slots = asyncio.Semaphore(1)
                await asyncio.wait_for(dialog.send(b"question"), 10)
                await far.send(b"answer")
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                assert [task.result().body for task in done] == [b"answer"]
                for task in waiting:
                    task.cancel()

    run(work)


def test_a_receive_that_is_cancelled_before_its_request_has_left_loses_nothing(
    tmp_path: Path,
) -> None:
    """The daemon is slow to read, so the application waits for its own buffer."""

    async def work() -> None:
        async with nodes(tmp_path, "ann", "ben") as (ann, _):
            listener = await ann.dialogs.listen("echo")
            async with connect_dialogs(tmp_path / "ben") as dialogs:
                dialog = await dialogs.open("holdfast://ann/echo")
                far = await listener.next()
                writer = dialogs._writer
                assert writer is not None
                drain, stuck = writer.drain, asyncio.Event()
                writer.drain = stuck.wait  # type: ignore[method-assign]
                receive = asyncio.create_task(dialog.receive())
                await until(lambda: bool(dialogs._pending))
                give_up, dialogs._put = dialogs._put, lambda _: None  # type: ignore[method-assign]
                receive.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await receive
                writer.drain, dialogs._put = drain, give_up  # type: ignore[method-assign]
                await far.send(b"not lost")
                await until(lambda: bool(dialog._returned))
                assert (await dialog.receive(timeout_s=10)).body == b"not lost"

    run(work)


def test_an_answer_above_the_limit_of_a_frame_is_an_error_and_the_message_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_session, "FRAME_BYTES_MAX", 4096)

    async def work() -> None:
        async with nodes(tmp_path, "ann", "ben") as (ann, ben):
            listener = await ann.dialogs.listen("echo")
            async with connect_dialogs(tmp_path / "ben") as dialogs:
                dialog = await dialogs.open("holdfast://ann/echo")
                far = await listener.next()
                await far.send(bytes(5000))
                with pytest.raises(DialogError, match="above the limit"):
                    await dialog.receive(timeout_s=10)
                monkeypatch.setattr(daemon_session, "FRAME_BYTES_MAX", 1 << 20)
                assert len((await dialog.receive(timeout_s=10)).body) == 5000
            assert ben.dialogs.daemon is not None

    run(work)
