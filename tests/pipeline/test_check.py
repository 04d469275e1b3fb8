"""P1, rule 6: every way in which a segment can be bad has an outcome and a reason; `check` never raises."""

from __future__ import annotations

import io
from datetime import date, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pipeline.ledgers import entry
from tests.pipeline.making import NOON, Fact, delivery, node_id, path_fact, table_of

from holdfast.pipeline.check import OUTCOMES, Verdict, check
from holdfast.pipeline.landings import Segment
from holdfast.pipeline.ledger import (
    Entry,
    append_ledger,
    compacted,
    files_set_aside,
    read_ledger,
)
from holdfast.pipeline.next_snapshot import forget_arrivals
from holdfast.pipeline.snapshot import Part
from holdfast.pipeline.storage.local import LocalStore
from holdfast.pipeline.storage.port import to_uri
from holdfast.pipeline.units import Retention
from holdfast.telemetry.facts import SCHEMA

NOW_US = int((NOON + timedelta(hours=1)).timestamp()) * 1_000_000
NAME = f"{node_id('a')}-1-000000.parquet"
FACTS = [path_fact("a", "b", n, n * 900.0) for n in range(8)]


def content_of(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    return sink.getvalue()


def judged(facts: list[Fact] | pa.Table, name: str = NAME, kind: str = "path") -> Verdict:
    table = table_of(kind, facts) if isinstance(facts, list) else facts
    return check(content_of(table), name, kind, NOW_US)


def test_a_good_segment_is_kept_with_its_hours_and_digest() -> None:
    verdict = judged(FACTS)
    assert (verdict.outcome, verdict.rows, verdict.disordered) == ("kept", 8, 0)
    assert verdict.hours == ("2026-11-15T12", "2026-11-15T13")
    assert len(verdict.digest) == 64


def changed(name: str, column: Any) -> pa.Table:
    table = table_of("path", FACTS)
    return table.set_column(table.schema.get_field_index(name), name, column)


@pytest.mark.parametrize(
    ("facts", "outcome", "reason"),
    [
        (table_of("path", FACTS).drop_columns(["size"]), "schema", "0 columns named 'size'"),
        (changed("size", pa.array(["x"] * 8)), "schema", "has type string, not int64"),
        (changed("node", pa.array([None] * 8, pa.string())), "schema", "has empty values"),
        ([path_fact("a", "b", 0, 0, schema=SCHEMA + 1)], "schema", "update the pipeline"),
        ([path_fact("a", "b", 0, 9 * 3600.0)], "future", "28800 s in the future"),
        ([path_fact("c", "b", 0, 0.0)], "foreign", "the name says node"),
        ([path_fact("a", "b", 0, 0.0, incarnation=2)], "foreign", "the name says incarnation 1"),
    ],
)
def test_a_bad_segment_has_an_outcome_and_a_reason(facts: Any, outcome: str, reason: str) -> None:
    verdict = judged(facts)
    assert verdict.outcome == outcome
    assert reason in verdict.reason


def test_a_name_that_is_no_segments_is_foreign() -> None:
    assert judged(FACTS, "holiday.parquet").outcome == "foreign"


def test_future_facts_are_examined_again_when_their_time_has_come() -> None:
    verdict = judged([path_fact("a", "b", 0, 9 * 3600.0)])
    latest_us = int((NOON + timedelta(hours=9)).timestamp()) * 1_000_000
    assert NOW_US < verdict.examine_us < latest_us
    later = check(
        content_of(table_of("path", [path_fact("a", "b", 0, 9 * 3600.0)])),
        NAME,
        "path",
        verdict.examine_us,
    )
    assert later.outcome == "kept"


def test_columns_of_later_versions_may_be_missing_and_older_ones_narrower() -> None:
    old = table_of("delivery", [delivery("a", 0, 1, 0, 1, 9, schema=1)]).drop_columns(["epoch"])
    narrow = old.set_column(old.schema.get_field_index("term"), "term", pa.array([1], pa.int32()))
    assert judged(narrow, NAME, "delivery").outcome == "kept"


def test_a_clock_that_goes_back_within_a_life_is_counted() -> None:
    facts = [path_fact("a", "b", n, at_s) for n, at_s in enumerate((0.0, 5.0, 3.0, 9.0))]
    assert judged(facts).disordered == 1


@given(st.binary(max_size=64), st.integers(0, 2_000), st.integers(0, 255))
def test_damage_anywhere_is_an_outcome(noise: bytes, at: int, value: int) -> None:
    whole = bytearray(content_of(table_of("path", FACTS[:2])))
    for content in (noise, bytes(whole[: at % len(whole)])):
        assert check(content, NAME, "path", NOW_US).outcome == "torn"
    whole[at % len(whole)] ^= value
    assert check(bytes(whole), NAME, "path", NOW_US).outcome in OUTCOMES


# -- the ledger --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "settled"),
    [
        (entry("x"), True),
        (entry("x", size=11), False),
        (entry("x", mtime_ms=6), False),
        (entry("x", "torn"), True),
        (entry("x", "schema"), True),
        (entry("x", "schema", schema=SCHEMA - 1), False),
        (entry("x", "future", examine_us=NOW_US + 1), True),
        (entry("x", "future", examine_us=NOW_US), False),
        (entry("x", "gone"), False),
    ],
)
def test_a_segment_is_examined_again_only_for_a_reason(known: Entry, settled: bool) -> None:
    """Rejected files are examined again when the pipeline's schema rises, or their time has come."""
    assert known.settles(Segment("path", "2026-11-15", "x", 10, 5), NOW_US) is settled


