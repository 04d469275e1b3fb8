"""P1: ingest is incremental and idempotent; bad segments are ledger outcomes; a failed run changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.pipeline.arrivals import batches, write_batch
from tests.pipeline.making import NOON, SECOND, delivery, fact, path_fact, table_of, write_segment
from tests.pipeline.scenario import write_domain

from holdfast.errors import MisuseError
from holdfast.pipeline.command import answer
from holdfast.pipeline.intake import Intake, look
from holdfast.pipeline.jobs import (
    PipelineFailed,
    RunReport,
    Settings,
    Step,
    run_pipeline,
    write_report,
)
from holdfast.pipeline.opening import store_of, tables_with_session
from holdfast.pipeline.reader import Tables, open_tables, read_table
from holdfast.pipeline.run_context import RunContext
from holdfast.pipeline.snapshot import PipelineBusy, Snapshot, Snapshots
from holdfast.pipeline.storage.local import LocalStore
from holdfast.pipeline.storage.port import Stat, Store, join, to_uri
from holdfast.pipeline.storage.stores import Stores
from holdfast.pipeline.tables import FOLD_TABLES, HOURLY, VIEWS
from holdfast.pipeline.units import Retention
from holdfast.pipeline.writer_lock import sole_writer
from holdfast.recording.segment_writer import SegmentWriter
from holdfast.telemetry.facts import SCHEMA, DeliveryFact, PathFact

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

Run = Callable[..., RunReport]
NOW = NOON + timedelta(hours=12)


@pytest.fixture(scope="module")
def run(spark: SparkSession) -> Run:
    def go(landing: Path | str, out: Path | str, now: datetime = NOW, **more: Any) -> RunReport:
        return run_pipeline(
            landing, out, more.pop("settings", None), session=spark, now=now, **more
        )

    return go


def row_sets(out: Path, only: tuple[str, ...] = ()) -> dict[str, list[str]]:
    """All tables as sorted rows, without what depends on the unit or on chance in sketches."""
    tables = open_tables(out)
    names = [*(t.name for t in HOURLY), *FOLD_TABLES, *(v.name for v in VIEWS)]
    found: dict[str, list[str]] = {}
    for name in only or names:
        if not tables.has(name) or name == "path_rollup":
            continue
        units = sorted(tables.snapshot.parts(name))[-1:] if name == "path_carry" else None
        rows = tables.read(name, units=units).to_pylist()
        for row in rows:
            row.pop("rtt_sketch", None)
        found[name] = sorted(map(str, rows))
    return found


# -- one run over a small domain ---------------------------------------------------------------------------------


def write_bad_segments(landing: Path) -> None:
    folder = landing / "path" / "day=2026-11-15"
    (folder / "torn-1-000000.parquet").write_bytes(b"PAR1")
    good = [path_fact("gdansk", "brno", 0, 0.0)]
    pq.write_table(table_of("path", good), folder / "dreams.parquet")
    pq.write_table(table_of("path", good), folder / "abcd-1-000000.parquet")
    newer = [path_fact("hull", "brno", 0, 0.0, schema=SCHEMA + 1)]
    write_segment(landing, "path", newer)
    write_segment(landing, "path", [path_fact("izmir", "brno", 0, 100_000.0)])
    write_segment(landing, "path", [path_fact("jena", "brno", 0, 0.0)])
    copy = folder / "copy"
    copy.mkdir()
    (landing / "visions").mkdir()
    (landing / "path" / "yesterday").mkdir()


@pytest.fixture(scope="module")
def domain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("domain")
    write_domain(root / "landing")
    write_bad_segments(root / "landing")
    return root


@pytest.fixture(scope="module")
def first(domain: Path, run: Run) -> tuple[RunReport, list[Step]]:
    steps: list[Step] = []
    return run(domain / "landing", domain / "out", progress=steps.append), steps


@pytest.fixture(scope="module")
def tables(domain: Path, first: tuple[RunReport, list[Step]]) -> Tables:
    return open_tables(domain / "out")


def test_a_run_publishes_every_table_and_the_report(
    domain: Path, first: tuple[RunReport, list[Step]], tables: Tables
) -> None:
    report, steps = first
    assert not report.nothing_new
    assert report.snapshot == 1
    missing = [view.name for view in VIEWS if not tables.has(view.name)]
    unused = [
        f"{what}_{kind}" for what in ("dialog", "guarantee") for kind in ("audit", "violations")
    ]
    assert missing == unused, "these nodes had no dialogs, locks or objects"
    assert report.paths == {"ok": 118, "soft error": 1, "dead": 2}
    assert report.verdicts == {"orders": "not provable", "stock": "violated"}
    assert report.units_changed == ("2026-11-15T12",)
    assert report.segments == 20
    assert "3 of 121 paths in trouble" in Path(report.report).read_text()
    assert [step.text for step in steps][-2:] == ["publishing", "report"]
    assert all(0 <= step.done <= step.total for step in steps)


def test_each_bad_segment_is_an_outcome_in_the_ledger_and_stays_where_it_is(
    domain: Path, first: tuple[RunReport, list[Step]], tables: Tables
) -> None:
    """Rule 6: quarantine is a ledger outcome with a reason, not a move of the node's file."""
    outcomes = {Path(aside.path).name.partition("-")[0]: aside for aside in first[0].set_aside}
    ids = {name: fact("node", name, 0, 0.0)["node"] for name in ("hull", "izmir")}
    assert outcomes["torn"].outcome == "torn"
    assert outcomes["dreams.parquet"].outcome == "foreign"
    assert "the name says node abcd" in outcomes["abcd"].reason
    assert outcomes[ids["hull"]].outcome == "schema"
    assert "update the pipeline" in outcomes[ids["hull"]].reason
    assert outcomes[ids["izmir"]].outcome == "future"
    assert len(outcomes) == 5
    assert all(Path(aside.path).exists() for aside in first[0].set_aside)
    assert sorted(entry.outcome for entry in tables.set_aside()) == sorted(
        aside.outcome for aside in first[0].set_aside
    )
    page = Path(first[0].report).read_text()
    assert "torn-1-000000.parquet" in page
    assert "no segment is set aside" in page
    assert any("visions" in strange for strange in first[0].strange)
    assert any("not a day" in strange for strange in first[0].strange)


