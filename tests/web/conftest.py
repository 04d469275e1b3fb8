"""A browser for tests of the page."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.web.browser import Browser, Scenario, browsing, find_chromium


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    """Runs a scenario in a fresh browser; afterwards the page must not have complained about anything."""
    program = find_chromium()
    if program is None:
        pytest.skip("needs Chromium (apt-get install chromium)")

    async def visit(scenario: Scenario) -> None:
        async with browsing(program, tmp_path / "profile") as page:
            try:
                await scenario(page)
            except BaseException as failure:
                failure.add_note(f"the page complained: {page.complaints}")
                raise
            assert page.complaints == []

    return lambda scenario: asyncio.run(asyncio.wait_for(visit(scenario), 120))
