"""The life of a node: starts that fail, stops that are broken off, and what both leave behind."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.conformance.worlds import free_port
from tests.support.machines import fail

from holdfast import Batch, Context, Node, NodeConfig, Replica, parse_config
from holdfast.errors import (
    AddressInUse,
    ConfigError,
    HoldfastError,
    MisuseError,
    NodeStopped,
    NotAccepted,
    SetupError,
    StoreError,
)
from holdfast.machine import Failure
from holdfast.node.core import NodeCore
from holdfast.runtime import event_log
from holdfast.runtime import groups as groups_module
from holdfast.runtime import node as module
from holdfast.runtime.applications import load_application
from holdfast.runtime.failures import write_down
from holdfast.runtime.groups import GroupEdge
from holdfast.runtime.handles import Group
from holdfast.runtime.operating import ask_group
from holdfast.stores.memory import MemoryStore
from holdfast.stores.port import Store
from holdfast.stores.sqlite import SqliteStore
from holdfast.types import SECOND

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
{mode}
"""
DURABLE = 'durability = "durable"\ndelivery = "fast"'


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


def config(
    data: Path | str, name: str = "a", extra: str = "", port: int = 0, mode: str = DURABLE
) -> NodeConfig:
    port = port or free_port(["127.0.0.1"])
    return parse_config(FILE.format(name=name, data=data, port=port, mode=mode) + extra)


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


def test_a_failure_that_cannot_be_recorded_stops_no_other_unit(tmp_path: Path) -> None:
    """Another group goes on in time, and the node can be stopped."""

    async def run() -> None:
        (tmp_path / "failures").write_text("exists and is not a socket")
        other = '[[group]]\nname = "other"\nvoters = ["a"]\n'
        applications = {"book": Book(), "other": (healthy := Book())}
        node = Node(config(tmp_path, extra=other, mode=""), applications)
        await node.start()
        await eventually(lambda: leads(node) and leads(node, 1))
        core, driver = node._core, node._driver
        assert core is not None
        assert driver is not None
        fail(core.turns, "replica/book")
        await eventually(lambda: "replica/book" in core.turns.stopped)
        turns = driver.turns
        await eventually(lambda: driver.turns > turns + 3)
        await node.group("other").send(b"as before")
        await eventually(lambda: healthy.lines == [b"as before"])
        await node.stop()
        assert is_free(port_of(node))

    asyncio.run(run())


def test_what_fails_while_a_node_stops_keeps_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        node = Node(config(tmp_path), {"book": Book()})
        await node.start()
        assert node._driver is not None
        assert node._control is not None
        monkeypatch.setattr(node._driver, "leave", broken)
        monkeypatch.setattr(node._control, "close", broken)
        monkeypatch.setattr(node._log.segments, "close", broken)
        monkeypatch.setattr(node._log, "record", broken)
        await node.stop()
        await node.wait_stopped()
        assert is_free(port_of(node))
        SqliteStore(tmp_path).close()

    asyncio.run(run())


def test_a_dump_is_written_off_the_event_loop_and_before_the_stop_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def slow(directory: Path, failure: Failure) -> None:
        threads.append(threading.current_thread())
        write_down(directory, failure)

    async def run() -> None:
        async with Node(config(tmp_path), {"book": Book()}) as node:
            node._unit_failed(Failure("link/x", ValueError("a bug"), [b"x"], 7, stopped=False))

    monkeypatch.setattr(event_log, "write_down", slow)
    asyncio.run(run())
    assert threads
    assert threading.current_thread() not in threads
    (dump,) = (tmp_path / "failures").iterdir()
    assert dump.name.endswith("-link_x.txt")
    assert dump.read_text() == "ValueError('a bug') at 7\nb'x'\n"


def test_a_node_that_runs_is_not_started_again(tmp_path: Path) -> None:
    async def run() -> None:
        async with Node(config(tmp_path, name="s")) as node:
            driver = node._driver
            with pytest.raises(MisuseError, match=r"is running.*nothing was changed"):
                await node.start()
            assert node._driver is driver
            await node.group("book").send(b"x")
        assert is_free(port_of(node))

    asyncio.run(run())


