"""What was recorded, and what is missing from it.

Facts are numbered per node, incarnation and kind, so a number that is not there is a fact that was lost. Nodes name
what they could not keep (kind `lost`, also of their earlier lives; `last` is below `first` when the count is unknown).
What is missing and was not named is `unexplained`.

`recording_hours` is a function of one hour's facts: ranges of numbers. `recording` merges all ranges.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import reduce
from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from holdfast.pipeline.schemas import LOST
from holdfast.pipeline.transforms import conform, hour_column

RECORDING_HOURS: Final = """kind string, node string, name string, incarnation bigint, hour string,
    `first` bigint, `last` bigint, facts bigint, first_at timestamp, last_at timestamp, reason string"""
"""Ranges of fact numbers. `facts` is 0 for a range that its node named as lost, for `reason`."""

RECORDING: Final = """kind string, node string, name string, incarnations bigint, facts bigint,
    first_at timestamp, last_at timestamp, missing bigint, said_lost bigint, uncounted_losses bigint,
    unexplained bigint, reasons array<string>"""

NODES: Final = """node string, name string, names array<string>, first_at timestamp, last_at timestamp,
    incarnations bigint, silent_s double"""
"""`silent_s` is how much earlier than the newest fact of the domain a node's newest fact is."""

_KEY: Final = ("kind", "node", "incarnation")


def recording_hours(facts: Mapping[str, DataFrame]) -> DataFrame:
    """Contiguous ranges of numbers per kind, node, incarnation and hour."""
    ranges = [_numbered(frame, kind) for kind, frame in facts.items()]
    if LOST in facts:
        ranges.append(_said(facts[LOST]))
    return reduce(DataFrame.unionByName, [conform(frame, RECORDING_HOURS) for frame in ranges])


def missing_facts(hours: DataFrame, kinds: Collection[str]) -> DataFrame:
    """Per life and kind the number of facts that are lost, not collected, or older than `hours`."""
    return (
        hours.where(sf.col("kind").isin(*kinds) & (sf.col("facts") > 0))
        .groupBy("node", "incarnation", "kind")
        .agg((sf.max("last") + 1 - sf.sum("facts")).alias("missing"))
        .where("missing > 0")
    )


def _numbered(frame: DataFrame, kind: str) -> DataFrame:
    by_number = Window.partitionBy("node", "incarnation", "hour").orderBy("n")
    return (
        frame.withColumn("hour", hour_column())
        .select("node", "name", "incarnation", "hour", "n", "at")
        .withColumn("island", sf.col("n") - sf.row_number().over(by_number))
        .groupBy("node", "incarnation", "hour", "island")
        .agg(
            sf.max("name").alias("name"),
            sf.min("n").alias("first"),
            sf.max("n").alias("last"),
            sf.count("*").alias("facts"),
            sf.min("at").alias("first_at"),
            sf.max("at").alias("last_at"),
        )
        .withColumn("kind", sf.lit(kind))
        .withColumn("reason", sf.lit(None).cast("string"))
    )


def _said(lost: DataFrame) -> DataFrame:
    """The ranges that nodes named as lost. The first writers told only of the life they were in."""
    return lost.select(
        sf.col("lost_kind").alias("kind"),
        *("node", "name", "first", "last", "reason"),
        sf.coalesce("lost_incarnation", "incarnation").alias("incarnation"),
        hour_column().alias("hour"),
        sf.lit(0).cast("bigint").alias("facts"),
        sf.col("at").alias("first_at"),
        sf.col("at").alias("last_at"),
    )


def recording(hours: DataFrame) -> DataFrame:
    """One row per kind and node.

    `said_lost` counts numbers that a node named as lost and that are in no segment; `unexplained` counts numbers after
    the first fact that are nowhere, not even named. Numbers before it are older than what is kept.
    """
    rows = _covered(hours)
    is_fact = sf.col("facts") > 0
    order = sf.struct("incarnation", "first")
    counted = rows.groupBy("kind", "node").agg(
        sf.max_by("name", order).alias("name"),
        sf.count_distinct("incarnation").alias("incarnations"),
        sf.sum("facts").alias("facts"),
        sf.min(sf.when(is_fact, sf.col("first_at"))).alias("first_at"),
        sf.max(sf.when(is_fact, sf.col("last_at"))).alias("last_at"),
        sf.sum("covers").alias("covered"),
        sf.sum("leaves_out").alias("unexplained"),
        sf.count_if(~is_fact & (sf.col("last") < sf.col("first"))).alias("uncounted_losses"),
        sf.sort_array(sf.collect_set("reason")).alias("reasons"),
    )
    said = sf.greatest(sf.col("covered") - sf.col("facts"), sf.lit(0))
    return conform(
        counted.withColumn("said_lost", said).withColumn(
            "missing", sf.col("said_lost") + sf.col("unexplained")
        ),
        RECORDING,
    )


def boundary_losses(hours: DataFrame) -> DataFrame:
    """The hours in which a node's path facts do not go on where its last ones ended, per `listener`."""
    by_hour = Window.partitionBy("node", "incarnation").orderBy("hour")
    edges = (
        hours.where("kind = 'path' AND facts > 0")
        .groupBy("node", "incarnation", "hour")
        .agg(sf.min("first").alias("first"), sf.max("last").alias("last"))
        .withColumn("before", sf.lag("last").over(by_hour))
    )
    return edges.where("before + 1 != first").select(
        sf.col("node").alias("listener"), "incarnation", "hour"
    )


def nodes(hours: DataFrame) -> DataFrame:
    """One row per node: its newest name, all its names, when it recorded something."""
    newest = sf.struct("incarnation", "last_at")
    named = hours.where("facts > 0")
    latest = sf.broadcast(named.agg(sf.max("last_at").alias("latest")))
    rows = (
        named.groupBy("node")
        .agg(
            sf.max_by("name", newest).alias("name"),
            sf.sort_array(sf.collect_set("name")).alias("names"),
            sf.min("first_at").alias("first_at"),
            sf.max("last_at").alias("last_at"),
            sf.count_distinct("incarnation").alias("incarnations"),
        )
        .crossJoin(latest)
    )
    silent = (sf.unix_micros("latest") - sf.unix_micros("last_at")) / 1e6
    return conform(rows.withColumn("silent_s", silent), NODES)


def _covered(ranges: DataFrame) -> DataFrame:
    """Each range with how many numbers it adds to those before it, and how many it leaves out after them."""
    ordered = Window.partitionBy(*_KEY).orderBy("first", sf.desc("facts"))
    earlier = ordered.rowsBetween(Window.unboundedPreceding, -1)
    before = sf.coalesce("furthest", sf.col("first") - 1)
    adds = sf.greatest(sf.col("last") - sf.greatest(before, sf.col("first") - 1), sf.lit(0))
    hole = sf.greatest(sf.col("first") - 1 - before, sf.lit(0))
    return (
        ranges.withColumn("furthest", sf.max("last").over(earlier))
        .withColumn(
            "furthest_fact",
            sf.max(sf.when(sf.col("facts") > 0, sf.col("last"))).over(earlier),
        )
        .withColumn("covers", adds)
        .withColumn("leaves_out", sf.when(sf.col("furthest_fact").isNotNull(), hole).otherwise(0))
    )
