"""Busy windows (SPEC P6): the hours of the week in which an adapter has little room for diagnostics.

The level of an hour of the week is a high quantile of the utilisation in that hour, shrunk towards the same hour of
all days: few weeks say little about one hour, but all days together say something. Hours are local to a stated zone,
because people and their jobs follow local time.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from zoneinfo import ZoneInfo

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from holdfast.errors import MisuseError
from holdfast.pipeline.model_tables import ADAPTER_HOURS, BUSY_WINDOWS
from holdfast.pipeline.transforms import conform

if TYPE_CHECKING:
    import pandas as pd

ADAPTER: Final = ("node", "adapter", "subnet")
LOAD_IN: Final = """node string, at timestamp, now_ns bigint, adapter string, subnet string, interval_ms bigint,
    sent_bytes bigint, received_bytes bigint, sent_packets bigint, received_packets bigint, queued_bytes bigint,
    drops bigint, speed_bps bigint"""
"""The columns of load facts that are used."""
_HOUR_MS: Final = 3_600_000
_SHARE_MIN: Final = 0.1


class BusySettings(msgspec.Struct, frozen=True):
    """What counts as busy."""

    zone: str = "UTC"
    """The time zone whose hours are meant, as `Europe/Dublin`."""
    quantile: float = 0.9
    weeks_min: int = 2
    """An adapter with fewer weeks of history has no schedule."""
    shrinkage: float = 2.0
    """How many weeks of one hour of the week the same hour of all days is worth."""
    observed_min: float = 0.5
    """Share of an hour that must have been recorded for the hour to count."""
    enter: float = 0.5
    """A window reaches this utilisation somewhere..."""
    leave: float = 0.4
    """...and does not fall below this one in between."""
    days_ahead: int = 8

    def check(self) -> None:
        """Raise `MisuseError` for settings that make no sense."""
        try:
            ZoneInfo(self.zone)
        except (KeyError, ValueError, OSError):
            raise MisuseError(
                f"no time zone is called {self.zone!r}; nothing was computed. Use a name such as Europe/Dublin"
            ) from None
        if not 0 < self.leave <= self.enter <= 1:
            raise MisuseError(
                f"busy windows enter at {self.enter} and leave at {self.leave}: leave must be above 0 and at most "
                "enter, enter at most 1; nothing was computed"
            )
        if self.weeks_min < 1 or not 0 < self.quantile < 1:
            raise MisuseError("weeks_min must be 1 or more and quantile between 0 and 1")


def adapter_hours(load_facts: DataFrame) -> DataFrame:
    """Load facts rolled up per adapter and hour. The queue is `queued_bytes`, or its longest, `queued_bytes_max`."""
    queued = "queued_bytes_max" if "queued_bytes_max" in load_facts.columns else "queued_bytes"
    rows = (
        load_facts.withColumn("hour", sf.date_trunc("hour", "at"))
        .groupBy(*ADAPTER, "hour")
        .agg(
            *(
                sf.sum(name).alias(name)
                for name in (
                    *("interval_ms", "sent_bytes", "received_bytes"),
                    *("sent_packets", "received_packets", "drops"),
                )
            ),
            sf.max(queued).alias("queued_bytes_max"),
            sf.max("speed_bps").alias("speed_bps"),
        )
    )
    return conform(rows, ADAPTER_HOURS)


def hour_levels(hours: DataFrame, settings: BusySettings | None = None) -> DataFrame:
    """The level of every hour of the week of every adapter with enough history.

    Columns: the adapter, `hour_of_week` (Monday 0:00 is 0, local), `level`, `weeks` (of the adapter), `basis`.
    """
    settings = settings or BusySettings()
    settings.check()
    local = sf.from_utc_timestamp("hour", settings.zone)
    used = (
        _utilisation(hours.where(sf.col("interval_ms") >= settings.observed_min * _HOUR_MS))
        .withColumn("day_hour", sf.hour(local))
        .withColumn("hour_of_week", sf.weekday(local) * 24 + sf.col("day_hour"))
        .withColumn("week", sf.date_trunc("week", local))
    )
    quantile = sf.percentile("level", settings.quantile)
    per_week = used.groupBy(*ADAPTER, "hour_of_week", "day_hour").agg(
        quantile.alias("of_week"), sf.count("*").alias("times")
    )
    # The target is the mean over the days of the week: a quantile over all days would be that of the busiest ones.
    per_day = per_week.groupBy(*ADAPTER, "day_hour").agg(sf.avg("of_week").alias("of_day"))
    weeks = used.groupBy(*ADAPTER).agg(
        sf.count_distinct("week").alias("weeks"), sf.first("basis").alias("basis")
    )
    level = (sf.col("times") * sf.col("of_week") + settings.shrinkage * sf.col("of_day")) / (
        sf.col("times") + settings.shrinkage
    )
    return (
        per_week.join(per_day, [*ADAPTER, "day_hour"])
        .join(weeks.where(sf.col("weeks") >= settings.weeks_min), list(ADAPTER))
        .select(*ADAPTER, "hour_of_week", level.alias("level"), "weeks", "basis")
    )


def busy_windows(
    hours: DataFrame, now: datetime, settings: BusySettings | None = None
) -> DataFrame:
    """The busy windows of every adapter, as the table `busy_windows`, with their times from `now` on."""
    settings = settings or BusySettings()
    rows = (
        hour_levels(hours, settings)
        .groupBy(*ADAPTER)
        .applyInPandas(_joiner(settings, now), schema=BUSY_WINDOWS)
    )
    return conform(rows, BUSY_WINDOWS)


def _utilisation(hours: DataFrame) -> DataFrame:
    """Hours with `level`: utilisation where the speed is known, otherwise the share of the adapter's busiest hour."""
    rate = 8_000 * sf.greatest("sent_bytes", "received_bytes") / sf.col("interval_ms")
    peaks = hours.groupBy(*ADAPTER).agg(
        sf.max(rate).alias("peak"), sf.max("speed_bps").alias("speed")
    )
    known: Column = sf.col("speed") > 0
    capacity = sf.when(known, sf.col("speed")).otherwise(sf.col("peak"))
    return (
        hours.join(peaks, list(ADAPTER))
        .withColumn(
            "level", sf.when(capacity > 0, sf.least(rate / capacity, sf.lit(1.0))).otherwise(0.0)
        )
        .withColumn("basis", sf.when(known, "speed").otherwise("own peak"))
    )


def _joiner(settings: BusySettings, now: datetime) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def join(levels: pd.DataFrame) -> pd.DataFrame:
        import pandas as pd

        from holdfast.pipeline.transforms.week import coming, windows_of

        first = levels.iloc[0]
        by_hour = dict(zip(levels["hour_of_week"], levels["level"], strict=True))
        rows: list[dict[str, Any]] = []
        for window in windows_of(by_hour, settings.enter, settings.leave):
            times = coming(window, settings.zone, now, settings.days_ahead)
            rows.append(
                {name: first[name] for name in (*ADAPTER, "weeks", "basis")}
                | {
                    "zone": settings.zone,
                    "weekday": window.first // 24,
                    "hour": window.first % 24,
                    "hours": window.hours,
                    "level": window.level,
                    "probe_share": max(_SHARE_MIN, 1 - window.level),
                    "coming": [{"start_at": start, "end_at": end} for start, end in times],
                }
            )
        return pd.DataFrame(rows, columns=_COLUMNS)

    return join


_COLUMNS: Final = (
    *("node", "adapter", "subnet", "zone", "weekday", "hour", "hours", "level", "weeks"),
    *("probe_share", "basis", "coming"),
)
