"""Rows of the report from tables that grow with the history: chosen as columns, before they become Python objects."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.reader import Tables
from holdfast.pipeline.units import HOUR_FORMAT, in_order, last_hour

HOURS_MAX: Final = 168
"""The newest hours that the page shows."""
HOUR_PATHS_MAX: Final = 24
"""The paths that it shows by hour: those with the most trouble."""
_PATH: Final = (
    *("sender", "sender_adapter", "listener", "listener_adapter", "subnet", "transport"),
)
_TIMES: Final = ("ok_us", "soft_us", "dead_us")


def hours_of_worst(tables: Tables) -> list[dict[str, Any]]:
    """The hours of the paths with the most trouble, in the newest hours of the history."""
    if not tables.has("path_hours"):
        return []
    units = _newest(tables.snapshot.parts("path_hours"))
    trouble = [_trouble(_hours(tables, unit)) for unit in units]
    summed = pa.concat_tables(trouble).group_by(_PATH).aggregate([("trouble_sum", "sum")])
    order = [("trouble_sum_sum", "descending"), *((name, "ascending") for name in _PATH)]
    worst = summed.sort_by(order).slice(0, HOUR_PATHS_MAX).select(_PATH)
    shown = [_hours(tables, unit).join(worst, list(_PATH), join_type="inner") for unit in units]
    rows = pa.concat_tables(shown).sort_by([(name, "ascending") for name in (*_PATH, "hour")])
    return list(rows.to_pylist())


def incidents_since(tables: Tables, health: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The incidents that are open, or were not over before the time that path health covers."""
    if not tables.has("incidents"):
        return []
    rows = tables.read("incidents")
    since: datetime | None = min((row["first_seen"] for row in health), default=None)
    if since is not None:
        rows = rows.filter(pc.or_(rows["open"], pc.greater_equal(rows["last_seen_at"], since)))
    return list(rows.to_pylist())


def _newest(units: Iterable[str]) -> list[str]:
    """The units that hold some of the newest hours."""
    ordered = in_order(units)
    newest = datetime.strptime(last_hour(ordered[-1]), HOUR_FORMAT).replace(tzinfo=UTC)
    first = (newest - timedelta(hours=HOURS_MAX - 1)).strftime(HOUR_FORMAT)
    return [unit for unit in ordered if last_hour(unit) >= first]


def _hours(tables: Tables, unit: str) -> pa.Table:
    return tables.read("path_hours", [*_PATH, "hour", *_TIMES], [unit])


def _trouble(rows: pa.Table) -> pa.Table:
    """Paths with the sum of the shares of their hours that were not fine; paths without trouble have no row."""
    bad = pc.add(rows["soft_us"], rows["dead_us"])
    rows = rows.append_column("bad", bad).filter(pc.greater(bad, 0))
    watched = pc.add(rows["ok_us"], rows["bad"])
    share = pc.divide(pc.cast(rows["bad"], pa.float64()), pc.cast(watched, pa.float64()))
    return rows.append_column("trouble", share).group_by(_PATH).aggregate([("trouble", "sum")])
