"""Messages of dialogs per hour: adjacent ranges as one, and how dialogs ended."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from holdfast.pipeline.transforms import conform, hour_column

DIALOG_RANGES: Final = """hour string, event string, dialog string, sender string, assurances bigint,
    `first` bigint, `last` bigint, digest bigint, epoch bigint, node string, incarnation bigint, n bigint"""
"""`event` is `captured`, `taken` or `deleted` with a range, or `completed` without one. `n` is the number of the first
fact. Ranges that one life recorded one after the other, without a gap, are one row; their digests add up."""

DIALOG_AUDIT: Final = """dialog string, sender string, assurances bigint, verdict string, why string, captured bigint,
    taken bigint, deleted bigint, compared bigint, violations bigint"""
DIALOG_VIOLATIONS: Final = (
    """dialog string, sender string, claim string, text string, events array<string>"""
)

_END: Final = ("event", "dialog", "sender", "assurances", "epoch", "node", "incarnation", "hour")
_MODULUS: Final = str(1 << 63)


def dialog_ranges(range_facts: DataFrame, dialog_facts: DataFrame) -> DataFrame:
    """The rows of an hour."""
    ordered = Window.partitionBy(*_END).orderBy("n")
    starts = sf.when(sf.col("first") == sf.lag("last").over(ordered) + 1, 0).otherwise(1)
    # Digests are below 2 ** 63: their sum is not, and Spark refuses to let it wrap around.
    total = sf.sum(sf.col("digest").cast("decimal(38,0)"))
    digest = total % sf.lit(_MODULUS).cast("decimal(38,0)")
    ranges = (
        range_facts.withColumn("hour", hour_column())
        .withColumn("starts", starts)
        .withColumn("island", sf.sum("starts").over(ordered))
        .groupBy(*_END, "island")
        .agg(
            sf.min("first").alias("first"),
            sf.max("last").alias("last"),
            digest.cast("bigint").alias("digest"),
            sf.min("n").alias("n"),
        )
    )
    number = sf.lit(0).cast("bigint")
    ends = (
        dialog_facts.where("event = 'completed'")
        .withColumn("hour", hour_column())
        .withColumn("sender", sf.lit(""))
        .withColumns(dict.fromkeys(("assurances", "first", "last", "digest", "epoch"), number))
    )
    return conform(ranges, DIALOG_RANGES).unionByName(conform(ends, DIALOG_RANGES))
