"""Groups on real sockets whose datagrams get lost: what applications decide, are told, and say to the outside."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from queue import Queue
from typing import Any

import msgspec
import pytest

from holdfast import (
    DROP,
    Action,
    Batch,
    Context,
    Decision,
    LossInfo,
    Node,
    NodeConfig,
    Replica,
    parse_config,
)
from holdfast.errors import MisuseError, NotAccepted
from holdfast.faults.amounts import share_text
from holdfast.group.frames import StreamId
from holdfast.group.loss.loss_info import AgeInfo, ClusterStatus, RecoveryInfo, TransportInfo
from holdfast.group.ports import AskLoss, LossAnswered, Output, SnapshotTaken, TakeSnapshot, Tell
from holdfast.group.streams.values import Indication
from holdfast.runtime.operating import ask_group
from holdfast.runtime.worker import AppWorker
from holdfast.transports import Rule

FILE = """
domain = "loss"
name = "{name}"
join = ["127.0.0.1:{join}"]
[security]
mode = "plain"
[lab]
faults = true
[[adapter]]
name = "lo"
address = "127.0.0.1:{port}"
[[group]]
name = "book"
voters = ["a", "b", "c"]
transport = "datagram"
priorities = 2
"""


class Book(Replica):
    """Keeps everything, answers every message, and drops what is lost unless it may be urgent."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.told: list[Decision] = []
        self.asked: list[LossInfo] = []
        self.answer: Action | None = None

    def apply(self, batch: Batch, context: Context) -> None:
        for message in batch.messages:
            self.lines.append(bytes(message))
            context.output("node:s", b"re: " + bytes(message))
            context.output("printer", bytes(message))

    def on_loss(self, info: LossInfo) -> Action | None:
        self.asked.append(info)
        return self.answer

    def on_decision(self, decision: Decision, context: Context) -> None:
        self.told.append(decision)

    def snapshot(self) -> bytes:
        return msgspec.msgpack.encode(self.lines)

    def restore(self, state: bytes) -> None:
        self.lines = msgspec.msgpack.decode(state, type=list[bytes])


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Domain:
    """Replicas a, b, c and a node s that only sends."""

    def __init__(self, extra: str = "", listens: bool = True) -> None:
        ports = free_ports(4)
        self.books = {name: Book() for name in "abc"}
        self.nodes: dict[str, Node] = {}
        for name, port in zip("abcs", ports, strict=True):
            text = FILE.format(name=name, port=port, join=ports[0]) + extra
            config: NodeConfig = parse_config(text)
            self.nodes[name] = Node(config, {"book": self.books[name]} if name != "s" else None)
        self.heard: list[Output] = []
        self.printed: list[Output] = []
        if listens:
            self.nodes["s"].on_outputs("book", self.heard.append)
        for name in "abc":
            self.nodes[name].send_outputs("book", self._print)

    async def _print(self, output: Output) -> None:
        self.printed.append(output)

    async def __aenter__(self) -> Domain:
        for node in self.nodes.values():
            await node.start()
        await self.nodes["s"].until_up("a", "b", "c")
        await until(lambda: bool(self.leader))
        return self

    async def __aexit__(self, *_: object) -> None:
        for node in self.nodes.values():
            await node.stop()

    def status(self, name: str) -> dict[str, Any]:
        return self.nodes[name].status()["groups"][0]

    @property
    def leader(self) -> str:
        return next((name for name in "abc" if self.status(name)["state"] == "leading"), "")

    def lose(self, ppm: int) -> None:
        faults = self.nodes["s"]._lab.faults
        assert faults is not None
        faults.add(Rule(f"loss {share_text(ppm)} only udp"))


