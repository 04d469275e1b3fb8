"""What the next snapshot keeps and counts: retention per layer, totals over all runs, versions of the transforms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, timedelta

from holdfast.pipeline.check import KEPT
from holdfast.pipeline.ingest import FACTS, Merged
from holdfast.pipeline.ledger import Entry
from holdfast.pipeline.schemas import COLUMNS
from holdfast.pipeline.snapshot import Parts, Snapshot
from holdfast.pipeline.tables import FOLD_TABLES, FOLD_VERSION, HOURLY, VIEWS
from holdfast.pipeline.units import Calendar, Retention, day_of
from holdfast.telemetry.facts import SCHEMA


def drop_old(tables: dict[str, Parts], keep: Retention, calendar: Calendar) -> None:
    """Retention per layer: parts that are too old are named no more, and become garbage."""
    limits = dict.fromkeys([t.name for t in HOURLY] + list(FOLD_TABLES), keep.rollup_days)
    limits["incident_history"] = keep.incident_days
    limits |= {f"{FACTS}/{kind}": keep.raw_days for kind in COLUMNS}
    for name, days in limits.items():
        first = calendar.newest - timedelta(days=days - 1)
        parts = tables.get(name, {})
        for unit in [unit for unit in parts if day_of(unit) < first]:
            del parts[unit]


def forget_arrivals(ledger: Parts, listed: Iterable[str], today: date, keep: Retention) -> Parts:
    """The ledger without arrival days that are older than facts are kept and of which no segment is left.

    `listed` are the days of all landing folders. Without this the ledger would grow for years.
    """
    first, there = (today - timedelta(days=keep.raw_days)).isoformat(), set(listed)
    return {day: part for day, part in ledger.items() if day >= first or day in there}


def totals(
    before: dict[str, int], entries: Sequence[Entry], merged: Sequence[Merged]
) -> dict[str, int]:
    """The counters of all runs so far, with this one."""
    outcomes = sorted({entry.outcome for entry in entries})
    added = {
        "segments": sum(entry.outcome == KEPT for entry in entries),
        "segments_seen": len(entries),
        "rows_in": sum(entry.rows for entry in entries if entry.outcome == KEPT),
        "rows_merged": sum(done.rows for done in merged),
        "duplicates": sum(done.duplicates for done in merged),
        "conflicts": sum(done.conflicts for done in merged),
        "disordered": sum(entry.disordered for entry in entries),
    } | {
        f"outcome_{outcome}": sum(entry.outcome == outcome for entry in entries)
        for outcome in outcomes
    }
    return before | {name: before.get(name, 0) + number for name, number in added.items()}


def current_versions() -> dict[str, int]:
    """Table to the version of its transform."""
    return (
        {table.name: table.version for table in HOURLY}
        | dict.fromkeys(FOLD_TABLES, FOLD_VERSION)
        | {view.name: view.version for view in VIEWS}
    )


def is_outdated(base: Snapshot) -> bool:
    """Whether tables must be made again although no segment is new."""
    return base.versions != current_versions() or base.schema < SCHEMA
