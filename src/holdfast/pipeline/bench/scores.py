"""Localisation and predictions against the truth of synthetic telemetry."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.pipeline.jobs import Settings, run_pipeline
from holdfast.pipeline.synth.options import SynthOptions
from holdfast.pipeline.synth.plan_history import plan_history
from holdfast.pipeline.synth.run import synth
from holdfast.pipeline.synth.scores import inventory_path, read_truth, score_localisation
from holdfast.pipeline.transforms.path_states import BUCKET_S
from holdfast.pipeline.transforms.prediction import predict

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.pipeline.bench.measures import Measured

FAULTS: Final = SynthOptions(
    nodes=6, days=1, faults_per_day=16, pairs_per_day=2, sample_s=60, load_s=600, groups=0
)
WEEKS: Final = SynthOptions(nodes=4, days=20, faults_per_day=5, pairs_per_day=0, nightly=2, seed=3)


def bench_scores(directory: Path, session: SparkSession, measured: Measured) -> None:
    """Through the whole pipeline for localisation; from the plan of three weeks for predictions."""
    _located(directory, session, measured)
    made = predict(*plan_history(session, WEEKS))
    assert made is not None
    best = made.qualities[made.chosen]
    measured.figures |= {
        "prediction_precision": best.precision or 0.0,
        "prediction_recall": best.recall or 0.0,
        "prediction_brier": best.brier,
        "prediction_precision_low": best.precision_low(0.9),
    }
    for name, quality in made.qualities.items():
        if name != made.chosen and quality.brier:
            measured.ratios[f"prediction_brier_vs_{name.replace(' ', '_')}"] = (
                best.brier / quality.brier
            )
    measured.notes["prediction"] = made.text


def _located(directory: Path, session: SparkSession, measured: Measured) -> None:
    out = str(directory / "telemetry")
    synth(out, FAULTS, session=session)
    run_pipeline(
        directory / "telemetry" / "landing",
        directory / "out",
        Settings(report=False, models_every_s=1, inventory=inventory_path(out)),
        session=session,
        now=datetime.fromtimestamp(FAULTS.start_s, UTC) + timedelta(days=FAULTS.days, hours=1),
    )
    from holdfast.pipeline.reader import open_tables

    rows = open_tables(directory / "out").read("localisation")
    faults, incidents = (read_truth(session, out, name) for name in ("faults", "incidents"))
    score = score_localisation(session.createDataFrame(rows), faults, incidents, BUCKET_S)
    measured.figures |= {
        "localisation_precision": score.precision,
        "localisation_recall_buckets": score.recall,
        "localisation_recall_faults": score.recall_faults,
        "localisation_groups_per_answer": score.ambiguity,
    }
    measured.notes["localisation"] = score.text()
    measured.aim_above("localisation_precision", score.precision, 0.85)
