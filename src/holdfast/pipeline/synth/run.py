"""`synth`: generate telemetry with known truth, one Spark task per life of a node."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from holdfast.pipeline.engine import DEFAULT_ENGINE, check_engine, open_engine
from holdfast.pipeline.synth.columns import Facts
from holdfast.pipeline.synth.event_facts import link_facts, lost_facts, node_facts
from holdfast.pipeline.synth.faults import Fault, plan_faults
from holdfast.pipeline.synth.group_facts import group_facts
from holdfast.pipeline.synth.landing import LandingWriter, Store
from holdfast.pipeline.synth.lives import Life, lives_of, stretches_of
from holdfast.pipeline.synth.load_facts import load_facts
from holdfast.pipeline.synth.options import SynthOptions
from holdfast.pipeline.synth.path_facts import path_facts, timelines
from holdfast.pipeline.synth.topology import Topology
from holdfast.pipeline.synth.truth import write_life, write_plan

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_WAVES: Final = 20
"""Into how many jobs the work is cut, so that progress can be shown."""
_WAVE_MIN: Final = 8
"""Lives per job, so that several cores have something to do."""
_MADE: Final = "rows bigint, files bigint, bytes bigint"
_LARGE_BYTES: Final = 1 << 30
"""The input size given to the engine: this is no small job."""


class SynthReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was generated."""

    out: str
    facts: int
    segments: int
    bytes: int
    lives: int
    faults: int
    seconds: float = 0.0


SynthProgress = Callable[[str, int, int], None]
"""What is being done, how much of it is done, how much there is."""


def synth(
    out: str,
    options: SynthOptions | None = None,
    engine: str = DEFAULT_ENGINE,
    session: SparkSession | None = None,
    progress: SynthProgress | None = None,
) -> SynthReport:
    """Write telemetry of a synthetic domain under `out`, and the truth about it beside it.

    `session` is used instead of `engine`, and is not stopped, if it is given.
    """
    options = options or SynthOptions()
    options.check()
    started_ns = time.monotonic_ns()
    check_engine(engine)
    tell = progress or (lambda *_: None)
    topology = Topology(options)
    tell("planning", 0, 1)
    faults = plan_faults(options, topology)
    write_plan(Store(out), faults, topology)
    if session is not None:
        made = _generate(out, options, faults, session, tell)
    else:
        tell(f"starting {engine}", 0, 1)
        with open_engine(engine, input_bytes=_LARGE_BYTES) as opened:
            made = _generate(out, options, faults, opened, tell)
    seconds = (time.monotonic_ns() - started_ns) / 1e9
    return msgspec.structs.replace(made, seconds=round(seconds, 3))


def _generate(
    out: str,
    options: SynthOptions,
    faults: list[Fault],
    session: SparkSession,
    tell: SynthProgress,
) -> SynthReport:
    lives = [
        (life.node, life.number)
        for node in range(options.nodes)
        for life in lives_of(node, options)
    ]
    rows = files = size = 0
    wave = max(_WAVE_MIN, -(-len(lives) // _WAVES))
    for begin in range(0, len(lives), wave):
        tell("generating", begin, len(lives))
        now = lives[begin : begin + wave]
        tasks = session.createDataFrame(now, "node int, life int").repartition(
            len(now), "node", "life"
        )
        made = tasks.mapInArrow(_worker(out, options), _MADE).toArrow()
        rows += sum(made["rows"].to_pylist())
        files += sum(made["files"].to_pylist())
        size += sum(made["bytes"].to_pylist())
    tell("generating", len(lives), len(lives))
    return SynthReport(
        out=out, facts=rows, segments=files, bytes=size, lives=len(lives), faults=len(faults)
    )


def _worker(
    out: str, options: SynthOptions
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        topology = Topology(options)
        # Each task plans by itself: a plan is cheap, and shipping one with every task is not.
        faults = plan_faults(options, topology)
        store = Store(out)
        for batch in batches:
            made = [
                write_telemetry(
                    store, lives_of(row["node"], options)[row["life"]], faults, topology
                )
                for row in batch.to_pylist()
            ]
            yield pa.RecordBatch.from_pylist(
                [{"rows": w.rows, "files": w.files, "bytes": w.bytes} for w in made],
                pa.schema([("rows", pa.int64()), ("files", pa.int64()), ("bytes", pa.int64())]),
            )

    return work


def write_telemetry(
    store: Store, life: Life, faults: list[Fault], topology: Topology
) -> LandingWriter:
    """All segments of one life of a node, and the truth about what it listened to."""
    options = topology.options
    paths = timelines(life, faults, topology)
    writer = LandingWriter(store, life, topology)
    for begin, end in stretches_of(life, options):
        made = [
            node_facts(paths, life, begin, end, topology),
            link_facts(paths, life, begin, end, topology),
            path_facts(paths, life, begin, end, topology),
            load_facts(life, begin, end, topology),
            *group_facts(life, begin, end, options),
        ]
        _seal(writer, made, begin, end, life, options)
    write_life(store, life, paths, writer, topology)
    return writer


def _seal(
    writer: LandingWriter,
    made: list[Facts],
    begin: float,
    end: float,
    life: Life,
    options: SynthOptions,
) -> None:
    """Cut a stretch into segments and seal them in the order of time, as a node does."""
    step = options.segment_minutes * 60
    at = begin
    while at < end:
        until = min(at + step, end)
        # A delivery comes a moment after its order, so the last segment takes what is just behind the edge.
        upper = np.inf if until == end else until
        for facts in made:
            low, high = np.searchsorted(facts.at_s, [0.0 if at == begin else at, upper])
            writer.seal(_part(facts, int(low), int(high)), until)
        writer.seal(lost_facts(writer, life), until)
        at = until


def _part(facts: Facts, low: int, high: int) -> Facts:
    lost = None if facts.lost is None else facts.lost[low:high]
    columns = {name: values[low:high] for name, values in facts.columns.items()}
    return Facts(facts.kind, facts.at_s[low:high], columns, lost)
