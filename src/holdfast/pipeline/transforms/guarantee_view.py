"""The audit of guarantees as tables: subjects are judged on the executors, each by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame

from holdfast.pipeline.judges import GUARANTEES, Missing, judge_subject
from holdfast.pipeline.transforms import conform
from holdfast.pipeline.transforms.recording import missing_facts

if TYPE_CHECKING:
    from holdfast.pipeline.tables import Source

GUARANTEE_AUDIT: Final = """guarantee string, subject string, verdict string, why string, facts bigint,
    checked bigint, violations bigint"""
GUARANTEE_VIOLATIONS: Final = """guarantee string, subject string, claim string, text string,
    events array<string>"""
JUDGED: Final = """guarantee string, subject string, verdict string, why string, facts bigint, checked bigint,
    violations bigint, claim string, text string, events array<string>"""
"""Verdicts have no `claim`, violations have no `verdict`."""


def judged_guarantees(source: Source) -> DataFrame:
    """Verdicts and violations of the look-back; made once per run."""
    if "guarantees" not in source.memo:
        rows = source.hourly("guarantee_events", source.look_back_days)
        judge = judge_on_executor(_missing(source))
        # Both views are made of it.
        source.memo["guarantees"] = (
            rows.groupBy("guarantee", "subject").applyInArrow(judge, JUDGED).cache()
        )
    return cast("DataFrame", source.memo["guarantees"])


def guarantee_audit(source: Source) -> DataFrame:
    return conform(judged_guarantees(source).where("verdict IS NOT NULL"), GUARANTEE_AUDIT)


def guarantee_violations(source: Source) -> DataFrame:
    return conform(judged_guarantees(source).where("claim IS NOT NULL"), GUARANTEE_VIOLATIONS)


def judge_on_executor(missing: Missing) -> Callable[[pa.Table], pa.Table]:
    """Judges the facts of one subject. Spark looks at the annotations."""

    def judge(table: pa.Table) -> pa.Table:
        rows = table.to_pylist()
        first = rows[0]
        verdicts, violations = judge_subject(first["guarantee"], first["subject"], rows, missing)
        found = [msgspec.to_builtins(one) for one in (*verdicts, *violations)]
        return pa.Table.from_pylist(found, _arrow())

    return judge


def _arrow() -> pa.Schema:
    text, number = pa.string(), pa.int64()
    return pa.schema(
        [
            *((name, text) for name in ("guarantee", "subject", "verdict", "why")),
            *((name, number) for name in ("facts", "checked", "violations")),
            *((name, text) for name in ("claim", "text")),
            ("events", pa.list_(text)),
        ]
    )


def _missing(source: Source) -> Missing:
    kinds = list(dict.fromkeys(kind for one in GUARANTEES.values() for kind in one.kinds))
    recorded = source.hourly("recording_hours", source.look_back_days)
    return {
        (row["node"], row["incarnation"], row["kind"]): int(row["missing"])
        for row in missing_facts(recorded, kinds).collect()
    }
