"""Outputs on real nodes with a disk: who has had them is not given them again, however its node stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.conformance.worlds import free_port
from tests.support.machines import fail

from holdfast import Batch, Context, Node, Replica, parse_config
from holdfast.errors import StoreFull
from holdfast.group.ports import Output

PATIENCE_S = 20
PRINTER = ("replica/book", "printer")
FILE = """
domain = "unit"
name = "a"
data = "{data}"
join = ["127.0.0.1:{port}"]
[security]
mode = "plain"
[[adapter]]
name = "lo"
address = "127.0.0.1:{port}"
[[group]]
name = "book"
voters = ["a"]
durability = "durable"
"""


class Echo(Replica):
    """Says what it is given, to its node or to a printer."""

    def __init__(self, destination: str) -> None:
        self.destination = destination

    def apply(self, batch: Batch, context: Context) -> None:
        for message in batch.messages:
            context.output(self.destination, bytes(message))

    def snapshot(self) -> bytes:
        return b""

    def restore(self, state: bytes) -> None:
        pass


def make(data: Path, destination: str = "node:a") -> Node:
    config = parse_config(FILE.format(data=data, port=free_port(["127.0.0.1"])))
    return Node(config, {"book": Echo(destination)})


@asynccontextmanager
async def leading(node: Node) -> AsyncIterator[None]:
    async with node, asyncio.timeout(PATIENCE_S):
        await eventually(lambda: node.status()["groups"][0]["state"] == "leading")
        yield


async def eventually(check: Callable[[], object]) -> None:
    while not check():  # noqa: ASYNC110 any check will do, so there is no event
        await asyncio.sleep(0.005)


async def say(node: Node, *messages: bytes) -> None:
    for message in messages:
        await node.group("book").send(message)


def test_what_a_listener_has_had_does_not_come_again_although_it_failed_at_the_next(
    tmp_path: Path,
) -> None:
    heard: list[bytes] = []

    def listen(output: Output) -> None:
        heard.append(output.payload)
        if output.payload == b"3" and heard.count(b"3") == 1:
            raise ValueError("not this one")

    async def run() -> None:
        node = make(tmp_path)
        async with leading(node):
            await say(node, b"1", b"2", b"3")
            await eventually(lambda: len(node._groups.outputs._arrived.get("book", ())) == 3)
            node.on_outputs("book", listen)
            assert heard == [b"1", b"2", b"3"]
        node = make(tmp_path)
        node.on_outputs("book", listen)
        async with leading(node):
            await say(node, b"4")
            await eventually(lambda: b"4" in heard)
        assert heard == [b"1", b"2", b"3", b"3", b"4"]

    asyncio.run(run())


def test_what_a_listener_has_had_does_not_come_again_although_the_node_stops_at_that_moment(
    tmp_path: Path,
) -> None:
    heard: list[bytes] = []

    async def run() -> None:
        node = make(tmp_path)
        stop = node.stop()

        def listen(output: Output) -> None:
            heard.append(output.payload)
            stop.send(None)  # it begins before there is another turn

        node.on_outputs("book", listen)
        async with leading(node):
            await say(node, b"the end")
            await eventually(lambda: heard)
        stop.close()
        node = make(tmp_path)
        node.on_outputs("book", lambda output: heard.append(output.payload))
        async with leading(node):
            await say(node, b"more")
            await eventually(lambda: b"more" in heard)
        assert heard == [b"the end", b"more"]

    asyncio.run(run())


@pytest.mark.parametrize("what", ["node", "replica"])
def test_a_node_or_a_replica_that_has_failed_sends_no_more_outputs(
    tmp_path: Path, what: str
) -> None:
    """Another one leads by now, and sends them."""
    sent: list[bytes] = []

    async def run() -> None:
        go_on = asyncio.Event()

        async def send(output: Output) -> None:
            sent.append(output.payload)
            await asyncio.shield(go_on.wait())

        node = make(tmp_path, "printer")
        node.send_outputs("book", send)
        async with leading(node):
            await say(node, b"1", b"2")
            await eventually(lambda: len(node._groups.outputs._waiting.get(PRINTER, ())) == 2)
            await eventually(lambda: sent == [b"1"])
            if what == "node":
                node._fail(StoreFull("no room"))
            else:
                fail_replica(node)
                await eventually(lambda: node.status()["node"]["stopped_units"])
            go_on.set()
            for _ in range(5):
                await asyncio.sleep(0)
            assert sent == [b"1"]

    asyncio.run(run())


def fail_replica(node: Node) -> None:
    assert node._core is not None
    fail(node._core.turns, "replica/book")
