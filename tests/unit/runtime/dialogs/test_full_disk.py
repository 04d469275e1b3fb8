"""A store without room: a clear error, and nothing that was acknowledged is lost."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from pathlib import Path

import pytest
from tests.support.dialog_nodes import nodes, run

from holdfast.errors import DialogError, HoldfastError
from holdfast.runtime.dialogs.handles import Dialog
from holdfast.runtime.node import Node

LITTLE, PLENTY = 60, 500_000
"""Pages of 8 KB. The tables alone take a quarter of the little room."""
BODY = bytes(3000)


def section(path: Path) -> str:
    return f"""
[[dialogs.store]]
name = "small"
kind = "tests.unit.runtime.dialogs.small_store:SmallStore"
options = {{ path = "{path}" }}
[[dialogs.route]]
service = "orders"
nodes = ["ben"]
"""


def give_room(path: Path, pages: int) -> None:
    Path(f"{path}.room").write_text(str(pages))


async def until_full(dialog: Dialog) -> tuple[int, str]:
    """Send until the store is full; gives how many messages it has for certain, and what the last one raised."""
    sent = 0
    while True:
        try:
            await dialog.send(b"%d " % sent + BODY, timeout_s=60)
        except DialogError as error:
            return sent, str(error)
        sent += 1
        assert sent < 1000, "there is room"


async def all_received(node: Node, count: int) -> list[int]:
    numbers: list[int] = []
    while len(numbers) < count:
        try:
            _, messages = await node.dialogs.receive_any(100, timeout_s=20)
        except HoldfastError:
            continue  # Its store failed, and is opened again.
        assert messages, f"{len(numbers)} of {count}"
        numbers += [int(message.body.split()[0]) for message in messages]
    return numbers


def test_a_sender_without_room_says_so_and_loses_nothing(tmp_path: Path) -> None:
    """The partner is away, so messages stay in the store until it is full."""
    paths = {name: tmp_path / f"{name}.sqlite" for name in ("ann", "ben")}

    async def work() -> None:
        give_room(paths["ann"], LITTLE)
        give_room(paths["ben"], PLENTY)
        sections = {name: section(path) for name, path in paths.items()}
        async with nodes(tmp_path, "ann", "ben", special=sections) as (ann, ben):
            await ben.dialogs.listen("orders")
            near = await ann.dialogs.open("orders")
            await ben.stop()
            sent, says = await until_full(near)
            assert sent > 10
            assert "no room" in says or "full" in says
            assert "may have taken effect or not" in says
            assert "opens the store again by itself" in says
            assert "restart" not in says
            give_room(paths["ann"], PLENTY)
            # The store is opened again by itself, and has what it has acknowledged.
            await ben.start()
            await ben.dialogs.listen("orders")
            last = await near.send(b"%d " % 9999 + BODY, timeout_s=60)
            got = await all_received(ben, last + 1)
            assert got[:sent] == list(range(sent))
            assert got[-1] == 9999
            assert len(got) in (sent + 1, sent + 2), "the last one before was in doubt"

    run(work, 90)


def test_a_receiver_without_room_acknowledges_only_what_it_has(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The sender keeps the others, until there is room."""
    caplog.set_level(logging.INFO, "holdfast")
    paths = {name: tmp_path / f"{name}.sqlite" for name in ("ann", "ben")}

    async def work() -> None:
        give_room(paths["ann"], PLENTY)
        give_room(paths["ben"], LITTLE)
        sections = {name: section(path) for name, path in paths.items()}
        async with nodes(tmp_path, "ann", "ben", special=sections) as (ann, ben):
            await ben.dialogs.listen("orders")
            near = await ann.dialogs.open("orders")
            for first in range(0, 200, 10):
                numbers = range(first, first + 10)
                await near.send_many([b"%d " % number + BODY for number in numbers])
            async with asyncio.timeout(30):
                while not ben.dialogs.failures:  # noqa: ASYNC110 no event says that a store failed
                    await asyncio.sleep(0.02)
            assert "small" in ben.dialogs.failures
            give_room(paths["ben"], PLENTY)
            assert await all_received(ben, 200) == list(range(200))
            assert "dialog store small: open again" in caplog.text

    run(work, 90)


def test_a_transaction_without_room_is_aborted_as_a_whole(tmp_path: Path) -> None:
    """And it does not count against the job that was received in it, which fits later."""
    paths = {name: tmp_path / f"{name}.sqlite" for name in ("ann", "ben")}

    async def work() -> None:
        give_room(paths["ann"], PLENTY)
        give_room(paths["ben"], LITTLE)
        sections = {name: section(path) for name, path in paths.items()}
        async with nodes(tmp_path, "ann", "ben", special=sections) as (ann, ben):
            listener = await ben.dialogs.listen("orders", poison_after=1)
            near = await ann.dialogs.open("orders")
            far = await listener.next()
            await near.send(b"job")

            async def process(size: int) -> None:
                async with ben.dialogs.transaction() as tx:
                    assert (await far.receive(tx=tx, timeout_s=10)).body == b"job"
                    await far.send(b"done", tx=tx)
                    await tx.run(lambda db: db.execute("CREATE TABLE own (body BLOB)"))
                    await tx.run(
                        lambda db: db.execute("INSERT INTO own VALUES (zeroblob(?))", (size,))
                    )

            for _ in range(2):
                with pytest.raises(sqlite3.OperationalError, match="full"):
                    await process(2_000_000)
            manager = ben.dialogs.service.manager("small")
            assert manager is not None
            end = manager.inspect(far.id)
            assert end is not None
            assert (end.next, end.queued, end.poison) == (0, 0, [])
            await process(10)
            assert (await near.receive(timeout_s=10)).body == b"done"

    run(work, 60)