async def until(reached: Callable[[], bool], timeout_s: float = 30.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not reached():  # noqa: ASYNC110 any check will do, so there is no event
            await asyncio.sleep(0.01)


def line(k: int) -> bytes:
    return b"%04d" % k + b"." * 700


async def send(domain: Domain, count: int) -> None:
    """Every third message is urgent."""
    group = domain.nodes["s"].group("book")
    for k in range(count):
        await group.send(line(k), priority=0 if k % 3 == 0 else 1)
        if k % 5 == 0:
            await asyncio.sleep(0.001)


def test_lost_datagrams_are_recovered_and_outputs_arrive_once() -> None:
    async def run() -> None:
        async with Domain() as domain:
            domain.lose(200_000)
            await send(domain, 300)
            expected = [line(k) for k in range(300)]
            await until(lambda: all(book.lines == expected for book in domain.books.values()))
            answers = [b"re: " + it for it in expected]
            await until(lambda: len(domain.heard) >= 300 and len(domain.printed) >= 300)
            assert [output.payload for output in domain.heard] == answers
            assert dict.fromkeys(o.payload for o in domain.printed) == dict.fromkeys(expected)
            assert domain.status(domain.leader)["nacks"] > 0

    asyncio.run(run())


def test_a_message_that_no_group_takes_is_refused_and_those_around_it_arrive() -> None:
    async def run() -> None:
        async with Domain() as domain:
            group = domain.nodes["s"].group("book")
            await group.send(b"first")
            with pytest.raises(MisuseError, match="at most 4194304 bytes"):
                await group.send(bytes((4 << 20) + 1))
            for wrong in ({"topic": "\ud800"}, {"topic": b"t"}, {"request": "text"}):
                with pytest.raises(
                    MisuseError, match="a topic must be text and a request id bytes"
                ):
                    group.try_send(b"x", **wrong)  # type: ignore[arg-type]
            await group.send(bytes(500_000))
            with pytest.raises(MisuseError, match="at most"):
                group.try_send(bytes((4 << 20) + 1))
            await group.send(b"last")
            await until(lambda: all(len(book.lines) == 3 for book in domain.books.values()))
            assert domain.books["a"].lines[::2] == [b"first", b"last"]

    asyncio.run(run())


def test_outputs_before_the_first_callback_are_delivered_and_again_after_a_failure() -> None:
    heard: list[bytes] = []
    failures = [RuntimeError("not now")]

    def listen(output: Output) -> None:
        if failures and len(heard) == 3:
            raise failures.pop()
        heard.append(output.payload)

    async def run() -> None:
        async with Domain(listens=False) as domain:
            await send(domain, 10)
            expected = [line(k) for k in range(10)]
            await until(lambda: all(book.lines == expected for book in domain.books.values()))
            domain.nodes["s"].on_outputs("book", listen)
            await until(lambda: len(heard) >= 10)
            assert heard == [b"re: " + it for it in expected]

    asyncio.run(run())


def test_a_node_whose_applications_have_worked_is_not_started_again() -> None:
    """They would be given everything once more, on top of the state that they have."""

    async def run() -> None:
        async with Domain() as domain:
            await send(domain, 1)
            await domain.nodes["a"].stop()
            with pytest.raises(MisuseError, match="create a new Node"):
                await domain.nodes["a"].start()

    asyncio.run(run())


def test_a_table_drops_what_is_not_urgent_at_once_on_all_replicas() -> None:
    extra = '[[group.loss]]\npriority = 1\naction = "drop"\nat_once = true\n'

    async def run() -> None:
        async with Domain(extra) as domain:
            domain.lose(100_000)
            await send(domain, 300)
            urgent = [line(k) for k in range(0, 300, 3)]
            lines = {name: book.lines for name, book in domain.books.items()}
            await until(
                lambda: all(
                    [it for it in mine if int(it[:4]) % 3 == 0] == urgent for mine in lines.values()
                )
            )

            def skipped(name: str) -> int:
                told = domain.books[name].told
                return sum(it.last - it.first + 1 for it in told if it.kind == "skip")

            await until(
                lambda: all(len(mine) + skipped(name) == 300 for name, mine in lines.items())
            )
            assert lines["a"] == lines["b"] == lines["c"]
            assert skipped("a") == skipped("b") == skipped("c") > 0
            assert domain.status(domain.leader)["decisions"]

    asyncio.run(run())


def test_what_is_ignored_is_listed_and_ended_by_the_handle_of_any_replica() -> None:
    extra = '[[group.loss]]\npriority = 1\naction = "drop and ignore"\nat_once = true\n'

    async def run() -> None:
        async with Domain(extra) as domain:
            group = domain.nodes["s"].group("book")
            with pytest.raises(MisuseError, match="no replica"):
                group.end_ignoring(1)
            domain.lose(300_000)
            await send(domain, 60)
            handle = next(
                domain.nodes[name].group("book") for name in "abc" if name != domain.leader
            )
            await until(lambda: bool(handle.ignoring))
            with pytest.raises(MisuseError, match="no criterion"):
                handle.end_ignoring(1 << 40)
            faults = domain.nodes["s"]._lab.faults
            assert faults is not None
            faults.clear()
            await until(lambda: not domain.status(domain.leader)["gaps"])

            def ended() -> bool:
                """Once more for what was decided while we looked."""
                for row in handle.ignoring:
                    handle.end_ignoring(row["id"])
                return not any(domain.status(name)["ignoring"] for name in "abc")

            await until(ended)
            await group.send(b"heard again", priority=1)
            await until(lambda: all(b"heard again" in b.lines for b in domain.books.values()))

    asyncio.run(run())


def loss_info() -> LossInfo:
    return LossInfo(
        "book", 7, 1, ((2, 3),), 2, ClusterStatus(3, 3, False, ("b", "c")),
        TransportInfo("s", True, False, StreamId(b"s" * 16, 1, 0), (), "datagram", 0, 1, 1, 1),
        Indication(2, (), (0, 0), (2, 2)), (), RecoveryInfo((), 0), AgeInfo(0, 0),
    )  # fmt: skip


def answers(application: Replica, *jobs: Any, count: int) -> list[Any]:
    """What the worker of an application answers to jobs."""
    got: Queue[Any] = Queue()
    worker = AppWorker("book", application, got.put)
    for job in jobs:
        worker.submit([job])
    found = [got.get(timeout=10) for _ in range(count)]
    assert worker.close()
    return found


def test_an_application_is_asked_and_told_off_the_event_loop() -> None:
    book = Book()
    book.answer = DROP
    decision = Decision(5, "skip", None, 2, 3, "dropped")
    jobs = (AskLoss("replica/book", 7, loss_info()), Tell("replica/book", 5, 0, decision))
    found = answers(book, *jobs, TakeSnapshot("replica/book", 1, 5), count=2)
    assert found[0] == LossAnswered(7, DROP)
    assert isinstance(found[1], SnapshotTaken)
    assert book.told == [decision]


def test_an_application_that_raises_when_asked_leaves_it_to_the_table() -> None:
    class Broken(Book):
        def on_loss(self, info: LossInfo) -> Action | None:
            raise ValueError("no idea")

    found = answers(Broken(), AskLoss("replica/book", 7, loss_info()), count=1)
    assert found == [LossAnswered(7, None, "ValueError: no idea")]


def test_an_application_without_an_opinion_is_not_asked() -> None:
    class Plain(Replica):
        def apply(self, batch: Batch, context: Context) -> None: ...
        def snapshot(self) -> bytes:
            return b""

        def restore(self, state: bytes) -> None: ...

    assert answers(Plain(), AskLoss("replica/book", 7, loss_info()), count=1) == [
        LossAnswered(7, None)
    ]


def test_requests_for_a_leader_are_refused_while_no_replica_leads() -> None:
    """It would be forgotten, silently."""

    async def run() -> None:
        node = Domain().nodes["a"]
        await node.start()
        try:
            request = {"group": "book", "verb": "add", "name": "b"}
            with pytest.raises(NotAccepted, match=r"group 'book' has no leader.*try again"):
                ask_group(node._drive(), request)
        finally:
            await node.stop()

    asyncio.run(run())
