"""The measures of `holdfast bench pipeline`. Figures have their units in their names; each ratio is to something
measured in the same run."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.pipeline.bench.data import (
    SAMPLE_S,
    START,
    write_deliveries,
    write_paths,
    write_small_segments,
)
from holdfast.pipeline.jobs import Settings, Step, run_pipeline
from holdfast.recording.segment_writer import SegmentBounds, SegmentWriter
from holdfast.telemetry.facts import DeliveryFact, Fact, PathFact

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTS: Final = ("telemetry", "scale", "incremental", "duckdb", "files", "scores", "executors")
NODES: Final = 4
"""Nodes at scale 1; each hears six others."""
SMALL_NODES: Final = 100
_BATCH: Final = 64
_BATCHES: Final = 512
"""Facts that a node hands over at once, and how often before they are written."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured, and how much of it."""

    parts: tuple[str, ...] = PARTS
    scales: tuple[int, ...] = (1, 4)
    facts: int = 500_000
    """Facts of scale 1."""
    days: int = 30
    small_files: int = 2_000


class Measured(msgspec.Struct):
    """What was measured, in the shape of every benchmark's output."""

    figures: dict[str, float] = {}
    ratios: dict[str, float] = {}
    aims: dict[str, tuple[float, float, bool]] = {}
    """Name to (value, target, met)."""
    not_measured: dict[str, str] = {}
    notes: dict[str, str] = {}

    def aim_below(self, name: str, value: float, target: float) -> None:
        self.aims[name] = (value, target, value <= target)

    def aim_above(self, name: str, value: float, target: float) -> None:
        self.aims[name] = (value, target, value >= target)


Tell = Callable[[str], None]


def bench_pipeline(directory: Path, session: SparkSession, plan: Plan, tell: Tell) -> Measured:
    """All measures that need a session, in `directory`."""
    from holdfast.pipeline.bench.duck import bench_duckdb
    from holdfast.pipeline.bench.scores import bench_scores

    measured = Measured()
    if "scale" in plan.parts:
        _bench_scales(directory, session, plan, measured, tell)
    if "incremental" in plan.parts:
        tell(f"{plan.days} days, then one hour")
        bench_incremental(directory / "incremental", session, plan.days, measured)
    if "duckdb" in plan.parts:
        tell("the audit beside DuckDB")
        bench_duckdb(directory / "duckdb", session, plan.facts, measured)
    if "files" in plan.parts:
        tell(f"{plan.small_files} small files")
        bench_small_files(directory / "small", session, plan.small_files, measured)
    if "scores" in plan.parts:
        tell("scores")
        bench_scores(directory / "scores", session, measured)
    return measured


# -- telemetry ---------------------------------------------------------------------------------------------------


def bench_telemetry(directory: Path, measured: Measured, facts: int = 131_072) -> None:
    """What a fact costs the node in CPU time: handing it over on the hot path, and writing it down in the thread."""
    made: dict[str, list[Fact]] = {
        "path": [_path_fact(place) for place in range(_BATCH)],
        "delivery": [_delivery_fact(place) for place in range(_BATCH)],
    }
    # What is loaded with the first segment is not a cost of facts.
    for name, batch in made.items():
        _cost(directory / "first" / name, batch, _BATCH * _BATCHES)
    for name, batch in made.items():
        recorded, written = _cost(directory / name, batch, facts)
        measured.figures[f"telemetry_{name}_record_us"] = recorded
        measured.figures[f"telemetry_{name}_write_us"] = written
        measured.aim_below(f"telemetry_us_per_{name}_fact_in_all", recorded + written, 1.5)


def _path_fact(place: int) -> PathFact:
    """A sample that differs from the last one in the values that differ on real paths."""
    peer, transport = place % 6, ("udp", "tcp", "multicast", "frag")[place % 4]
    return PathFact(
        place * 10**8, "sample", f"{peer:02x}" * 16, f"n{peer}", "eth0", "eth0", "lan1", transport, True, 1472, 1472,
        0, 200 + place % 37, 10, 10, jitter_us=place % 11, rate_kbps=100_000 + place,
    )  # fmt: skip


def _delivery_fact(place: int) -> DeliveryFact:
    first = 10 * place
    return DeliveryFact(
        place * 10**6, "orders", 1, place, first, f"s{place % 3}", first, first + 9, first << 40, 7
    )