class Slow(Book):
    """Comes back when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.at_work, self.may_return = threading.Event(), threading.Event()

    def apply(self, batch: Batch, context: Context) -> None:
        self.at_work.set()
        self.may_return.wait(PATIENCE_S)


def test_a_stop_that_is_cancelled_continues_and_has_notified_all_peers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An application that does not come back keeps nothing else: not the store, not the port, nobody who waits."""
    monkeypatch.setattr(groups_module, "RETURN_NS", PATIENCE_S * SECOND)

    async def run() -> None:
        slow = Slow()
        node = Node(config(tmp_path, extra="window_mb = 1"), {"book": slow})
        await node.start()
        await eventually(lambda: leads(node))
        sender = asyncio.create_task(send_without_end(node.group("book")))
        waits = asyncio.create_task(node.wait_stopped())
        await eventually(slow.at_work.is_set)
        stops = asyncio.create_task(node.stop())
        await waits
        with pytest.raises(NodeStopped, match="nothing was sent"):
            await sender
        await eventually(lambda: node._store is None)
        stops.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stops
        with pytest.raises(MisuseError, match=r"await stop\(\) first"):
            await node.start()
        async with Node(config(tmp_path, port=port_of(node)), {"book": Book()}) as heir:
            await eventually(lambda: leads(heir))
        again = [asyncio.create_task(node.stop()) for _ in range(2)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in again), "it is not done"
        slow.may_return.set()
        await asyncio.gather(*again)
        assert "did not return" not in caplog.text

    asyncio.run(run())


def test_applications_that_do_not_return_are_named_and_waited_for_together(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, float]] = []

    class Stuck:
        def __init__(self, name: str) -> None:
            self.name = name

        def close(self, timeout_s: float) -> bool:
            asked.append((self.name, timeout_s))
            clock[0] += int(timeout_s * SECOND)
            return False

    async def run() -> None:
        edge = GroupEdge()
        for name in "ab":
            edge.workers[f"replica/{name}"] = Stuck(name)  # type: ignore[assignment]
        edge.close()

    clock = [10**12]
    monkeypatch.setattr(groups_module, "monotonic_ns", lambda: clock[0])
    asyncio.run(run())
    assert asked == [("a", 0), ("b", 0), ("a", 5), ("b", 0)]
    for name in "ab":
        assert f"replica/{name}: the application did not return within 5 s" in caplog.text


def test_a_stop_waits_for_the_start_that_is_under_way(tmp_path: Path) -> None:
    async def run() -> None:
        node = Node(config(tmp_path), {"book": Book()})
        starts = asyncio.create_task(node.start())
        await asyncio.sleep(0)
        assert node._driver is None, "it has only begun"
        await node.stop()
        await starts
        assert is_free(port_of(node))
        SqliteStore(tmp_path).close()

    asyncio.run(run())


@pytest.mark.parametrize("data", ["file", "file/below"])
def test_a_data_directory_that_cannot_be_is_refused_with_what_to_do(
    tmp_path: Path, data: str
) -> None:
    (tmp_path / "file").write_text("")
    node = Node(config(tmp_path / data), {"book": Book()})
    with pytest.raises(StoreError, match=r"File exists.*give the node a writable data directory"):
        asyncio.run(node.start())


@pytest.mark.parametrize(
    ("applications", "why"),
    [
        ({"book": Book}, r"group 'book' is the class Book: give an instance"),
        ({"book": object()}, r"group 'book' is of type object, which is not a holdfast\.Replica"),
        (
            {"boook": Book()},
            r"group 'boook', which the configuration does not have; there are book",
        ),
    ],
    ids=["a class", "something else", "for no group"],
)
def test_what_cannot_be_an_application_is_refused(
    tmp_path: Path, applications: dict[str, Any], why: str
) -> None:
    data = tmp_path / "data"
    for name in "as":
        with pytest.raises(SetupError, match=why):
            asyncio.run(Node(config(data, name), applications).start())
    assert not data.exists(), "nothing was begun"


class Unfinished(Replica):
    """Says what it is, and not what it does."""


def test_an_application_that_cannot_be_loaded_is_a_matter_of_setup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "hf_no_python.py").write_text("def")
    (tmp_path / "hf_raises.py").write_text("1 / 0")
    for name, why in {
        f"{__name__}:Unfinished": "TypeError",
        "hf_no_python:X": "SyntaxError",
        "hf_raises:X": "ZeroDivisionError",
        "hf_nowhere:X": "ModuleNotFoundError",
    }.items():
        with pytest.raises(ConfigError, match=rf"{name}' cannot be loaded: {why}"):
            load_application(name)


