"""P4: 'a new incident begins within the horizon, given clean now', from what is known at the time."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
from tests.pipeline.histories import at, coverage_frame, incidents_frame, nightly, path

from holdfast.errors import MisuseError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.pipeline.transforms.prediction import Prediction

pytestmark = pytest.mark.spark

PAIRS = (("a", "b"), ("b", "a"), ("a", "c"), ("c", "b"))


def run(
    spark: SparkSession, nights: range, now: datetime, repaired: datetime | None = None
) -> Prediction:
    from holdfast.pipeline.model_tables import REPAIRS_IN
    from holdfast.pipeline.transforms.prediction import predict

    repairs = None
    if repaired:
        repairs = spark.createDataFrame([(*path("a", "b"), repaired)], REPAIRS_IN)
    made = predict(
        incidents_frame(spark, nightly("a", "b", nights)),
        coverage_frame(spark, PAIRS, at(0), now),
        repairs=repairs,
    )
    assert made is not None
    return made


def advised(made: Prediction) -> list[tuple[str, str]]:
    rows = made.predictions.where("advised").toArrow().to_pylist()
    return [(row["sender"], row["listener"]) for row in rows]


class TestAPathThatFailsEveryNight:
    """The closed loop: predicted after three nights, and no longer after a repair."""

    def test_is_advised_against_before_the_fourth_night(self, spark: SparkSession) -> None:
        made = run(spark, range(3), now=at(3, 1.5))
        assert advised(made) == [("a", "b")]
        (row,) = made.predictions.where("predicted").toArrow().to_pylist()
        assert row["probability"] > 0.6
        assert row["valid_until"] == at(3, 3)
        assert "3 of the last 7 days" in row["why"]

    @pytest.mark.campaign
    def test_is_not_advised_against_at_noon(self, spark: SparkSession) -> None:
        assert advised(run(spark, range(3), now=at(2, 12.5))) == []

    @pytest.mark.campaign
    def test_is_not_advised_against_while_precision_is_unknown(self, spark: SparkSession) -> None:
        """After one night there is a prediction, but none that could have come true yet."""
        made = run(spark, range(1), now=at(1, 1.5))
        assert made.predictions.where("predicted").count() == 1
        assert not made.advice_open

    @pytest.mark.campaign
    def test_is_used_again_after_quiet_nights(self, spark: SparkSession) -> None:
        assert advised(run(spark, range(5), now=at(6, 1.5))) == []

    @pytest.mark.campaign
    def test_is_used_again_at_once_when_an_operator_says_that_it_is_repaired(
        self, spark: SparkSession
    ) -> None:
        made = run(spark, range(5), now=at(5, 1.5), repaired=at(4, 12))
        assert advised(made) == []
        assert made.predictions.where("probability > 0.1").count() == 0


def rows_of(spark: SparkSession, incidents: list[Any], end: datetime) -> dict[datetime, Any]:
    """The examples of path a to b, by time."""
    from datetime import UTC

    from holdfast.pipeline.transforms.features import examples

    frame = examples(
        incidents_frame(spark, incidents), coverage_frame(spark, [("a", "b")], at(0), end)
    )
    return {
        datetime.fromtimestamp(row["slot"] * 3600, UTC): row for row in frame.toArrow().to_pylist()
    }


class TestExamples:
    @pytest.fixture(scope="class")
    def rows(self, spark: SparkSession) -> dict[datetime, Any]:
        """One incident on day 1 from 05:30 to 08:15, one that begins on day 2 at 05:30 and is open."""
        incidents = [("a", "b", at(1, 5.5), at(1, 8.25)), ("a", "b", at(2, 5.5), None)]
        return rows_of(spark, incidents, at(2, 9))

    def test_the_label_says_that_an_incident_begins_within_the_horizon(self, rows: Any) -> None:
        assert rows[at(1, 3)]["label"] == 0
        assert rows[at(1, 4)]["label"] == 1
        assert rows[at(1, 5)]["label"] == 1

    def test_a_path_that_is_broken_now_is_no_example(self, rows: Any) -> None:
        assert at(1, 6) not in rows
        assert at(1, 8) not in rows
        assert at(1, 9) in rows

    def test_an_open_incident_lasts(self, rows: Any) -> None:
        assert max(rows) == at(2, 5)

    def test_features_look_at_nothing_that_begins_later(
        self, spark: SparkSession, rows: Any
    ) -> None:
        """The same history without the second incident gives the same features up to it."""
        from holdfast.pipeline.transforms.features import FEATURES

        without = rows_of(spark, [("a", "b", at(1, 5.5), at(1, 8.25))], at(2, 9))
        for when in rows:
            assert {name: rows[when][name] for name in FEATURES} == {
                name: without[when][name] for name in FEATURES
            }

    def test_the_same_hours_of_yesterday_are_known(self, rows: Any) -> None:
        assert rows[at(2, 4)]["same_yesterday"] == 1
        assert rows[at(2, 3)]["same_yesterday"] == 0
        # Yesterday counts 1, the clean day before it 0.6, and the prior is worth 0.7 days.
        assert rows[at(2, 4)]["recurrence"] == pytest.approx(1 / 2.3)

    def test_an_incident_of_all_transports_is_one_of_each_path(self, spark: SparkSession) -> None:
        from pyspark.sql import functions as sf

        from holdfast.pipeline.transforms.features import examples

        incident = incidents_frame(spark, [("a", "b", at(0, 5.5), at(0, 5.7))])
        watched = coverage_frame(spark, [("a", "b")], at(0), at(0, 9))
        both = watched.unionByName(watched.withColumn("transport", sf.lit("tcp")))
        rows = examples(incident.withColumn("transport", sf.lit("")), both).where("begins = 1")
        assert sorted(row["transport"] for row in rows.collect()) == ["tcp", "udp"]

    def test_rows_whose_future_was_not_watched_have_no_label(self, spark: SparkSession) -> None:
        rows = rows_of(spark, [], at(1, 9))
        assert rows[at(1, 7)]["label"] == 0
        assert rows[at(1, 8)]["label"] is None


class TestSlices:
    def test_no_label_reaches_from_one_slice_into_the_next(self, spark: SparkSession) -> None:
        """An embargo of one horizon: the last slots before a slice belong to none."""
        from holdfast.pipeline.transforms.prediction import PredictionSettings, cut

        rows = spark.range(1000, 1100).withColumnRenamed("id", "slot")
        settings = PredictionSettings()
        slices = cut(rows, settings)
        assert slices is not None
        slots = lambda which: {row["slot"] for row in rows.where(which).collect()}
        train, calibrate, test = map(
            slots, (slices.train(), slices.calibration(), slices.testing())
        )
        horizon = settings.grid.horizon_steps
        assert max(train) + horizon <= min(calibrate)
        assert max(calibrate) + horizon <= min(test)
        assert len(train) + len(calibrate) + len(test) == 100 - 2 * (horizon - 1)


def test_settings_that_cannot_be_are_refused(spark: SparkSession) -> None:
    from holdfast.pipeline.transforms.features import GridSettings
    from holdfast.pipeline.transforms.prediction import PredictionSettings

    for wrong in (
        PredictionSettings(grid=GridSettings(step_s=7_000)),
        PredictionSettings(grid=GridSettings(horizon_steps=25)),
        PredictionSettings(threshold=0.0),
        PredictionSettings(confidence=1.0),
        PredictionSettings(train_share=0.9, calibrate_share=0.1),
    ):
        with pytest.raises(MisuseError):
            wrong.check()


def test_without_observations_nothing_is_predicted(spark: SparkSession) -> None:
    from holdfast.pipeline.transforms.prediction import predict

    made = predict(incidents_frame(spark, []), coverage_frame(spark, [], at(0), at(1)))
    assert made is None
