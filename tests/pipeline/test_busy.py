"""P6: busy windows by hour of the week, shrunk to the hour of the day, in a stated time zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.errors import MisuseError
from holdfast.pipeline.transforms.week import HOURS, Window, coming, windows_of
from holdfast.pipeline.units import Retention

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MONDAY = datetime(2026, 10, 5, tzinfo=UTC)
SPEED = 1_000_000_000


class TestWindows:
    def test_hours_above_the_threshold_become_one_window(self) -> None:
        levels = dict.fromkeys(range(9, 17), 0.7)
        assert windows_of(levels, 0.5, 0.4) == [Window(9, 8, pytest.approx(0.7))]

    def test_a_short_dip_does_not_end_a_window(self) -> None:
        levels = {9: 0.7, 10: 0.45, 11: 0.7, 12: 0.3}
        assert [(w.first, w.hours) for w in windows_of(levels, 0.5, 0.4)] == [(9, 3)]

    def test_hours_that_never_reach_the_upper_threshold_are_no_window(self) -> None:
        assert windows_of({9: 0.45, 10: 0.48}, 0.5, 0.4) == []

    def test_a_window_may_run_over_the_end_of_the_week(self) -> None:
        levels = {HOURS - 1: 0.8, 0: 0.8, 1: 0.8}
        assert [(w.first, w.hours) for w in windows_of(levels, 0.5, 0.4)] == [(HOURS - 1, 3)]

    def test_a_week_that_is_busy_throughout_is_one_window(self) -> None:
        assert windows_of(dict.fromkeys(range(HOURS), 0.9), 0.5, 0.4)[0].hours == HOURS

    def test_coming_times_are_utc_and_follow_summer_time(self) -> None:
        """Dublin leaves summer time on 25 October 2026: 9:00 local is 8:00 UTC before and 9:00 UTC after."""
        now = datetime(2026, 10, 19, 12, tzinfo=UTC)
        times = coming(Window(9, 1, 0.7), "Europe/Dublin", now, 8)
        assert times == [
            (datetime(2026, 10, 26, 9, tzinfo=UTC), datetime(2026, 10, 26, 10, tzinfo=UTC))
        ]
        before = coming(Window(9, 1, 0.7), "Europe/Dublin", now - timedelta(days=1), 8)
        assert before[0][0] == datetime(2026, 10, 19, 8, tzinfo=UTC)

    def test_a_window_that_is_under_way_is_among_the_coming_ones(self) -> None:
        now = datetime(2026, 10, 19, 12, tzinfo=UTC)
        start, end = coming(Window(9, 8, 0.7), "UTC", now, 1)[0]
        assert start < now < end


def hours_frame(
    spark: SparkSession, weeks: int, utilisation: Any, speed: int = SPEED, adapter: str = "eth0"
) -> DataFrame:
    """Hourly roll-ups of one adapter of node a."""
    from holdfast.pipeline.model_tables import ADAPTER_HOURS

    rows = []
    for number in range(weeks * HOURS):
        hour = MONDAY + timedelta(hours=number)
        sent = round(utilisation(hour) * SPEED / 8 * 3600)
        rows.append(("a", adapter, "lan0", hour, 3_600_000, sent, sent // 2, 0, 0, 0, 0, speed))
    return spark.createDataFrame(rows, ADAPTER_HOURS)


def office(hour: datetime) -> float:
    return 0.75 if hour.weekday() < 5 and 9 <= hour.hour < 17 else 0.05


@pytest.mark.spark
class TestSchedule:
    def windows(self, hours: DataFrame, **settings: Any) -> list[dict[str, Any]]:
        from holdfast.pipeline.transforms.busy import BusySettings, busy_windows

        now = MONDAY + timedelta(weeks=4)
        rows = busy_windows(hours, now, BusySettings(**settings)).toArrow().to_pylist()
        return sorted(rows, key=lambda row: (row["weekday"], row["hour"]))

    def test_office_hours_are_found_and_weekends_are_not_busy(self, spark: SparkSession) -> None:
        """The weekend's hours are shrunk towards those of all days, but not so far that they look busy."""
        rows = self.windows(hours_frame(spark, 4, office))
        assert [(row["weekday"], row["hour"], row["hours"]) for row in rows] == [
            (day, 9, 8) for day in range(5)
        ]
        assert all(0.6 < row["level"] <= 0.75 and row["basis"] == "speed" for row in rows)
        assert all(row["coming"][0]["start_at"].hour == 9 for row in rows)

    def test_hours_are_those_of_the_stated_zone(self, spark: SparkSession) -> None:
        rows = self.windows(hours_frame(spark, 2, office), zone="Asia/Kolkata")
        # 9:00 UTC is 14:30 there; hourly facts cannot be cut finer, so the window begins with the hour.
        assert {(row["hour"], row["hours"]) for row in rows} == {(14, 8)}

    def test_too_few_weeks_give_no_schedule(self, spark: SparkSession) -> None:
        hours = hours_frame(spark, 1, office)
        assert self.windows(hours, weeks_min=2) == []
        assert len(self.windows(hours, weeks_min=1)) == 5

    def test_one_busy_week_of_four_is_shrunk_away(self, spark: SparkSession) -> None:
        once = lambda hour: 0.75 if hour < MONDAY + timedelta(days=1) and hour.hour == 3 else 0.05
        assert self.windows(hours_frame(spark, 4, once)) == []

    def test_without_a_speed_the_busiest_hour_is_the_measure(self, spark: SparkSession) -> None:
        rows = self.windows(hours_frame(spark, 2, lambda hour: office(hour) / 10, speed=0))
        assert {(row["weekday"], row["basis"]) for row in rows} == {
            (day, "own peak") for day in range(5)
        }

    def test_hours_roll_up_and_merge(self, spark: SparkSession) -> None:
        from pyspark.testing import assertDataFrameEqual

        from holdfast.pipeline.model_tables import ADAPTER_HOURS
        from holdfast.pipeline.transforms.busy import LOAD_IN, adapter_hours

        fact = lambda minute, sent: (
            *("a", MONDAY + timedelta(minutes=minute), 0, "eth0", "lan0", 60_000),
            *(sent, 10, 1, 1, sent // 2, 1, SPEED),
        )
        facts = spark.createDataFrame([fact(1, 100), fact(59, 300), fact(60, 7)], LOAD_IN)
        expected = spark.createDataFrame(
            [
                ("a", "eth0", "lan0", MONDAY, 120_000, 400, 20, 2, 2, 150, 2, SPEED),
                *[
                    (
                        "a",
                        "eth0",
                        "lan0",
                        MONDAY + timedelta(hours=1),
                        60_000,
                        7,
                        10,
                        1,
                        1,
                        3,
                        1,
                        SPEED,
                    )
                ],
            ],
            ADAPTER_HOURS,
        )
        assertDataFrameEqual(adapter_hours(facts), expected)


def test_settings_that_cannot_be_are_refused() -> None:
    pytest.importorskip("pyspark")
    from holdfast.pipeline.transforms.busy import BusySettings

    with pytest.raises(MisuseError, match="Europe/Dublin"):
        BusySettings(zone="Dublin time").check()
    with pytest.raises(MisuseError, match="at most enter"):
        BusySettings(enter=0.3, leave=0.4).check()


@pytest.mark.spark
def test_busy_windows_read_half_a_year_of_roll_ups(spark: SparkSession) -> None:
    """Hourly tables are kept for longer: what a run of the models costs must not grow with them."""
    from holdfast.pipeline.models import BUSY_DAYS, MODEL_VIEWS
    from holdfast.pipeline.transforms.load_hours import LOAD_HOURS

    asked: dict[str, int | None] = {}

    class Roll:
        now = MONDAY

        def hourly(self, name: str, look_back_days: int | None = None) -> object:
            asked[name] = look_back_days
            return spark.createDataFrame([], LOAD_HOURS)

    (view,) = [view for view in MODEL_VIEWS if view.name == "busy_windows"]
    assert view.build(Roll()).count() == 0  # type: ignore[arg-type]  # two of its members are used
    assert asked == {"load_hours": BUSY_DAYS}
    assert Retention().rollup_days > BUSY_DAYS
