"""Which segments a run sees."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from tests.pipeline.making import fact, path_fact, table_of, write_segment

from holdfast.pipeline.sources import Segment, list_segments, read_facts, within_look_back

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _segment(day: str) -> Segment:
    return Segment("path", day, f"/landing/path/day={day}/x.parquet", 1, 1)


def _days(segments: tuple[Segment, ...]) -> list[str]:
    return [segment.day for segment in segments]


def test_segments_of_several_nodes_and_days_are_found_in_order(tmp_path: Path) -> None:
    one, two = tmp_path / "one" / "landing", tmp_path / "two" / "landing"
    write_segment(two, "path", [path_fact("b", "a", 0, 0)], day="2026-11-16")
    write_segment(one, "path", [path_fact("a", "b", 0, 0)], day="2026-11-15")
    write_segment(one, "group", [fact("group", "a", 0, 0)], day="2026-11-15")
    found = list_segments([two, one, one]).segments
    assert [(s.kind, s.day) for s in found] == [
        ("group", "2026-11-15"),
        ("path", "2026-11-15"),
        ("path", "2026-11-16"),
    ]


def test_what_is_no_segment_is_left_alone_and_named(tmp_path: Path) -> None:
    landing = tmp_path / "landing"
    (landing / "dreams" / "day=2026-11-15").mkdir(parents=True)
    (landing / "path" / "day=2026-02-31").mkdir(parents=True)
    day = landing / "path" / "day=2026-11-15"
    day.mkdir()
    for draft in (".a-1-0.parquet", "_a-1-0.parquet", "a-1-0.parquet.draft", "notes.txt"):
        (day / draft).write_bytes(b"x")
    listing = list_segments([landing])
    assert listing.segments == ()
    assert [line.rpartition("/")[2] for line in listing.strange] == [
        "dreams: a kind of fact that this version does not know",
        "day=2026-02-31: not a day",
    ]


def test_a_landing_directory_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert list_segments([tmp_path / "nowhere"]).segments == ()


def test_the_look_back_counts_from_the_newest_segment_and_not_from_today() -> None:
    segments = [_segment(day) for day in ("2026-10-01", "2026-10-30", "2026-10-31")]
    recent = within_look_back(segments, days=2, today=date(2031, 1, 1))
    assert _days(recent) == ["2026-10-30", "2026-10-31"]


def test_a_clock_that_runs_ahead_does_not_push_out_what_others_recorded() -> None:
    segments = [_segment(day) for day in ("2026-10-30", "2026-10-31", "2099-01-01")]
    recent = within_look_back(segments, days=2, today=date(2026, 10, 31))
    assert _days(recent) == ["2026-10-30", "2026-10-31", "2099-01-01"]


@pytest.mark.spark
def test_old_and_new_columns_are_read_together_whatever_the_folder_is_called(
    tmp_path: Path, spark: SparkSession
) -> None:
    landing = tmp_path / "odd [1-2] {a,b} * ? \\ #%20" / "landing"
    new = write_segment(landing, "node", [fact("node", "a", 0, 0.0, event="start", count=7)])
    old = new.with_name("old.parquet")
    table = table_of("node", [fact("node", "b", 0, 0.0, event="stop")])
    pq.write_table(table.drop_columns(["count", "detail"]), old)
    rows = read_facts(spark, "node", [str(new), str(old)]).select("name", "event", "count")
    assert sorted(tuple(row) for row in rows.collect()) == [("a", "start", 7), ("b", "stop", None)]


@pytest.mark.spark
def test_a_kind_without_segments_has_its_columns_and_no_rows(spark: SparkSession) -> None:
    nothing = read_facts(spark, "delivery", [])
    assert nothing.columns[-2:] == ["last", "digest"]
    assert nothing.count() == 0
