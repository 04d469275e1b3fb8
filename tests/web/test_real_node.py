"""The page and the control socket of real nodes: what they tell is what the page understands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from tests.conformance.worlds import free_port
from tests.web.browser import browsing, find_chromium

from holdfast import Batch, Context, Node, Replica, parse_config
from holdfast.runtime.control import ask
from holdfast.web import WebServer

CONFIG = """
domain = "demo"
name = "{name}"
data = "{data}"
join = ["127.0.0.1:{port}"]
security.mode = "plain"
telemetry.enabled = false

[[adapter]]
name = "red"
address = "{host}:{port}"

[[group]]
name = "book"
voters = ["n1", "n2"]
leader = "n1"
"""


class Nothing(Replica):
    """An application that keeps nothing."""

    def apply(self, batch: Batch, context: Context) -> None: ...

    def snapshot(self) -> bytes:
        return b""

    def restore(self, state: bytes) -> None: ...


@asynccontextmanager
async def two_nodes(directory: Path) -> AsyncIterator[tuple[Node, AsyncExitStack]]:
    """n1, and the means to stop n2."""
    hosts = ("127.0.0.1", "127.0.0.2")
    port = free_port(list(hosts))
    async with AsyncExitStack() as first, AsyncExitStack() as second:
        nodes = []
        for name, host, stack in zip(("n1", "n2"), hosts, (first, second), strict=True):
            data = directory / name
            text = CONFIG.format(name=name, data=data, host=host, port=port)
            node = Node(parse_config(text, name), {"book": Nothing()})
            nodes.append(await stack.enter_async_context(node))
        await nodes[0].until_up("n2")
        yield nodes[0], second


def test_the_status_comes_whole_through_the_socket_and_the_page(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            two_nodes(tmp_path) as (node, _),
            WebServer("127.0.0.1", 0, node.status, None) as server,
            aiohttp.ClientSession(server.url) as session,
        ):
            path = tmp_path / "n1" / "control.sock"
            by_socket = await asyncio.to_thread(ask, path, {"do": "status"}, 10.0)
            async with session.get("/api/status") as answer:
                by_page = await answer.json()
            for status in (by_socket, by_page):
                assert status["node"]["name"] == "n1"
                assert [member["name"] for member in status["members"]] == ["n1", "n2"]
                assert [group["name"] for group in status["groups"]] == ["book"]
            async with session.get("/metrics") as answer:
                assert 'holdfast_members{state="up"} 2\n' in await answer.text()
        assert not path.exists()

    asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.mark.browser
def test_the_page_shows_real_nodes_and_that_one_goes(tmp_path: Path) -> None:
    program = find_chromium()
    if program is None:
        pytest.skip("needs Chromium (apt-get install chromium)")

    async def scenario() -> None:
        async with (
            two_nodes(tmp_path) as (node, second),
            WebServer("127.0.0.1", 0, node.status, None) as server,
            browsing(program, tmp_path / "profile") as page,
        ):
            await page.open(server.url)
            await page.until("document.querySelectorAll('td.cell.ok').length === 2")
            await page.until("document.querySelector('.group .badge').textContent === 'leading'")
            await page.until(
                "document.querySelector('#verdict-text').textContent === 'All is well'"
            )
            assert await page.run("document.querySelectorAll('#members tbody tr').length") == 2
            await second.aclose()
            await page.until("document.querySelector('#troubles').innerText.includes('n2 left')")
            await page.until("document.querySelectorAll('td.cell.dead.excused').length === 2")
            assert page.complaints == []

    asyncio.run(asyncio.wait_for(scenario(), 120))
