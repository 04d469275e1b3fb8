"""Telemetry segments: columns, numbering, sealing, bounds, and what is left after a crash or on a full disk."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import MisuseError, SetupError
from holdfast.node.subsystems import fact_types
from holdfast.recording import archive
from holdfast.recording.columns import Layout, LostFact, Origin
from holdfast.recording.frame_file import FrameFile, read_frames
from holdfast.recording.losses import Loss, Losses
from holdfast.recording.segment_writer import (
    MemorySegments,
    SegmentBounds,
    SegmentWriter,
    arrow_schema,
)
from holdfast.telemetry.facts import (
    SCHEMA,
    Fact,
    GroupFact,
    NodeFact,
    OrderFact,
    PathFact,
)
from holdfast.types import SECOND

NODE = "0123456789abcdef" * 2
DAY_NS = 24 * 3600 * SECOND
WALL_NS = 20_000 * DAY_NS
"""2024-10-04"""


class Clock:
    def __init__(self) -> None:
        self.now = 1 * SECOND

    def __call__(self) -> int:
        return self.now


class Bench:
    """A directory, a clock, and writers that only work when they are told to."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = Clock()

    def writer(
        self, incarnation: int = 1, background: bool = False, **bounds: int
    ) -> SegmentWriter:
        return SegmentWriter(
            self.directory,
            NODE,
            "n1",
            incarnation,
            WALL_NS,
            self.clock,
            SegmentBounds(**bounds),
            background,
        )

    def sealed(self, kind: str = "*") -> list[Path]:
        return sorted(self.directory.glob(f"landing/{kind}/day=*/*"))

    def rows(self, kind: str) -> list[dict[str, Any]]:
        """All sealed rows of a kind, in the order of the files."""
        return [row for path in self.sealed(kind) for row in read(path).to_pylist()]

    def numbers(self, kind: str) -> list[int]:
        return [row["n"] for row in self.rows(kind)]

    def lost(self) -> list[tuple[str, int, int, int]]:
        rows = self.rows("lost")
        return [(r["lost_kind"], r["lost_incarnation"], r["first"], r["last"]) for r in rows]

    def frames(self) -> list[Path]:
        return sorted(self.directory.glob("open/*.frames"))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "telemetry")


def read(path: Path) -> pa.Table:
    return pq.ParquetFile(path).read()


def node_facts(first: int, count: int) -> list[Fact]:
    return [NodeFact(n, "start", f"fact {n}") for n in range(first, first + count)]


def noisy_facts(first: int, count: int, size: int) -> list[Fact]:
    """Facts that take at least `size` bytes each, also compressed."""
    chance = Random(first)
    return [NodeFact(n, "start", chance.randbytes(size).hex()) for n in range(first, first + count)]


