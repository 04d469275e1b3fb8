"""The life of a node: starts that fail, stops that are broken off, and what both leave behind."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.conformance.worlds import free_port

from holdfast import Batch, Context, Node, NodeConfig, Replica, parse_config
from holdfast.errors import AddressInUse

PATIENCE_S = 20

FILE = """
domain = "life"
name = "{name}"
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
delivery = "fast"
"""


class Book(Replica):
    """Keeps everything that it is given."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def apply(self, batch: Batch, context: Context) -> None:
        self.lines.extend(map(bytes, batch.messages))

    def snapshot(self) -> bytes:
        return msgspec.msgpack.encode(self.lines)

    def restore(self, state: bytes) -> None:
        self.lines = msgspec.msgpack.decode(state, type=list[bytes])


def config(data: Path | str = "", name: str = "a", extra: str = "", port: int = 0) -> NodeConfig:
    port = port or free_port(["127.0.0.1"])
    return parse_config(FILE.format(name=name, data=data, port=port) + extra)


def port_of(node: Node) -> int:
    return int(node.config.adapter[0].address.rpartition(":")[2])


async def eventually(check: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not check():  # noqa: ASYNC110 any check will do, so there is no event
            await asyncio.sleep(0.005)


def leads(node: Node, group: int = 0) -> bool:
    return bool(node.status()["groups"][group]["state"] == "leading")


def test_a_start_that_fails_gives_the_application_nothing(tmp_path: Path) -> None:
    """The start after it gives everything, and an application must see each message once."""

    async def run() -> None:
        said = [b"%d" % number for number in range(3)]
        async with Node(config(tmp_path), {"book": (first := Book())}) as node:
            await eventually(lambda: leads(node))
            for line in said:
                await node.group("book").send(line)
            await eventually(lambda: first.lines == said)
        book = Book()
        again = Node(config(tmp_path), {"book": book})
        with socket.socket() as busy:
            busy.bind(("127.0.0.1", port_of(again)))
            busy.listen()
            with pytest.raises(AddressInUse):
                await again.start()
        assert book.lines == []
        async with again:
            await eventually(lambda: leads(again))
            await again.group("book").send(b"last")
            await eventually(lambda: b"last" in book.lines)
        assert book.lines == [*said, b"last"]

    asyncio.run(run())
