"""Handlers of messages: called serially, and not ended by an error."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import pytest
from tests.support.dialog_nodes import nodes, run
from tests.support.object_nodes import until

from holdfast.errors import MisuseError
from holdfast.runtime.dialogs.handles import Message
from holdfast.stores.dialogs.sqlite import SqliteDialogStore


def test_messages_are_handled_one_after_the_other(tmp_path: Path) -> None:
    """The handler is not called again before it has returned, although the next messages are there."""

    async def work() -> None:
        async with nodes(tmp_path, "ann", "ben") as (ann, ben):
            listener = await ben.dialogs.listen("orders")
            near = await ann.dialogs.open("orders", store="memory")
            far = await listener.next()
            began: list[bytes] = []
            go_on = asyncio.Event()

            async def handle(message: Message) -> None:
                began.append(message.body)
                await go_on.wait()

            far.on_message(handle)
            with pytest.raises(MisuseError, match="handler already"):
                far.on_message(handle)
            await near.send_many([b"1", b"2", b"3"])
            await until(lambda: len(began) > 0)
            await near.send(b"4")
            assert began == [b"1"]
            go_on.set()
            await until(lambda: began == [b"1", b"2", b"3", b"4"])

    run(work)


def test_a_handler_that_raises_is_logged_and_gets_the_next_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A plain function is a handler too."""

    async def work() -> None:
        async with nodes(tmp_path, "ann", "ben") as (ann, ben):
            listener = await ben.dialogs.listen("orders")
            near = await ann.dialogs.open("orders", store="memory")
            far = await listener.next()
            handled: list[int] = []

            def handle(message: Message) -> None:
                handled.append(100 // int(message.body))

            far.on_message(handle)
            await near.send_many([b"1", b"0", b"2"])
            await until(lambda: handled == [100, 50])

    with caplog.at_level(logging.ERROR, "holdfast"):
        run(work)
    [record] = [r for r in caplog.records if getattr(r, "event", "") == "message_handler_failed"]
    assert record.__dict__["number"] == 1


def test_a_handler_goes_on_after_its_store_failed(tmp_path: Path) -> None:
    async def work() -> None:
        async with nodes(tmp_path, "ann", "ben") as (ann, ben):
            listener = await ben.dialogs.listen("orders")
            near = await ann.dialogs.open("orders")
            far = await listener.next()
            handled: list[bytes] = []
            far.on_message(lambda message: handled.append(message.body))
            await near.send(b"1")
            await until(lambda: handled == [b"1"])
            # Another process takes the file over: the unit of this one ends, and opens it again.
            other = SqliteDialogStore(tmp_path / "ben" / "dialogs-default.sqlite", os.urandom)
            await asyncio.to_thread(other.open)
            other.close()
            await near.send(b"2")
            await until(lambda: handled == [b"1", b"2"])

    run(work)
