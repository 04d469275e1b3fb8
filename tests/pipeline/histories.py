"""Histories of a few paths: when they were watched, and when they failed."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MONDAY = datetime(2026, 11, 2, tzinfo=UTC)

Incident = tuple[str, str, datetime, datetime | None]
"""Sender, listener, start, end."""


def at(day: float, hour: float = 0.0) -> datetime:
    return MONDAY + timedelta(days=day, hours=hour)


def path(sender: str, listener: str) -> tuple[str, ...]:
    return (sender, "eth0", listener, "eth0", "lan0", "udp")


def incidents_frame(session: SparkSession, incidents: Iterable[Incident]) -> DataFrame:
    from holdfast.pipeline.model_tables import INCIDENTS_IN

    rows = [
        (*path(sender, listener), "size", start, end) for sender, listener, start, end in incidents
    ]
    return session.createDataFrame(rows, INCIDENTS_IN)


def coverage_frame(
    session: SparkSession, pairs: Iterable[tuple[str, str]], start: datetime, end: datetime
) -> DataFrame:
    from holdfast.pipeline.model_tables import COVERAGE_IN

    return session.createDataFrame([(*path(*pair), start, end) for pair in pairs], COVERAGE_IN)


def nightly(sender: str, listener: str, nights: Iterable[int]) -> list[Incident]:
    """An incident at 02:10 for 25 minutes on each of these days."""
    return [(sender, listener, at(n, 2 + 1 / 6), at(n, 2 + 7 / 12)) for n in nights]
