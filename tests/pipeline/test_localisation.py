"""P3: from incidents and watched time to located faults, scored against the truth of synthetic telemetry."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.pipeline.histories import at, path
from tests.pipeline.simple_incidents import simple_incidents
from tests.pipeline.synthetic import generate, options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

NODES = "abcd"
PAIRS = [(one, other) for one in NODES for other in NODES if one != other]


def watched(spark: SparkSession, transports: tuple[str, ...] = ("udp", "tcp")) -> DataFrame:
    """All paths between four nodes, watched for two hours."""
    from holdfast.pipeline.model_tables import COVERAGE_IN

    rows = [
        (*path(*pair)[:-1], transport, at(0), at(0, 2))
        for pair in PAIRS
        for transport in transports
    ]
    return spark.createDataFrame(rows, COVERAGE_IN)


def broken(
    spark: SparkSession, *incidents: tuple[str, str, str, str, float, float | None]
) -> DataFrame:
    """Incidents of (sender, listener, transport, class, start, end in hours)."""
    from holdfast.pipeline.model_tables import INCIDENTS_IN

    rows = [
        (*path(sender, listener)[:-1], transport, error, at(0, start), at(0, end) if end else None)
        for sender, listener, transport, error, start, end in incidents
    ]
    return spark.createDataFrame(rows, INCIDENTS_IN)


def states(frame: DataFrame) -> dict[tuple[Any, ...], tuple[int, int]]:
    """(bucket in hours, class, transport) to the number of failing and passing paths."""
    found: dict[tuple[Any, ...], tuple[int, int]] = {}
    for row in frame.toArrow().to_pylist():
        hours = (row["bucket_at"] - at(0)) / timedelta(hours=1)
        key = (hours, row["error_class"], row["transport"])
        failing, passing = found.get(key, (0, 0))
        found[key] = (failing + row["failing"], passing + (not row["failing"]))
    return found


class TestPathStates:
    def test_only_buckets_with_failures_have_rows(self, spark: SparkSession) -> None:
        from holdfast.pipeline.transforms.path_states import path_states

        incidents = broken(spark, ("a", "b", "udp", "size", 0.3, 0.6))
        assert states(path_states(incidents, watched(spark))) == {
            (0.25, "size", "udp"): (1, 11),
            (0.5, "size", "udp"): (1, 11),
        }

    def test_the_other_transport_does_not_speak_for_a_filtered_one(
        self, spark: SparkSession
    ) -> None:
        from holdfast.pipeline.transforms.path_states import path_states

        incidents = broken(spark, ("a", "b", "tcp", "protocol", 0.1, 0.2))
        assert states(path_states(incidents, watched(spark))) == {(0.0, "protocol", "tcp"): (1, 11)}

    def test_dead_is_a_state_of_the_pair_and_hides_its_other_symptoms(
        self, spark: SparkSession
    ) -> None:
        """A dead path shows no size limit: for sizes it is unobserved, not passing."""
        from holdfast.pipeline.transforms.path_states import path_states

        incidents = broken(
            spark,
            ("a", "b", "", "dead", 0.1, 0.2),
            ("c", "d", "udp", "size", 0.1, 0.2),
        )
        assert states(path_states(incidents, watched(spark))) == {
            (0.0, "dead", ""): (1, 11),
            (0.0, "size", "udp"): (1, 10),
        }

    def test_a_path_that_flaps_has_a_symptom_of_its_own_and_says_nothing_about_death(
        self, spark: SparkSession
    ) -> None:
        """Incidents are published as deaths that flap: they were located as dead, beside faults that are."""
        from pyspark.sql import functions as sf

        from holdfast.pipeline.transforms.path_states import path_states, with_flapping

        incidents = broken(
            spark,
            ("a", "b", "", "dead", 0.1, 0.2),
            ("c", "d", "", "dead", 0.1, 0.2),
            ("c", "d", "udp", "size", 0.1, 0.2),
        ).withColumn("flapping", sf.col("sender") == "c")
        assert states(path_states(with_flapping(incidents), watched(spark))) == {
            (0.0, "dead", ""): (1, 10),
            (0.0, "flapping", ""): (1, 10),
            (0.0, "size", "udp"): (1, 10),
        }

    def test_a_path_that_was_not_watched_is_neither_failing_nor_passing(
        self, spark: SparkSession
    ) -> None:
        from holdfast.pipeline.transforms.path_states import path_states

        seen = watched(spark).where("NOT (sender = 'c' AND listener = 'd')")
        incidents = broken(spark, ("a", "b", "udp", "size", 0.3, 0.4))
        assert states(path_states(incidents, seen)) == {(0.25, "size", "udp"): (1, 10)}

    def test_an_open_incident_lasts_as_long_as_its_path_is_watched(
        self, spark: SparkSession
    ) -> None:
        from holdfast.pipeline.transforms.path_states import path_states

        incidents = broken(spark, ("a", "b", "udp", "size", 1.3, None))
        assert [hours for hours, *_ in sorted(states(path_states(incidents, watched(spark))))] == [
            1.25,
            1.5,
            1.75,
        ]


def test_a_located_fault_is_one_row_over_adjacent_buckets_and_symptoms(spark: SparkSession) -> None:
    from holdfast.pipeline.transforms.localisation import localise, located_faults
    from holdfast.pipeline.transforms.path_states import path_states

    incidents = broken(
        spark,
        *(("a", peer, "udp", "size", 0.3, 1.1) for peer in "bcd"),
        *(("a", peer, "udp", "pattern", 0.3, 0.4) for peer in "bcd"),
    )
    found = localise(path_states(incidents, watched(spark)))
    (fault,) = located_faults(found).toArrow().to_pylist()
    assert (fault["kind"], fault["name"]) == ("adapter_send", "a/eth0")
    assert (fault["start_at"], fault["end_at"]) == (at(0, 0.25), at(0, 1.25))
    assert fault["error_classes"] == ["pattern", "size"]
    assert fault["buckets"] == 4


def test_watched_time_ends_where_facts_pause(spark: SparkSession) -> None:
    from holdfast.pipeline.transforms.path_states import coverage

    minutes = [0, 1, 2, 30, 31]
    rows = [
        ("b", 1, "a", "eth0", "eth0", "lan0", "udp", at(0) + timedelta(minutes=minute))
        for minute in minutes
    ]
    facts = spark.createDataFrame(
        rows,
        "node string, incarnation bigint, sender string, sender_adapter string, listener_adapter string, "
        "subnet string, transport string, at timestamp",
    )
    spans = sorted(
        (row["start_at"], row["end_at"]) for row in coverage(facts).toArrow().to_pylist()
    )
    assert spans == [
        (at(0), at(0) + timedelta(minutes=2)),
        (at(0) + timedelta(minutes=30), at(0) + timedelta(minutes=31)),
    ]


@pytest.mark.slow
@pytest.mark.campaign
def test_faults_of_a_synthetic_domain_are_located(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From facts with noise, late files and restarts to faults; precision and recall are printed."""
    from holdfast.pipeline.synth.scores import inventory_path, read_truth, score_localisation
    from holdfast.pipeline.transforms.localisation import inventory_frame, localise
    from holdfast.pipeline.transforms.path_states import coverage, path_states
    from holdfast.pipeline.transforms.risk_groups import parse_inventory

    bucket_s = 1800
    out = str(tmp_path)
    wanted = options(
        nodes=6,
        noise=1.0,
        restarts_per_day=0.5,
        violations=(),
        groups=0,
        faults_per_day=24.0,
        sample_s=60.0,
    )
    generate(tmp_path, wanted)
    facts = spark.read.parquet(f"{out}/landing/path")
    inventory = inventory_frame(
        spark, parse_inventory(Path(inventory_path(out)).read_text().splitlines(), {})
    )
    observed = coverage(facts).cache()
    made = path_states(simple_incidents(facts).cache(), observed, bucket_s)
    located = localise(made, inventory, bucket_s=bucket_s).cache()
    truth = [read_truth(spark, out, name) for name in ("faults", "incidents")]
    score = score_localisation(located, *truth, bucket_s)
    with capsys.disabled():
        print(f"\n{score.text()}")  # noqa: T201 scores are printed with every run
    assert score.precision >= 0.85
    assert score.recall_faults >= 0.85
