"""U4: the page shows what the pipeline published, and follows new snapshots; in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.pipeline.making import NOON
from tests.pipeline.published import fault, group_verdict, incident, publish, violation
from tests.web.browser import Browser, Page
from tests.web.fake_status import FakeDomain

from holdfast.pipeline.results import PublishedResults
from holdfast.web import WebServer, server

pytestmark = pytest.mark.browser

HIDDEN = "document.getElementById('results-section').hidden"
SUMMARY = "document.getElementById('results-summary').textContent"


def cells(part: str) -> str:
    rows = f"[...document.querySelectorAll('#results-{part} tr')]"
    return f"{rows}.map((row) => [...row.children].map((cell) => cell.textContent))"


def lines(part: str) -> str:
    return f"[...document.querySelectorAll('#results-{part} li')].map((line) => line.textContent)"


def test_incidents_causes_and_verdicts_are_shown_and_followed(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "RESULTS_EVERY_S", 0.05)
    out = tmp_path / "out"

    async def scenario(page: Page) -> None:
        read = PublishedResults(out).read
        async with WebServer("127.0.0.1", 0, FakeDomain(3).status, results=read) as web:
            await page.open(web.url)
            await page.until(
                f"{SUMMARY}.startsWith('No results can be shown: nothing is published')"
            )
            publish(
                out,
                int(NOON.timestamp() * 1_000_000),
                {
                    "incidents": [incident("packets over 600 bytes vanish <b>", NOON)],
                    "located_faults": [fault("node", "cork", NOON, NOON)],
                    "delivery_audit": [
                        group_verdict("orders", "holds", "all agree"),
                        group_verdict("stock", "violated", "1 violation"),
                    ],
                    "delivery_violations": [violation("agreement", "two contents", "brno")],
                },
            )
            await page.until(f"{SUMMARY}.startsWith('Snapshot 1 of 2026-11-15 12:00 UTC: 1 open')")
            assert await page.run(cells("incidents")) == [
                ["2026-11-15 12:00", "open", "size", "packets over 600 bytes vanish <b>"]
            ]
            assert await page.run(lines("faults")) == [
                "node cork (size), since 2026-11-15 12:00, confidence 0.99; 6 of its paths fail, 0 pass"
            ]
            assert await page.run(cells("verdicts")) == [
                ["group stock", "violated", "1 violation; 50% of 80 entries compared"],
                ["group orders", "holds", "all agree; 50% of 80 entries compared"],
            ]
            assert await page.run(lines("violations")) == ["agreement: two contents · brno"]
            await page.look(320, 900)
            assert await page.run("document.documentElement.scrollWidth") <= 320
            publish(out, 0, {"incidents": [incident("over", NOON, NOON)]})
            await page.until(f"{cells('incidents')}[0]?.[3] === 'over'")
            assert await page.run(cells("verdicts")) == [], "tables that are gone are not shown"

    browser(scenario)


def test_without_the_setting_there_is_no_section(browser: Browser) -> None:
    async def scenario(page: Page) -> None:
        async with WebServer("127.0.0.1", 0, FakeDomain(3).status) as web:
            await page.open(web.url)
            await page.until("document.body.dataset.version")
            assert await page.run(HIDDEN) is True

    browser(scenario)
