"""`pipeline watch`: run after run as segments arrive; a look that fails does not end it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.pipeline.making import NOON, fact, write_segment

from holdfast.errors import MisuseError
from holdfast.pipeline.jobs import PipelineFailed, RunReport, run_pipeline
from holdfast.pipeline.reader import open_tables
from holdfast.pipeline.watching import keep_watching

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Pauses:
    """Stands in for time: in each pause the test does something."""

    def __init__(self, *between: Callable[[], object]) -> None:
        self.between = list(between)
        self.slept: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)
        if self.between:
            self.between.pop(0)()


@pytest.mark.spark
def test_segments_are_taken_as_they_arrive(spark: SparkSession, tmp_path: Path) -> None:
    """P1, rules 3 and 9: batches, again and again, with one engine. A look without news changes nothing. Facts beyond
    the limit for late ones are stored and counted, and tables are as without them."""
    landing = tmp_path / "landing"
    reports: list[RunReport] = []
    arrive = lambda name, at_s=0.0: write_segment(
        landing, "node", [fact("node", name, 0, at_s, event="start")]
    )
    arrive("alba")

    def two_more() -> None:
        arrive("brno")
        arrive("cork", -10 * 86_400.0)

    def look() -> None:
        now = NOON + timedelta(hours=1)
        reports.append(run_pipeline(landing, tmp_path / "out", session=spark, now=now))

    pauses = Pauses(lambda: None, two_more)
    keep_watching(look, 7.0, 3, lambda _: None, pauses)
    assert [(report.snapshot, report.nothing_new) for report in reports] == [
        (1, False),
        (1, True),
        (2, False),
    ]
    assert pauses.slept == [7.0, 7.0]
    assert [(report.facts, report.too_late) for report in reports] == [(1, 0), (0, 0), (2, 1)]
    tables = open_tables(tmp_path / "out")
    assert sorted(tables.snapshot.parts("facts/node")) == ["2026-11-05", "2026-11-15T12"]
    assert [row["name"] for row in tables.rows("nodes")] == ["alba", "brno"]


def test_a_look_that_fails_is_told_and_the_next_one_succeeds() -> None:
    outcomes: list[Exception | None] = [PipelineFailed("busy"), OSError(28, "full"), None]
    told: list[str] = []

    def look() -> None:
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome

    keep_watching(look, 1.0, 3, told.append, Pauses())
    assert outcomes == []
    assert told == ["busy", "[Errno 28] full"]


def test_a_wrong_call_ends_it() -> None:
    def look() -> None:
        raise MisuseError("no landing/ directory")

    pauses = Pauses()
    with pytest.raises(MisuseError, match="no landing"):
        keep_watching(look, 1.0, 0, lambda _: None, pauses)
    assert pauses.slept == []