def test_the_incidents_say_what_happened_where_and_in_which_direction(tables: Tables) -> None:
    rows = tables.rows("incidents")
    by_pair = {
        (r["sender_name"], r["listener_name"], r["subnet"], r["error_class"]): r for r in rows
    }
    size = by_pair["alba", "cork", "lan1", "size"]
    assert (size["worst"], size["open"], size["seconds"]) == (600, False, 800.0)
    assert size["direction"] == "one way"
    assert size["text"] == "UDP: packets over 600 bytes vanish from alba to cork, one way"
    assert by_pair["brno", "delft", "lan2", "size"]["open"]
    assert by_pair["faro", "brno", "lan2", "dead"]["transport"] == ""
    repeats = [r for r in rows if (r["sender_name"], r["listener_name"]) == ("cork", "alba")]
    assert [r["repeats"] for r in repeats] == [0, 0]  # eleven minutes apart: two incidents
    assert len(rows) == 10
    assert len({r["id"] for r in rows}) == 10


def test_a_node_that_records_nothing_makes_no_path_of_its_own(tables: Tables) -> None:
    """Rule 10: jena does not know brno's name yet; the path is named by ids and stays one."""
    rows = [r for r in tables.rows("path_health") if r["listener_name"] == "jena"]
    assert [(r["sender_name"], r["state"]) for r in rows] == [("brno", "ok")]


