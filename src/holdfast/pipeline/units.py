"""Hours and days as units of work.

The hour of a fact comes from its `at`. Rows that transforms make are split at hours, always. Files are kept per hour
for open days and per day for closed ones, so the *unit* of storage and of recomputation is one of the two:

    2026-11-15T13    an hour of an open day
    2026-11-14       a closed day
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from typing import Final

import msgspec

from holdfast.errors import MisuseError

HOUR_FORMAT: Final = "%Y-%m-%dT%H"
SPARK_HOUR: Final = "yyyy-MM-dd'T'HH"


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long each layer is kept, and what counts as late. All in days."""

    open_days: int = 2
    """The newest days, whose files are kept per hour."""
    late_days: int = 7
    """Facts that are older than this when they arrive are stored and counted, but tables are not recomputed."""
    raw_days: int = 30
    """Facts."""
    rollup_days: int = 400
    """Hourly tables: path history, roll-ups, block digests."""
    incident_days: int = 1100
    """Incidents that are over."""

    def __post_init__(self) -> None:
        if not 1 <= self.open_days <= self.late_days <= self.raw_days:
            raise MisuseError(
                "retention needs 1 <= open days <= late days <= raw days; nothing was done. "
                f"Given: {self.open_days}, {self.late_days}, {self.raw_days}"
            )


class Calendar(msgspec.Struct, frozen=True):
    """Which days are open, seen from the newest day with facts."""

    newest: date
    retention: Retention

    @property
    def first_open(self) -> date:
        return self.newest - timedelta(days=self.retention.open_days - 1)

    @property
    def first_in_time(self) -> date:
        """Facts before this day are too late to change tables."""
        return self.newest - timedelta(days=self.retention.late_days)

    def unit_of(self, hour: str) -> str:
        """The unit that an hour belongs to."""
        return hour if day_of(hour) >= self.first_open else hour[:10]

    def is_late(self, hour: str) -> bool:
        return day_of(hour) < self.first_in_time


def day_of(unit: str) -> date:
    return date.fromisoformat(unit[:10])


def hour_of(at: datetime) -> str:
    return at.astimezone(UTC).strftime(HOUR_FORMAT)


def is_day(unit: str) -> bool:
    return len(unit) == 10


def last_hour(unit: str) -> str:
    """The last hour of a unit. Units sort by it; no two units of one table overlap."""
    return f"{unit}T23" if is_day(unit) else unit


def first_hour(unit: str) -> str:
    return f"{unit}T00" if is_day(unit) else unit


def in_order(units: Iterable[str]) -> list[str]:
    return sorted(units, key=last_hour)


def contains(unit: str, hour: str) -> bool:
    return hour.startswith(unit)
