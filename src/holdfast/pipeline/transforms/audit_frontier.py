"""The frontier as a table: what was compared, kept over runs, so that a run reads only the blocks that changed.

| outcome | a stretch of the log |
| --- | --- |
| `same` | all replicas that recorded it recorded the same |
| `single` | one replica recorded it |
| `differs` | blocks that differ: `found` has the outcome of comparing each entry |

`frontier` says which stretches of the published table still hold. The result is the same, row for row, as that of
comparing everything.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from holdfast.pipeline.frontier import EVERYTHING, NOTHING, Reading, Stretch, Touched, reading
from holdfast.pipeline.transforms import conform
from holdfast.pipeline.transforms.delivery_blocks import BLOCK
from holdfast.pipeline.transforms.delivery_compare import (
    DIFFERS,
    UNREAD,
    as_ranges,
    as_stretches,
    compare_blocks,
    compare_entries,
    differing_in_turn,
    edge_digests,
    entries_of,
    of_what,
    overlapping,
    rolled_back,
    within,
)
from holdfast.pipeline.transforms.group_events import ROLLED_BACK

if TYPE_CHECKING:
    from holdfast.pipeline.tables import Source

TABLE: Final = "audit_frontier"
AUDIT_FRONTIER: Final = """`group` string, epoch bigint, first_block bigint, last_block bigint, first_hour string,
    last_hour string, outcome string, nodes array<string>, first_index bigint, last_index bigint,
    entries bigint, messages bigint, first_position bigint, last_position bigint, blocks bigint, since string,
    found string"""
"""`since` is the first day of the look-back. `found` is the outcome of comparing entries, as JSON."""
FOUND: Final = "array<struct<what:string,said:string>>"
"""What `found` says: rows of evidence."""
DESCEND_MAX: Final = 2_000
"""Blocks that are compared entry by entry in one run. The groups take turns; the rest is not provable."""
_INDEX_MAX: Final = 1 << 62
_RANGES: Final = "`group` string, epoch bigint, first_block bigint, last_block bigint"
_KEY: Final = ("group", "epoch", "first_block")
_KEPT_NULLS: Final = {"ignoreNullFields": "false"}


def audit_frontier(source: Source) -> DataFrame:
    """The table as this run leaves it. Without what was not read, the next run could not go on: then it is empty."""
    rows = compared(source, [])
    return rows if source.memo.get("frontier_whole", True) else rows.where(sf.lit(False))


def compared(source: Source, kept: list[DataFrame]) -> DataFrame:
    """Stretches of all logs in the look-back, made once per run. Frames that it caches are appended to `kept`."""
    if "frontier" not in source.memo:
        source.memo["frontier"] = _Comparison(source, kept).rows().cache()
    return cast("DataFrame", source.memo["frontier"])


class _Comparison:
    """Compares what must be compared again, and takes over the rest."""

    def __init__(self, source: Source, kept: list[DataFrame]) -> None:
        self._source, self._cached = source, kept
        self._days = source.look_back_days

    def rows(self) -> DataFrame:
        plan = self._plan()
        fresh = self._stretches(plan)
        differing = _differing(fresh)
        old = sum(stretch.blocks for stretch in plan.kept if stretch.differs) if plan else 0
        if plan is not None and old + sum(row["blocks"] for row in differing) > DESCEND_MAX:
            # Whose turn it is depends on all blocks that differ.
            plan = None
            fresh = self._stretches(plan)
            differing = _differing(fresh)
        if sum(row["blocks"] for row in differing) > DESCEND_MAX:
            fresh = self._in_turn()
            differing = _differing(fresh)
            self._source.memo["frontier_whole"] = False
        if differing:
            # Comparing entries may find nothing, not even an entry: all were rolled back.
            looked = sf.when(sf.col("outcome") == DIFFERS, sf.coalesce("found", sf.lit("[]")))
            fresh = (
                fresh.drop("found")
                .join(self._found(differing), list(_KEY), "left")
                .withColumn("found", looked)
            )
        if plan is not None:
            both = fresh.drop("part").unionByName(self._taken_over(plan))
            fresh = as_stretches(_in_one_part(both), self._source.first_open)
        return conform(fresh.withColumn("since", sf.lit(self._first_day)), AUDIT_FRONTIER)

    @property
    def _first_day(self) -> str:
        return self._source.first_day(self._days)

    # -- what is compared again ----------------------------------------------------------------------------------

    def _plan(self) -> Reading | None:
        """None: everything is."""
        since = self._source.changed_since(TABLE)
        if since == EVERYTHING:
            return None
        columns = [
            *("group", "epoch", "first_block", "last_block", "first_hour", "last_hour", "blocks"),
            *("outcome", "since"),
        ]
        rows = self._source.published_rows(TABLE, columns)
        if not rows or max(row["since"] for row in rows) > self._first_day:
            return None
        stretches = [
            Stretch(
                row["group"], row["epoch"], row["first_block"], row["last_block"], row["first_hour"],
                row["last_hour"], row["blocks"], row["outcome"] == DIFFERS,
            )
            for row in rows
        ]  # fmt: skip
        return reading(stretches, self._touched(since), since, self._first_day)

    def _touched(self, since: str) -> list[Touched]:
        """The blocks that hours from `since` on tell of, as one range per log, and those that were rolled back."""
        if since == NOTHING:
            return []
        hours = [(since, NOTHING)]
        changed = sf.col("hour") >= since
        blocks = of_what(self._source.hours("delivery_blocks", hours), "block").where(changed)
        voids = self._source.hours("group_events", hours).where(
            changed & (sf.col("event") == ROLLED_BACK) & (sf.col("rollback_index") >= 0)
        )
        void = sf.floor(sf.col("rollback_index") / BLOCK)
        found = (
            blocks.select("group", "epoch", "block", sf.lit(False).alias("void"))
            .unionByName(
                voids.select("group", "epoch", void.alias("block"), sf.lit(True).alias("void"))
            )
            .groupBy("group", "epoch")
            .agg(
                sf.min("block").alias("low"),
                sf.max("block").alias("high"),
                sf.max("void").alias("void"),
            )
            .collect()
        )
        return [
            Touched(
                row["group"], row["epoch"], row["low"], _INDEX_MAX if row["void"] else row["high"]
            )
            for row in found
        ]

    def _taken_over(self, plan: Reading) -> DataFrame:
        """The published stretches that still hold."""
        rows = self._source.published(TABLE, AUDIT_FRONTIER).drop("since")
        if plan.gone:
            gone = self._source.spark.createDataFrame(
                [(one.group, one.epoch, one.first_block) for one in plan.gone],
                "`group` string, epoch bigint, first_block bigint",
            )
            rows = rows.join(sf.broadcast(gone), list(_KEY), "left_anti")
        return rows.withColumn("hours", sf.array().cast("array<string>"))

    # -- comparing -----------------------------------------------------------------------------------------------

    def _blocks(self, plan: Reading | None) -> DataFrame:
        source = self._source
        edges = of_what(source.hourly("delivery_blocks", self._days), "edge")
        digests = edge_digests(edges)
        if plan is None:
            blocks = of_what(source.hourly("delivery_blocks", self._days), "block")
            return compare_blocks(_in_one_part(blocks), _in_one_part(digests))
        since = self._source.changed_since(TABLE)
        blocks = of_what(source.hours("delivery_blocks", [*plan.hours, (since, NOTHING)]), "block")
        again = self._source.spark.createDataFrame(
            [(one.group, one.epoch, one.first_block, one.last_block) for one in plan.again], _RANGES
        )
        return compare_blocks(
            *(
                within(rows, again).withColumnRenamed("first_block", "part")
                for rows in (blocks, digests)
            )
        )

    def _stretches(self, plan: Reading | None) -> DataFrame:
        return self._cache(as_stretches(_as_rows(self._blocks(plan)), self._source.first_open))

    def _in_turn(self) -> DataFrame:
        """Too many blocks differ: some are compared, the others are not read."""
        blocks = self._cache(self._blocks(None))
        wanted = differing_in_turn(blocks, DESCEND_MAX).withColumn("wanted", sf.lit(True))
        marked = blocks.join(sf.broadcast(wanted), ["group", "epoch", "block"], "left").withColumn(
            "outcome",
            sf.when(
                (sf.col("outcome") == DIFFERS) & sf.col("wanted").isNull(), sf.lit(UNREAD)
            ).otherwise(sf.col("outcome")),
        )
        return self._cache(as_stretches(_as_rows(marked), self._source.first_open))

    def _found(self, differing: list[Any]) -> DataFrame:
        """`found` of each stretch that differs: the outcome of comparing its entries."""
        source = self._source
        stretches = source.spark.createDataFrame(
            [tuple(row[name] for name in (*_KEY, "last_block")) for row in differing], _RANGES
        )
        hours = sorted({hour for row in differing for hour in row["hours"]})
        facts = source.facts_around("delivery", hours)
        voids = rolled_back(source.hourly("group_events", self._days))
        entries = self._cache(compare_entries(entries_of(facts, stretches, voids)))
        rows = [
            _said(as_ranges(entries), "ranges"),
            _said(
                entries.where(sf.col("outcome") == DIFFERS).select(*_KEY, "index", "told"),
                "differing",
            ),
            _said(overlapping(entries), "overlapping"),
        ]
        return (
            reduce(DataFrame.unionByName, rows)
            .groupBy(*_KEY)
            .agg(
                sf.to_json(
                    sf.sort_array(sf.collect_list(sf.struct("what", "said"))), _KEPT_NULLS
                ).alias("found")
            )
        )

    def _cache(self, frame: DataFrame) -> DataFrame:
        self._cached.append(frame.cache())
        return self._cached[-1]


def _as_rows(blocks: DataFrame) -> DataFrame:
    """Blocks as stretches of one."""
    return blocks.withColumns(
        {
            "first_block": sf.col("block"),
            "last_block": sf.col("block"),
            "first_hour": sf.array_min("hours"),
            "last_hour": sf.array_max("hours"),
            # Only blocks that differ are looked for in facts.
            "hours": sf.when(sf.col("outcome") == DIFFERS, sf.col("hours")),
            "blocks": sf.lit(1).cast("bigint"),
            "found": sf.lit(None).cast("string"),
        }
    )


def _in_one_part(rows: DataFrame) -> DataFrame:
    return rows.withColumn("part", sf.lit(0).cast("bigint"))


def _differing(stretches: DataFrame) -> list[Any]:
    wanted = (*_KEY, "last_block", "blocks", "hours")
    return list(stretches.where(sf.col("outcome") == DIFFERS).select(*wanted).collect())


def _said(rows: DataFrame, name: str) -> DataFrame:
    said = sf.to_json(sf.struct(*(c for c in rows.columns if c != "first_block")), _KEPT_NULLS)
    return rows.select(*_KEY, sf.lit(name).alias("what"), said.alias("said"))