def test_the_audit_names_the_one_entry_that_differs(tables: Tables) -> None:
    audit = {row["group"]: row for row in tables.rows("delivery_audit")}
    assert audit["orders"]["holes_unexplained"] == 1
    assert audit["stock"]["verdict"] == "violated"
    indexes = {row["index"] for row in tables.rows("delivery_violations")}
    assert indexes == {18, 19}  # the scenario's digest returns at once: both differences are wrong


def test_facts_are_stored_by_kind_hour_and_bucket(domain: Path, tables: Tables) -> None:
    """Rule 1: one file per bucket, however many segments there were."""
    (part,) = tables.snapshot.parts("facts/path").values()
    names = [file.name for file in part.files]
    assert all("/unit=2026-11-15T12/bucket=" in name for name in names)
    assert len(names) <= 4
    balance = tables.snapshot.stats
    assert balance["rows_in"] == balance["rows_merged"]


def test_a_run_without_new_segments_does_nothing(
    domain: Path, first: tuple[RunReport, list[Step]]
) -> None:
    before = sorted(path for path in (domain / "out").rglob("*") if path.is_file())
    # No session: if it needed one, it would have to start it.
    report = run_pipeline(domain / "landing", domain / "out", now=NOW)
    assert report.nothing_new
    assert (report.segments_new, report.paths) == (0, first[0].paths)
    assert sorted(path for path in (domain / "out").rglob("*") if path.is_file()) == before


def test_only_what_can_have_changed_is_examined_again(
    domain: Path, first: tuple[RunReport, list[Step]]
) -> None:
    """A clock in the future is looked at again when that time has come, a touched file at once."""
    out, landing = to_uri(domain / "out"), to_uri(domain / "landing")
    base = Snapshots(Stores(), out).load(1)

    def seen(now: datetime) -> Intake:
        return look(RunContext((landing,), out, Settings(), lambda _: None, now), Stores(), base)

    assert not seen(NOW).new
    later = seen(NOON + timedelta(seconds=100_000))
    assert [segment.name.partition("-")[0] for segment in later.new] == [
        fact("node", "izmir", 0, 0.0)["node"]
    ]


# -- incremental equals full -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "count", "buckets"),
    [(5, 2, 1), *(pytest.param(seed, 5, 4, marks=pytest.mark.campaign) for seed in (1, 2, 3, 4))],
)
def test_incremental_equals_full_row_for_row_under_random_arrival(
    tmp_path: Path, run: Run, seed: int, count: int, buckets: int
) -> None:
    """Rules 2 and 3: late and early segments, a day that closes in between, lost facts, restarts, copies."""
    settings = Settings(buckets=buckets, report=False, retention=Retention(open_days=1))
    arrivals = batches(seed=seed, count=count, start_s=-14 * 3600.0, hours=4.0)
    if count == 2:
        # The newest hours come first, the oldest last: everything after them must be made again.
        arrivals.sort(key=lambda batch: -max(f["now_ns"] for _, facts in batch for f in facts))
    seq = 0
    for batch in arrivals:
        seq = write_batch(tmp_path / "a" / "landing", batch, seq)
        piecewise = run(tmp_path / "a" / "landing", tmp_path / "a" / "out", settings=settings)
    write_batch(tmp_path / "b" / "landing", [s for batch in arrivals for s in batch], 0)
    whole = run(tmp_path / "b" / "landing", tmp_path / "b" / "out", settings=settings)
    assert piecewise.snapshot == count
    assert whole.duplicates > 0
    ours, theirs = row_sets(tmp_path / "a" / "out"), row_sets(tmp_path / "b" / "out")
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert ours[name] == theirs[name], name
    assert len(ours["incidents"]) > 10
    violations = read_table(tmp_path / "a" / "out", "delivery_violations").to_pylist()
    assert [(row["claim"], row["index"]) for row in violations] == [("agreement", 17)]
    units = sorted(open_tables(tmp_path / "a" / "out").snapshot.parts("path_runs"))
    assert units == ["2026-11-14", *(f"2026-11-15T{hour:02d}" for hour in range(2))]


