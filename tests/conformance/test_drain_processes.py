"""H17: a node that is killed with SIGKILL while it is drained. It is started again, and the drain goes on."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.support.object_nodes import Process, config_text, eventually, object_port, until

from holdfast import Node, parse_config

PATIENCE_S = 180.0
EXTRA = """
[[group]]
name = "book"
application = "holdfast.sim.ledger:Ledger"
voters = ["a", "b", "c"]
learners = ["d"]
leader = "a"
[[dialogs.store]]
name = "default"
kind = "sqlite"
[[dialogs.route]]
service = "orders"
nodes = ["a"]
"""
SERVICE = """
[[dialogs.service]]
name = "orders"
"""


def voters(node: Node) -> list[str]:
    view = node.status()["groups"][0]["view"]
    return sorted(member["name"] for member in view if member["part"] == "voter")


async def drained(node: Node) -> tuple[Any, ...]:
    """Ask until everything was moved."""

    async def attempt() -> tuple[tuple[Any, ...]] | None:
        steps = tuple(await node.objects.admin.drain("a"))
        return (steps,) if all(step.state == "done" for step in steps) else None

    found = await eventually(attempt, PATIENCE_S)
    assert found is not None
    return found[0]


@pytest.mark.slow
def test_a_node_that_is_killed_while_it_is_drained_is_drained_in_the_end(tmp_path: Path) -> None:
    async def story() -> None:
        port = object_port()
        texts = {
            name: config_text(tmp_path, name, number, port, "bcd", EXTRA + SERVICE * (name in "ad"))
            for number, name in enumerate("abcd", 1)
        }
        sick = Process(tmp_path, "a", texts["a"])
        sick.start()
        try:
            async with AsyncExitStack() as stack:
                b, c, d = [
                    await stack.enter_async_context(Node(parse_config(texts[name])))
                    for name in "bcd"
                ]
                await b.until_up("a", "c", "d", timeout_s=PATIENCE_S)
                await run(sick, b, c, d)
        finally:
            sick.kill()

    async def run(sick: Process, b: Node, c: Node, d: Node) -> None:
        offers = b.objects.service.machine.members.offers
        await until(lambda: len(offers) == 4 and voters(b) == ["a", "b", "c"], PATIENCE_S)
        await b.objects.create("/x", b"content", nodes=("a", "b", "c"))
        dialog = await b.dialogs.open("orders")
        sent = [b"%d" % number for number in range(5)]
        for body in sent:
            await dialog.send(body)
        first = asyncio.ensure_future(c.objects.admin.drain("a"))
        await until(lambda: "d" in voters(b) or first.done(), PATIENCE_S)
        sick.kill()
        await asyncio.wait((first,), timeout=PATIENCE_S)
        first.cancel()
        sick.start()
        await c.until_up("a", timeout_s=PATIENCE_S)
        await drained(c)
        await until(lambda: voters(b) == ["b", "c", "d"], PATIENCE_S)
        info = await c.objects.stat("/x")
        assert sorted(replica.node for replica in info.replicas) == ["b", "c", "d"]
        got: list[bytes] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(got) < len(sent):
                _, messages = await d.dialogs.receive_any(8)
                got += [bytes(message.body) for message in messages]
        assert got == sent

    asyncio.run(story())
