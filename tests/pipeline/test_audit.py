"""P7, rule 17: every planted violation is found and nothing else is; a verdict states its coverage."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.types import StructType
from tests.pipeline.dialog_traces import BROKEN, SOUND, write_dialogs
from tests.pipeline.making import NOON
from tests.pipeline.traces import HARMLESS, PLANTED

from holdfast.pipeline.ask import open_views
from holdfast.pipeline.audit import CLAIMS
from holdfast.pipeline.jobs import Settings, run_pipeline
from holdfast.pipeline.reader import Tables, open_tables
from holdfast.pipeline.transforms.audit_view import (
    AUDIT_RANGES,
    DELIVERY_AUDIT,
    DELIVERY_VIOLATIONS,
)
from holdfast.pipeline.transforms.dialog_ranges import DIALOG_AUDIT, DIALOG_VIOLATIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def audited(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """One run over all traces: each is a group of its own."""
    root = tmp_path_factory.mktemp("audit")
    for make, _ in [*PLANTED.values(), *HARMLESS.values()]:
        make().write(root / "landing")
    write_dialogs(root / "landing")
    settings = Settings(buckets=1)
    report = run_pipeline(
        root / "landing", root / "out", settings, session=spark, now=NOON + timedelta(hours=9)
    )
    assert report.set_aside == ()
    return open_tables(root / "out")


@pytest.mark.parametrize("group", PLANTED)
def test_a_planted_violation_is_found_and_nothing_else_is(group: str, audited: Tables) -> None:
    """One wrong message is one violation, not one for everything after it."""
    rows = [row for row in audited.rows("delivery_violations") if row["group"] == group]
    assert {(row["claim"], row["index"]) for row in rows} == PLANTED[group][1]
    assert all(row["events"] and row["text"] for row in rows)
    (verdict,) = [row for row in audited.rows("delivery_audit") if row["group"] == group]
    assert verdict["verdict"] == "violated"


def test_every_claim_has_a_planted_violation() -> None:
    planted = {claim for _, found in PLANTED.values() for claim, _ in found}
    assert planted == set(CLAIMS)


@pytest.mark.parametrize("group", HARMLESS)
def test_nothing_is_found_where_no_promise_is_broken(group: str, audited: Tables) -> None:
    rows = [row for row in audited.rows("delivery_violations") if row["group"] == group]
    assert rows == []
    verdicts = [row for row in audited.rows("delivery_audit") if row["group"] == group]
    assert {row["verdict"] for row in verdicts} == {HARMLESS[group][1]}, verdicts


def test_a_recreated_group_is_judged_epoch_by_epoch(audited: Tables) -> None:
    rows = [row for row in audited.rows("delivery_audit") if row["group"] == "new-epoch"]
    assert [(row["epoch"], row["entries"]) for row in rows] == [(7, 60), (8, 60)]


def test_one_compared_entry_proves_one_entry(audited: Tables) -> None:
    """`holds` needs every entry, not a single one."""
    (row,) = [row for row in audited.rows("delivery_audit") if row["group"] == "one-in-common"]
    assert (row["entries"], row["entries_compared"]) == (500, 1)
    assert "499 entries were recorded by one replica only" in row["why"]
    ranges = [r for r in audited.rows("audit_ranges") if r["group"] == "one-in-common"]
    assert [(r["first_index"], r["last_index"], r["verdict"]) for r in ranges] == [
        (2, 2, "holds"),
        (3, 501, "not provable"),
    ]


def test_a_tail_that_others_have_not_recorded_yet_is_stated(audited: Tables) -> None:
    (row,) = [row for row in audited.rows("delivery_audit") if row["group"] == "crashed-tail"]
    assert row["coverage"] == pytest.approx(490 / 500)
    assert "10 at the ends are not compared yet or any more" in row["why"]


def test_blocks_that_span_hours_are_compared_without_reading_them_again(audited: Tables) -> None:
    (row,) = [row for row in audited.rows("delivery_audit") if row["group"] == "correct"]
    assert (row["entries"], row["coverage"], row["messages"]) == (5000, 1.0, 15000)
    blocks = [
        r
        for r in audited.rows("delivery_blocks", ["what", "group", "hour", "block"])
        if r["group"] == "correct" and r["what"] == "block"
    ]
    assert len({r["hour"] for r in blocks}) == 4
    assert {r["block"] for r in blocks} == {0, 1}


def test_lost_facts_make_a_hole_not_provable(audited: Tables) -> None:
    (row,) = [row for row in audited.rows("delivery_audit") if row["group"] == "lost-facts"]
    assert row["holes_unexplained"] == 1
    assert "where facts were lost" in row["why"]


def test_the_command_exits_with_a_code_of_its_own(audited: Tables) -> None:
    from typer.testing import CliRunner

    from holdfast.pipeline.command import app

    root = audited.root.removeprefix("file://")
    result = CliRunner(env={"COLUMNS": "300"}).invoke(app, ["audit", "--out", root])
    assert result.exit_code == 3
    assert "wrong-content epoch 7: violated: 1 violation" in result.stdout
    fine = CliRunner().invoke(app, ["audit", "--out", root, "--group", "correct", "--json"])
    assert fine.exit_code == 0
    assert '"verdict":"holds"' in fine.stdout
    assert CliRunner().invoke(app, ["audit", "--out", root, "--group", "none"]).exit_code == 2
    assert Path(root, "report.html").exists()


def test_a_dialog_is_judged_by_the_ranges_of_both_its_ends(audited: Tables) -> None:
    """P7: ranges of several hours and batches; digests above 2 ** 63 add up; a repeat is found and nothing else."""
    verdicts = {row["dialog"]: row for row in audited.rows("dialog_audit")}
    assert verdicts[SOUND]["verdict"] == "holds", verdicts[SOUND]
    assert verdicts[SOUND]["compared"] == verdicts[SOUND]["captured"] == 40
    assert verdicts[BROKEN]["verdict"] == "violated"
    found = [(row["dialog"], row["claim"]) for row in audited.rows("dialog_violations")]
    assert found == [(BROKEN, "at most once")]


def test_verdicts_are_published_with_the_columns_that_they_declare(
    spark: SparkSession, audited: Tables
) -> None:
    """Judges run on executors and say their rows as JSON; `ask --sql` reads them as any other table."""
    open_views(spark, audited)
    for name, schema in (
        ("delivery_audit", DELIVERY_AUDIT),
        ("audit_ranges", AUDIT_RANGES),
        ("delivery_violations", DELIVERY_VIOLATIONS),
        ("dialog_audit", DIALOG_AUDIT),
        ("dialog_violations", DIALOG_VIOLATIONS),
    ):
        fields = [(field.name, field.dataType) for field in spark.table(name).schema]
        declared = StructType.fromDDL(schema)
        assert fields == [(field.name, field.dataType) for field in declared], name
    (row,) = spark.sql(
        "SELECT size(events) AS events FROM delivery_violations WHERE `group` = 'wrong-content'"
    ).collect()
    assert row["events"] >= 2