# -- failures ----------------------------------------------------------------------------------------------------


class FailingStore(LocalStore):
    """A store that fails when a file whose name contains `word` is created."""

    def __init__(self, word: str, error: Exception) -> None:
        super().__init__()
        self.word, self.error = word, error

    def create(self, uri: str, content: bytes) -> None:
        if self.word in uri:
            raise self.error
        super().create(uri, content)


class RivalStore(LocalStore):
    """Another run publishes the same snapshot just before this one does."""

    def create(self, uri: str, content: bytes) -> None:
        if "/snapshots/" in uri:
            root, _, _ = uri.partition("/snapshots/")
            Snapshots(LocalStore(), root).publish(Snapshot(number=1))
        super().create(uri, content)


@pytest.mark.parametrize(
    ("store", "error"),
    [
        (FailingStore("/snapshots/", OSError(28, "No space left on device")), OSError),
        (RivalStore(), PipelineBusy),
    ],
    ids=["full disk", "two runs at once"],
)
def test_a_run_that_cannot_publish_leaves_nothing_of_its_own(
    tmp_path: Path, run: Run, store: Store, error: type[Exception]
) -> None:
    write_segment(tmp_path / "landing", "node", [fact("node", "a", 0, 0.0, event="start")])
    with pytest.raises(error):
        run(tmp_path / "landing", tmp_path / "out", store=store)
    left = list((tmp_path / "out").rglob("*.parquet"))
    assert left == []
    snapshot = Snapshots(LocalStore(), to_uri(tmp_path / "out")).latest()
    assert snapshot is None or snapshot.attempt == ""


def test_a_second_run_on_a_local_directory_stops_at_once(tmp_path: Path, run: Run) -> None:
    with sole_writer(to_uri(tmp_path)), pytest.raises(PipelineBusy, match="another run writes to"):
        run(tmp_path / "landing", tmp_path)


def test_an_engine_that_fails_in_the_middle_changes_nothing(
    tmp_path: Path, run: Run, spark: SparkSession
) -> None:
    """A unit of the fact store that is gone: the next run cannot read it, and says which step failed."""
    landing, out = tmp_path / "landing", tmp_path / "out"
    write_segment(landing, "node", [fact("node", "a", 0, 0.0, event="start")])
    run(landing, out)
    for path in (out / "facts").rglob("*.parquet"):
        path.unlink()
    write_segment(landing, "node", [fact("node", "a", 1, 9.0, event="stop")], seq=1)
    with pytest.raises(
        PipelineFailed, match=r"while storing node facts; published tables.*unchanged"
    ):
        run(landing, out)
    assert open_tables(out).snapshot.number == 1


