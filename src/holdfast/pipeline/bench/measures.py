"""The measures of `holdfast bench pipeline`. Figures have their units in their names; each ratio is to something
measured in the same run."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.pipeline.bench.cpu import tree_cpu_s
from holdfast.pipeline.bench.data import (
    SAMPLE_S,
    START,
    write_deliveries,
    write_paths,
    write_small_segments,
)
from holdfast.pipeline.jobs import PipelineFailed, Settings, Step, run_pipeline
from holdfast.recording.segment_writer import SegmentBounds, SegmentWriter
from holdfast.telemetry.facts import DeliveryFact, Fact, PathFact
from holdfast.types import SECOND

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTS: Final = ("telemetry", "scale", "incremental", "duckdb", "files", "scores", "executors")
NODES: Final = 4
"""Nodes at scale 1; each hears six others."""
SMALL_NODES: Final = 100
ENTRIES_PER_HOUR: Final = 500
"""Of the group in the history of the incremental run."""
_BATCH: Final = 64
_BATCHES: Final = 512
"""Facts that a node hands over at once, and how often before they are written."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured, and how much of it."""

    parts: tuple[str, ...] = PARTS
    scales: tuple[int, ...] = (1, 4, 16)
    facts: int = 200_000
    """Facts of scale 1."""
    days: int = 30
    small_files: int = 2_000
    part_s: float = 600.0
    """The time of each part; what is not measured by then is left out, and said so."""


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
    steps: dict[str, tuple[str, Callable[[], None]]] = {
        "scale": ("scales", lambda: _bench_scales(directory, session, plan, measured, tell)),
        "incremental": (
            f"{plan.days} days, then one hour",
            lambda: bench_incremental(directory / "incremental", session, plan.days, measured),
        ),
        "duckdb": (
            "the audit beside DuckDB",
            lambda: bench_duckdb(directory / "duckdb", session, plan.facts, measured),
        ),
        "files": (
            f"{plan.small_files} small files",
            lambda: bench_small_files(directory / "small", session, plan.small_files, measured),
        ),
        "scores": ("scores", lambda: bench_scores(directory / "scores", session, measured)),
    }
    for part, (text, measure) in steps.items():
        if part in plan.parts:
            tell(text)
            with bounded(session, part, plan.part_s, measured):
                measure()
    return measured


@contextlib.contextmanager
def bounded(session: SparkSession, part: str, seconds: float, measured: Measured) -> Iterator[None]:
    """End a part that takes longer than `seconds`: its jobs are cancelled, and what it has measured by then stays."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    done, late = threading.Event(), threading.Event()

    def watch() -> None:
        if done.wait(seconds):
            return
        late.set()
        # A part may be between two jobs: then the next one is to end.
        while not done.wait(0.2):
            session.sparkContext.cancelAllJobs()

    watcher = threading.Thread(target=watch, name=f"bound of {part}", daemon=True)
    watcher.start()
    try:
        yield
    except (PipelineFailed, PySparkException, Py4JError):
        if not late.is_set():
            raise
        measured.not_measured[part] = (
            f"it did not end within {seconds:.0f} s; its figures are those that it had by then. "
            "Give it less work, or more time with --part-seconds"
        )
    finally:
        done.set()
        watcher.join()


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
    """How long each step of a run takes, from its progress, and how much CPU time."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.cpu_s: dict[str, float] = {}
        self._step, self._since, self._used_s = "", time.monotonic_ns(), tree_cpu_s()

    def __call__(self, step: Step) -> None:
        self._note()
        self._step = step.text

    def end(self) -> None:
        """The last step is over."""
        self._note()
        self._step = ""

    def of(self, *words: str) -> tuple[float, float]:
        """The seconds and the CPU seconds of the steps whose text contains one of these words."""
        found = [text for text in self.seconds if any(word in text for word in words)]
        return sum(self.seconds[text] for text in found), sum(self.cpu_s[text] for text in found)

    def _note(self) -> None:
        now, used_s = time.monotonic_ns(), tree_cpu_s()
        if self._step:
            for spent, more in (
                (self.seconds, (now - self._since) / 1e9),
                (self.cpu_s, used_s - self._used_s),
            ):
                spent[self._step] = spent.get(self._step, 0.0) + more
        self._since, self._used_s = now, used_s


class Spent(msgspec.Struct, frozen=True):
    """What a run took."""

    seconds: float
    cpu_s: float
    """With all processes of a local engine."""


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
        spent = timed_run(session, place, START + timedelta(hours=hours + 1), stages)
        measured.figures |= {
            f"facts_{scale}x": rows,
            f"run_{scale}x_s": spent.seconds,
            f"run_{scale}x_cpu_s": spent.cpu_s,
            f"facts_per_s_{scale}x": rows / spent.seconds,
        }
        for name, words in STAGES.items():
            seconds, cpu_s = stages.of(*words)
            measured.figures |= {
                f"{name}_{scale}x_s": seconds,
                f"{name}_{scale}x_cpu_s": cpu_s,
                f"{name}_facts_per_s_{scale}x": rows / seconds,
            }
        _tell_stages(f"run_{scale}x", stages, measured)
        # The next size needs the room.
        shutil.rmtree(place)
    judge_growth(plan.scales, measured)


