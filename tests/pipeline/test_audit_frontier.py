"""Rule 17: a run goes on from the frontier of the one before, and finds the same as one that compares everything."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.pipeline.making import NOON, SECOND, write_segment
from tests.pipeline.traces import Entry, Trace, log

from holdfast.pipeline.frontier import EVERYTHING
from holdfast.pipeline.jobs import Settings, run_pipeline
from holdfast.pipeline.reader import open_tables
from holdfast.pipeline.transforms import audit_frontier as transform
from holdfast.pipeline.units import Retention
from holdfast.pipeline.work import Attempt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

HOUR_S = 3600.0
FIRST_H = -50
"""Traces begin this many hours before noon, and end at noon."""
VIEWS = (
    *("deliveries", "delivery_audit", "audit_ranges", "delivery_violations", "audit_frontier"),
)
SETTINGS = Settings(
    report=False, models_every_s=0, look_back_days=2, retention=Retention(open_days=1, late_days=3)
)


def sparse(entries: int) -> list[Entry]:
    """A log of four entries per block."""
    return [{**e, "index": 1024 * i + 2} for i, e in enumerate(log(entries))]


def wrong(entries: list[Entry], *places: int) -> list[Entry]:
    return [
        {**entry, "content": "something else"} if i in places else entry
        for i, entry in enumerate(entries)
    ]


def digest_before(entries: Sequence[Entry]) -> int:
    bodies = (f"{entry['content']}@{entry['position']}".encode() for entry in entries)
    return sum(map(zlib.crc32, bodies)) & 0xFFFFFFFF


def busy() -> Trace:
    """Two entries an hour. Replica c is wrong below, at and above the frontiers, d in what arrives late."""
    trace, entries = Trace("busy"), sparse(100)
    for replica in "abc":
        told = wrong(entries, 9, 35, 59, 95) if replica == "c" else entries
        trace.deliver(replica, told, start_s=FIRST_H * HOUR_S, every_s=HOUR_S / 2)
    trace.deliver(
        "d", wrong(entries, 63)[60:68], start_s=(FIRST_H + 30) * HOUR_S, every_s=HOUR_S / 2,
        digest=digest_before(entries[:60]),
    )  # fmt: skip
    return trace


def calm() -> Trace:
    """An entry every 20 hours: one block for all of them."""
    trace = Trace("calm")
    for replica in "ab":
        trace.deliver(replica, log(3), start_s=FIRST_H * HOUR_S, every_s=20 * HOUR_S)
    return trace


def undone() -> Trace:
    """Replica b delivers an entry early that is decided otherwise; that it rolled back is known much later."""
    trace, entries = Trace("undone"), sparse(40)
    start_s = (FIRST_H + 27) * HOUR_S
    trace.deliver("a", entries, start_s=start_s, every_s=HOUR_S / 2)
    early = {**entries[20], "content": "early"}
    trace.deliver("b", [*entries[:20], early], start_s=start_s, every_s=HOUR_S / 2)
    trace.event("b", "rolled_back", start_s + 13 * HOUR_S, rollback_index=entries[20]["index"])
    trace.deliver(
        "b", entries[20:], start_s=start_s + 13 * HOUR_S + 60, every_s=600.0,
        digest=digest_before(entries[:20]),
    )  # fmt: skip
    return trace


def write(landing: Path, number: int) -> None:
    """The facts of an arrival; one segment per hour."""
    wanted = ARRIVALS[number]
    for trace in (busy(), calm(), undone()):
        for name, kinds in trace.facts.items():
            for kind, facts in kinds.items():
                hours: dict[int, list[dict[str, object]]] = {}
                for fact in facts:
                    hour = int(fact["now_ns"] // (3600 * SECOND)) - FIRST_H
                    if wanted(name, hour):
                        hours.setdefault(hour, []).append(fact)
                for hour, mine in hours.items():
                    write_segment(landing, kind, mine, seq=1000 * number + hour)


ARRIVALS: tuple[Callable[[str, int], bool], ...] = (
    lambda name, hour: name != "busy d" and hour < 29,
    lambda name, hour: name != "busy d" and 29 <= hour < 40,
    lambda name, hour: name == "busy d",
    lambda name, hour: name != "busy d" and hour >= 40,
)
FOUND = (
    {("busy", 9), ("busy", 35)},
    # The first one is older than the look-back now.
    {("busy", 35), ("busy", 59), ("undone", 20)},
    {("busy", 35), ("busy", 59), ("busy", 63), ("undone", 20)},
    # The early delivery was rolled back.
    {("busy", 35), ("busy", 59), ("busy", 63), ("busy", 95)},
)
OVER = "2026-11-14T09"
"""All blocks of this hour are over, and nothing late tells of it: only the first run reads it."""


def tables_of(out: Path) -> dict[str, list[str]]:
    tables = open_tables(out)
    return {name: sorted(map(str, tables.read(name).to_pylist())) for name in VIEWS}


class Found(msgspec.Struct):
    """What a run left, and which hours of block digests it read besides those of the whole look-back."""

    tables: dict[str, list[str]]
    agreement: set[tuple[str, int]]
    read: list[tuple[str, str]]


@pytest.fixture(scope="module")
def piecewise(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    """A run after each arrival."""
    root = tmp_path_factory.mktemp("piecewise")
    runs: list[Found] = []
    blocks_of = Attempt.hours

    def noted(work: Attempt, name: str, spans: Sequence[tuple[str, str]]) -> DataFrame:
        runs[-1].read.extend(spans)
        return blocks_of(work, name, spans)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Attempt, "hours", noted)
        for number in range(len(ARRIVALS)):
            runs.append(Found({}, set(), []))
            write(root / "landing", number)
            run(spark, root / "landing", root / "out")
            runs[-1].tables = tables_of(root / "out")
            rows = open_tables(root / "out").rows("delivery_violations")
            runs[-1].agreement = {
                (row["group"], (row["index"] - 2) // 1024)
                for row in rows
                if row["claim"] == "agreement"
            }
    return runs


def run(spark: SparkSession, landing: Path, out: Path) -> None:
    run_pipeline(landing, out, SETTINGS, session=spark, now=NOON + timedelta(hours=1))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(ARRIVALS)))
def test_violations_below_at_and_above_the_frontier_are_found(
    piecewise: list[Found], number: int
) -> None:
    """Also those in late facts, until they are older than the look-back."""
    assert piecewise[number].agreement == FOUND[number]


@pytest.mark.slow
def test_blocks_that_are_over_are_read_once(piecewise: list[Found]) -> None:
    assert not piecewise[0].read
    for found in piecewise[1:]:
        assert found.read
        assert not any(first <= OVER <= last for first, last in found.read)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, len(ARRIVALS)))
def test_a_run_from_the_frontier_equals_one_over_everything(
    piecewise: list[Found], number: int, tmp_path: Path, spark: SparkSession
) -> None:
    for arrival in range(number + 1):
        write(tmp_path / "landing", arrival)
    run(spark, tmp_path / "landing", tmp_path / "out")
    ours, theirs = piecewise[number].tables, tables_of(tmp_path / "out")
    for name in VIEWS:
        assert ours[name] == theirs[name], name


@pytest.mark.slow
def test_a_run_that_cannot_compare_all_blocks_that_differ_leaves_no_frontier(
    piecewise: list[Found], tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run compares everything."""
    write(tmp_path / "landing", 0)
    with monkeypatch.context() as patched:
        patched.setattr(transform, "DESCEND_MAX", 1)
        run(spark, tmp_path / "landing", tmp_path / "out")
    tables = open_tables(tmp_path / "out")
    assert tables.rows("audit_frontier") == []
    unread = [row for row in tables.rows("audit_ranges") if "too many" in row["why"]]
    assert [(row["first_index"] - 2) // 4096 for row in unread] == [8]
    write(tmp_path / "landing", 1)
    run(spark, tmp_path / "landing", tmp_path / "out")
    assert tables_of(tmp_path / "out") == piecewise[1].tables


def test_a_fact_number_with_two_contents_makes_a_run_compare_everything(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fact that goes may be in an hour of which no new segment tells."""
    found: list[set[str]] = []
    since_of = Attempt.changed_since

    def noted(work: Attempt, view: str) -> str:
        since = since_of(work, view)
        found[-1].add(since)
        return since

    monkeypatch.setattr(Attempt, "changed_since", noted)
    facts = [fact for kinds in calm().facts.values() for fact in kinds["delivery"] if fact["n"] < 2]
    contradicted = facts[1] | {"digest": 1}
    for seq, segment in enumerate((facts[:2], [contradicted], facts[2:])):
        write_segment(tmp_path / "landing", "delivery", segment, seq=seq)
        found.append(set())
        run(spark, tmp_path / "landing", tmp_path / "out")
    assert found == [{EVERYTHING}, {EVERYTHING}, {"2026-11-13T10"}]
