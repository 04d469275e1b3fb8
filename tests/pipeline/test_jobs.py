"""P1: a run is incremental, idempotent, and no damaged, late or vanishing segment stops it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.pipeline.making import NOON, SECOND, TODAY, path_fact, write_segment
from tests.pipeline.scenario import write_domain

from holdfast.errors import MisuseError
from holdfast.pipeline import jobs
from holdfast.pipeline.jobs import PipelineFailed, RunReport, Step, run_pipeline
from holdfast.pipeline.reader import read_manifest, read_table
from holdfast.pipeline.tables import TABLES
from holdfast.stores.segments import SegmentWriter
from holdfast.telemetry.facts import DeliveryFact, PathFact

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Run = Callable[..., RunReport]


@pytest.fixture(scope="module")
def run(spark: SparkSession) -> Run:
    return partial(run_pipeline, session=spark, today=TODAY)


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that passes with this has started no Spark and built no table."""

    def refuse(*_: Any) -> None:
        raise AssertionError("no table should be built")

    monkeypatch.setattr(jobs, "_stage_tables", refuse)


@pytest.fixture(scope="module")
def domain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The telemetry of a small domain with one torn segment, and `out`, where one run has been."""
    root = tmp_path_factory.mktemp("domain")
    write_domain(root / "landing")
    (root / "landing" / "path" / "day=2026-11-15" / "torn-1-000000.parquet").write_bytes(b"PAR1")
    return root


@pytest.fixture(scope="module")
def first(domain: Path, run: Run) -> tuple[RunReport, list[Step]]:
    steps: list[Step] = []
    return run(domain / "landing", domain / "out", progress=steps.append), steps


def rows_of(root: Path) -> dict[str, list[dict[str, Any]]]:
    return {table.name: read_table(root, table.name).to_pylist() for table in TABLES}


@pytest.mark.spark
def test_a_run_publishes_every_table_and_the_report(
    domain: Path, first: tuple[RunReport, list[Step]]
) -> None:
    report, steps = first
    assert not report.nothing_new
    assert report.tables.keys() == {table.name for table in TABLES}
    assert report.paths == {"ok": 117, "soft error": 1, "dead": 2}
    assert report.verdicts == {"orders": "not provable", "stock": "violated"}
    assert report.days_changed == ("2026-11-15",)
    assert (report.segments, report.segments_new) == (19, 20)
    assert "3 of 120 paths in trouble" in Path(report.report).read_text()
    assert [step.text for step in steps][-3:] == [
        "table delivery_audit",
        "publishing",
        "report",
    ]
    assert all(0 <= step.done <= step.total for step in steps)


@pytest.mark.spark
def test_a_damaged_segment_is_set_aside_and_named(
    domain: Path, first: tuple[RunReport, list[Step]]
) -> None:
    (aside,) = first[0].set_aside
    assert aside.path.endswith("torn-1-000000.parquet")
    assert "not a whole Parquet file" in aside.reason
    assert Path(aside.now_at).read_bytes() == b"PAR1"
    assert "torn-1-000000.parquet" in Path(first[0].report).read_text()


@pytest.mark.spark
def test_a_run_without_new_segments_does_nothing_and_says_so(
    domain: Path,
    first: tuple[RunReport, list[Step]],
    no_engine: None,
) -> None:
    files = {
        path: path.stat().st_mtime_ns for path in (domain / "out").rglob("*") if path.is_file()
    }
    # No session: if it needed one, it would have to start it.
    report = run_pipeline(domain / "landing", domain / "out", today=TODAY)
    assert report.nothing_new
    assert (report.segments_new, report.days_changed, report.set_aside) == (0, (), ())
    assert report.paths == first[0].paths
    assert {
        path: path.stat().st_mtime_ns for path in (domain / "out").rglob("*") if path.is_file()
    } == files | {domain / "out" / ".lock": (domain / "out" / ".lock").stat().st_mtime_ns}


@pytest.mark.spark
def test_segments_that_were_only_touched_are_no_news(
    domain: Path, first: tuple[RunReport, list[Step]], no_engine: None
) -> None:
    segment = next((domain / "landing" / "path").rglob("*.parquet"))
    segment.write_bytes(segment.read_bytes())
    report = run_pipeline(domain / "landing", domain / "out", today=TODAY)
    assert (report.nothing_new, report.segments_new) == (True, 1)


@pytest.mark.spark
def test_without_what_it_remembers_a_run_comes_to_the_same_tables(
    domain: Path, first: tuple[RunReport, list[Step]], no_engine: None
) -> None:
    (domain / "out" / "state.json").write_text("{ damaged")
    report = run_pipeline(domain / "landing", domain / "out", today=TODAY)
    assert (report.nothing_new, report.segments_new) == (True, 19)


@pytest.mark.spark
def test_a_late_segment_changes_only_the_tables_that_are_made_of_it(
    tmp_path: Path, run: Run
) -> None:
    """And the same segments give the same rows wherever and in however many runs they are read."""
    landing, out = tmp_path / "landing", tmp_path / "out"
    write_segment(landing, "path", [path_fact("a", "b", 0, 0), path_fact("a", "b", 2, 60)])
    run(landing, out)
    before = {table.name: read_manifest(out, table.name) for table in TABLES}

    # It was written in between, and comes a day later.
    late = [path_fact("a", "b", 1, 30, 600)]
    write_segment(landing, "path", late, day="2026-11-16", seq=1)
    report = run(landing, out)

    changed = {name for name, table in report.tables.items() if table.changed}
    assert changed == {"recording", "path_health", "path_troubles"}
    assert report.days_changed == ("2026-11-16",)
    assert read_manifest(out, "deliveries") == before["deliveries"]
    (row,) = read_table(out, "path_health").to_pylist()
    assert (row["facts"], row["soft_error_s"], row["degradations"]) == (3, 30.0, 1)

    (tmp_path / "elsewhere").mkdir()
    landing.rename(tmp_path / "elsewhere" / "landing")
    again = run(tmp_path / "elsewhere" / "landing", tmp_path / "again")
    assert rows_of(tmp_path / "again") == rows_of(out)
    assert {t: again.tables[t].run for t in changed} == {t: report.tables[t].run for t in changed}


def test_an_empty_landing_directory_is_nothing_yet(tmp_path: Path, no_engine: None) -> None:
    (tmp_path / "landing").mkdir()
    report = run_pipeline(tmp_path / "landing", tmp_path / "out", today=TODAY)
    assert (report.nothing_new, report.segments, report.report) == (True, 0, "")
    assert report.tables == {}


def test_when_only_damaged_segments_are_there_they_are_set_aside_and_that_is_all(
    tmp_path: Path, no_engine: None
) -> None:
    segment = write_segment(tmp_path / "landing", "path", [path_fact("a", "b", 0, 0)])
    segment.write_bytes(segment.read_bytes()[:-1])
    report = run_pipeline(tmp_path / "landing", tmp_path / "out", today=TODAY)
    assert (len(report.set_aside), report.segments, report.report) == (1, 0, "")


def test_a_bad_segment_that_cannot_be_moved_is_named_once(
    tmp_path: Path, no_engine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = write_segment(tmp_path / "landing", "path", [path_fact("a", "b", 0, 0)])
    segment.write_bytes(b"PAR1")
    monkeypatch.setattr(Path, "rename", _refuse)
    monkeypatch.setattr(Path, "unlink", _refuse)
    first = run_pipeline(tmp_path / "landing", tmp_path / "out", today=TODAY)
    second = run_pipeline(tmp_path / "landing", tmp_path / "out", today=TODAY)
    assert (len(first.set_aside), len(second.set_aside)) == (1, 0)
    assert segment.exists()


def _refuse(self: Path, *_: Any, **__: Any) -> None:
    raise PermissionError(13, "not yours", str(self))


@pytest.mark.spark
def test_tables_stay_when_the_landing_directory_is_away(
    domain: Path, first: tuple[RunReport, list[Step]], no_engine: None
) -> None:
    runs = {table.name: read_manifest(domain / "out", table.name) for table in TABLES}
    report = run_pipeline(domain / "nowhere", domain / "out", today=TODAY)
    assert report.nothing_new
    assert {table.name: read_manifest(domain / "out", table.name) for table in TABLES} == runs


def test_a_segment_that_vanishes_during_a_run_makes_it_start_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    landing = tmp_path / "landing"
    old = write_segment(landing, "path", [path_fact("a", "b", 0, 0)], day="2026-11-14")
    write_segment(landing, "path", [path_fact("a", "b", 1, 9)])
    seen: list[int] = []

    def stage(root: Path, tables: Any, intake: Any, *_: Any) -> None:
        seen.append(len(intake.segments))
        old.unlink(missing_ok=True)
        if len(seen) == 1:
            raise PipelineFailed("a file is gone")

    monkeypatch.setattr(jobs, "_stage_tables", stage)
    monkeypatch.setattr(jobs, "announce", lambda *_: None)
    session: Any = object()
    run_pipeline(landing, tmp_path / "out", session=session, today=TODAY)
    assert seen == [2, 1]


def test_an_engine_that_fails_by_itself_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_segment(tmp_path / "landing", "path", [path_fact("a", "b", 0, 0)])
    tries: list[int] = []

    def stage(*_: Any) -> None:
        tries.append(1)
        raise PipelineFailed("out of memory; tables and report are as they were")

    monkeypatch.setattr(jobs, "_stage_tables", stage)
    session: Any = object()
    with pytest.raises(PipelineFailed, match="as they were"):
        run_pipeline(tmp_path / "landing", tmp_path / "out", session=session, today=TODAY)
    assert len(tries) == 1
    assert read_manifest(tmp_path / "out", "path_health") is None


@pytest.mark.spark
def test_a_failure_of_spark_is_told_and_leaves_the_tables_as_they_were(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    landing = tmp_path / "landing"
    segment = write_segment(landing, "path", [path_fact("a", "b", 0, 0)])
    # It passes the check, and is damaged before Spark comes to it.
    monkeypatch.setattr(jobs, "read_facts", _damage_and_read(segment))
    with pytest.raises(PipelineFailed, match=r"failed at table 'recording'; tables and report are"):
        run(landing, tmp_path / "out")
    assert read_manifest(tmp_path / "out", "recording") is None
    assert not list((tmp_path / "out" / "tables").rglob("*.parquet"))


def _damage_and_read(segment: Path) -> Callable[..., Any]:
    from holdfast.pipeline.sources import read_facts

    def read(*arguments: Any) -> Any:
        segment.write_bytes(b"PAR1")
        return read_facts(*arguments)

    return read


def test_a_look_back_of_nothing_is_misuse(tmp_path: Path) -> None:
    with pytest.raises(MisuseError, match="look-back of 0 days"):
        run_pipeline(tmp_path, tmp_path / "out", look_back_days=0)


@pytest.mark.spark
def test_what_the_real_segment_writer_seals_is_read(tmp_path: Path, run: Run) -> None:
    clock = iter(range(0, 10_000 * SECOND, SECOND))
    offset = int(datetime(2026, 11, 15, 12, tzinfo=UTC).timestamp()) * SECOND
    for name, digest in (("alba", 7), ("brno", 7)):
        writer = SegmentWriter(
            tmp_path / name,
            name.encode().hex(),
            name,
            1,
            offset,
            lambda: next(clock),
            background=False,
        )
        writer.record(
            [
                PathFact(
                    now_ns=second * SECOND,
                    event="change",
                    sender="ff",
                    sender_name="cork",
                    sender_adapter="eth0",
                    listener_adapter="eth0",
                    subnet="lan1",
                    transport="udp",
                    alive=True,
                    size=size,
                    size_max=1472,
                    loss_ppm=0,
                    rtt_us=100,
                    heard=1,
                    expected=1,
                )
                for second, size in ((0, 1472), (10, 600), (25, 1472))
            ]
        )
        writer.record(
            [
                DeliveryFact(
                    now_ns=1, group="g", term=1, index=1, position=0, stream="s", first=1, last=9,
                    digest=digest,
                )
            ]
        )  # fmt: skip
        writer.close()
    out = tmp_path / "out"
    report = run([tmp_path / "alba" / "landing", tmp_path / "brno" / "landing"], out)
    assert (report.set_aside, report.strange, report.verdicts) == ((), (), {"g": "holds"})
    health = read_table(out, "path_health").to_pylist()
    assert [(row["listener_name"], row["soft_error_s"]) for row in health] == [
        ("alba", 15.0),
        ("brno", 15.0),
    ]
    troubles = read_table(out, "path_troubles").to_pylist()
    assert {row["start_at"] for row in troubles} == {NOON.replace(second=10)}
    assert {row["missing"] for row in read_table(out, "recording").to_pylist()} == {0}
