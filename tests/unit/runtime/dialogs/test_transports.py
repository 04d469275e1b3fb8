"""The transport under a living dialog changes, and the application does not notice.

Two nodes have a direct adapter and one that goes through an HTTP proxy in WebSockets. The application names neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from tests.conformance.worlds import free_port
from tests.support.dialog_nodes import run
from tests.support.proxies import BadProxy, TinyProxy

from holdfast.node.config import parse_config
from holdfast.runtime.dialogs.handles import Dialog
from holdfast.runtime.node import Node

HOSTS = ["127.0.43.1", "127.0.43.2"]


def config(name: str, number: int, ports: tuple[int, int], data: Path, proxy: int) -> str:
    return f"""
domain = "dialogs"
name = "{name}"
data = "{data / name}"
join = ["{HOSTS[0]}:{ports[0]}"]
security.mode = "plain"
telemetry.enabled = false
lab.faults = true
[[adapter]]
name = "direct"
address = "{HOSTS[number]}:{ports[0]}"
transports = ["tcp"]
measure = []
[[adapter]]
name = "web"
address = "{HOSTS[number]}:{ports[1]}"
transports = ["tcp"]
websocket = true
proxy = "http://127.0.0.1:{proxy}"
[dialogs]
roles = false
[[dialogs.store]]
kind = "memory"
"""


@asynccontextmanager
async def two_nodes(directory: Path, proxy: int) -> AsyncIterator[tuple[Node, Node]]:
    first = free_port(HOSTS)
    second = free_port(HOSTS)
    while second == first:
        second = free_port(HOSTS)
    async with (
        Node(parse_config(config("ann", 0, (first, second), directory, proxy))) as ann,
        Node(parse_config(config("ben", 1, (first, second), directory, proxy))) as ben,
    ):
        await ann.until_up("ben", timeout_s=20)
        await ben.until_up("ann", timeout_s=20)
        yield ann, ben


def alive(node: Node, adapter: str) -> bool:
    """Whether a path over this adapter is alive."""
    paths = [path for path in node.status()["paths"] if path["subnet"] == adapter]
    return bool(paths) and all(path["alive"] for path in paths)


def used(node: Node) -> str:
    """The adapter that the dialog's channel uses."""
    rows = [row for link in node.status()["links"] for row in link["channels"] if row["path"]]
    return str(rows[0]["path"].split("/")[0]) if rows else ""


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 any condition will do, so there is no event
            await asyncio.sleep(0.01)


def drop(node: Node, adapter: str) -> None:
    node._lab.control()["fault"]({"do": "fault", "fault": "blackout", "adapter": adapter})


def heal(node: Node) -> None:
    node._lab.control()["heal"]({"do": "heal"})


class Traffic:
    """Numbered messages that are sent all the time; the other end checks that each comes once, in order."""

    def __init__(self, near: Dialog, far: Dialog) -> None:
        self._near, self._far = near, far
        self.sent = self.received = 0
        self._tasks = [asyncio.ensure_future(self._send()), asyncio.ensure_future(self._receive())]

    async def _send(self) -> None:
        while True:
            await self._near.send(b"%d" % self.sent)
            self.sent += 1
            await asyncio.sleep(0.002)

    async def _receive(self) -> None:
        async for message in self._far:
            assert message.body == b"%d" % self.received
            self.received += 1

    async def progress(self) -> None:
        """Wait until something arrives that was sent after now."""
        target = self.sent + 5
        await until(lambda: self.received >= target or any(task.done() for task in self._tasks))
        for task in self._tasks:
            if task.done():
                task.result()

    async def end(self) -> None:
        self._tasks[0].cancel()
        await until(lambda: self.received >= self.sent)
        self._tasks[1].cancel()
        assert self._near._outcome is None, "no fault reached the application"


@asynccontextmanager
async def traffic(ann: Node, ben: Node) -> AsyncIterator[Traffic]:
    listener = await ben.dialogs.listen("orders")
    near = await ann.dialogs.open("holdfast://ben/orders")
    made = Traffic(near, await listener.next())
    await made.progress()
    yield made
    await made.end()


def test_traffic_moves_to_a_websocket_through_a_proxy_and_back(tmp_path: Path) -> None:
    """The direct path is lost: the proxy carries the dialog. The proxy is killed: the direct path does. Both again."""

    async def work() -> None:
        proxy = TinyProxy(tmp_path, free_port(["127.0.0.1"]))
        proxy.start()
        try:
            async with two_nodes(tmp_path, proxy.port) as (ann, ben), traffic(ann, ben) as flow:
                await until(lambda: alive(ann, "direct") and alive(ann, "web"))
                for node in (ann, ben):
                    drop(node, "direct")
                await until(lambda: used(ann) == "web")
                await flow.progress()
                for node in (ann, ben):
                    heal(node)
                await until(lambda: alive(ann, "direct") and alive(ben, "direct"))
                proxy.kill()
                await until(lambda: used(ann) == "direct")
                await flow.progress()
                proxy.start()
                await until(lambda: alive(ann, "web") and alive(ben, "web"))
                for node in (ann, ben):
                    drop(node, "direct")
                await until(lambda: used(ann) == "web")
                await flow.progress()
        finally:
            proxy.kill()

    run(work, 120)


def test_a_proxy_that_misbehaves_harms_nothing(tmp_path: Path) -> None:
    """It refuses, answers nonsense, stalls, cuts tunnels and corrupts bytes; the direct path goes on."""

    async def work() -> None:
        proxy = BadProxy()
        await proxy.start()
        try:
            async with two_nodes(tmp_path, proxy.port) as (ann, ben), traffic(ann, ben) as flow:
                proxy.cut_after = 2000
                for mode in ("refuse", "nonsense", "cut", "corrupt", "stall"):
                    proxy.mode, seen = mode, proxy.seen
                    proxy.cut_all()
                    await until(lambda before=seen: proxy.seen > before)
                    await flow.progress()
                proxy.mode = "good"
                proxy.cut_all()
                await until(lambda: alive(ann, "web") and alive(ben, "web"))
                for node in (ann, ben):
                    drop(node, "direct")
                await until(lambda: used(ann) == "web")
                await flow.progress()
        finally:
            proxy.stop()

    run(work, 120)