def test_a_file_is_set_aside_as_long_as_its_newest_entry_says_so(tmp_path: Any) -> None:
    store, root = LocalStore(), to_uri(tmp_path)
    first = [entry("x"), entry("y", "torn"), entry("z", "future"), entry("gone", "gone")]
    parts = append_ledger(store, root, "a1", {}, [*first, entry("w", "schema", day="2026-11-14")])
    parts = append_ledger(store, root, "a2", parts, [entry("z", run=2), entry("x", "torn", run=2)])
    found = files_set_aside(store, root, parts)
    assert [(one.path, one.outcome) for one in found] == [
        ("w", "schema"),
        ("x", "torn"),
        ("y", "torn"),
    ]
    assert files_set_aside(store, root, {}) == []


def test_days_all_of_whose_segments_are_used_are_not_read_to_find_others(tmp_path: Any) -> None:
    """A month of a large domain has millions of segments, and the report of each run asks for the few set aside."""
    store, root = LocalStore(), to_uri(tmp_path)
    parts = append_ledger(store, root, "a1", {}, [entry("x"), entry("g", "gone")])
    parts = append_ledger(store, root, "a2", parts, [entry("y", day="2026-11-14")])
    parts = append_ledger(store, root, "a3", parts, [entry("y", "torn", day="2026-11-14", run=2)])
    reads: list[str] = []

    class Counting(LocalStore):
        def read(self, uri: str) -> bytes:
            reads.append(uri.rpartition("/")[2])
            return super().read(uri)

    assert [one.path for one in files_set_aside(Counting(), root, parts)] == ["y"]
    assert sorted(reads) == ["2026-11-14-used.parquet", "2026-11-14.parquet"]


def test_the_ledger_forgets_days_of_which_neither_facts_nor_segments_are_left() -> None:
    days = ("2026-09-01", "2026-09-02", "2026-10-15", "2026-10-16", "2026-11-15")
    ledger = dict.fromkeys(days, Part())
    listed = ["2026-09-02", "2026-11-15"]
    kept = forget_arrivals(ledger, listed, date(2026, 11, 15), Retention(raw_days=30))
    assert sorted(kept) == ["2026-09-02", "2026-10-16", "2026-11-15"]


def test_the_ledger_keeps_the_newest_entry_of_each_file_per_arrival_day(tmp_path: Any) -> None:
    store, root = LocalStore(), to_uri(tmp_path)
    parts = append_ledger(store, root, "a1", {}, [entry("x"), entry("y", day="2026-11-14")])
    parts = append_ledger(store, root, "a2", parts, [entry("x", "torn", run=2)])
    assert sorted(parts) == ["2026-11-14", "2026-11-15"]
    assert {p: e.outcome for p, e in read_ledger(store, root, parts, ["2026-11-15"]).items()} == {
        "x": "torn"
    }
    for i in range(20):
        parts = append_ledger(store, root, f"b{i}", parts, [entry(f"z{i}", run=i)])
    smaller = compacted(store, root, "c", parts, files_max=16)
    assert len(smaller["2026-11-15"].files) == 1
    assert read_ledger(store, root, smaller, ["2026-11-15"]) == read_ledger(
        store, root, parts, ["2026-11-15"]
    )
