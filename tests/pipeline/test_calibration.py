"""P4: Brier score, reliability, precision in episodes and its lower confidence bound."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.pipeline.histories import path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def test_the_lower_bound_of_a_share_needs_evidence() -> None:
    pytest.importorskip("pyspark")
    from holdfast.pipeline.transforms.calibration import wilson_low

    assert wilson_low(0, 0, 0.9) == 0
    assert wilson_low(1, 1, 0.9) == pytest.approx(0.378, abs=0.001)
    assert wilson_low(2, 2, 0.9) == pytest.approx(0.549, abs=0.001)
    assert wilson_low(100, 100, 0.9) > 0.98
    assert wilson_low(50, 100, 0.9) == pytest.approx(0.437, abs=0.001)


SCORED = (
    "model string, sender string, sender_adapter string, listener string, listener_adapter string, subnet string, "
    "transport string, slot bigint, p double, label double, begins bigint"
)


def scored(spark: SparkSession, rows: list[tuple[str, int, float, float, int]]) -> DataFrame:
    """Rows of (sender, slot, p, label, begins)."""
    made = [
        ("m", *path(sender, "z"), slot, p, label, begins) for sender, slot, p, label, begins in rows
    ]
    return spark.createDataFrame(made, SCORED)


@pytest.mark.spark
class TestQuality:
    def test_neighbouring_predictions_on_one_pair_are_one_episode(
        self, spark: SparkSession
    ) -> None:
        from holdfast.pipeline.transforms.calibration import qualities

        rows = [("a", slot, 0.9, float(slot >= 11), int(slot == 12)) for slot in (10, 11, 12)]
        rows += [("a", 40, 0.8, 0.0, 0), ("b", 10, 0.7, 0.0, 0), ("b", 11, 0.1, 0.0, 0)]
        quality = qualities(scored(spark, rows), 0.5, 2)["m"]
        assert (quality.episodes, quality.episodes_hit) == (3, 1)
        assert (quality.incidents, quality.incidents_predicted) == (1, 1)

    def test_an_incident_without_a_prediction_in_its_horizon_is_missed(
        self, spark: SparkSession
    ) -> None:
        from holdfast.pipeline.transforms.calibration import qualities

        rows = [("a", 10, 0.9, 0.0, 0), ("a", 11, 0.1, 0.0, 0), ("a", 12, 0.1, 1.0, 1)]
        quality = qualities(scored(spark, rows), 0.5, 2)["m"]
        assert (quality.incidents, quality.incidents_predicted) == (1, 0)
        assert quality.recall == 0

    def test_the_brier_score_and_the_bins_are_those_of_the_rows(self, spark: SparkSession) -> None:
        from holdfast.pipeline.transforms.calibration import Bin, qualities

        rows = [("a", 1, 0.25, 0.0, 0), ("a", 2, 0.25, 1.0, 0), ("a", 3, 1.0, 1.0, 1)]
        quality = qualities(scored(spark, rows), 0.5, 1)["m"]
        assert quality.brier == pytest.approx((0.0625 + 0.5625 + 0) / 3)
        assert quality.bins == (
            Bin(0.2, pytest.approx(0.3), 2, 0.25, 0.5),
            Bin(0.9, pytest.approx(1.0), 1, 1.0, 1.0),
        )

    def test_censored_rows_do_not_count(self, spark: SparkSession) -> None:
        from pyspark.sql import functions as sf

        from holdfast.pipeline.transforms.calibration import qualities

        rows = scored(spark, [("a", 1, 0.9, 1.0, 1), ("a", 9, 0.9, 1.0, 0)])
        censored = rows.withColumn("label", sf.when(sf.col("slot") == 1, sf.col("label")))
        assert qualities(censored, 0.5, 1)["m"].rows == 1
