"""P9, the closed loop: a path that fails every night is avoided after three nights, and used again after a repair.

The nights are telemetry of two nodes; the pipeline makes advice of it; the nodes, in virtual time, follow it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.pipeline.nights import write_nights
from tests.sim.advised import AdvisedFlow

from holdfast.health.facts import RepairFact
from holdfast.health.ports import PATH_GOSSIP, ResetHistory
from holdfast.pipeline.advising import AdviceSettings, make_advice, publish_advice
from holdfast.pipeline.jobs import RunReport, Settings, run_pipeline
from holdfast.pipeline.reader import open_tables
from holdfast.pipeline.storage.local import LocalStore
from holdfast.pipeline.storage.port import to_uri
from holdfast.recording.advice import newest_advice
from holdfast.recording.memory_segments import MemorySegments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


class Loop:
    """A run of the pipeline over what nodes recorded, and its advice on the way back to them."""

    def __init__(self, root: Path, spark: SparkSession, flow: AdvisedFlow) -> None:
        self.root, self.spark, self.flow = root, spark, flow

    def turn(self) -> RunReport:
        now_us = self.flow.wall_us()
        report = run_pipeline(
            self.root / "landing",
            self.root / "out",
            Settings(models_every_s=3600, buckets=1, reconcile=True),
            session=self.spark,
            now=datetime.fromtimestamp(now_us / 1e6, UTC),
        )
        store, out = LocalStore(), to_uri(self.root / "out")
        advice = make_advice(open_tables(self.root / "out"), AdviceSettings(dwell_s=2), now_us)
        publish_advice(store, out, advice)
        for name in ("n1", "n2"):
            node = self.flow.core(name).me.node.hex()
            self.flow.follow(newest_advice(self.root / "out" / "advice", node).advice, name)
        return report


def write_repairs(directory: Path, flow: AdvisedFlow, node: str) -> None:
    """The repairs that n1 has recorded, and nothing else: they alone must end the advice."""
    offset_ns = flow.world.host("n1").wall_offset_ns
    segments = MemorySegments(node, "n1", flow.core("n1").me.incarnation, offset_ns)
    segments.record(list(flow.facts.of(RepairFact, "n1")))
    segments.write(directory)


def test_a_path_that_fails_every_night_is_avoided_and_used_again_after_a_repair(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = AdvisedFlow()
    home = flow.run_to(4)
    nodes = {name: flow.core(name).me.node.hex() for name in ("n1", "n2")}
    write_nights(tmp_path, nodes, ("red", "blue"), bad=home, nights=3)
    loop = Loop(tmp_path, spark, flow)

    report = loop.turn()
    assert any("precision" in line for line in report.predictions)
    page = Path(report.report).read_text()
    assert "Where the faults are" in page
    assert "Prediction quality" in page
    away = flow.run_to(7)
    assert away != home
    (avoided,) = flow.status()["avoided"]
    assert tuple(avoided["path"]) == (nodes["n1"], home, nodes["n2"], home, home, "udp")
    assert "3 of the last 7 days" in avoided["why"]
    assert flow.status("n2")["in_force"]
    arrived = len(flow.numbers())
    flow.fault(f"break {home} n1->n2 over 600", seconds=3)
    assert flow.run_to(9) == away, "the fourth night concerns no traffic"
    assert len(flow.numbers()) - arrived >= 19, "and delays none"

    flow.run_to(11)
    path = (flow.core("n1").me.node, home, flow.core("n2").me.node, home)
    flow.world.host("n1").give(PATH_GOSSIP, ResetHistory(path, "ann", "cable replaced"))
    flow.run_to(12)
    write_repairs(tmp_path, flow, nodes["n1"])
    assert loop.turn().facts == 1
    assert flow.run_to(21) == home
    assert flow.status()["avoided"] == []
    assert flow.status()["in_force"]
    assert flow.numbers() == list(range(1, len(flow.numbers()) + 1))
