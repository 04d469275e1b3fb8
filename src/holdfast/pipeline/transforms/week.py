"""Busy hours of a week joined to windows, and windows as the UTC times of the coming days."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, time, timedelta
from typing import Final
from zoneinfo import ZoneInfo

import msgspec

HOURS: Final = 168
"""Hours of a week; hour 0 begins on Monday at midnight, local time."""


class Window(msgspec.Struct, frozen=True):
    """Consecutive hours of the week; it may run over the end of the week."""

    first: int
    hours: int
    level: float
    """The mean level of its hours."""


def windows_of(levels: Mapping[int, float], enter: float, leave: float) -> list[Window]:
    """The runs of hours at `leave` or above that reach `enter` somewhere. Hours without a level are quiet."""
    busy = [levels.get(hour, 0.0) >= leave for hour in range(HOURS)]
    if all(busy):
        runs = [(0, HOURS)]
    else:
        # Begin the round at an hour that is quiet, so that no run is cut in two at the end of the week.
        quiet = busy.index(False)
        runs = list(_runs(busy, quiet))
    found = []
    for first, hours in runs:
        values = [levels.get((first + step) % HOURS, 0.0) for step in range(hours)]
        if max(values) >= enter:
            found.append(Window(first, hours, sum(values) / hours))
    return sorted(found, key=lambda window: window.first)


def _runs(busy: list[bool], quiet: int) -> Iterator[tuple[int, int]]:
    length = 0
    for step in range(1, HOURS + 1):
        hour = (quiet + step) % HOURS
        if busy[hour]:
            length += 1
        elif length:
            yield (hour - length) % HOURS, length
            length = 0


def coming(window: Window, zone: str, now: datetime, days: int) -> list[tuple[datetime, datetime]]:
    """When the window is, from now on for some days, in UTC. Clocks that change are taken into account."""
    local = ZoneInfo(zone)
    today = now.astimezone(local).date()
    found = []
    for offset in range(-7, days + 1):
        day = today + timedelta(days=offset)
        if day.weekday() != window.first // 24:
            continue
        begin = datetime.combine(day, time(window.first % 24))
        start = begin.replace(tzinfo=local).astimezone(UTC)
        end = (begin + timedelta(hours=window.hours)).replace(tzinfo=local).astimezone(UTC)
        if end > now and start < now + timedelta(days=days):
            found.append((start, end))
    return found
