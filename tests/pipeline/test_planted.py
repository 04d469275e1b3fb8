"""P7 on generated traces: every kind of violation that `synth` plants is found by a run, and nothing else is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.pipeline.synthetic import generate

from holdfast.pipeline.jobs import Settings, run_pipeline
from holdfast.pipeline.reader import Tables, open_tables
from holdfast.pipeline.synth.options import VIOLATIONS, SynthOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

# With a node for each group no two violations are planted on one node: where it lost facts, a hole proves nothing.
OPTIONS = SynthOptions(
    nodes=13, adapters=1, subnets=1, realms=1, days=0.1, sample_s=1800.0, load_s=3600.0, faults_per_day=0,
    pairs_per_day=0, nightly=0, entries_per_s=0.2, segment_minutes=60, transports=("udp",), neighbours="ring",
    violations=tuple(VIOLATIONS), groups=2, restarts_per_day=4.0, noise=0.0,
)  # fmt: skip


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    root = tmp_path_factory.mktemp("planted")
    generate(root / "telemetry", OPTIONS)
    run_pipeline(
        root / "telemetry" / "landing",
        root / "out",
        Settings(report=False, models_every_s=0, buckets=1),
        session=spark,
        now=datetime.fromtimestamp(OPTIONS.start_s, UTC) + timedelta(days=1),
    )
    return open_tables(root / "out")


def claims_of(tables: Tables, group: str) -> set[str]:
    return {row["claim"] for row in tables.rows("delivery_violations") if row["group"] == group}


def verdicts_of(tables: Tables, group: str) -> list[Any]:
    return [row["verdict"] for row in tables.rows("delivery_audit") if row["group"] == group]


@pytest.mark.parametrize("kind", [kind for kind, claim in VIOLATIONS.items() if claim])
def test_a_planted_violation_is_found_in_its_group(tables: Tables, kind: str) -> None:
    group = f"planted-{kind}"
    assert VIOLATIONS[kind] in claims_of(tables, group)
    assert verdicts_of(tables, group) == ["violated"]


def test_groups_without_a_planted_violation_are_not_accused(tables: Tables) -> None:
    """Replicas restart and leaders change in all of them."""
    innocent = [
        row["group"]
        for row in tables.rows("delivery_audit")
        if not row["group"].startswith("planted-")
    ]
    assert len(innocent) == 2
    assert [claims_of(tables, group) for group in innocent] == [set(), set()]
    assert claims_of(tables, "planted-facts_lost") == set()
    assert verdicts_of(tables, "planted-facts_lost") == ["not provable"]
