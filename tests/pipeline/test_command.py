"""`holdfast pipeline`: 0 fine, 1 failed, 2 misuse, 3 violated; one clear message instead of a traceback."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.pipeline.making import NOON, node_id, path_fact, write_segment
from typer.testing import CliRunner, Result

from holdfast.errors import MisuseError
from holdfast.pipeline.advising import AdviceSettings, last_advice, make_advice, publish_advice
from holdfast.pipeline.ask import answer_rows, ask, open_views
from holdfast.pipeline.command import answer, app, find_landings
from holdfast.pipeline.jobs import Settings, run_pipeline
from holdfast.pipeline.reader import Tables, open_tables
from holdfast.pipeline.snapshot import Snapshot, Snapshots
from holdfast.pipeline.storage.local import LocalStore
from holdfast.pipeline.storage.port import to_uri
from holdfast.recording.advice import newest_advice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def invoke(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "250"}).invoke(app, [*map(str, arguments)])


def said(result: Result) -> str:
    return " ".join((result.output or "").split())


# -- what is given -----------------------------------------------------------------------------------------------


def test_landings_are_found_in_nodes_directories_patterns_and_uris(tmp_path: Path) -> None:
    for name in ("n1/landing", "n2/telemetry/landing", "n3/landing"):
        (tmp_path / name).mkdir(parents=True)
    one = str(tmp_path / "n1" / "landing")
    assert find_landings([str(tmp_path / "n1")]) == [one]
    assert find_landings([one]) == [one]
    assert len(find_landings([str(tmp_path)])) == 3
    assert len(find_landings([str(tmp_path / "n[13]")])) == 2
    assert find_landings(["s3a://bucket/landing/"]) == ["s3a://bucket/landing"]


def test_a_directory_without_telemetry_is_misuse(tmp_path: Path) -> None:
    with pytest.raises(MisuseError, match="no landing/ directory"):
        find_landings([str(tmp_path)])
    result = invoke("run", "--telemetry", tmp_path, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "nothing was done. Give the telemetry directory of a node" in said(result)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--engine", "flink"], 2, "unknown engine 'flink'"),
        (["--look-back", "0"], 2, "holds nothing"),
        (["--raw-days", "3"], 2, "retention needs"),
        (["--engine", "spark://127.0.0.1:9"], 1, "cannot be reached; nothing was run"),
        (["--engine", "k8s://https://127.0.0.1:9"], 1, "cannot be reached; nothing was run"),
    ],
)
def test_a_wrong_call_is_told_apart_from_a_failure(
    tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    write_segment(tmp_path / "landing", "path", [path_fact("a", "b", 0, 0.0)])
    result = invoke("run", "--telemetry", tmp_path, "--out", tmp_path / "out", *arguments)
    assert result.exit_code == code
    assert message in said(result)
    assert not list((tmp_path / "out").rglob("*.parquet"))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("host,adapter\n", "it needs node and adapter"),
        ("node,adapter\nn1,eth0\nn1,eth0\n", "in lines 2 and 3"),
        (None, "is not there, or is not text"),
    ],
)
def test_an_inventory_that_cannot_be_used_is_misuse_before_anything_starts(
    tmp_path: Path, lines: str | None, message: str
) -> None:
    write_segment(tmp_path / "landing", "path", [path_fact("a", "b", 0, 0.0)])
    inventory = tmp_path / "inventory.csv"
    if lines is not None:
        inventory.write_text(lines)
    arguments = ["--telemetry", tmp_path, "--out", tmp_path / "out", "--inventory", inventory]
    result = invoke("run", *arguments)
    assert result.exit_code == 2
    assert message in said(result)


def test_an_empty_landing_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "landing").mkdir()
    result = invoke("run", "--telemetry", tmp_path, "--out", tmp_path / "out")
    assert result.exit_code == 0
    assert "Nothing is recorded yet" in said(result)


@pytest.mark.parametrize("command", ["audit", "report", "advise"])
def test_commands_on_a_directory_without_tables_say_what_to_do(
    tmp_path: Path, command: str
) -> None:
    result = invoke(command, "--out", tmp_path)
    assert result.exit_code == 1
    assert "run `holdfast pipeline run` first" in said(result)


def test_a_damaged_snapshot_is_named_and_nothing_is_changed(tmp_path: Path) -> None:
    Snapshots(LocalStore(), to_uri(tmp_path / "out")).publish(Snapshot(number=1))
    path = tmp_path / "out" / "snapshots" / "00000001.json"
    path.write_bytes(path.read_bytes()[:-9])
    write_segment(tmp_path / "landing", "path", [path_fact("a", "b", 0, 0.0)])
    result = invoke("run", "--telemetry", tmp_path, "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert "is not a whole snapshot" in said(result)
    assert "run the pipeline again" in said(result)


def test_an_unclear_question_is_misuse_and_starts_nothing(tmp_path: Path) -> None:
    result = invoke("ask", "siez > 3", "--out", tmp_path)
    assert result.exit_code == 2
    assert "did you mean 'size'?" in said(result)


def test_thresholds_that_make_no_sense_are_misuse(tmp_path: Path) -> None:
    result = invoke("advise", "--out", tmp_path, "--enter", "0.2", "--leave", "0.4")
    assert result.exit_code == 2
    assert "leave < enter" in said(result)


# -- over published tables ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def published(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three paths over two hours: a good one, one that was bad an hour ago, one with a pause and no round trips."""
    root = tmp_path_factory.mktemp("asked")
    facts: list[dict[str, Any]] = []
    for minute in range(0, 120, 2):
        at_s = minute * 60.0
        for sender in ("good", "mended", "paused"):
            if sender == "paused" and 30 <= minute < 90:
                continue
            size = 600 if sender == "mended" and 10 <= minute < 20 else 9000
            rtt_us = 0 if sender == "paused" else 200
            row = path_fact("hub", sender, len(facts), at_s, size, size_max=9000, rtt_us=rtt_us)
            facts.append(row)
    write_segment(root / "landing", "path", facts).with_name("x.parquet").write_bytes(b"PAR1")
    settings, now = Settings(buckets=1), NOON + timedelta(hours=3)
    run_pipeline(root / "landing", root / "out", settings, session=spark, now=now)
    return root / "out"