STAGES: Final = {
    "ingest": ("examining", "storing"),
    "incidents": ("path", "incidents"),
    "audit": ("deliver", "audit", "group_events"),
}
"""Parts of a run, to words of its steps."""
LINEAR_MAX: Final = 1.2
"""What a further fact may cost, compared with the ones before; more than 1 for the noise of a machine."""


def judge_growth(scales: Sequence[int], measured: Measured) -> None:
    """Ratios of time per fact between neighbouring scales, and of what each further fact costs.

    A run of any size has some seconds of its own, which hide how the rest grows; further facts do not pay them. Judged
    by CPU time if it is known: other programs on the machine change it least.
    """
    figures, ratios = measured.figures, measured.ratios
    for low, high in pairwise(scales):
        growth = figures[f"run_{high}x_s"] / figures[f"run_{low}x_s"]
        ratios[f"time_per_fact_{high}x_vs_{low}x"] = growth / (high / low)
    judged: list[float] = []
    for unit, mark in (("s", ""), ("cpu_s", "_cpu")):
        further = _further(scales, unit, figures)
        ratios |= {f"{name}_further_fact{mark}_{pair}": r for (name, pair), r in further.items()}
        judged = [r for (name, _), r in further.items() if name == "run"] or judged
    # Without a third scale only the time per fact is known.
    judged = judged or [r for name, r in ratios.items() if name.startswith("time_per_fact")]
    if judged:
        measured.aim_below("at_most_linear", max(judged), LINEAR_MAX)


def _further(
    scales: Sequence[int], unit: str, figures: dict[str, float]
) -> dict[tuple[str, str], float]:
    """What a fact costs from the second scale to the third, compared with from the first to the second."""
    found: dict[tuple[str, str], float] = {}
    for first, second, third in zip(scales, scales[1:], scales[2:], strict=False):
        for name in ("run", *STAGES):
            spent = [figures.get(f"{name}_{scale}x_{unit}") for scale in (first, second, third)]
            if None in spent:
                continue
            one, two, three = (float(value or 0.0) for value in spent)
            before = (two - one) / (second - first)
            if before > 0:
                found[name, f"{third}x_vs_{second}x"] = (three - two) / (third - second) / before
    return found


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
    """A full run over some days, then runs with one more hour each: the first hour of a day, which closes an earlier
    day, and an hour like most others."""
    facts = sum(_write_hours(directory, day * 24, 24) for day in range(days))
    stages = Stages()
    full = timed_run(session, directory, START + timedelta(days=days), stages)
    _tell_stages("full_run", stages, measured)
    measured.figures |= {
        "history_days": days,
        "history_facts": facts,
        "full_run_s": full.seconds,
        "full_run_cpu_s": full.cpu_s,
    }
    for hour, (name, ratio, aim) in enumerate(
        (
            (
                "first_hour_of_a_day",
                "first_hour_of_a_day_vs_full_run",
                "incremental_run_of_a_new_day",
            ),
            ("one_hour_more", "one_hour_vs_full_run", "incremental_run"),
        )
    ):
        measured.figures["facts_of_one_hour"] = _write_hours(directory, days * 24 + hour, 1)
        one = timed_run(session, directory, START + timedelta(days=days, hours=hour + 2))
        measured.figures |= {f"{name}_s": one.seconds, f"{name}_cpu_s": one.cpu_s}
        measured.ratios |= {
            ratio: one.seconds / full.seconds,
            f"{ratio}_cpu": one.cpu_s / full.cpu_s,
        }
        measured.aim_below(aim, one.seconds / full.seconds, 0.1)


def _write_hours(directory: Path, first_hour: int, hours: int) -> int:
    """Some hours of a small domain: samples each minute, and a group at rest but for an entry now and then."""
    start = START + timedelta(hours=first_hour)
    every_ns = 3600 * SECOND // ENTRIES_PER_HOUR
    first, entries = first_hour * ENTRIES_PER_HOUR, hours * ENTRIES_PER_HOUR
    landing = directory / "landing"
    return sum(
        write_paths(landing, node, NODES, start, hours, 60, first_hour)
        + write_deliveries(landing, node, start, entries, first, every_ns, first_hour)
        for node in range(NODES)
    )


def _tell_stages(run: str, stages: Stages, measured: Measured) -> None:
    """The slowest steps of a run, as a note: seconds, and CPU seconds."""
    slowest = sorted(stages.seconds.items(), key=lambda item: -item[1])[:8]
    measured.notes[run] = "; ".join(
        f"{text} {seconds:.1f} s, {stages.cpu_s[text]:.1f} s of CPU" for text, seconds in slowest
    )


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
    spent = timed_run(session, directory, now, stages)
    ingest, ingest_cpu_s = stages.of("listing", "examining", "storing")
    _tell_stages("small_files_run", stages, measured)
    measured.figures |= {
        "small_files": nodes * each,
        "small_files_run_s": spent.seconds,
        "small_files_ingest_s": ingest,
        "small_files_ingest_cpu_s": ingest_cpu_s,
        "small_files_ingested_per_s": nodes * each / ingest,
    }


def timed_run(
    session: SparkSession, directory: Path, now: datetime, stages: Stages | None = None
) -> Spent:
    stages = stages or Stages()
    begin, used_s = time.monotonic_ns(), tree_cpu_s()
    run_pipeline(
        directory / "landing",
        directory / "out",
        Settings(report=False, reconcile=True),
        stages,
        session=session,
        now=now,
    )
    stages.end()
    return Spent((time.monotonic_ns() - begin) / 1e9, tree_cpu_s() - used_s)
