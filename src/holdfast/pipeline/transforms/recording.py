"""What was recorded, and what is missing from it.

Facts are numbered per node, incarnation and kind, so a number that is not there is a fact that was lost. Nodes say
themselves what they could not keep (kind `lost`, also of their earlier lives, `last` below `first` when they cannot
tell how much it was); what is missing and was not said is `unexplained`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from holdfast.pipeline.transforms import conform

RECORDING: Final = """kind string, node string, name string, incarnations bigint, facts bigint,
    first_at timestamp, last_at timestamp, missing bigint, said_lost bigint, uncounted_losses bigint,
    unexplained bigint, reasons array<string>"""

_KEY: Final = ("kind", "node", "incarnation")


def recording(facts: Mapping[str, DataFrame], lost: DataFrame) -> DataFrame:
    """One row per kind and node. `facts` is by kind; `lost` is what nodes say they could not keep.

    `said_lost` counts numbers that a node named as lost and that are in no segment; `unexplained` counts numbers after
    the first fact that are nowhere, not even named. Before it lies what the look-back leaves out.
    """
    ranges = reduce(DataFrame.unionByName, [_numbered(facts[kind], kind) for kind in facts])
    rows = _covered(ranges.unionByName(_said(lost)))
    order = sf.struct("incarnation", "first")
    is_new = sf.col("is_fact") & (sf.col("first") > sf.coalesce("furthest_fact", sf.lit(-1)))
    counted = rows.groupBy("kind", "node").agg(
        sf.max_by("name", order).alias("name"),
        sf.count_distinct("incarnation").alias("incarnations"),
        sf.count_if(is_new).alias("facts"),
        sf.min_by("at", sf.when(sf.col("is_fact"), order)).alias("first_at"),
        sf.max_by("at", sf.when(sf.col("is_fact"), order)).alias("last_at"),
        sf.sum("covers").alias("covered"),
        sf.sum("leaves_out").alias("unexplained"),
        sf.count_if(sf.col("is_uncounted")).alias("uncounted_losses"),
        sf.sort_array(sf.collect_set("reason")).alias("reasons"),
    )
    return conform(
        counted.withColumn("said_lost", sf.col("covered") - sf.col("facts")).withColumn(
            "missing", sf.col("said_lost") + sf.col("unexplained")
        ),
        RECORDING,
    )


def _numbered(frame: DataFrame, kind: str) -> DataFrame:
    """Each fact as a range of one number."""
    return frame.select(
        sf.lit(kind).alias("kind"),
        *("node", "name", "incarnation", "at"),
        sf.col("n").alias("first"),
        sf.col("n").alias("last"),
        sf.lit(True).alias("is_fact"),
        sf.lit(False).alias("is_uncounted"),
        sf.lit(None).cast("string").alias("reason"),
    )


def _said(lost: DataFrame) -> DataFrame:
    """The ranges that nodes named as lost. The first writers only told of the life they were in."""
    return lost.distinct().select(
        sf.col("lost_kind").alias("kind"),
        *("node", "name", "at", "first", "last", "reason"),
        sf.coalesce("lost_incarnation", "incarnation").alias("incarnation"),
        sf.lit(False).alias("is_fact"),
        (sf.col("last") < sf.col("first")).alias("is_uncounted"),
    )


def _covered(ranges: DataFrame) -> DataFrame:
    """Each range with how many numbers it adds to those before it, and how many it leaves out after them."""
    ordered = Window.partitionBy(*_KEY).orderBy("first", sf.desc("is_fact"))
    earlier = ordered.rowsBetween(Window.unboundedPreceding, -1)
    before = sf.coalesce("furthest", sf.col("first") - 1)
    adds = sf.greatest(sf.col("last") - sf.greatest(before, sf.col("first") - 1), sf.lit(0))
    hole = sf.greatest(sf.col("first") - 1 - before, sf.lit(0))
    return (
        ranges.withColumn("furthest", sf.max("last").over(earlier))
        .withColumn(
            "furthest_fact", sf.max(sf.when(sf.col("is_fact"), sf.col("last"))).over(earlier)
        )
        .withColumn("covers", adds)
        .withColumn("leaves_out", sf.when(sf.col("furthest_fact").isNotNull(), hole).otherwise(0))
    )
