"""`holdfast bench pipeline`: its figures, ratios and aims, on little data."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from holdfast.cli.bench import app
from holdfast.pipeline.bench.cpu import tree_cpu_s
from holdfast.pipeline.bench.data import write_small_segments
from holdfast.pipeline.bench.measures import Measured, bench_telemetry, bounded, judge_growth

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_cost_of_a_fact_at_the_node_is_measured(tmp_path: Path) -> None:
    measured = Measured()
    bench_telemetry(tmp_path, measured, facts=65_536)
    for kind in ("path", "delivery"):
        assert 0 < measured.figures[f"telemetry_{kind}_record_us"] < 100
        assert 0 < measured.figures[f"telemetry_{kind}_write_us"] < 100
    assert set(measured.aims) == {
        "telemetry_us_per_path_fact_in_all",
        "telemetry_us_per_delivery_fact_in_all",
    }


def test_small_segments_hold_the_facts_of_a_minute_each_numbered_without_a_gap(
    tmp_path: Path,
) -> None:
    assert write_small_segments(tmp_path, node=3, nodes=10, segments=5) == 5 * 6
    tables = [pq.read_table(path) for path in sorted(tmp_path.rglob("*.parquet"))]
    assert [table.num_rows for table in tables] == [6] * 5
    assert [n for table in tables for n in table["n"].to_pylist()] == list(range(30))
    starts = [table["now_ns"][0].as_py() // 10**9 for table in tables]
    assert starts == [0, 60, 120, 180, 240]


@pytest.mark.parametrize("arguments", [["--only", "speed"], ["--scales", "1,x"], ["--scales", "0"]])
def test_a_wrong_call_measures_nothing(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, ["pipeline", *arguments])
    assert "nothing was measured" in str(result.exception)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.timeout(1800)
def test_every_part_gives_its_figures() -> None:
    """In a process of its own, because it starts a session of its own."""
    parts = "telemetry,scale,incremental,duckdb,files"
    arguments = ["--only", parts, "--facts", "10000", "--days", "3", "--small-files", "20"]
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "bench", "pipeline", "--json", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=1700,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["not_measured"] == {}
    assert {"run_1x_s", "run_16x_s", "one_hour_more_s", "small_files_ingest_s"} <= set(
        found["figures"]
    )
    assert {"run_further_fact_16x_vs_4x", "one_hour_vs_full_run"} <= set(found["ratios"])
    assert "first_hour_of_a_day_vs_full_run" in found["ratios"]
    assert {"at_most_linear", "incremental_run", "incremental_run_of_a_new_day"} <= set(
        found["aims"]
    )


def figures(seconds: dict[int, float], unit: str = "s") -> dict[str, float]:
    return {
        f"{name}_{scale}x_{unit}": spent
        for scale, spent in seconds.items()
        for name in ("run", "ingest", "incidents", "audit")
    }


@pytest.mark.parametrize(
    ("seconds", "further", "met"),
    [
        ({1: 21.0, 4: 24.0, 16: 36.0}, 1.0, True),
        ({1: 60.0, 4: 63.0, 16: 123.0}, 5.0, False),
    ],
    ids=["linear with a fixed part", "faster behind a fixed part"],
)
def test_growth_is_judged_by_what_further_facts_cost(
    seconds: dict[int, float], further: float, met: bool
) -> None:
    """The seconds that every run has would hide it in the time per fact."""
    measured = Measured(figures=figures(seconds))
    judge_growth((1, 4, 16), measured)
    assert measured.ratios["run_further_fact_16x_vs_4x"] == pytest.approx(further)
    assert measured.ratios["audit_further_fact_16x_vs_4x"] == pytest.approx(further)
    assert measured.ratios["time_per_fact_4x_vs_1x"] == pytest.approx(seconds[4] / seconds[1] / 4)
    assert measured.aims["at_most_linear"][2] is met


def test_growth_is_judged_by_cpu_time_if_it_is_known() -> None:
    """Other programs on the machine make the clock's time anything."""
    found = figures({1: 60.0, 4: 63.0, 16: 123.0}) | figures({1: 20.0, 4: 23.0, 16: 35.0}, "cpu_s")
    measured = Measured(figures=found)
    judge_growth((1, 4, 16), measured)
    assert measured.ratios["run_further_fact_16x_vs_4x"] == pytest.approx(5.0)
    assert measured.ratios["run_further_fact_cpu_16x_vs_4x"] == pytest.approx(1.0)
    assert measured.aims["at_most_linear"] == (pytest.approx(1.0), 1.2, True)


def test_cpu_time_counts_what_this_process_has_started() -> None:
    """Also grandchildren, as Spark's Python workers are."""
    burn = "import time\nwhile time.process_time() < 0.5: pass"
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}])"
    before = tree_cpu_s()
    subprocess.run([sys.executable, "-c", nested], check=True)
    assert tree_cpu_s() - before >= 0.45


def test_one_scale_has_no_growth() -> None:
    measured = Measured(figures=figures({4: 10.0}))
    judge_growth((4,), measured)
    assert (measured.ratios, measured.aims) == ({}, {})


@pytest.mark.spark
def test_a_part_that_takes_too_long_is_ended_and_said_so(spark: SparkSession) -> None:
    measured = Measured()
    with bounded(spark, "scale", 0.5, measured):
        measured.figures["before"] = 1.0
        spark.range(10**13).selectExpr("sum(id % 7)").collect()
        measured.figures["after"] = 1.0
    assert measured.figures == {"before": 1.0}
    assert "did not end within" in measured.not_measured["scale"]
    with bounded(spark, "files", 600.0, measured):
        assert spark.range(3).count() == 3
    assert set(measured.not_measured) == {"scale"}
