"""The audit as tables: gathers the evidence with Spark, has it judged, and gives the verdicts as frames."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from holdfast.pipeline.audit import (
    Evidence,
    Range,
    Verdict,
    Violation,
    edge_digests,
    judge,
    rollbacks,
)
from holdfast.pipeline.frames import arrow_of
from holdfast.pipeline.transforms import conform
from holdfast.pipeline.transforms.delivery_compare import (
    DIFFERS,
    as_ranges,
    compare_blocks,
    compare_entries,
    entries_of,
    of_what,
    overlapping,
)

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

DESCEND_MAX: Final = 2_000
"""Blocks that are compared entry by entry in one run; the rest is reported as a range."""
EVIDENCE_MAX: Final = 1_000_000
"""Rows of each table that the judgement takes; above it the audit says so instead of guessing."""

_STEPS: Final = ("edge", "break", "stream", "gap")
_BLOCK_SUMS: Final = """`group` string, epoch bigint, node string, incarnation bigint, block bigint, entries bigint,
    messages bigint, digests bigint, index_min bigint, position_min bigint, index_max bigint, end_max bigint,
    entry_hash bigint, digest_hash bigint"""
_VOIDS: Final = """`group` string, epoch bigint, node string, incarnation bigint, from_index bigint,
    before_ns bigint"""


class Judged(msgspec.Struct, frozen=True):
    verdicts: list[Verdict]
    ranges: list[Range]
    violations: list[Violation]


def judged(source: Source) -> Judged:
    """The judgement on the look-back; made once per run."""
    if "audit" not in source.memo:
        source.memo["audit"] = Judged(*judge(_evidence(source)))
    found = source.memo["audit"]
    assert isinstance(found, Judged)
    return found


def as_table(rows: Iterable[msgspec.Struct], schema: str) -> pa.Table:
    """Structs as a table of `schema`: what the driver has needs no executor to be written."""
    return pa.Table.from_pylist([msgspec.to_builtins(row) for row in rows], arrow_of(schema))


def deliveries(source: Source) -> DataFrame:
    """One row per group, epoch and replica."""
    blocks = of_what(source.hourly("delivery_blocks", source.look_back_days), "block")
    names = source.view("nodes").select("node", sf.col("name").alias("replica_name"))
    rows = (
        blocks.groupBy("group", "epoch", "node")
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


def _evidence(source: Source) -> Evidence:
    days = source.look_back_days
    table = source.hourly("delivery_blocks", days).cache()
    try:
        events = evidence_rows(source.hourly("group_events", days))
        steps: dict[str, list[dict[str, Any]]] = {what: [] for what in _STEPS}
        for row in evidence_rows(table.where(sf.col("what").isin(*_STEPS))):
            steps[row["what"]].append(row)
        edges = steps["edge"]
        ranges, differing, repeated = _compare(source, of_what(table, "block"), edges, events)
        recorded = source.hourly("recording_hours", days).where("kind = 'delivery' AND facts > 0")
        names = {row["node"]: row["name"] for row in source.view("nodes").collect()}
        return Evidence(
            edges=edges,
            breaks=steps["break"],
            streams=steps["stream"],
            gaps=steps["gap"],
            events=events,
            recorded=evidence_rows(recorded),
            ranges=ranges,
            differing=differing,
            overlapping=repeated,
            names=names,
        )
    finally:
        table.unpersist()


def _compare(
    source: Source, blocks: DataFrame, edges: list[dict[str, Any]], events: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """Ranges with their outcome, entries that differ, entries that overlap."""
    extra = frame_of(source, edge_digests(edges), _BLOCK_SUMS)
    compared = compare_blocks(blocks, extra).cache()
    try:
        odd = (
            compared.where(sf.col("outcome") == DIFFERS)
            .select("group", "epoch", "block")
            .orderBy("group", "epoch", "block")
            .limit(DESCEND_MAX)
            .collect()
        )
        if not odd:
            return evidence_rows(as_ranges(compared)), [], []
        wanted = frame_of(
            source, [row.asDict() for row in odd], "`group` string, epoch bigint, block bigint"
        )
        hours = evidence_rows(
            blocks.join(sf.broadcast(wanted), ["group", "epoch", "block"]).select("hour").distinct()
        )
        facts = source.facts_around("delivery", [row["hour"] for row in hours])
        voids = frame_of(source, rollbacks(events), _VOIDS)
        entries = compare_entries(entries_of(facts, wanted, voids)).cache()
        rest = compared.join(sf.broadcast(wanted), ["group", "epoch", "block"], "left_anti")
        columns = (
            "group", "epoch", "outcome", "nodes", "first_index", "last_index", "entries", "messages",
            "first_position", "last_position",
        )  # fmt: skip
        both = rest.select(*columns).unionByName(entries.select(*columns))
        result = (
            evidence_rows(as_ranges(both, "first_index")),
            evidence_rows(
                entries.where(sf.col("outcome") == DIFFERS).select(
                    "group", "epoch", "index", "told"
                )
            ),
            evidence_rows(overlapping(entries)),
        )
        entries.unpersist()
        return result
    finally:
        compared.unpersist()


def evidence_rows(frame: DataFrame) -> list[dict[str, Any]]:
    rows = frame.limit(EVIDENCE_MAX + 1).collect()
    if len(rows) > EVIDENCE_MAX:
        from holdfast.errors import HoldfastError

        raise HoldfastError(
            f"the audit has more than {EVIDENCE_MAX} rows of one kind of evidence; nothing was published. "
            "Shorten the retention of roll-ups, or audit fewer groups"
        )
    return [row.asDict(recursive=True) for row in rows]


def frame_of(source: Source, rows: list[dict[str, Any]], schema: str) -> DataFrame:
    from pyspark.sql.types import StructType

    fields = cast("StructType", StructType.fromDDL(schema))
    values = [tuple(row.get(name) for name in fields.names) for row in rows]
    return source.spark.createDataFrame(values, fields)
