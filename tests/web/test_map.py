"""The map of nodes, realms and links on the page, and a tree drawn on it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.web.browser import Browser, Page
from tests.web.fake_status import FakeDomain

from holdfast.web import WebServer

pytestmark = pytest.mark.browser

TREE = "ab" * 16
SHOWN = "document.body.dataset.version"
LINKS = "[...document.querySelectorAll('#map-links line')]"


def link(a: str, b: str) -> str:
    """An expression for the line between two nodes."""
    return f"{LINKS}.find((line) => line.textContent.startsWith('{a} and {b}:'))"


def overlay(names: list[str]) -> dict[str, Any]:
    """A ring of nodes in two realms."""
    rows = [
        {
            "name": name,
            "realm": "east" if k < len(names) // 2 else "west",
            "reachable": True,
            "peers": [names[k - 1], names[(k + 1) % len(names)]],
        }
        for k, name in enumerate(names)
    ]
    trees = [{"tree": TREE, "built": True, "edges": [], "roles": [{"role": "worker"}]}]
    return {"map": rows, "map_left_out": 0, "trees": trees}


async def tree_of(tree: bytes) -> tuple[dict[str, list[str]], bool]:
    assert tree == bytes.fromhex(TREE)
    return {"n1": ["n2"], "n2": ["n1", "n3"], "n3": ["n2"]}, True


async def part_of(tree: bytes) -> tuple[dict[str, list[str]], bool]:
    return {"n1": ["n2"]}, False


CHOOSE = f"""(() => {{ const select = document.querySelector('#map-tree');
select.value = '{TREE}'; select.dispatchEvent(new Event('change')); }})()"""


def test_links_are_coloured_by_health_and_follow_it(browser: Browser) -> None:
    async def scenario(page: Page) -> None:
        domain = FakeDomain(4)
        domain.extra = {"overlay": overlay(domain.names)}
        async with WebServer("127.0.0.1", 0, domain.status, None, tree=tree_of) as server:
            await page.open(server.url)
            await page.until(SHOWN)
            assert await page.run(f"{LINKS}.length") == 4, "each link of the ring once"
            assert await page.run("document.querySelectorAll('#map-nodes g').length") == 4
            realms = (
                "[...document.querySelectorAll('#map-realms li')].map((one) => one.textContent)"
            )
            assert await page.run(realms) == ["east", "west"]
            await page.until(f"{link('n1', 'n2')}.classList.contains('ok')")

            domain.fault("n1", "n2", "blue", "udp", size=1000)
            await page.until(f"{link('n1', 'n2')}.classList.contains('soft')")
            assert "soft error" in await page.run(f"{link('n1', 'n2')}.textContent")
            assert await page.run(f"{link('n2', 'n3')}.classList.contains('ok')")

    browser(scenario)


def test_a_tree_is_drawn_on_the_map(browser: Browser) -> None:
    async def scenario(page: Page) -> None:
        domain = FakeDomain(4)
        domain.extra = {"overlay": overlay(domain.names)}
        async with WebServer("127.0.0.1", 0, domain.status, None, tree=tree_of) as server:
            await page.open(server.url)
            await page.until(SHOWN)
            assert await page.run("document.querySelectorAll('#map .tree').length") == 0
            await page.run(CHOOSE)
            await page.until("document.querySelectorAll('#map-links .tree').length === 2")
            assert await page.run(f"{link('n1', 'n2')}.classList.contains('tree')")
            assert not await page.run(f"{link('n1', 'n4')}.classList.contains('tree')")
            marked = (
                "[...document.querySelectorAll('#map-nodes .tree text')].map((t) => t.textContent)"
            )
            assert sorted(await page.run(marked)) == ["n1", "n2", "n3"]
            assert not await page.run("document.querySelector('#map-text').textContent")

    browser(scenario)


def test_the_map_says_when_parts_of_a_tree_may_be_missing(browser: Browser) -> None:
    async def scenario(page: Page) -> None:
        domain = FakeDomain(4)
        domain.extra = {"overlay": overlay(domain.names)}
        async with WebServer("127.0.0.1", 0, domain.status, None, tree=part_of) as server:
            await page.open(server.url)
            await page.until(SHOWN)
            await page.run(CHOOSE)
            await page.until("document.querySelector('#map-text').textContent.includes('missing')")
            assert await page.run("document.querySelectorAll('#map-links .tree').length") == 1

    browser(scenario)


@pytest.mark.parametrize("name", ["n", "a-node-in-the-basement"])
def test_names_on_the_map_can_be_read_and_fit(browser: Browser, name: str) -> None:
    """The map is drawn smaller than its own units. Short names are larger, and of long ones the end is shown."""

    async def scenario(page: Page) -> None:
        domain = FakeDomain(4)
        rows = overlay(domain.names)
        for k, row in enumerate(rows["map"]):
            row["name"] = f"{name}{k}"
            row["peers"] = []
        domain.extra = {"overlay": rows}
        async with WebServer("127.0.0.1", 0, domain.status, None, tree=tree_of) as server:
            await page.look(1280, 900)
            await page.open(server.url)
            await page.until(SHOWN)
            label = "document.querySelector('#map-nodes text')"
            height = await page.run(f"{label}.getBoundingClientRect().height")
            assert height >= (12 if name == "n" else 7)
            assert (await page.run(f"{label}.textContent")).endswith("0")
            assert await page.run(f"{label}.parentNode.querySelector('title').textContent") == (
                f"{name}0"
            )
            outside = """(() => { const box = (e) => e.getBoundingClientRect();
            const map = box(document.querySelector('#map'));
            return [...document.querySelectorAll('#map-nodes text')].filter((text) =>
                box(text).left < map.left || box(text).right > map.right
                || box(text).top < map.top || box(text).bottom > map.bottom).length; })()"""
            assert await page.run(outside) == 0

    browser(scenario)


def test_without_an_overlay_there_is_no_map(browser: Browser) -> None:
    async def scenario(page: Page) -> None:
        domain = FakeDomain(2)
        async with WebServer("127.0.0.1", 0, domain.status) as server:
            await page.open(server.url)
            await page.until(SHOWN)
            assert await page.run("document.querySelector('#map-section').hidden")

    browser(scenario)