@pytest.mark.spark
@pytest.mark.parametrize(
    ("question", "senders"),
    [
        ("clean for 90m and size >= 4096", ["good", "mended", "paused"]),
        ("clean of loss for 2h and not clean for 2h", ["mended"]),
        ("worst_size < 1000 or sender = 'good' and coverage >= 99%", ["good", "mended"]),
        ("protocol = tcp", []),
        ("rtt_p99 <= 1ms", ["good", "mended"]),
        ("not rtt_p99 > 1ms", ["good", "mended"]),
    ],
)
def test_questions_are_answered_from_history(
    published: Path, spark: SparkSession, question: str, senders: list[str]
) -> None:
    open_views(spark, open_tables(published))
    tables = [spark.table(name) for name in ("path_health", "incidents", "path_hours")]
    rows = answer_rows(ask(question, *tables), 100)
    assert [row["sender_name"] for row in rows] == senders


@pytest.mark.spark
def test_an_answer_states_how_much_was_observed(published: Path, spark: SparkSession) -> None:
    open_views(spark, open_tables(published))
    tables = [spark.table(name) for name in ("path_health", "incidents", "path_hours")]
    rows = {r["sender_name"]: r for r in answer_rows(ask("clean for 2h", *tables), 10)}
    assert rows["good"]["asked_coverage"] == pytest.approx(118 / 120, abs=0.01)
    assert rows["paused"]["asked_coverage"] == pytest.approx(58 / 120, abs=0.02)


