"""The audit as tables: gathers the evidence on each group, and has it judged on the executors, group by group.

The evidence of many groups over weeks does not fit into the driver; that of one group fits into a task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from holdfast.pipeline.audit import judge
from holdfast.pipeline.evidence import Evidence
from holdfast.pipeline.transforms import conform
from holdfast.pipeline.transforms.audit_frontier import FOUND, compared
from holdfast.pipeline.transforms.delivery_compare import of_what

if TYPE_CHECKING:
    from holdfast.pipeline.tables import Source

DELIVERY_AUDIT: Final = """`group` string, epoch bigint, verdict string, why string, replicas bigint, entries bigint,
    entries_compared bigint, coverage double, messages bigint, first_index bigint, last_index bigint,
    first_position bigint, last_position bigint, rolled_back bigint, holes_unexplained bigint, violations bigint,
    named array<string>"""
AUDIT_RANGES: Final = """`group` string, epoch bigint, first_index bigint, last_index bigint, first_position bigint,
    last_position bigint, entries bigint, messages bigint, verdict string, why string, replicas array<string>"""
DELIVERY_VIOLATIONS: Final = """`group` string, epoch bigint, `index` bigint, claim string, text string,
    events array<string>"""
DELIVERIES: Final = """`group` string, epoch bigint, replica string, replica_name string, incarnations bigint,
    entries bigint, messages bigint, first_index bigint, last_index bigint, first_position bigint,
    last_position bigint"""

_STEPS: Final = {"edge": "edges", "break": "breaks", "stream": "streams", "gap": "gaps"}
"""Rows of `delivery_blocks` that are evidence, to their name there."""
_STRETCH: Final = (
    *("group", "epoch", "outcome", "nodes", "first_index", "last_index", "entries", "messages"),
    *("first_position", "last_position"),
)
_EVIDENCE: Final = "`group` string, what string, said string"
JUDGED: Final = "`group` string, what string, said string"
"""`what` is `verdict`, `range` or `violation`; `said` is its row as JSON."""
_JUDGED_ARROW: Final = pa.schema([(name, pa.string()) for name in ("group", "what", "said")])
_KEPT_NULLS: Final = {"ignoreNullFields": "false"}


def judged(source: Source) -> DataFrame:
    """The judgement on the look-back; made once per run."""
    if "audit" not in source.memo:
        kept: list[DataFrame] = []
        try:
            names = {row["node"]: row["name"] for row in source.view("nodes").collect()}
            evidence = _evidence(source, kept)
            made = evidence.groupBy("group").applyInArrow(judge_on_executor(names), JUDGED).cache()
            made.count()  # Three views are made of it; what it was made of is not needed any more.
        finally:
            for frame in kept:
                frame.unpersist()
        source.memo["audit"] = made
    return cast("DataFrame", source.memo["audit"])


def delivery_audit(source: Source) -> DataFrame:
    return _of_kind(source, "verdict", DELIVERY_AUDIT)


def audit_ranges(source: Source) -> DataFrame:
    return _of_kind(source, "range", AUDIT_RANGES)


def delivery_violations(source: Source) -> DataFrame:
    return _of_kind(source, "violation", DELIVERY_VIOLATIONS)


def _of_kind(source: Source, what: str, schema: str) -> DataFrame:
    rows = judged(source).where(sf.col("what") == what)
    return conform(rows.select(sf.from_json("said", schema).alias("row")).select("row.*"), schema)


def judge_on_executor(names: Mapping[str, str]) -> Callable[[pa.Table], pa.Table]:
    """Judges the evidence on one group. Spark looks at the annotations."""

    def judge_group(table: pa.Table) -> pa.Table:
        verdicts, ranges, violations = judge(evidence_from(table.to_pylist(), names))
        group = table["group"][0].as_py()
        found = (("verdict", verdicts), ("range", ranges), ("violation", violations))
        rows = [
            {"group": group, "what": what, "said": msgspec.json.encode(one).decode()}
            for what, ones in found
            for one in ones
        ]
        return pa.Table.from_pylist(rows, _JUDGED_ARROW)

    return judge_group


def evidence_from(rows: list[dict[str, Any]], names: Mapping[str, str]) -> Evidence:
    """Evidence from its rows (`what`, `said`)."""
    found: dict[str, list[dict[str, Any]]] = {
        name: []
        for name in (
            *_STEPS.values(),
            *("events", "recorded", "ranges", "differing", "overlapping"),
        )
    }
    for row in rows:
        found[row["what"]].append(msgspec.json.decode(row["said"]))
    return Evidence(**found, names=names)


def deliveries(source: Source) -> DataFrame:
    """One row per group, epoch and replica."""
    lives = of_what(source.hourly("delivery_blocks", source.look_back_days), "edge")
    names = source.view("nodes").select("node", sf.col("name").alias("replica_name"))
    rows = (
        lives.groupBy("group", "epoch", "node")
        .agg(
            sf.count_distinct("incarnation").alias("incarnations"),
            sf.sum("entries").alias("entries"),
            sf.sum("messages").alias("messages"),
            sf.min("index_min").alias("first_index"),
            sf.max("index_max").alias("last_index"),
            sf.min("position_min").alias("first_position"),
            (sf.max("end_max") - 1).alias("last_position"),
        )
        .join(names, "node", "left")
        .withColumnRenamed("node", "replica")
    )
    return conform(rows, DELIVERIES)


def _evidence(source: Source, kept: list[DataFrame]) -> DataFrame:
    """Everything that is known about each group, as one frame. Frames that are cached for it are appended to `kept`."""
    days = source.look_back_days
    table = source.hourly("delivery_blocks", days)
    steps = table.where(sf.col("what").isin(*_STEPS))
    lives = of_what(table, "edge").select("group", "node", "incarnation").distinct()
    recorded = (
        source.hourly("recording_hours", days)
        .where("kind = 'delivery' AND facts > 0")
        .select("node", "incarnation", "first", "last", "facts")
        .join(sf.broadcast(lives), ["node", "incarnation"])
    )
    stretches = compared(source, kept)
    alike = stretches.where(sf.col("found").isNull()).select(*_STRETCH)
    found = (
        stretches.where(sf.col("found").isNotNull())
        .select("group", sf.explode(sf.from_json("found", FOUND)).alias("one"))
        .select("group", "one.what", "one.said")
    )
    named = sf.element_at(
        sf.create_map(*(sf.lit(w) for p in _STEPS.items() for w in p)), sf.col("what")
    )
    frames = [
        _said(steps, named),
        _said(source.hourly("group_events", days).drop("at"), sf.lit("events"), _KEPT_NULLS),
        _said(recorded, sf.lit("recorded")),
        _said(alike, sf.lit("ranges")),
        conform(found, _EVIDENCE),
    ]
    return reduce(DataFrame.unionByName, frames)


def _said(rows: DataFrame, name: Column, options: dict[str, str] | None = None) -> DataFrame:
    said = sf.to_json(sf.struct("*"), options)
    return conform(rows.select("group", name.alias("what"), said.alias("said")), _EVIDENCE)