def no_room(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# -- columns -----------------------------------------------------------------------------------------------------


def test_the_columns_of_a_kind_are_the_common_ones_and_then_its_own() -> None:
    assert arrow_schema("order") == pa.schema(
        [
            ("schema", pa.int32()),
            ("node", pa.string()),
            ("name", pa.string()),
            ("incarnation", pa.int64()),
            ("n", pa.int64()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("now_ns", pa.int64()),
            ("group", pa.string()),
            ("term", pa.int64()),
            ("index", pa.int64()),
            ("entry", pa.string()),
            ("position", pa.int64()),
            ("stream", pa.string()),
            ("first", pa.int64()),
            ("last", pa.int64()),
            ("epoch", pa.int64()),
        ]
    )
    assert arrow_schema("path").field("alive").type == pa.bool_()
    assert arrow_schema("lost").names[6:] == [
        "now_ns",
        "lost_kind",
        "first",
        "last",
        "reason",
        "lost_incarnation",
    ]


@pytest.mark.parametrize("kind", [*(fact.kind for fact in fact_types()), LostFact.kind])
def test_every_kind_has_a_schema(kind: str) -> None:
    assert arrow_schema(kind).names[:7] == [
        "schema",
        "node",
        "name",
        "incarnation",
        "n",
        "at",
        "now_ns",
    ]


def test_an_unknown_kind_is_refused_with_the_known_ones() -> None:
    with pytest.raises(MisuseError, match="node, link, path"):
        arrow_schema("pathh")


def test_facts_come_back_as_they_were_recorded(bench: Bench) -> None:
    fact = PathFact(
        3_000_000_999,
        "sample",
        "ab",
        "n2",
        "eth0",
        "eth1",
        "red",
        "udp",
        True,
        1400,
        9000,
        7,
        120,
        9,
        10,
    )
    writer = bench.writer(incarnation=4)
    writer.record([fact])
    writer.close()
    (path,) = bench.sealed("path")
    table = read(path)
    assert table.schema.equals(arrow_schema("path"))
    (row,) = table.to_pylist()
    at = row.pop("at")
    assert (at.isoformat(), at.microsecond) == ("2024-10-04T00:00:03+00:00", 0)
    common = {"schema": SCHEMA, "node": NODE, "name": "n1", "incarnation": 4, "n": 0}
    fields = {name: getattr(fact, name) for name in fact.__struct_fields__}
    assert row == common | fields


def test_a_kind_that_is_not_listed_lands_too(bench: Bench) -> None:
    class TideFact(Fact, frozen=True, gc=False):
        kind: ClassVar[str] = "tide"
        metres: int

    writer = bench.writer()
    writer.record([TideFact(1, 2), TideFact(2, 3)])
    writer.close()
    assert [(r["n"], r["metres"]) for r in bench.rows("tide")] == [(0, 2), (1, 3)]
    assert writer.lost == 0


# -- numbering and layout ----------------------------------------------------------------------------------------


def test_facts_are_numbered_per_kind_across_segments(bench: Bench) -> None:
    writer = bench.writer(segment_rows=4)
    for first in range(0, 12, 2):
        group = GroupFact(first, "g", "leads", 1, 1)
        writer.record([*node_facts(first, 2), group])
        writer.write_out()
    writer.close()
    assert len(bench.sealed("node")) == 3
    assert bench.numbers("node") == list(range(12))
    assert [row["detail"] for row in bench.rows("node")] == [f"fact {n}" for n in range(12)]
    assert bench.numbers("group") == list(range(6))
    assert (writer.facts, writer.lost) == (18, 0)


def test_segments_lie_under_kind_and_sealing_day(bench: Bench) -> None:
    bench.clock.now = DAY_NS - 1
    writer = bench.writer(incarnation=7)
    writer.record(node_facts(0, 1))
    writer.write_out()
    bench.clock.now = DAY_NS
    writer.close()
    assert [str(path.relative_to(bench.directory)) for path in bench.sealed()] == [
        f"landing/node/day=2024-10-05/{NODE}-7-000001.parquet"
    ]
    assert bench.frames() == []


def test_a_writer_with_nothing_to_say_leaves_no_files(bench: Bench) -> None:
    writer = bench.writer()
    writer.record([])
    writer.write_out()
    writer.close()
    assert [path for path in bench.directory.rglob("*") if path.is_file()] == []


# -- when a segment is sealed ------------------------------------------------------------------------------------


def test_a_segment_is_sealed_when_it_is_long_enough(bench: Bench) -> None:
    writer = bench.writer(segment_rows=10)
    writer.record(node_facts(0, 9))
    writer.write_out()
    assert bench.sealed() == []
    writer.record(node_facts(9, 1))
    writer.write_out()
    assert bench.numbers("node") == list(range(10))
    assert bench.frames() == []


def test_a_segment_is_sealed_when_it_is_large_enough(bench: Bench) -> None:
    writer = bench.writer(segment_bytes=20_000)
    writer.record([NodeFact(0, "start", "x" * 10_000)])
    writer.write_out()
    assert bench.sealed() == []
    writer.record([NodeFact(1, "start", "x" * 10_000)])
    writer.write_out()
    assert bench.numbers("node") == [0, 1]


def test_a_segment_is_sealed_when_it_is_old_enough(bench: Bench) -> None:
    writer = bench.writer(segment_age_ns=60 * SECOND)
    writer.record(node_facts(0, 1))
    writer.write_out()
    bench.clock.now += 60 * SECOND - 1
    writer.write_out()
    assert bench.sealed() == []
    bench.clock.now += 1
    writer.write_out()
    assert bench.numbers("node") == [0]


def test_a_long_batch_is_cut_into_several_frames(bench: Bench) -> None:
    count = 2 * archive.FRAME_ROWS + 5
    writer = bench.writer()
    writer.record(node_facts(0, count))
    writer.write_out()
    (path,) = bench.frames()
    assert [batch.num_rows for batch in read_frames(path).batches] == [1024, 1024, 5]
    writer.close()
    assert bench.numbers("node") == list(range(count))


def test_close_seals_everything_and_may_be_called_again(bench: Bench) -> None:
    writer = bench.writer()
    writer.record(node_facts(0, 3))
    writer.close()
    writer.close()
    assert bench.numbers("node") == [0, 1, 2]


def test_the_thread_writes_by_itself_and_close_waits_for_it(bench: Bench) -> None:
    writer = bench.writer(background=True, buffer_rows=200_000, segment_rows=5000)
    for first in range(0, 50_000, 10):
        writer.record(node_facts(first, 10))
    writer.close()
    assert bench.numbers("node") == list(range(50_000))
    assert writer.lost == 0
    assert writer.problem == ""


# -- what does not fit -------------------------------------------------------------------------------------------


def test_a_full_buffer_drops_the_newest_facts_and_says_which(bench: Bench) -> None:
    writer = bench.writer(buffer_rows=5)
    writer.record(node_facts(0, 3))
    writer.record(node_facts(3, 4))
    writer.record([GroupFact(0, "g", "leads", 1, 1)])
    writer.write_out()
    writer.record(node_facts(7, 2))
    writer.close()
    assert bench.numbers("node") == [0, 1, 2, 3, 4, 7, 8]
    assert [row["detail"] for row in bench.rows("node")][-1] == "fact 8"
    assert sorted(bench.lost()) == [("group", 1, 0, 0), ("node", 1, 5, 6)]
    assert {row["reason"] for row in bench.rows("lost")} == {"buffer full"}
    assert len(bench.rows("sampling")) == 1, "samples of paths are left out from now on"
    assert (writer.facts, writer.lost) == (11, 3)


def test_a_fact_that_cannot_be_written_is_lost_alone(bench: Bench) -> None:
    bad = [NodeFact(5, 5), NodeFact(1 << 70, "start"), NodeFact(7, "\ud800")]  # type: ignore[arg-type]
    writer = bench.writer()
    writer.record([*node_facts(0, 5), *bad, *node_facts(8, 4)])
    writer.close()
    assert bench.numbers("node") == [0, 1, 2, 3, 4, 8, 9, 10, 11]
    assert [first for _, _, first, _ in bench.lost()] == [5, 6, 7]
    assert writer.problem == ""


def test_what_is_no_fact_at_all_is_counted_and_stops_nothing(bench: Bench) -> None:
    class Odd(Fact, frozen=True, gc=False):
        kind: ClassVar[str] = "../escape"
        at: int

    class Strange(Fact, frozen=True, gc=False):
        kind: ClassVar[str] = "strange"
        when: list[int]

    class Twin(Fact, frozen=True, gc=False):
        kind: ClassVar[str] = "node"
        other: int

    writer = bench.writer()
    odd: list[Any] = ["text", Odd(1, 2), Strange(1, []), Twin(1, 2)]
    writer.record([*odd, *node_facts(0, 1)])
    writer.close()
    assert bench.numbers("node") == [0]
    lost = {kind for kind, *_ in bench.lost()}
    assert lost == {"str", "../escape", "strange", "node"}
    assert writer.lost == 4


def test_losses_that_follow_each_other_are_one_row(bench: Bench) -> None:
    writer = bench.writer(buffer_rows=1)
    writer.record(node_facts(0, 1))
    for first in range(1, 9):
        writer.record(node_facts(first, 1))
    writer.close()
    assert bench.lost() == [("node", 1, 1, 8)]


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 5), st.booleans()), max_size=60))
def test_losses_never_claim_too_little_and_never_pile_up(
    steps: list[tuple[str, int, bool]],
) -> None:
    losses = Losses(bound=5)
    places = {"a": 0, "b": 0}
    truth: dict[str, set[int]] = {"a": set(), "b": set()}
    for kind, count, lost in steps:
        first, places[kind] = places[kind], places[kind] + count
        if lost:
            losses.add(kind, 1, first, first + count - 1, f"reason {count % 2}")
            truth[kind] |= set(range(first, first + count))
    assert losses.facts == sum(map(len, truth.values()))
    waiting = losses.take()
    assert len(waiting) <= 6
    for kind, numbers in truth.items():
        mine = [loss for loss in waiting if loss.kind == kind]
        claimed = [n for loss in mine for n in range(loss.first, loss.last + 1)]
        assert numbers <= set(claimed)
        assert len(claimed) == len(set(claimed))
        if len(waiting) < 5:
            assert set(claimed) == numbers


