"""The section of the page that shows where replicas are, in a real browser."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.web.browser import browsing, find_chromium
from tests.web.fake_status import FakeDomain

from holdfast.web import WebServer

pytestmark = pytest.mark.browser

ROWS = "document.querySelectorAll('#objects tr').length"
TEXT = "document.getElementById('objects-section').innerText"
HIDDEN = "document.getElementById('objects-section').hidden"


def row(number: int, **changes: Any) -> dict[str, Any]:
    made = {
        "id": f"{number:032x}", "name": f"report{number}", "directory": False, "mode": "strict", "edition": 3,
        "version": 4, "size": 1000, "wanted": 3, "sound": True, "nodes": ["n1", "n2", "n3"], "conflicts": 0,
    }  # fmt: skip
    return made | changes


def test_replicas_are_shown_with_what_is_wrong_with_them(tmp_path: Path) -> None:
    program = find_chromium()
    if program is None:
        pytest.skip("needs Chromium (apt-get install chromium)")
    domain = FakeDomain(3)
    objects: dict[str, Any] = {"replicas": 0, "sound": 0, "draining": False, "shown": []}

    def status() -> dict[str, Any]:
        return domain.status() | {"objects": objects}

    async def visit() -> None:
        async with (
            browsing(program, tmp_path / "profile") as page,
            WebServer("127.0.0.1", 0, status) as server,
        ):
            await page.open(server.url)
            await page.until(f"{HIDDEN} === true")
            objects.update(
                replicas=3, sound=2, draining=True,
                shown=[row(1), row(2, sound=False), row(3, nodes=["n1", "n2"])],
            )  # fmt: skip
            await page.until(f"{ROWS} === 3")
            text = await page.run(TEXT)
            for shown in ("report1", "n1, n2, n3", "repairing", "2 of 3", "being drained"):
                assert shown in text, shown
            objects.update(replicas=1, sound=1, shown=[row(1)])
            await page.until(f"{ROWS} === 1")
            assert page.complaints == []

    asyncio.run(asyncio.wait_for(visit(), 120))
