"""Data-quality checks: each can fail, and says what was found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.pipeline.ledgers import entry

from holdfast.pipeline.quality import checks
from holdfast.pipeline.reader import Tables
from holdfast.pipeline.snapshot import Snapshot
from holdfast.pipeline.storage.local import LocalStore

GOOD_STATS = {"rows_in": 100, "rows_merged": 100, "duplicates": 3, "segments": 7}
NODE = {"node": "ab", "name": "n1", "names": ["n1"], "silent_s": 0.0}
PATH = {
    "size": 1472, "heard": 10, "coverage": 1.0, "alive_ratio": 1.0, "rtt_p50_us": 200.0,
}  # fmt: skip
RECORDED = {"missing": 0, "unexplained": 0}


class Made(Tables):
    """Tables with rows of this test."""

    def __init__(
        self,
        stats: dict[str, int],
        rows: dict[str, list[dict[str, Any]]],
        aside: Sequence[str] = (),
    ) -> None:
        super().__init__(LocalStore(), "file:///nowhere", Snapshot(number=1, stats=stats))
        self._rows = rows

        self._aside = [entry(f"x{i}", outcome) for i, outcome in enumerate(aside)]

    def has(self, name: str) -> bool:
        return name in self._rows

    def rows(self, name: str, columns: list[str] | None = None) -> list[dict[str, Any]]:
        return self._rows[name]


def failed(
    stats: dict[str, int] | None = None, aside: Sequence[str] = (), **rows: list[dict[str, Any]]
) -> dict[str, str]:
    tables = {"nodes": [NODE], "path_health": [PATH], "recording": [RECORDED]} | rows
    return {
        c.name: c.detail for c in checks(Made(stats or GOOD_STATS, tables, aside)) if not c.fine
    }


def test_good_data_pass() -> None:
    assert failed() == {}
    assert len(checks(Made({}, {}))) == 8


@pytest.mark.parametrize(
    ("given", "check", "detail"),
    [
        ({"stats": GOOD_STATS | {"rows_merged": 99}}, "every row is accounted for", "100 rows"),
        ({"aside": ["torn", "torn", "future"]}, "no segment is set aside", "2 torn and 1 future"),
        (
            {"stats": GOOD_STATS | {"conflicts": 1}},
            "fact numbers are unique",
            "two nodes with one id",
        ),
        ({"stats": GOOD_STATS | {"disordered": 4}}, "clocks are monotonic", "4 facts"),
        ({"nodes": [NODE | {"silent_s": 3600.0}]}, "no node is silent", "n1 for 1 h"),
        (
            {"recording": [{"missing": 5, "unexplained": 2}]},
            "no fact is missing without a reason",
            "5 facts missing, 2 of them unexplained",
        ),
        ({"nodes": [NODE, NODE | {"node": "cd"}]}, "node names are unique", "n1 used by several"),
        ({"path_health": [PATH | {"alive_ratio": 1.5}]}, "values are within range", "1 path"),
    ],
)
def test_each_check_can_fail(given: dict[str, Any], check: str, detail: str) -> None:
    found = failed(**given)
    assert list(found) == [check]
    assert detail in found[check]
