"""The section of the page that shows stability, locks and barriers of groups, in a real browser."""

from __future__ import annotations

from typing import Any

import pytest
from tests.web.browser import Browser, Page
from tests.web.fake_status import FakeDomain

from holdfast.web import WebServer

pytestmark = pytest.mark.browser

HIDDEN = "document.getElementById('services-section').hidden"
TEXT = "document.getElementById('services-section').innerText"
LINES = "[...document.querySelectorAll('#services li')].map((line) => line.innerText)"
SOFT = "[...document.querySelectorAll('#services dd.is-soft')].map((fact) => fact.innerText)"


def stability(**changes: Any) -> dict[str, Any]:
    calm = {
        "protocol": "coord",
        "stable": 48_000,
        "lag_ms": 12,
        "held": 1_480,
        "pin": 0,
        "blockers": [],
    }
    return calm | changes


def test_stability_locks_and_barriers_are_shown_and_followed(browser: Browser) -> None:
    domain = FakeDomain(3)
    shown: dict[str, Any] = {}

    def status() -> dict[str, Any]:
        found = domain.status()
        found["groups"] = [group | shown for group in found["groups"]]
        return found

    async def scenario(page: Page) -> None:
        async with WebServer("127.0.0.1", 0, status) as server:
            await page.open(server.url)
            await page.until("document.querySelectorAll('#groups article').length === 1")
            assert await page.run(HIDDEN), "a group that says nothing about it has no section"
            shown.update(
                stability=stability(
                    lag_ms=5_000,
                    blockers=[{"name": "n3<b>", "why": "behind", "since_ms": 4_900}],
                ),
                relay={"from": "n2", "to": 0, "passed_on": 0},
                services={
                    "locks": [{"name": "ledger", "holder": "n2", "token": 812, "lease_s": 10.0, "waiting": ["n1"]}],
                    "barriers": [
                        {"name": "start", "generation": 2, "parties": 3, "phase": 1, "phases": 2, "arrived": ["n1"]}
                    ],
                },
            )  # fmt: skip
            await page.until(f"{LINES}.length === 3")
            assert await page.run(LINES) == [
                "Blocked: n3<b> has been behind for 4,900 ms",
                "Lock ledger: n2, token 812; waiting: n1",
                "Barrier start: 1 of 3 arrived, phase 1 of 2",
            ]
            assert await page.run(SOFT) == ["5,000 ms"], "a long lag stands out"
            text = await page.run(TEXT)
            for value in ("coord", "48,000", "1,480", "n2"):
                assert value in text, value
            shown.update(stability=stability(), services={"locks": [], "barriers": []}, relay={})
            await page.until(f"{LINES}.length === 0 && {SOFT}.length === 0")
            assert "Messages from" not in await page.run(TEXT)

    browser(scenario)
