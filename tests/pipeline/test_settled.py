"""P2 over years: an incident that is over keeps what was found out about it, and is not examined in every run."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.pipeline.making import NOON, Fact, fact, path_fact, write_segment

from holdfast.pipeline.jobs import Settings, run_pipeline
from holdfast.pipeline.reader import open_tables
from holdfast.pipeline.units import Retention

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

DAY_S = 86_400.0
KEEP = Retention(open_days=1, late_days=2, raw_days=3, rollup_days=4)


def watched(listener: str, sender: str, n: int, at_s: float, bad: bool = False) -> list[Fact]:
    """Ten minutes of a path, three of them with a size limit if it is `bad`."""
    sizes = [1472, 1472, *([600] * 3 if bad else [1472] * 3), *([1472] * 5)]
    return [
        path_fact(listener, sender, n + place, at_s + 60.0 * place, size)
        for place, size in enumerate(sizes)
    ]


def write_day(landing: Path, day: int, bad: bool) -> None:
    at_s = day * DAY_S
    write_segment(landing, "path", watched("brno", "alba", 10 * day, at_s, bad), seq=day)
    write_segment(landing, "path", watched("alba", "brno", 10 * day, at_s), seq=day)
    if bad:
        moved: dict[str, Any] = {
            "event": "moved", "peer": watched("brno", "alba", 0, 0.0)[0]["node"], "path": "x/y/tcp",
            "path_before": "eth0/eth0/udp", "reason": "channel 16",
        }  # fmt: skip
        write_segment(landing, "link", [fact("link", "alba", 0, at_s + 150.0, **moved)])


def test_an_incident_keeps_its_direction_and_traffic_after_its_hours_are_gone(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Hourly tables are kept for 4 days here; the incident is 9 days old in the last run."""
    found: list[list[Any]] = []
    for days in ((0, 1), (8,), (9,)):
        for day in days:
            write_day(tmp_path / "landing", day, bad=day in (0, 9))
        run_pipeline(
            tmp_path / "landing",
            tmp_path / "out",
            Settings(report=False, retention=KEEP, models_every_s=0),
            session=spark,
            now=NOON + timedelta(days=days[-1], hours=1),
        )
        rows = open_tables(tmp_path / "out").rows("incidents")
        found.append(
            [
                (row["direction"], row["moves"], row["affected"], row["listener_name"])
                for row in sorted(rows, key=lambda row: row["start_at"])
            ]
        )
    first = ("one way", 1, ["channel 16"], "brno")
    units = open_tables(tmp_path / "out").snapshot.parts("path_runs")
    assert min(units) > "2026-11-20", "the hours of the first incident must be gone"
    assert found == [[first], [first], [first, ("one way", 1, ["channel 16"], "brno")]]