@pytest.mark.parametrize("name", ["orders", "orders.book", ":Book", "orders:"])
def test_an_application_without_module_or_class_is_refused_with_the_form(name: str) -> None:
    with pytest.raises(ConfigError, match=r'not of the form "package\.module:Class"; nothing was'):
        load_application(name)


def test_a_replica_that_has_stopped_is_not_said_to_be_missing(tmp_path: Path) -> None:
    async def run() -> None:
        async with Node(config(tmp_path), {"book": Book()}) as node:
            await eventually(lambda: leads(node))
            assert node._core is not None
            assert node._driver is not None
            fail(node._core.turns, "replica/book")
            await eventually(lambda: node.status()["node"]["stopped_units"])
            for group, why in {"book": "is stopped.*a bug.*restart", "other": "no replica"}.items():
                with pytest.raises(HoldfastError, match=rf"{why}.*nothing was done"):
                    ask_group(node._driver, {"group": group, "verb": "hand-over"})

    asyncio.run(run())


class OffLoop(MemoryStore):
    """Is read by nobody who could hold up an event loop."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = False
        self.loaded: list[threading.Thread] = []

    def load(self, table: str) -> list[tuple[bytes, bytes]]:
        self.loaded.append(threading.current_thread())
        return super().load(table)

    def close(self) -> None:
        self.closed = True
        super().close()


def test_a_start_reads_its_store_off_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The core as well, which takes the whole journal in."""
    made: list[threading.Thread] = []

    class Core:
        tables = staticmethod(NodeCore.tables)

        def __new__(cls, *args: Any, **more: Any) -> NodeCore:  # type: ignore[misc]
            made.append(threading.current_thread())
            return NodeCore(*args, **more)

    monkeypatch.setattr(module, "NodeCore", Core)
    store = OffLoop()

    class Loads(Node):
        def _open_store(self) -> Store:
            return store

    async def run() -> None:
        async with Loads(config(tmp_path), {"book": Book()}):
            pass

    asyncio.run(run())
    assert len(store.loaded) > 3
    assert len(made) == 1
    assert threading.current_thread() not in store.loaded + made


@pytest.mark.parametrize("times", [1, 2])
def test_a_start_that_is_cancelled_while_it_opens_its_store_closes_it(
    tmp_path: Path, times: int
) -> None:
    opening, go_on = threading.Event(), threading.Event()
    store = OffLoop()

    class Opens(Node):
        def _open_store(self) -> Store:
            opening.set()
            go_on.wait(PATIENCE_S)
            return store

    async def run() -> None:
        starts = asyncio.create_task(Opens(config(tmp_path), {"book": Book()}).start())
        await eventually(opening.is_set)
        for _ in range(times):
            starts.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await starts
        assert store.closed

    asyncio.run(run())


def test_a_node_starts_and_stops_although_an_application_uses_all_threads_of_the_event_loop(
    tmp_path: Path,
) -> None:
    """Those may wait for something that comes only after the stop."""

    async def life() -> None:
        async with Node(config(tmp_path), {"book": Book()}):
            pass

    async def run() -> None:
        after = threading.Event()
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        waits = loop.run_in_executor(None, after.wait)
        lives = asyncio.create_task(life())
        done, _ = await asyncio.wait({lives}, timeout=PATIENCE_S)
        after.set()
        await asyncio.gather(waits, lives)
        assert done

    asyncio.run(run())


@pytest.mark.parametrize("fails", [True, False])
def test_waiting_for_a_peer_ends_when_the_node_has_stopped(tmp_path: Path, fails: bool) -> None:
    async def run() -> None:
        async with Node(config(tmp_path), {"book": Book()}) as node:
            waits = asyncio.create_task(node.until_up("nobody", timeout_s=10 * PATIENCE_S))
            await asyncio.sleep(0)
            if fails:
                node._fail(StoreError("no disk"))
            else:
                await node.stop()
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(NodeStopped, match="has stopped"):
                    await waits

    asyncio.run(run())


def test_a_node_can_be_started_again_on_another_event_loop() -> None:
    node = Node(msgspec.structs.replace(config("", mode=""), sections={}))

    async def life() -> None:
        async with node:
            with pytest.raises(NotAccepted, match="no session with nobody"):
                await node.until_up("nobody", timeout_s=0.01)

    for _ in range(2):
        asyncio.run(life())


def broken(*_: object) -> None:
    raise ValueError("a bug")


def is_free(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) != 0


async def send_without_end(group: Group) -> None:
    while True:
        await group.send(bytes(1000))
