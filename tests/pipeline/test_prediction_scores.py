"""P4: a fitted model on weeks of synthetic history, judged on what then happened."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.campaign]


def test_a_fitted_model_beats_both_baselines_and_is_calibrated(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    from holdfast.pipeline.synth.options import SynthOptions
    from holdfast.pipeline.synth.plan_history import plan_history
    from holdfast.pipeline.transforms.prediction import BASELINES, predict

    wanted = SynthOptions(nodes=4, days=20, faults_per_day=5, pairs_per_day=0, nightly=2, seed=3)
    made = predict(*plan_history(spark, wanted))
    assert made is not None
    with capsys.disabled():
        print(f"\n{made.text}")  # noqa: T201 scores are printed with every run
    assert made.chosen == "logistic"
    best = made.qualities[made.chosen]
    assert all(best.brier < made.qualities[name].brier for name in BASELINES)
    # Calibrated: where many rows were predicted alike, it happened about that often.
    assert all(abs(b.mean - b.observed) < 0.15 for b in best.bins if b.rows >= 200)
    assert made.advice_open
    scores = {row["model"]: row for row in made.scores.toArrow().to_pylist()}
    assert scores["logistic"]["beats_baselines"]
    assert scores["logistic"]["precision_low"] >= 0.5
    assert [row["chosen"] for row in scores.values()].count(True) == 1
