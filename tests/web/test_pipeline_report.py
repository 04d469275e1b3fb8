"""The report of the pipeline in a real browser: it loads nothing, draws its pictures, and fits the screen."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.pipeline.report_content import FULL
from tests.web.browser import browsing, find_chromium

from holdfast.pipeline.report import render

pytestmark = pytest.mark.browser


def test_the_report_is_whole_in_a_browser(tmp_path: Path) -> None:
    program = find_chromium()
    if program is None:
        pytest.skip("needs Chromium (apt-get install chromium)")
    report = tmp_path / "report.html"
    report.write_text(render(FULL))

    async def visit() -> None:
        async with browsing(program, tmp_path / "profile") as page:
            await page.look(1280, 900)
            await page.open(report.as_uri())
            await page.until("document.readyState === 'complete'")
            assert "paths in trouble" in await page.run(
                "document.querySelector('h1, h2, p').parentElement.textContent"
            )
            pictures = "[...document.querySelectorAll('svg, img')]"
            assert await page.run(f"{pictures}.length") > 0
            assert await page.run(
                f"{pictures}.every((one) => one.getBoundingClientRect().width > 50)"
            )
            loaded = "performance.getEntriesByType('resource').filter((one) => !one.name.startsWith('data:'))"
            assert await page.run(f"{loaded}.length") == 0, "nothing is loaded from anywhere"
            wide = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
            assert await page.run(wide), "no sideways scrolling"
            assert page.complaints == []

    asyncio.run(asyncio.wait_for(visit(), 120))
