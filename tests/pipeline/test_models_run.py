"""One run with everything in it: synthetic telemetry, incidents, audit, and the views of the models."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.pipeline.jobs import RunReport, Settings, run_pipeline
from holdfast.pipeline.models import MODEL_VIEWS
from holdfast.pipeline.reader import Tables, open_tables
from holdfast.pipeline.synth.options import VIOLATIONS, SynthOptions
from holdfast.pipeline.synth.run import synth
from holdfast.pipeline.synth.scores import inventory_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.campaign]

OPTIONS = SynthOptions(
    nodes=4, adapters=1, subnets=1, realms=1, days=0.5, sample_s=60.0, load_s=300.0, faults_per_day=8,
    pairs_per_day=0, nightly=0, entries_per_s=0.05, segment_minutes=360, transports=("udp",),
    violations=("two_leaders", "facts_lost"), groups=1, restarts_per_day=0,
)  # fmt: skip


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunReport]:
    root = tmp_path_factory.mktemp("models")
    synth(str(root / "telemetry"), OPTIONS, session=spark)
    now = datetime.fromtimestamp(OPTIONS.start_s, UTC) + timedelta(days=1)
    report = run_pipeline(
        root / "telemetry" / "landing",
        root / "out",
        Settings(models_every_s=3600, inventory=inventory_path(str(root / "telemetry"))),
        session=spark,
        now=now,
    )
    return root / "out", report


@pytest.fixture
def tables(made: tuple[Path, RunReport]) -> Tables:
    return open_tables(made[0])


def test_every_segment_of_the_generator_is_taken(made: tuple[Path, RunReport]) -> None:
    assert made[1].set_aside == ()
    assert made[1].conflicts == 0


def test_the_views_of_the_models_are_published(tables: Tables) -> None:
    assert all(tables.has(view.name) for view in MODEL_VIEWS)
    assert tables.rows("incidents")
    groups = [group for row in tables.rows("localisation") for group in row["groups"]]
    assert "port" in {group["kind"] for group in groups}, "the inventory names switch ports"
    assert tables.snapshot.models_us > 0


def test_planted_violations_are_found_in_generated_traces(tables: Tables) -> None:
    claims = {row["claim"] for row in tables.rows("delivery_violations")}
    assert claims == {VIOLATIONS["two_leaders"]}
    verdicts = {row["verdict"] for row in tables.rows("delivery_audit")}
    assert "not provable" in verdicts


def test_the_report_shows_causes(made: tuple[Path, RunReport]) -> None:
    page = Path(made[1].report).read_text()
    assert "Where the faults are" in page
    assert "Prediction quality" in page