class VanishingStore(LocalStore):
    """A node removes one of its segments right after it was listed."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def files(self, uri: str) -> Iterator[Stat]:
        found = list(super().files(uri))
        if any(stat.uri.endswith(self.path.name) for stat in found):
            self.path.unlink(missing_ok=True)
        return iter(found)


def test_a_segment_that_vanishes_after_it_was_listed_stops_no_run(tmp_path: Path, run: Run) -> None:
    landing = tmp_path / "landing"
    write_segment(landing, "node", [fact("node", "a", 0, 0.0, event="start")])
    gone = write_segment(landing, "node", [fact("node", "b", 0, 0.0, event="start")])
    report = run(landing, tmp_path / "out", store=VanishingStore(gone))
    assert (report.snapshot, report.segments) == (1, 1)


def test_an_empty_directory_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "landing").mkdir()
    report = run_pipeline(tmp_path / "landing", tmp_path / "out", now=NOW)
    assert (report.nothing_new, report.snapshot, report.segments) == (True, 0, 0)


@pytest.mark.parametrize(
    "settings",
    [
        {"look_back_days": 0},
        {"buckets": 0},
        {"engine": "spark"},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(MisuseError, match="nothing was"):
        Settings(**settings)


# -- other stores and writers ------------------------------------------------------------------------------------


def test_what_nodes_write_is_read_through_any_scheme(
    tmp_path: Path, run: Run, spark: SparkSession
) -> None:
    """Rule 8: nothing assumes a local path. The mount table makes a scheme of its own over a local directory.

    And a segment of schema 1, without the columns that came later, is taken as well.
    """
    from holdfast.pipeline.storage.hadoop import HadoopStore

    _write_as_nodes_do(tmp_path)
    conf = spark.sparkContext._jsc.hadoopConfiguration()  # type: ignore[union-attr]
    conf.set("fs.viewfs.mounttable.lab.link./data", f"file://{tmp_path}")
    root = "viewfs://lab/data/out"
    store = Stores(remote=lambda: HadoopStore(spark))
    report = run("viewfs://lab/data/landing", root, store=store)
    assert (report.snapshot, report.paths, report.set_aside) == (1, {"soft error": 1}, ())
    tables = open_tables(root, store)
    assert tables.rows("incidents", ["worst"]) == [{"worst": 600}]
    rows = tables.rows("deliveries")
    assert sorted((row["replica_name"], row["epoch"], row["messages"]) for row in rows) == [
        ("alba", 5, 10),
        ("brno", 0, 10),
    ]
    assert b"1 of 1 path in trouble" in store.read(join(root, "report.html"))
    again = run("viewfs://lab/data/landing", root, store=store)
    assert again.nothing_new
    with store_of(root, "local[*]", spark) as opened:
        write_report(open_tables(root, opened), opened, join(root, "again.html"))
    assert store.read(join(root, "again.html")) == store.read(join(root, "report.html"))
    with tables_with_session(root, "local[*]", spark) as (published, session):
        rows, _ = answer(session, published, "not clean of size for 1d", False, 10)
        found, _ = answer(session, published, "SELECT worst FROM incidents", True, 10)
    assert [(row["sender_name"], row["state"]) for row in rows] == [("brno", "soft error")]
    assert found == [{"worst": 600}]


def _write_as_nodes_do(directory: Path) -> None:
    """A path with a soft error and a delivery of this version, and a delivery of the first one."""
    offset_ns = int(NOON.timestamp()) * SECOND
    writer = SegmentWriter(
        directory, "ab" * 16, "alba", 3, offset_ns, lambda: 65 * SECOND, background=False
    )
    for at_s, size in ((1, 1472), (61, 600)):
        path = PathFact(
            at_s * SECOND, "change", "cd" * 16, "brno", "eth0", "eth0", "lan1", "udp", True, size, 1472, 0, 90, 5, 5
        )  # fmt: skip
        writer.record([path])
    writer.record([DeliveryFact(62 * SECOND, "g", 1, 2, 0, "s", 1, 10, 77, epoch=5)])
    writer.write_out()
    writer.close()
    old = table_of("delivery", [delivery("brno", 0, 2, 0, 1, 10, digest=77, schema=1, epoch=5)])
    folder = directory / "landing" / "delivery" / "day=2026-11-15"
    node = old["node"][0].as_py()
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(old.drop_columns(["epoch"]), folder / f"{node}-1-000000.parquet")


def test_a_scheme_without_a_client_names_the_jar(spark: SparkSession) -> None:
    from holdfast.errors import SetupError
    from holdfast.pipeline.storage.hadoop import HadoopStore

    with pytest.raises(SetupError, match=r"no client for s3a: here.*hadoop-aws"):
        HadoopStore(spark).read("s3a://bucket/x")


def test_arrow_is_what_spark_says_it_is() -> None:
    assert pa.types.is_timestamp(table_of("path", [path_fact("a", "b", 0, 0)])["at"].type)