@pytest.mark.spark
def test_all_tables_can_be_asked_in_sql(published: Path, spark: SparkSession) -> None:
    names = open_views(spark, open_tables(published))
    assert {"incidents", "path_health", "facts_path", "ledger", "quarantine"} <= set(names)
    (row,) = spark.sql(
        "SELECT count(*) AS found FROM incidents WHERE error_class = 'size'"
    ).collect()
    assert row["found"] == 1
    (torn,) = spark.sql("SELECT path, outcome, reason FROM quarantine").collect()
    assert (torn["path"].endswith("/x.parquet"), torn["outcome"]) == (True, "torn")
    assert "not a whole Parquet file" in torn["reason"]


@pytest.mark.spark
def test_a_query_that_fails_while_it_runs_is_misuse(published: Path, spark: SparkSession) -> None:
    with pytest.raises(MisuseError, match=r"the query failed: .*DIVIDE_BY_ZERO") as told:
        answer(spark, open_tables(published), "SELECT 1 / (facts - facts) FROM incidents", True, 9)
    assert "scala" not in str(told.value)


@pytest.mark.spark
def test_the_report_can_be_written_again(published: Path, tmp_path: Path) -> None:
    result = invoke("report", "--out", published, "--to", tmp_path / "again.html")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "again.html").read_text() == (published / "report.html").read_text()
    for directory in (tmp_path, "/"):
        refused = invoke("report", "--out", published, "--to", directory)
        assert refused.exit_code == 2
        assert "is a directory; nothing was written" in said(refused)


# -- advice ------------------------------------------------------------------------------------------------------


class Predicted(Tables):
    """Published tables with predictions of this test."""

    def __init__(self, tables: Tables, predictions: list[dict[str, Any]]) -> None:
        super().__init__(LocalStore(), tables.root, tables.snapshot)
        self._made = predictions

    def has(self, name: str) -> bool:
        return name == "predictions" or super().has(name)

    def rows(self, name: str, columns: list[str] | None = None) -> list[dict[str, Any]]:
        return self._made if name == "predictions" else super().rows(name, columns)


def prediction(sender: str, probability: float, advised: bool = True) -> dict[str, Any]:
    return {
        "sender": node_id(sender), "sender_adapter": "eth0", "listener": node_id("hub"),
        "listener_adapter": "eth0", "subnet": "lan1", "transport": "udp", "probability": probability,
        "valid_until": datetime(2026, 11, 15, 20, tzinfo=UTC), "advised": advised, "why": "every night",
    }  # fmt: skip


@pytest.mark.spark
def test_only_advised_predictions_become_advice_within_the_cap(published: Path) -> None:
    tables = Predicted(
        open_tables(published),
        [
            prediction("good", 0.6),
            prediction("mended", 0.9),
            prediction("paused", 0.99, advised=False),
        ],
    )
    now_us = int(NOON.timestamp()) * 1_000_000
    settings = AdviceSettings(moves_max=1)
    advice = make_advice(tables, settings, now_us)
    assert [(r.path[0], r.avoid) for r in advice.risks] == [
        (node_id("mended"), True),
        (node_id("good"), False),
    ]
    assert (advice.snapshot, advice.moves_max) == (1, 1)
    assert {p.node for p in advice.placements} == {
        node_id(n) for n in ("hub", "good", "mended", "paused")
    }
    root, store = to_uri(published), LocalStore()
    publish_advice(store, root, advice)
    assert last_advice(store, root) == advice
    assert newest_advice(published / "advice", node_id("good")).advice is not None
    # The marked path stays marked while its risk is above the lower threshold.
    calmer = Predicted(
        open_tables(published), [prediction("good", 0.6), prediction("mended", 0.35)]
    )
    later = make_advice(calmer, settings, now_us, advice)
    assert [r.path[0] for r in later.risks if r.avoid] == [node_id("mended")]


@pytest.mark.spark
def test_advice_without_predictions_is_empty_and_published(published: Path) -> None:
    result = invoke("advise", "--out", published, "--json")
    assert result.exit_code == 0, result.output
    advice = json.loads(result.stdout)
    assert (advice["snapshot"], advice["risks"]) == (1, [])
