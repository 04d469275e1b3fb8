"""The report reads what it shows: the newest hours of the worst paths, and the incidents of its time."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tests.pipeline.making import NOON
from tests.pipeline.published import publish

from holdfast.pipeline.reader import Tables, open_tables
from holdfast.pipeline.report_rows import HOUR_PATHS_MAX, hours_of_worst, incidents_since
from holdfast.pipeline.snapshot import Part, Snapshot, TableFile
from holdfast.pipeline.storage.local import LocalStore
from holdfast.pipeline.storage.port import join, to_uri

MINUTE = 60 * 10**6


def hour(path: str, at: str, soft: int, ok: int = 0) -> dict[str, Any]:
    return {
        "sender": path, "sender_adapter": "e", "listener": "b", "listener_adapter": "f", "subnet": "s",
        "transport": "udp", "hour": at, "ok_us": (ok or 60 - soft) * MINUTE, "soft_us": soft * MINUTE,
        "dead_us": 0, "falls": 0, "deaths": 0, "size_min": 600,
    }  # fmt: skip


def tables_of(root: Path, units: dict[str, list[dict[str, Any]]]) -> Tables:
    store, uri, parts = LocalStore(), to_uri(root), {}
    for unit, rows in units.items():
        content = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rows), content)
        name = f"tables/path_hours/{unit}.parquet"
        store.create(join(uri, name), content.getvalue().to_pybytes())
        parts[unit] = Part((TableFile(name, len(content.getvalue()), len(rows)),))
    return Tables(store, uri, Snapshot(number=1, tables={"path_hours": parts}))


def test_the_hours_of_the_worst_paths_are_loaded_and_no_others(tmp_path: Path) -> None:
    newest = [hour(f"p{number:02}", "2026-11-15T11", number % 50) for number in range(50)]
    tables = tables_of(
        tmp_path, {"2026-11-15T11": newest, "2026-11-14": [hour("p30", "2026-11-14T05", 0)]}
    )
    rows = hours_of_worst(tables)
    assert {row["sender"] for row in rows} == {
        f"p{number}" for number in range(50 - HOUR_PATHS_MAX, 50)
    }
    assert ("p30", "2026-11-14T05") in {(row["sender"], row["hour"]) for row in rows}


def test_days_older_than_a_week_are_not_read(tmp_path: Path) -> None:
    """Closed days are one unit each: as many units as hours in a week would be half a year."""
    days = {
        f"2026-10-{day:02}": [hour("old", f"2026-10-{day:02}T01", 60, 1)] for day in range(1, 31)
    }
    rows = hours_of_worst(tables_of(tmp_path, days))
    assert sorted({row["hour"][:10] for row in rows}) == [f"2026-10-{day}" for day in range(24, 31)]
    quiet = tables_of(tmp_path / "quiet", {"2026-11-15": [hour("p", "2026-11-15T05", 0)]})
    assert hours_of_worst(quiet) == []


def test_incidents_of_years_are_not_shown(tmp_path: Path) -> None:
    """Those that were over before the time of path health are left out; open ones never are."""
    old, since = NOON - timedelta(days=90), NOON - timedelta(days=30)
    rows = [
        {"text": "over", "open": False, "last_seen_at": old},
        {"text": "open", "open": True, "last_seen_at": old},
        {"text": "recent", "open": False, "last_seen_at": NOON},
    ]
    publish(tmp_path, 1, {"incidents": rows})
    tables = open_tables(tmp_path)
    shown = incidents_since(tables, [{"first_seen": NOON}, {"first_seen": since}])
    assert [row["text"] for row in shown] == ["open", "recent"]
    assert len(incidents_since(tables, [])) == 3