def _cost(directory: Path, batch: list[Fact], facts: int) -> tuple[float, float]:
    """Microseconds of CPU per fact: on the caller's side, and for writing and sealing."""
    cpu = time.process_time_ns
    writer = SegmentWriter(
        directory, "cd" * 16, "n1", 1, 0, time.monotonic_ns, SegmentBounds(), background=False
    )
    handed, written = 0, 0
    for _ in range(facts // (_BATCH * _BATCHES)):
        begin = cpu()
        for _ in range(_BATCHES):
            writer.record(batch)
        middle = cpu()
        writer.write_out()
        handed += middle - begin
        written += cpu() - middle
    begin = cpu()
    writer.close()
    written += cpu() - begin
    return handed / facts / 1000, written / facts / 1000


# -- runs --------------------------------------------------------------------------------------------------------


class Stages:
    """How long each step of a run takes, from its progress."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._step, self._since = "", time.monotonic_ns()

    def __call__(self, step: Step) -> None:
        now = time.monotonic_ns()
        if self._step:
            spent = (now - self._since) / 1e9
            self.seconds[self._step] = self.seconds.get(self._step, 0.0) + spent
        self._step, self._since = step.text, now

    def of(self, *words: str) -> float:
        """The seconds of the steps whose text contains one of these words."""
        return sum(s for text, s in self.seconds.items() if any(word in text for word in words))


def _bench_scales(
    directory: Path, session: SparkSession, plan: Plan, measured: Measured, tell: Tell
) -> None:
    # The first run of a session compiles and loads classes; it is not measured.
    write_domain(directory / "warm", 1, 20_000)
    timed_run(session, directory / "warm", START + timedelta(hours=9))
    for scale in plan.scales:
        tell(f"{scale} x {plan.facts} facts")
        place = directory / f"x{scale}"
        rows, hours = write_domain(place, scale, plan.facts)
        stages = Stages()
        seconds = timed_run(session, place, START + timedelta(hours=hours + 1), stages)
        measured.figures |= {
            f"facts_{scale}x": rows,
            f"run_{scale}x_s": seconds,
            f"ingest_facts_per_s_{scale}x": rows / stages.of("examining", "storing"),
            f"incidents_facts_per_s_{scale}x": rows / stages.of("path", "incidents"),
            f"audit_facts_per_s_{scale}x": rows / stages.of("deliver", "audit", "group_events"),
            f"facts_per_s_{scale}x": rows / seconds,
        }
    low, high = plan.scales[0], plan.scales[-1]
    if high > low:
        growth = measured.figures[f"run_{high}x_s"] / measured.figures[f"run_{low}x_s"]
        measured.ratios[f"time_per_fact_{high}x_vs_{low}x"] = growth / (high / low)
        measured.aim_below("at_most_linear", growth / (high / low), 1.1)


def write_domain(directory: Path, scale: int, facts: int) -> tuple[int, int]:
    """Half of the facts are about paths, half are deliveries. Gives the number of facts, and hours."""
    nodes = NODES * scale
    hours = max(1, facts // 2 // NODES // 6 * SAMPLE_S // 3600)
    rows = 0
    for node in range(nodes):
        rows += write_paths(directory / "landing", node, nodes, START, hours)
        rows += write_deliveries(directory / "landing", node, START, facts // 2 // NODES)
    return rows, hours


def bench_incremental(
    directory: Path, session: SparkSession, days: int, measured: Measured
) -> None:
    """A full run over some days, then a run with one more hour."""
    hours = days * 24
    for node in range(NODES):
        for day in range(days):
            start = START + timedelta(days=day)
            write_paths(directory / "landing", node, NODES, start, 24, step_s=60, seq=day)
    full = timed_run(session, directory, START + timedelta(hours=hours))
    for node in range(NODES):
        start = START + timedelta(hours=hours)
        write_paths(directory / "landing", node, NODES, start, 1, 60, days)
    one = timed_run(session, directory, START + timedelta(hours=hours + 2))
    measured.figures["history_days"] = days
    measured.figures["full_run_s"] = full
    measured.figures["one_hour_more_s"] = one
    measured.ratios["one_hour_vs_full_run"] = one / full
    measured.aim_below("incremental_run", one / full, 0.1)


def bench_small_files(
    directory: Path, session: SparkSession, files: int, measured: Measured
) -> None:
    """Segments of a minute each, of a hundred nodes at most: how long the first run takes, and its ingest."""
    nodes = min(SMALL_NODES, files)
    each = files // nodes
    for node in range(nodes):
        write_small_segments(directory / "landing", node, nodes, each)
    stages = Stages()
    now = START + timedelta(minutes=each + 60)
    seconds = timed_run(session, directory, now, stages)
    ingest = stages.of("listing", "examining", "storing")
    measured.figures |= {
        "small_files": nodes * each,
        "small_files_run_s": seconds,
        "small_files_ingest_s": ingest,
        "small_files_ingested_per_s": nodes * each / ingest,
    }


def timed_run(
    session: SparkSession,
    directory: Path,
    now: datetime,
    progress: Callable[[Step], None] | None = None,
) -> float:
    begin = time.monotonic_ns()
    run_pipeline(
        directory / "landing",
        directory / "out",
        Settings(report=False, reconcile=True),
        progress,
        session=session,
        now=now,
    )
    return (time.monotonic_ns() - begin) / 1e9
