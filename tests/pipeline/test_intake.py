"""P1, rules 2 to 5, without Spark: which folders a run lists, which units facts belong to, and what retention drops."""

from __future__ import annotations

import os
from datetime import date, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.pipeline.making import NOON, fact, write_segment

from holdfast.errors import MisuseError
from holdfast.pipeline.check import SEGMENT_BYTES_MAX
from holdfast.pipeline.ingest import examine
from holdfast.pipeline.intake import RECONCILE_US, Intake, bytes_to_read, look
from holdfast.pipeline.landings import Listing, Segment
from holdfast.pipeline.next_snapshot import drop_old
from holdfast.pipeline.run_context import RunContext
from holdfast.pipeline.settings import Settings
from holdfast.pipeline.snapshot import Part, Snapshot, TableFile
from holdfast.pipeline.storage.local import LocalStore
from holdfast.pipeline.storage.port import to_uri
from holdfast.pipeline.units import Calendar, Retention
from holdfast.telemetry.facts import SCHEMA

NOON_US = int(NOON.timestamp() * 1_000_000)


def run_of(landing: Path, **settings: Any) -> RunContext:
    return RunContext(
        (to_uri(landing),), to_uri(landing / "out"), Settings(**settings), lambda _: None, NOON
    )


@pytest.mark.parametrize(
    ("base", "settings", "days"),
    [
        ({}, {}, ["2026-11-14", "2026-11-15"]),
        ({"reconciled_us": NOON_US - RECONCILE_US}, {}, ["2026-11-01", "2026-11-14", "2026-11-15"]),
        ({}, {"reconcile": True}, ["2026-11-01", "2026-11-14", "2026-11-15"]),
        ({"number": 0}, {}, ["2026-11-01", "2026-11-14", "2026-11-15"]),
        ({"schema": SCHEMA - 1}, {}, ["2026-11-01", "2026-11-14", "2026-11-15"]),
    ],
    ids=["recent folders", "once a day", "on request", "the first run", "a newer schema"],
)
def test_old_arrival_folders_are_listed_only_now_and_then(
    tmp_path: Path, base: dict[str, Any], settings: dict[str, Any], days: list[str]
) -> None:
    """Rule 5: a run lists recent arrival folders, with a periodic full reconciliation."""
    for day in ("2026-11-01", "2026-11-14", "2026-11-15"):
        write_segment(tmp_path, "node", [fact("node", "alba", 0, 0.0, event="start")], day)
    usual = {"number": 3, "schema": SCHEMA, "reconciled_us": NOON_US - RECONCILE_US + 1}
    intake = look(run_of(tmp_path, **settings), LocalStore(), Snapshot(**(usual | base)))
    assert [segment.day for segment in intake.new] == days
    assert intake.full == (len(days) == 3)


def test_what_is_no_file_directly_in_the_folder_of_a_day_is_no_segment(tmp_path: Path) -> None:
    """A folder that was copied into another is named and left alone; reading a pipe would wait for ever."""
    good = write_segment(tmp_path, "node", [fact("node", "alba", 0, 0.0, event="start")])
    (good.parent / "copy").mkdir()
    (good.parent / "copy" / good.name).write_bytes(good.read_bytes())
    os.mkfifo(good.parent / "pipe.parquet")
    (good.parent / "gone.parquet").symlink_to(tmp_path / "nowhere")
    (good.parent / ".draft.parquet").write_bytes(b"PAR1")
    intake = look(run_of(tmp_path), LocalStore(), Snapshot())
    assert [segment.uri for segment in intake.new] == [to_uri(good)]
    (strange,) = intake.listing.strange
    assert (
        strange
        == f"{good.parent}/copy: segments lie directly in the folder of their day, not below it"
    )


def test_a_file_that_is_too_large_for_a_segment_is_never_read() -> None:
    """It would not fit into an executor, and fail every run."""
    huge = Segment("path", "2026-11-15", "file:///x.parquet", SEGMENT_BYTES_MAX + 1, 0)
    no_engine: Any = None
    verdict = examine(no_engine, [huge], NOON_US)[huge.uri]
    assert (verdict.outcome, verdict.rows) == ("foreign", 0)
    assert "no node seals segments over" in verdict.reason


def test_the_unit_is_the_hour_for_open_days_and_the_day_for_closed_ones() -> None:
    """Rule 2. What is older than the limit is late (rule 3)."""
    calendar = Calendar(date(2026, 11, 15), Retention(open_days=2, late_days=7))
    units = [calendar.unit_of(f"2026-11-{day}T23") for day in (15, 14, 13)]
    assert units == ["2026-11-15T23", "2026-11-14T23", "2026-11-13"]
    assert not calendar.is_late("2026-11-08T00")
    assert calendar.is_late("2026-11-07T23")
    with pytest.raises(MisuseError, match="open days <= late days <= raw days"):
        Retention(open_days=9, late_days=7)


def test_each_layer_is_kept_for_its_own_time() -> None:
    """Facts for days, roll-ups for months, incidents for years; views and the ledger are not dropped by age."""
    retention = Retention(raw_days=30, rollup_days=400, incident_days=1100)
    newest = NOON.date()
    ages = {
        days: (newest - timedelta(days=days)).isoformat()
        for days in (0, 29, 30, 399, 400, 1099, 1100)
    }
    part = {unit: Part() for unit in ages.values()}
    names = ("facts/path", "path_rollup", "path_runs", "incident_history", "ledger")
    tables = {name: dict(part) for name in names}
    drop_old(tables, retention, Calendar(newest, retention))
    kept = {
        name: max(days for days, unit in ages.items() if unit in parts)
        for name, parts in tables.items()
    }
    assert kept == {
        "facts/path": 29,
        "path_rollup": 399,
        "path_runs": 399,
        "incident_history": 1099,
        "ledger": 1100,
    }


def test_a_history_shorter_than_the_horizon_makes_no_predictions() -> None:
    """Nothing could be judged yet, and features and fits are most of the cost of a short run."""
    from holdfast.pipeline.models import _predicted

    made = object()
    source: Any = SimpleNamespace(memo={"span_s": 7199, "prediction": made})
    assert _predicted(source) is None
    source.memo["span_s"] = 7200
    assert _predicted(source) is made


def test_a_run_is_as_large_as_its_segments_and_what_views_are_made_of() -> None:
    """Its session is chosen by that: neither by a history of facts that it does not read, nor by segments alone."""
    part = lambda size: Part((TableFile("f", size),))
    tables = {
        "facts/path": {"2026-11-15T12": part(10_000)},
        "path_runs": {"2026-11-15T12": part(5_000)},
        "path_carry": {"2026-11-15T12": part(5_000)},
        "path_rollup": {"2026-11-15T12": part(20), "2026-11-14": part(300), "2026-11-05": part(9)},
        "path_health": {"": part(7_000)},
    }
    segment = Segment("path", "2026-11-15", "x", 4, 5)
    intake = Intake(Listing((segment,), ()), (segment,), {}, full=False)
    assert bytes_to_read(Snapshot(tables=tables), intake, look_back_days=10) == 4 + 20 + 300
    assert bytes_to_read(Snapshot(), intake, look_back_days=10) == 4
