"""T1: load facts, sampling that is itself recorded, adaptive sealing, and a reference that matches the schema."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from holdfast.errors import MisuseError
from holdfast.node.config import parse_config
from holdfast.node.subsystems import SUBSYSTEMS, fact_types
from holdfast.pipeline.reference import BEGIN, END, render
from holdfast.recording.segment_writer import (
    PRESSED_EVERY,
    PRESSED_NS,
    SegmentBounds,
    SegmentWriter,
)
from holdfast.runtime.parts import open_segments
from holdfast.telemetry.facts import Fact, LoadFact, NodeFact, PathFact, SamplingFact
from holdfast.telemetry.load import ADAPTERS_MAX, LoadMeter
from holdfast.types import SECOND

NODE = "ab" * 16


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


def writer_in(directory: Path, clock: Clock, **bounds: int) -> SegmentWriter:
    return SegmentWriter(
        directory, NODE, "n1", 1, 0, clock, SegmentBounds(**bounds), background=False
    )


def path_fact(n: int, event: str) -> PathFact:
    return PathFact(n, event, NODE, "n2", "a", "a", "s", "udp", True, 9, 9, 0, 1, 1, 1)


def rows(directory: Path, kind: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for path in sorted(directory.glob(f"landing/{kind}/*/*.parquet")):
        found += pq.ParquetFile(path).read().to_pylist()
    return found


def test_sampling_keeps_every_change_and_one_of_n_samples_and_is_recorded(tmp_path: Path) -> None:
    writer = writer_in(tmp_path, Clock())
    writer.sample("path", 5, "the disk is slow")
    writer.record([path_fact(n, "change" if n % 10 == 0 else "sample") for n in range(100)])
    writer.write_out()
    writer.sample("path", 1)
    writer.record([path_fact(n, "sample") for n in range(100, 110)])
    writer.close()
    facts = rows(tmp_path, "path")
    assert sum(f["event"] == "change" for f in facts) == 10
    assert sum(f["event"] == "sample" for f in facts) == 90 // 5 + 10
    # What is left out gets no number: it is not lost.
    assert [f["n"] for f in facts] == list(range(len(facts)))
    assert writer.lost == 0
    said = rows(tmp_path, "sampling")
    assert [(f["sampled_kind"], f["every"], f["reason"]) for f in said] == [
        ("path", 5, "the disk is slow"),
        ("path", 1, ""),
    ]


def test_a_node_under_pressure_leaves_samples_out_and_says_so(tmp_path: Path) -> None:
    """Facts that did not fit are lost and named. From then on fewer samples are kept, until there is room again."""
    clock = Clock()
    writer = writer_in(tmp_path, clock, buffer_rows=50)
    writer.record([path_fact(n, "sample") for n in range(60)])
    writer.write_out()
    assert writer.lost == 10
    writer.record([path_fact(n, "change" if n % 20 == 0 else "sample") for n in range(40)])
    writer.write_out()
    clock.now = PRESSED_NS - 1
    writer.write_out()
    writer.record([path_fact(n, "sample") for n in range(PRESSED_EVERY)])
    clock.now = PRESSED_NS
    writer.write_out()
    writer.record([path_fact(n, "sample") for n in range(5)])
    writer.close()
    changes, samples = 2, 38 // PRESSED_EVERY
    assert len(rows(tmp_path, "path")) == 50 + changes + samples + 1 + 5
    assert [
        (row["sampled_kind"], row["every"], row["reason"]) for row in rows(tmp_path, "sampling")
    ] == [
        ("path", PRESSED_EVERY, "10 facts did not fit into the buffer"),
        ("path", 1, "the buffer has room again"),
    ]


def test_sampling_goes_on_after_a_flush(tmp_path: Path) -> None:
    writer = writer_in(tmp_path, Clock())
    writer.sample("path", 10)
    for _ in range(4):
        writer.record([path_fact(n, "sample") for n in range(25)])
        writer.write_out()
    writer.close()
    assert len(rows(tmp_path, "path")) == 10


def test_sampling_needs_a_number_that_makes_sense(tmp_path: Path) -> None:
    writer = writer_in(tmp_path, Clock())
    with pytest.raises(MisuseError, match="sampling is unchanged"):
        writer.sample("path", 0)
    writer.close()


def test_a_kind_with_few_facts_is_sealed_later(tmp_path: Path) -> None:
    clock = Clock()
    writer = writer_in(tmp_path, clock, segment_age_ns=60 * SECOND, sparse_rows=10, sparse_factor=5)
    writer.record([NodeFact(0, "start"), *(path_fact(n, "sample") for n in range(20))])
    writer.write_out()
    clock.now = 61 * SECOND
    writer.write_out()
    assert (len(rows(tmp_path, "path")), len(rows(tmp_path, "node"))) == (20, 0)
    clock.now = 301 * SECOND
    writer.write_out()
    assert len(rows(tmp_path, "node")) == 1
    writer.close()


def test_a_node_keeps_segments_with_few_facts_open_longer(tmp_path: Path) -> None:
    """P1: nodes seal adaptively. A kind with few facts makes one file in five minutes, not ten."""
    text = f'domain = "d"\nname = "ann"\ndata = "{tmp_path}"\n[security]\nmode = "plain"\n'
    text += '[[adapter]]\nname = "lo"\naddress = "127.0.0.1:7400"\n'
    writer = open_segments(parse_config(text), NODE, 1, 0)
    assert writer is not None
    writer.close()
    bounds = writer.bounds
    assert bounds.segment_age_ns == 30 * SECOND
    assert (bounds.sparse_rows, bounds.sparse_factor) == (500, 10)


def test_the_load_of_each_adapter_becomes_a_fact_per_interval() -> None:
    meter = LoadMeter(0, 60 * SECOND)
    meter.adapter("eth0", "lan1", 10**9)
    meter.adapter("eth1", "lan2")
    meter.sent("eth0", 1500, 2)
    meter.sent("eth0", 100)
    meter.received("eth1", 700)
    meter.queued("eth0", 5000)
    meter.queued("eth0", 3000, drops=4)
    meter.sent("none", 1)
    assert meter.deadline == 60 * SECOND
    assert meter.facts(60 * SECOND) == [
        LoadFact(60 * SECOND, "eth0", "lan1", 60_000, 1600, 0, 3, 0, 5000, 4, 10**9),
        LoadFact(60 * SECOND, "eth1", "lan2", 60_000, 0, 700, 0, 1),
    ]
    assert meter.deadline == 120 * SECOND
    assert all(fact.sent_bytes == 0 for fact in meter.facts(120 * SECOND))


def test_a_meter_is_bounded() -> None:
    meter = LoadMeter(0)
    for number in range(ADAPTERS_MAX + 10):
        meter.adapter(f"a{number}", "s")
    assert len(meter.facts(SECOND)) == ADAPTERS_MAX


def test_every_kind_of_fact_is_in_the_one_list() -> None:
    kinds = [fact.kind for fact in fact_types()]
    assert len(set(kinds)) == len(kinds)
    declared = {
        cls for cls in Fact.__subclasses__() if cls.__module__ == "holdfast.telemetry.facts"
    }
    assert declared <= set(fact_types())
    assert {fact for subsystem in SUBSYSTEMS for fact in subsystem.facts} <= set(fact_types())
    assert SamplingFact in declared


def test_the_reference_of_facts_is_up_to_date() -> None:
    """`python -m holdfast.pipeline.reference` prints what belongs between the markers."""
    page = Path(__file__).parents[2] / "docs" / "reference" / "telemetry.md"
    text = page.read_text()
    _, _, rest = text.partition(BEGIN)
    generated, marker, _ = rest.partition(END)
    assert marker
    assert generated.strip() == render().strip()


def test_every_column_of_every_fact_is_explained() -> None:
    text = render()
    for fact in fact_types():
        assert f"### `{fact.kind}`" in text
    empty = [line for line in text.splitlines() if line.startswith("| `") and line.endswith("|  |")]
    assert empty == []