def test_a_loss_of_unknown_length_stays_unknown() -> None:
    losses = Losses(bound=1)
    losses.add("a", 1, 5, -1, "torn")
    losses.add("a", 1, 9, 9, "full")
    assert losses.take() == [Loss("a", 1, 5, -1, "several reasons")]
    assert losses.facts == 1


# -- a full disk -------------------------------------------------------------------------------------------------


def test_a_full_disk_loses_facts_and_says_so_when_there_is_room_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = bench.writer()
    writer.record(node_facts(0, 2))
    writer.write_out()
    with monkeypatch.context() as patch:
        patch.setattr("holdfast.recording.frame_file.os.pwrite", no_room)
        for first in (2, 4):
            writer.record(node_facts(first, 2))
            writer.write_out()
        assert "No space" in writer.problem
    writer.record(node_facts(6, 1))
    writer.close()
    assert bench.numbers("node") == [0, 1, 6]
    assert bench.lost() == [("node", 1, 2, 5)]
    assert bench.rows("lost")[0]["reason"] == "disk: No space left on device"
    assert writer.lost == 4


def test_half_a_frame_that_the_disk_took_is_cut_off_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite
    taken = 0

    def half(handle: int, data: memoryview, at: int) -> int:
        nonlocal taken
        taken += 1
        return real(handle, data[: len(data) // 2], at) if taken == 1 else no_room()

    writer = bench.writer()
    writer.record(node_facts(0, 2))
    writer.write_out()
    (path,) = bench.frames()
    size = path.stat().st_size
    with monkeypatch.context() as patch:
        patch.setattr("holdfast.recording.frame_file.os.pwrite", half)
        writer.record(node_facts(2, 2))
        writer.write_out()
    assert path.stat().st_size == size
    writer.record(node_facts(4, 2))
    writer.close()
    assert bench.numbers("node") == [0, 1, 4, 5]


def test_a_segment_that_cannot_be_sealed_now_is_sealed_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = bench.writer(segment_age_ns=10 * SECOND)
    writer.record(node_facts(0, 3))
    writer.write_out()
    bench.clock.now += 10 * SECOND
    with monkeypatch.context() as patch:
        patch.setattr("holdfast.recording.landing.os.fsync", no_room)
        writer.write_out()
    assert bench.sealed() == []
    assert list(bench.directory.glob("**/*.tmp")) == []
    writer.record(node_facts(3, 1))
    writer.write_out()
    assert bench.sealed() == []
    bench.clock.now += 10 * SECOND
    writer.write_out()
    assert bench.numbers("node") == [0, 1, 2, 3]
    assert writer.lost == 0


def test_what_close_cannot_seal_is_sealed_at_the_next_start(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = bench.writer()
    writer.record(node_facts(0, 3))
    with monkeypatch.context() as patch:
        patch.setattr("holdfast.recording.landing.os.fsync", no_room)
        writer.close()
    assert bench.sealed() == []
    bench.writer(incarnation=2).close()
    assert bench.numbers("node") == [0, 1, 2]
    assert bench.lost() == []


def test_a_directory_that_is_removed_under_a_running_node_is_made_again(bench: Bench) -> None:
    writer = bench.writer()
    bench.directory.rmdir()
    writer.record(node_facts(0, 1))
    writer.close()
    assert bench.numbers("node") == [0]


def test_a_directory_that_cannot_be_made_is_named_before_the_node_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SetupError, match="nothing was started"):
        Bench(tmp_path / "file" / "telemetry").writer()


def test_bounds_are_above_zero() -> None:
    with pytest.raises(MisuseError, match="segment_rows"):
        SegmentBounds(segment_rows=0)


@pytest.mark.root
def test_a_disk_that_is_really_full_stops_nothing(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small file system")
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(tmp_path)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount a small file system: {done.stderr.strip()}")
    try:
        bench = Bench(tmp_path)
        writer = bench.writer()
        (tmp_path / "ballast").write_bytes(bytes(200_000))
        for first in range(0, 100_000, 1000):
            writer.record(node_facts(first, 1000))
            writer.write_out()
        (tmp_path / "ballast").unlink()
        writer.close()
        kept = bench.numbers("node")
        lost = [n for kind, _, first, last in bench.lost() for n in range(first, last + 1)]
        assert kept
        assert len(lost) > 50_000
        assert sorted(kept + lost) == list(range(100_000))
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


# -- the bound on disk -------------------------------------------------------------------------------------------


def test_the_oldest_segments_are_removed_above_the_bound_and_that_is_recorded(bench: Bench) -> None:
    writer = bench.writer(max_bytes=20_000, segment_rows=10)
    for first in range(0, 200, 10):
        writer.record(node_facts(first, 10))
        writer.write_out()
        assert used(bench) <= 20_000 + 5_000
    writer.close()
    kept = bench.numbers("node")
    assert kept == list(range(kept[0], 200))
    assert kept[0] > 0
    removed = sorted(loss for loss in bench.lost() if loss[0] == "node")
    gone = {n for _, _, first, last in removed for n in range(first, last + 1)}
    # The oldest rows of `lost` may be gone too; what is left names only facts that are really not there.
    assert gone
    assert max(gone) == kept[0] - 1
    assert "more than 20000 bytes" in bench.rows("lost")[-1]["reason"]


def used(bench: Bench) -> int:
    return sum(path.stat().st_size for path in bench.directory.rglob("*") if path.is_file())


def test_open_segments_are_sealed_early_when_they_take_half_of_the_bound(bench: Bench) -> None:
    writer = bench.writer(max_bytes=50_000)
    writer.record([NodeFact(0, "start", "x" * 20_000)])
    writer.write_out()
    assert bench.sealed() == []
    writer.record([NodeFact(1, "start", "x" * 20_000)])
    writer.write_out()
    assert bench.numbers("node") == [0, 1]


def test_what_can_never_be_sealed_goes_when_the_bound_is_reached(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.recording.landing.os.fsync", no_room)
    writer = bench.writer(max_bytes=50_000, segment_rows=1)
    for n in range(10):
        writer.record([NodeFact(n, "start", "x" * 9_000)])
        writer.write_out()
        assert used(bench) <= 50_000 + 2_000
    monkeypatch.undo()
    writer.close()
    kept = bench.numbers("node")
    assert kept == list(range(kept[0], 10))
    assert kept[0] > 0
    assert ("node", 1, 0, 0) in bench.lost()


def test_segments_of_earlier_lives_count_and_go_first(bench: Bench) -> None:
    facts = noisy_facts(0, 10, size=500)
    for incarnation in (1, 2):
        writer = bench.writer(incarnation)
        writer.record(facts)
        writer.close()
    writer = bench.writer(incarnation=3, max_bytes=used(bench) * 5 // 4)
    writer.record(facts)
    writer.close()
    assert sorted({row["incarnation"] for row in bench.rows("node")}) == [2, 3]
    assert ("node", 1, 0, 9) in bench.lost()


def test_other_nodes_files_and_files_that_are_gone_are_left_alone(bench: Bench) -> None:
    other = MemorySegments("f" * 32, "n2", 1, WALL_NS)
    other.record(node_facts(0, 10))
    (theirs,) = other.write(bench.directory)
    stray = bench.directory / "open" / f"node-{'f' * 32}-1-000009.frames"
    stray.parent.mkdir()
    stray.write_bytes(b"somebody is writing this")
    writer = bench.writer(max_bytes=100, segment_rows=5)
    writer.record(node_facts(0, 5))
    writer.write_out()
    writer.close()
    assert theirs.exists()
    assert stray.exists()


def test_a_segment_that_another_program_removed_is_not_reported_as_lost(bench: Bench) -> None:
    writer = bench.writer(max_bytes=60_000, segment_rows=5)
    for first in range(0, 25, 5):
        writer.record(noisy_facts(first, 5, size=2000))
        writer.write_out()
        if first == 0:
            bench.sealed("node")[0].unlink()
    writer.close()
    lost = [(first, last) for kind, _, first, last in bench.lost() if kind == "node"]
    assert min(lost) == (5, 9)


# -- after a crash -----------------------------------------------------------------------------------------------


def crashed(bench: Bench, batches: int = 3) -> Path:
    """Open frames of a node that was killed: `batches` frames of two facts each."""
    writer = bench.writer(incarnation=1)
    for n in range(batches):
        writer.record(node_facts(2 * n, 2))
        writer.write_out()
    (path,) = bench.frames()
    return path


def test_frames_of_a_killed_node_are_sealed_at_the_next_start(bench: Bench) -> None:
    crashed(bench)
    writer = bench.writer(incarnation=2)
    writer.record(node_facts(0, 1))
    writer.close()
    rows = [(row["incarnation"], row["n"]) for row in bench.rows("node")]
    assert rows == [(1, 0), (1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (2, 0)]
    assert bench.lost() == []
    assert bench.frames() == []


def test_facts_of_an_earlier_life_keep_its_wall_clock(bench: Bench) -> None:
    crashed(bench)
    before = SegmentWriter(bench.directory, NODE, "n1", 2, WALL_NS + DAY_NS, bench.clock)
    before.close()
    row = bench.rows("node")[0]
    assert row["at"].isoformat() == "2024-10-04T00:00:00+00:00"
    assert "day=2024-10-05" in str(bench.sealed("node")[0])


@pytest.mark.parametrize("torn", ["cut", "zeros", "noise"])
def test_a_torn_tail_is_cut_off_and_recorded(bench: Bench, torn: str) -> None:
    path = crashed(bench)
    data = path.read_bytes()
    tail = {"cut": b"", "zeros": bytes(4096), "noise": b"\x07" * 100}[torn]
    path.write_bytes(data[:-5] if torn == "cut" else data + tail)
    bench.writer(incarnation=2).close()
    good = 4 if torn == "cut" else 6
    assert bench.numbers("node") == list(range(good))
    assert bench.lost() == [("node", 1, good, -1)]
    assert "torn" in bench.rows("lost")[0]["reason"]
    assert bench.rows("lost")[0]["incarnation"] == 2


def test_a_damaged_frame_in_the_middle_costs_only_itself(bench: Bench) -> None:
    path = crashed(bench)
    starts = frame_starts(path)
    data = bytearray(path.read_bytes())
    data[starts[2] + 50] ^= 1
    path.write_bytes(data)
    bench.writer(incarnation=2).close()
    assert bench.numbers("node") == [0, 1, 4, 5]
    assert bench.lost() == [("node", 1, 2, 3)]


def test_a_file_without_a_readable_start_is_given_up_and_recorded(bench: Bench) -> None:
    path = crashed(bench)
    path.write_bytes(path.read_bytes()[:20])
    bench.writer(incarnation=2).close()
    assert bench.sealed("node") == []
    assert bench.lost() == [("node", 1, 0, -1)]
    assert bench.frames() == []


def test_frames_that_were_sealed_before_the_crash_are_not_sealed_twice(bench: Bench) -> None:
    path = crashed(bench)
    data = path.read_bytes()
    bench.writer(incarnation=2).close()
    path.write_bytes(data)
    bench.clock.now += DAY_NS
    bench.writer(incarnation=3).close()
    assert bench.numbers("node") == list(range(6))
    assert bench.frames() == []


def test_half_written_parquet_files_are_cleared_away(bench: Bench) -> None:
    path = crashed(bench)
    half = path.with_suffix(".tmp")
    half.write_bytes(b"PAR1")
    bench.writer(incarnation=2).close()
    assert not half.exists()
    assert bench.numbers("node") == list(range(6))


def test_a_life_that_is_lived_twice_does_not_overwrite_its_segments(bench: Bench) -> None:
    for _ in range(2):
        writer = bench.writer(incarnation=1)
        writer.record(node_facts(0, 2))
        writer.close()
    assert len(bench.sealed("node")) == 2


def frame_starts(path: Path) -> list[int]:
    """Where each frame begins, and where the last one ends."""
    data, starts = path.read_bytes(), [0]
    while starts[-1] < len(data):
        length = int.from_bytes(data[starts[-1] : starts[-1] + 4], "little")
        starts.append(starts[-1] + 8 + length)
    return starts


@settings(derandomize=True, deadline=None, max_examples=150)
@given(data=st.data())
def test_whatever_happens_to_a_file_only_whole_frames_are_read(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("frames") / "f.frames"
    layout = Layout(OrderFact)
    file = FrameFile(path, layout.schema, Origin(NODE, "n1", 1, 0, first=10))
    for n in range(4):
        fact = OrderFact(n, "g", 1, n, "range", n, "s", n, n)
        file.append(layout.encode(10 + 2 * n, [fact, fact]))
    file.close()
    whole, starts = path.read_bytes(), frame_starts(path)
    expected = read_frames(path)
    assert not expected.holes

    cut = data.draw(st.integers(0, len(whole)), label="cut")
    path.write_bytes(whole[:cut])
    contents = read_frames(path)
    intact = sum(stop <= cut for stop in starts[2:])
    assert contents.batches == expected.batches[:intact]
    assert bool(contents.holes) == (cut not in starts[1:])

    flipped = bytearray(whole)
    at = data.draw(st.integers(0, len(whole) - 1), label="flipped byte")
    flipped[at] ^= data.draw(st.integers(1, 255), label="bits")
    path.write_bytes(flipped)
    contents = read_frames(path)
    before = max(0, sum(stop <= at for stop in starts[1:]) - 1)
    assert contents.batches[:before] == expected.batches[:before]
    assert all(batch in expected.batches for batch in contents.batches)
    assert contents.holes


KILLED = """
import sys
from pathlib import Path
from holdfast.recording.segment_writer import SegmentWriter
from holdfast.telemetry.facts import NodeFact

writer = SegmentWriter(Path(sys.argv[1]), sys.argv[2], "n1", 1, 0, lambda: 0)
for n in range(1_000_000):
    writer.record([NodeFact(n, "start", f"fact {n}")])
    if n % 100 == 99:
        writer.write_out()
        print(n, flush=True)
"""


def test_a_killed_process_keeps_everything_that_was_written_out(bench: Bench) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(bench.directory), NODE],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for _ in range(30):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    said = [int(line) for line in process.stdout.read().split("\n")[:-1] if line]
    process.wait()
    process.stdout.close()
    bench.writer(incarnation=2).close()
    numbers = bench.numbers("node")
    assert numbers == list(range(len(numbers)))
    assert numbers[-1] >= max(said, default=2999)


# -- the simulator's ---------------------------------------------------------------------------------------------


def sample() -> list[Fact]:
    return [
        fact
        for n in range(5000)
        for fact in (NodeFact(n, "start"), GroupFact(n, "g", "gap", n, n, "detail"))
    ]


def test_memory_segments_have_the_same_layout_and_rows(bench: Bench, tmp_path: Path) -> None:
    writer = bench.writer()
    memory = MemorySegments(NODE, "n1", 1, WALL_NS)
    for fact in sample():
        writer.record([fact])
        memory.record([fact])
    writer.close()
    paths = memory.write(tmp_path / "sim")
    assert sorted(str(path.relative_to(tmp_path / "sim")) for path in paths) == [
        str(path.relative_to(bench.directory)) for path in bench.sealed()
    ]
    for kind in ("node", "group"):
        (mine,) = [path for path in paths if f"landing/{kind}/day=" in str(path)]
        (theirs,) = bench.sealed(kind)
        assert read(mine).equals(read(theirs))
    assert (memory.facts, memory.lost) == (10_000, 0)


def test_memory_segments_are_the_same_to_the_byte_every_time(tmp_path: Path) -> None:
    outputs = []
    for run in ("one", "two"):
        memory = MemorySegments(NODE, "n1", 1, WALL_NS)
        memory.record(sample())
        outputs.append([path.read_bytes() for path in memory.write(tmp_path / run)])
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) == 2


def test_memory_segments_are_bounded_and_say_what_they_dropped(tmp_path: Path) -> None:
    memory = MemorySegments(NODE, "n1", 1, WALL_NS, rows_max=10)
    memory.record(node_facts(0, 8))
    memory.record(node_facts(8, 8))
    memory.record(node_facts(16, 4))
    assert memory.lost == 10
    bench = Bench(tmp_path)
    memory.write(tmp_path)
    assert bench.numbers("node") == list(range(10))
    assert bench.lost() == [("node", 1, 10, 19)]


def test_memory_segments_can_be_written_several_times(tmp_path: Path) -> None:
    memory = MemorySegments(NODE, "n1", 1, WALL_NS)
    for first in (0, 5):
        memory.record(node_facts(first, 5))
        memory.write(tmp_path)
    assert memory.write(tmp_path) == []
    bench = Bench(tmp_path)
    assert len(bench.sealed("node")) == 2
    assert bench.numbers("node") == list(range(10))
