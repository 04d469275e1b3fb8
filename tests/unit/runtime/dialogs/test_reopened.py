"""The unit of a store fails: requests are told, and the store is opened again; other stores go on."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from tests.support.dialog_nodes import nodes, run
from tests.support.dialogs import MEMBER

from holdfast.dialog.ports import UnitLost, dialog_unit
from holdfast.errors import DialogError, StoreError
from holdfast.links.ports import PeerUp
from holdfast.machine import Put
from holdfast.runtime.dialogs.handles import Dialog
from holdfast.runtime.node import Node
from holdfast.stores.dialogs import SqliteDialogStore
from holdfast.types import NEVER, NodeId

UNIT = dialog_unit("default")
POISON: Any = PeerUp(NodeId([]), MEMBER)  # type: ignore[arg-type]  # it cannot be looked up, so the unit raises
HALTED = "halt.*this request had no effect"


def stores(node: Node) -> dict[str, str]:
    """What the status says about each store: why it is not open, or nothing."""
    return {store["name"]: store.get("error", "") for store in node.status()["dialog_stores"]}


async def fail(node: Node, receive: Any) -> None:
    """Let the unit raise while a receive waits; the receive is told."""
    waiting = asyncio.ensure_future(receive())
    await asyncio.sleep(0)
    node.dialogs.running().answer(UNIT, POISON)
    with pytest.raises(DialogError, match=r"the dialog store failed .*TypeError"):
        await waiting


def test_a_store_whose_unit_fails_twice_refuses_requests_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with nodes(tmp_path, "ann", "ben") as (ann, ben):
            await ben.dialogs.listen("orders")
            near = await ann.dialogs.open("orders")
            await near.send(b"one")
            await fail(ann, near.receive)
            # After the first failure a request waits until the store is open again.
            await near.send(b"two")
            assert not any(stores(ann).values())
            await fail(ann, near.receive)
            for request in (near.send(b"three"), near.receive(), ann.dialogs.open("orders")):
                with pytest.raises(DialogError, match=HALTED):
                    await request
            with pytest.raises(DialogError, match=HALTED):
                async with ann.dialogs.transaction() as tx:
                    await near.send(b"three", tx=tx)
            assert "opened again in 10 s" in stores(ann)["default"]
            assert stores(ann)["memory"] == ""
            other = await ann.dialogs.open("orders", store="memory")
            await other.send(b"one")

    run(work)
    assert "dialog store default: its unit failed repeatedly" in caplog.text


def test_a_store_that_no_unit_can_be_made_from_refuses_requests(tmp_path: Path) -> None:
    """A row is not one of this version: reading it raises, whenever the store is opened."""

    async def work() -> None:
        async with nodes(tmp_path, "ann") as (ann,):
            pass
        store = SqliteDialogStore(tmp_path / "ann" / "dialogs-default.sqlite", os.urandom)
        store.open()
        store.commit([Put("dialog", bytes(24), b"\xc1")])
        store.close()
        await ann.start()
        try:
            with pytest.raises(DialogError, match=HALTED):
                await ann.dialogs.open("holdfast://ben/orders")
            assert "DecodeError" in stores(ann)["default"]
        finally:
            await ann.stop()

    run(work)


async def until_event(dialog: Dialog, kind: str) -> None:
    while (await dialog.next_event()).kind != kind:
        pass


def lose(node: Node, wait_ns: int) -> None:
    """The unit fails, with an outlook of the test's own."""
    node.dialogs.effects()[UnitLost](UnitLost(UNIT, "a bug", wait_ns))


def test_requests_that_wait_for_a_store_are_refused_when_it_stays_closed(tmp_path: Path) -> None:
    async def work() -> None:
        async with nodes(tmp_path, "ann", "ben") as (ann, ben):
            await ben.dialogs.listen("orders")
            near = await ann.dialogs.open("orders")
            lose(ann, 0)
            calls = (near.send(b"one"), near.receive(), near.completed(), near.paired())
            waiting = [
                asyncio.ensure_future(call) for call in (*calls, until_event(near, "closed"))
            ]
            await asyncio.sleep(0)
            lose(ann, NEVER)
            for call in waiting:
                with pytest.raises(DialogError, match="until the node is restarted"):
                    await call
            assert "until the node is restarted" in stores(ann)["default"]
            # The outcome of a transaction is not known to be 'aborted': an application asks again.
            with pytest.raises(StoreError):
                await ann.dialogs.kept("default", bytes(16))

    run(work)


def test_a_store_that_stood_still_is_open_after_its_wait(tmp_path: Path) -> None:
    async def work() -> None:
        async with nodes(tmp_path, "ann", "ben") as (ann, ben):
            await ben.dialogs.listen("orders")
            near = await ann.dialogs.open("orders")
            ready = ann.dialogs.stores.ready["default"]
            lose(ann, 1)
            with pytest.raises(DialogError, match=HALTED):
                await near.send(b"one")
            await ready.wait()
            await near.send(b"one")
            assert not any(stores(ann).values())

    run(work)
