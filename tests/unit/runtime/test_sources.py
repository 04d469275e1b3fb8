"""A node's source of a group on real nodes: what whoever sends with it learns when all is done, and when it fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from threading import Event
from typing import Any

import msgspec
import pytest
from tests.conformance.worlds import free_port
from tests.support.machines import fail

from holdfast import Batch, Context, Node, Replica, parse_config
from holdfast.errors import MisuseError, NodeStopped, SourceEnded, StoreFull

PATIENCE_S = 20
FILE = """
domain = "unit"
name = "ann"
join = ["127.0.0.1:{port}"]
[security]
mode = "plain"
[[adapter]]
name = "lo"
address = "127.0.0.1:{port}"
[[group]]
name = "book"
voters = ["ann"]
priorities = 3
window_mb = 2
"""


class Book(Replica):
    """Keeps everything."""

    quick = True

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def apply(self, batch: Batch, context: Context) -> None:
        self.lines.extend(map(bytes, batch.messages))

    def snapshot(self) -> bytes:
        return msgspec.msgpack.encode(self.lines)

    def restore(self, state: bytes) -> None:
        self.lines = msgspec.msgpack.decode(state, type=list[bytes])


class Slow(Book):
    """Applies nothing before it may."""

    quick = False

    def __init__(self) -> None:
        super().__init__()
        self.gate = Event()

    def apply(self, batch: Batch, context: Context) -> None:
        self.gate.wait(PATIENCE_S)
        super().apply(batch, context)


@asynccontextmanager
async def alone(book: Book | None = None) -> AsyncIterator[tuple[Node, Book]]:
    """A node that is the only replica of its group."""
    book = book or Book()
    config = parse_config(FILE.format(port=free_port(["127.0.0.1"])))
    async with Node(config, {"book": book}) as node, asyncio.timeout(PATIENCE_S):
        yield node, book


async def eventually(check: Any) -> None:
    while not check():  # noqa: ASYNC110 any check will do, so there is no event
        await asyncio.sleep(0.005)


def break_source(node: Node) -> None:
    """The next turn of the source raises."""

    assert node._core is not None
    fail(node._core.turns, "source/book", "a bug in the source")


async def fail_while_a_call_waits(node: Node) -> pytest.ExceptionInfo[SourceEnded]:
    """What a sender is told who waits for room when the source fails."""
    group = node.group("book")
    assert group.try_send(b"lost")
    break_source(node)
    group.queued(2 << 20, 0)
    with pytest.raises(SourceEnded, match="a bug in the source") as told:
        await group.send(b"waits")
    with pytest.raises(SourceEnded, match="a bug in the source"):
        group.try_send(b"too late")
    return told


def test_a_source_that_fails_ends_its_handle_and_the_next_one_works() -> None:
    async def run() -> None:
        async with alone() as (node, book):
            for number in range(10):
                await node.group("book").send(b"%d" % number)
            await eventually(lambda: len(book.lines) == 10)
            told = await fail_while_a_call_waits(node)
            told.match(r"up to \d+ bytes .* may be lost; get the group from the node again")
            for number in range(10):
                await node.group("book").send(b"again %d" % number)
            await eventually(lambda: len(book.lines) == 20)
            assert book.lines[10:] == [b"again %d" % number for number in range(10)]

    asyncio.run(run())


def test_a_stopped_source_refuses_to_send_with_the_reason() -> None:
    async def run() -> None:
        async with alone() as (node, _):
            await fail_while_a_call_waits(node)
            told = await fail_while_a_call_waits(node)
            told.match("may be lost; restart the node")
            assert list(node.status()["node"]["stopped_units"]) == ["source/book"]
            with pytest.raises(SourceEnded, match=r"is stopped: .*a bug in the source.*restart"):
                node.group("book")

    asyncio.run(run())


def test_flush_returns_when_everything_that_was_accepted_before_is_decided() -> None:
    """However long the application takes."""

    async def run() -> None:
        slow = Slow()
        async with alone(slow) as (node, book):
            group = node.group("book")
            await group.flush()
            for number in range(3000):
                await group.send(b"%d" % number)
            await asyncio.gather(group.flush(), group.flush())
            (source,) = node.status()["sources"]
            assert (source["last"], source["freed"], source["refused"]) == (3000, 0, 0)
            (replica,) = node.status()["groups"]
            assert replica["commit"] == replica["last"]
            slow.gate.set()
            await eventually(lambda: len(book.lines) == 3000)
            await group.flush()
            await node.stop()
            await group.flush()

    asyncio.run(run())


def test_flush_says_what_may_be_lost_when_the_source_fails_or_the_node_stops() -> None:
    async def run() -> None:
        async with alone() as (node, _):
            group = node.group("book")
            assert group.try_send(b"one")
            assert group.try_send(b"two")
            break_source(node)
            with pytest.raises(SourceEnded, match=r"up to 2 messages .* may be lost: the source"):
                await group.flush()
            again = node.group("book")
            assert again.try_send(b"three")
            gives_up, waits = (asyncio.create_task(again.flush()) for _ in range(2))
            await asyncio.sleep(0)
            gives_up.cancel()
            node._fail(StoreFull("the disk is full"))
            with pytest.raises(
                NodeStopped, match=r"up to 1 messages .* stopped: the disk is full$"
            ):
                await waits
            with pytest.raises(NodeStopped, match="up to 1 messages"):
                await again.flush()
            assert again._flushes == [], "who went away is forgotten"

    asyncio.run(run())


def test_a_priority_that_is_no_integer_is_refused_without_side_effect() -> None:
    async def run() -> None:
        async with alone() as (node, book):
            group = node.group("book")
            for number in range(10):
                await group.send(b"%d" % number, priority=number % 3)
            wrong: Any = 0.5
            with pytest.raises(MisuseError, match=r"0\.5"):
                await group.send(b"wrong", priority=wrong)
            await eventually(lambda: len(book.lines) == 10)
            assert node.group("book") is group

    asyncio.run(run())
