"""Endpoint resolution on real nodes: roles find the instances of a service, and each dialog has exactly one partner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.dialog_nodes import nodes, run

from holdfast.errors import DialogFaulted
from holdfast.runtime.dialogs.handles import Dialog
from holdfast.runtime.node import Node

STORE = """
[[dialogs.store]]
kind = "sqlite"
"""
PARTITIONED = (
    STORE
    + """
[[dialogs.route]]
service = "accounts"
[[dialogs.route.partition]]
first = "a"
role = "accounts-low"
[[dialogs.route.partition]]
first = "n"
role = "accounts-high"
"""
)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 any condition will do, so there is no event
            await asyncio.sleep(0.01)


async def found_by_all(role: str, count: int, *all_nodes: Node) -> None:
    for node in all_nodes:
        async with asyncio.timeout(20):
            while len(await node.roles.find(role, "dialogs")) < count:  # noqa: ASYNC110 no event
                await asyncio.sleep(0.02)


def partners(node: Node) -> dict[bytes, bytes]:
    """The node of the partner of each open dialog that this node created."""
    manager = node.dialogs.service.manager("default")
    assert manager is not None
    return {
        end.dialog: end.partner.node
        for end in manager.list()
        if end.creator and end.state == "open" and end.partner is not None
    }


def test_a_farm_is_found_by_its_role_and_each_dialog_has_one_partner(tmp_path: Path) -> None:
    """No route names an instance. The nodes that listen publish the role of the service."""

    async def work() -> None:
        async with nodes(tmp_path, "ann", "ben", "cat", dialogs=STORE) as (ann, ben, cat):
            listeners = [await node.dialogs.listen("orders") for node in (ben, cat)]
            await found_by_all("dialog/orders", 2, ann)
            opened = await asyncio.gather(*[ann.dialogs.open("orders") for _ in range(12)])
            for number, dialog in enumerate(opened):
                await dialog.send(b"%d" % number)
            chosen = partners(ann)
            assert {bytes(ben.id), bytes(cat.id)} == set(chosen.values()), "spread over the farm"
            got: dict[bytes, list[bytes]] = {}
            for node, listener in zip((ben, cat), listeners, strict=True):
                mine = [d for d, partner in chosen.items() if partner == node.id]
                for _ in mine:
                    far: Dialog = await listener.next()
                    got.setdefault(far.id, []).append((await far.receive(timeout_s=10)).body)
            assert got == {d.id: [b"%d" % n] for n, d in enumerate(opened)}

    run(work, 60)


def test_an_instance_dies_while_dialogs_are_opened(tmp_path: Path) -> None:
    """Both instances may answer an invitation, and one dies: no dialog gets a second partner."""

    async def work() -> None:
        async with nodes(tmp_path, "ann", "ben", "cat", dialogs=STORE) as (ann, ben, cat):
            await ben.dialogs.listen("orders")
            await cat.dialogs.listen("orders")
            await found_by_all("dialog/orders", 2, ann)
            opened = [await ann.dialogs.open("orders", wait=False) for _ in range(10)]
            for dialog in opened:
                await dialog.send(b"to one")
            await ben.stop()
            await until(lambda: len(partners(ann)) >= 4)
            await ben.start()
            await ben.dialogs.listen("orders")
            for dialog in opened:
                await dialog.paired(20)
            got: list[bytes] = []
            for node in (ben, cat):
                while messages := (await node.dialogs.receive_any(1, timeout_s=1.0))[1]:
                    got += [m.body for m in messages]
            assert got == [b"to one"] * 10, "each was delivered once, by one instance"

    run(work, 60)


def test_partitions_are_found_by_their_roles(tmp_path: Path) -> None:
    async def work() -> None:
        async with nodes(tmp_path, "ann", "ben", "cat", dialogs=PARTITIONED) as (ann, ben, cat):
            for node, role in ((ben, "accounts-low"), (cat, "accounts-high")):
                await node.dialogs.listen("accounts")
                await node.roles.publish(role, "dialogs")
            await found_by_all("accounts-low", 1, ann)
            await found_by_all("accounts-high", 1, ann)
            low = await ann.dialogs.open("accounts", key=b"bert")
            high = await ann.dialogs.open("accounts?key=zoe")
            chosen = partners(ann)
            assert (chosen[low.id], chosen[high.id]) == (bytes(ben.id), bytes(cat.id))
            with pytest.raises(DialogFaulted, match="needs a key"):
                await ann.dialogs.open("accounts")

    run(work, 60)


def test_an_intermediary_redirects_by_its_configuration(tmp_path: Path) -> None:
    """`[dialogs.redirect]`: ben sends dialogs of one service to cat, and refuses those of another."""
    redirect = STORE + '[dialogs.redirect]\norders = ["cat"]\nsecret = []\n'

    async def work() -> None:
        async with nodes(
            tmp_path, "ann", "ben", "cat", dialogs=STORE, special={"ben": redirect}
        ) as (ann, ben, cat):
            await ben.dialogs.listen("orders")
            await cat.dialogs.listen("orders")
            dialog = await ann.dialogs.open("holdfast://ben/orders")
            assert partners(ann)[dialog.id] == bytes(cat.id)
            with pytest.raises(DialogFaulted, match="policy"):
                await ann.dialogs.open("holdfast://ben/secret")

    run(work, 60)
