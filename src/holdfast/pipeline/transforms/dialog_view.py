"""The audit of dialogs as tables: gathers the ranges with Spark, and has them judged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.pipeline.dialog_audit import (
    COMPLETED,
    DialogVerdict,
    DialogViolation,
    judge_dialogs,
)
from holdfast.pipeline.transforms.audit_view import evidence_rows
from holdfast.pipeline.transforms.recording import missing_facts

if TYPE_CHECKING:
    from holdfast.pipeline.tables import Source


class JudgedDialogs(msgspec.Struct, frozen=True):
    verdicts: list[DialogVerdict]
    violations: list[DialogViolation]


def judged_dialogs(source: Source) -> JudgedDialogs:
    """The judgement on the look-back; made once per run."""
    if "dialogs" not in source.memo:
        rows = evidence_rows(source.hourly("dialog_ranges", source.look_back_days))
        completed = [row["dialog"] for row in rows if row["event"] == COMPLETED]
        ranges = [row for row in rows if row["event"] != COMPLETED]
        found = judge_dialogs(ranges, completed, _incomplete(source))
        source.memo["dialogs"] = JudgedDialogs(*found)
    judged = source.memo["dialogs"]
    assert isinstance(judged, JudgedDialogs)
    return judged


def _incomplete(source: Source) -> dict[tuple[str, int], int]:
    """Lives of nodes with range facts that are missing: lost, not collected, or older than the look-back."""
    recorded = source.hourly("recording_hours", source.look_back_days)
    lives = missing_facts(recorded, ("dialog_range",))
    return {(row["node"], row["incarnation"]): int(row["missing"]) for row in evidence_rows(lives)}
