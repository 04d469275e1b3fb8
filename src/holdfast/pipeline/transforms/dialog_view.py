"""The audit of dialogs as tables: dialogs are judged on the executors, each by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, cast

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from holdfast.dialog.ids import DIALOG_BYTES, NODE_BYTES, STORE_BYTES
from holdfast.pipeline.dialog_audit import COMPLETED, judge_dialogs
from holdfast.pipeline.frames import arrow_of
from holdfast.pipeline.transforms import conform
from holdfast.pipeline.transforms.dialog_ranges import DIALOG_AUDIT, DIALOG_VIOLATIONS
from holdfast.pipeline.transforms.recording import missing_facts

if TYPE_CHECKING:
    from holdfast.pipeline.tables import Source

JUDGED: Final = """dialog string, sender string, assurances bigint, verdict string, why string, captured bigint,
    taken bigint, deleted bigint, compared bigint, violations bigint, claim string, text string,
    events array<string>"""
"""Verdicts have no `claim`, violations have no `verdict`."""
_TOP_DIGIT: Final = 2 * (NODE_BYTES + STORE_BYTES) + 1
"""The digit of a dialog, counted from one, whose highest bit tells the two ends in one store apart."""

Lost = Mapping[tuple[str, int], int]
"""Lives of nodes to the number of their range facts that are missing."""


def judged_dialogs(source: Source) -> DataFrame:
    """Verdicts and violations of the look-back; made once per run."""
    if "dialogs" not in source.memo:
        rows = source.hourly("dialog_ranges", source.look_back_days)
        by_dialog = rows.groupBy(conversation_column().alias("conversation"))
        judge = judge_on_executor(_incomplete(source))
        # Both views are made of it.
        source.memo["dialogs"] = by_dialog.applyInArrow(judge, JUDGED).cache()
    return cast("DataFrame", source.memo["dialogs"])


def dialog_audit(source: Source) -> DataFrame:
    return conform(judged_dialogs(source).where("verdict IS NOT NULL"), DIALOG_AUDIT)


def dialog_violations(source: Source) -> DataFrame:
    return conform(judged_dialogs(source).where("claim IS NOT NULL"), DIALOG_VIOLATIONS)


def conversation_column() -> Column:
    """One name for both ends of a dialog, as `dialog_audit.conversation` gives it."""
    dialog = sf.col("dialog")
    top = sf.translate(sf.substring(dialog, _TOP_DIGIT, 1), "89abcdef", "01234567")
    one = sf.concat(
        sf.substring(dialog, 1, _TOP_DIGIT - 1),
        top,
        sf.substring(dialog, _TOP_DIGIT + 1, 2 * DIALOG_BYTES),
    )
    return sf.when(sf.length(dialog) == 2 * DIALOG_BYTES, one).otherwise(dialog)


def judge_on_executor(incomplete: Lost) -> Callable[[pa.Table], pa.Table]:
    """Judges the ranges of one dialog. Spark looks at the annotations."""

    def judge(table: pa.Table) -> pa.Table:
        rows = table.to_pylist()
        completed = [row["dialog"] for row in rows if row["event"] == COMPLETED]
        ranges = [row for row in rows if row["event"] != COMPLETED]
        verdicts, violations = judge_dialogs(ranges, completed, incomplete)
        found = [msgspec.to_builtins(one) for one in (*verdicts, *violations)]
        return pa.Table.from_pylist(found, arrow_of(JUDGED))

    return judge


def _incomplete(source: Source) -> Lost:
    """Lives of nodes with range facts that are missing: lost, not collected, or older than the look-back."""
    recorded = source.hourly("recording_hours", source.look_back_days)
    lives = missing_facts(recorded, ("dialog_range",)).collect()
    return {(row["node"], row["incarnation"]): int(row["missing"]) for row in lives}
