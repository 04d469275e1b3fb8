"""Sweeps and campaigns on Spark executors (S9, P8)."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.cli.experiments import _audited
from holdfast.experiments.fault_campaign import run_trial, summary, trials
from holdfast.experiments.journal import Journal
from holdfast.experiments.points import Point
from holdfast.experiments.sets import jobs_of, measure
from holdfast.experiments.sweep import Job, sweep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_executors_measure_what_this_process_measures(spark: SparkSession, tmp_path: Path) -> None:
    """A point that cannot run is an error of that point; the others have their results."""
    points = [
        Point(nodes=nodes, edge_probability=0.04, protocol=protocol)
        for nodes in (10, 20)
        for protocol in ("cube", "coord", "full", "tree")
    ]
    cut = Point(nodes=20, edge_probability=0.01, seed=2, failed=3, routers_down=True)
    jobs = jobs_of([*points, cut])
    there = sweep(jobs, measure, Journal(tmp_path / "spark"), spark)
    here = sweep(jobs, measure, Journal(tmp_path / "here"))
    assert there[cut.key].error.startswith("Disconnected")
    for point in points:
        one, other = there[point.key].result, here[point.key].result
        assert one is not None
        assert other is not None
        assert one | {"seconds": 0} == other | {"seconds": 0}
    assert set(Journal(tmp_path / "spark").read()) == {job.task for job in jobs}


def test_a_worker_that_dies_costs_its_point_only(spark: SparkSession, tmp_path: Path) -> None:
    """The wave is run again in halves until the point that kills its worker is alone."""
    records = sweep([Job(str(n)) for n in range(4)], _deadly, Journal(tmp_path / "j"), spark)
    assert [records[str(n)].result for n in (0, 1, 3)] == [{"n": n} for n in (0, 1, 3)]
    assert records["2"].result is None
    assert "the worker failed" in records["2"].error


def _deadly(task: str) -> dict[str, Any]:
    if task == "2":
        os.kill(os.getpid(), signal.SIGKILL)
    return {"n": int(task)}


@pytest.mark.campaign
def test_a_campaign_on_executors_is_audited_by_the_pipeline(
    spark: SparkSession, tmp_path: Path
) -> None:
    """P8 and P7: what the simulated nodes recorded is judged again, by what they recorded alone."""
    telemetry = tmp_path / "telemetry"
    jobs = trials("groups", [4, 5], 2, str(telemetry))
    records = list(sweep(jobs, run_trial, Journal(tmp_path / "j"), spark).values())
    assert [record.error for record in records] == ["", ""]
    report = _audited(summary(records), records, telemetry, tmp_path, spark)
    assert report.failed == ()
    assert report.accused == ()
    epochs = sum(len((record.result or {})["epochs"]) for record in records)
    assert epochs >= 2
    assert sum(report.audited.values()) == epochs
