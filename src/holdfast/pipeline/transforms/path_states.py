"""Which paths were observed, and which of them failed, per bucket of time: the input of localisation.

A path passes in a bucket only if its listener watched it there and saw no incident of that symptom. Time that
was not watched is neither clean nor broken, and a dead path says nothing about packet sizes.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from holdfast.pipeline.model_tables import COVERAGE_IN, PAIR, PATH
from holdfast.pipeline.transforms import conform

DEAD: Final = "dead"
FLAPPING: Final = "flapping"
ALL_TRANSPORTS: Final = (DEAD, FLAPPING)
"""Classes that concern a path whatever the transport."""

BUCKET_S: Final = 900
GAP_S: Final = 180
"""A path without a fact for longer than this was not watched in between (samples come every 5 to 30 s)."""

PATH_STATES: Final = ", ".join(
    [
        "bucket_at timestamp",
        "error_class string",
        *(f"{name} string" for name in PATH),
        "failing boolean",
    ]
)
"""One row per bucket, symptom and path. `transport` is empty for classes that concern all of them."""


def coverage(path_facts: DataFrame, gap_s: int = GAP_S) -> DataFrame:
    """The stretches of time in which each path was watched, from the facts about it."""
    path = [sf.col("node").alias("listener"), *(name for name in PATH if name != "listener")]
    ordered = Window.partitionBy(*PATH, "incarnation").orderBy("at")
    gap = sf.unix_micros("at") - sf.unix_micros(sf.lag("at").over(ordered))
    starts = sf.when(gap <= gap_s * 1_000_000, 0).otherwise(1)
    rows = (
        path_facts.select(*path, "incarnation", "at")
        .withColumn("starts", starts)
        .withColumn("stretch", sf.sum("starts").over(ordered))
        .groupBy(*PATH, "incarnation", "stretch")
        .agg(sf.min("at").alias("start_at"), sf.max("at").alias("end_at"))
    )
    return conform(rows, COVERAGE_IN)


def with_flapping(incidents: DataFrame) -> DataFrame:
    """Published incidents as `path_states` takes them: a death that returns again and again is a symptom of its own.

    Any class can flap. A path with another class still has that one; one that is dead by turns is not a dead path.
    """
    flaps = (sf.col("error_class") == DEAD) & sf.col("flapping")
    return incidents.withColumn(
        "error_class", sf.when(flaps, sf.lit(FLAPPING)).otherwise(sf.col("error_class"))
    )


def path_states(
    incidents: DataFrame, observed: DataFrame, bucket_s: int = BUCKET_S, overlap_s: float = 1.0
) -> DataFrame:
    """The state of every observed path in every bucket that has a failure, per symptom.

    An incident counts in a bucket that it overlaps by `overlap_s` or more. Buckets without failures have no rows.
    """
    failing = _failing(incidents, observed, bucket_s, overlap_s)
    symptoms = failing.select("bucket", "error_class", "transport").distinct()
    watched = _watched(observed, failing.select("bucket").distinct(), bucket_s)
    pairs = watched.select("bucket", *PAIR).distinct().withColumn("transport", sf.lit(""))
    candidates = (
        watched.unionByName(pairs)
        .unionByName(failing.select("bucket", *PATH))
        .distinct()
        .join(sf.broadcast(symptoms), ["bucket", "transport"])
    )
    shown = lambda name: (
        failing.where(sf.col("error_class") == name)
        .select("bucket", *PAIR, sf.lit(True).alias(name))
        .distinct()
    )
    own = failing.select("bucket", "error_class", *PATH, sf.lit(True).alias("failed")).distinct()
    # A dead path cannot show another symptom: in those it is unobserved, not passing. One that flaps has been dead.
    hidden = sf.when(sf.col("error_class") == DEAD, sf.col(FLAPPING)).otherwise(sf.col(DEAD))
    rows = (
        candidates.join(own, ["bucket", "error_class", *PATH], "left")
        .join(shown(DEAD), ["bucket", *PAIR], "left")
        .join(shown(FLAPPING), ["bucket", *PAIR], "left")
        .where(hidden.isNull() | sf.col("failed"))
        .withColumn("failing", sf.coalesce("failed", sf.lit(False)))
        .withColumn("bucket_at", sf.timestamp_seconds(sf.col("bucket") * bucket_s))
    )
    return conform(rows, PATH_STATES)


def slots_of(start: Column, end: Column, step_s: int) -> Column:
    """The numbers of all slots of `step_s` that a stretch of time touches; seconds since 1970."""
    first = sf.floor(start / step_s).cast("bigint")
    return sf.sequence(first, sf.greatest(first, sf.ceil(end / step_s).cast("bigint") - 1))


def seconds(at: Column) -> Column:
    """Seconds since 1970, with fractions."""
    return sf.unix_micros(at) / 1e6


def overlap(slot: Column, start: Column, end: Column, step_s: int) -> Column:
    """How many seconds of a slot lie in a stretch of time."""
    return sf.greatest(
        sf.least((slot + 1) * step_s, end) - sf.greatest(slot * step_s, start), sf.lit(0.0)
    )


def _failing(
    incidents: DataFrame, observed: DataFrame, bucket_s: int, overlap_s: float
) -> DataFrame:
    """Incidents per bucket. An open one lasts as long as its path is watched."""
    last = observed.groupBy(*PAIR).agg(sf.max(seconds(sf.col("end_at"))).alias("watched_until"))
    start = seconds(sf.col("start_at"))
    spans = (
        incidents.join(last, list(PAIR), "left")
        .withColumn("start", start)
        .withColumn(
            "end",
            sf.coalesce(
                seconds(sf.col("end_at")),
                sf.greatest(sf.col("watched_until"), sf.col("start") + overlap_s),
                sf.col("start") + overlap_s,
            ),
        )
        .withColumn(
            "transport",
            sf.when(sf.col("error_class").isin(*ALL_TRANSPORTS), "").otherwise(sf.col("transport")),
        )
        .withColumn("bucket", sf.explode(slots_of(sf.col("start"), sf.col("end"), bucket_s)))
    )
    lasts = overlap(sf.col("bucket"), sf.col("start"), sf.col("end"), bucket_s)
    enough = lasts >= sf.least(sf.lit(overlap_s), sf.col("end") - sf.col("start"))
    return spans.where(enough).select("bucket", "error_class", *PATH).distinct()


def _watched(observed: DataFrame, buckets: DataFrame, bucket_s: int) -> DataFrame:
    """The paths that were watched for most of a bucket, in the buckets that matter."""
    start, end = sf.col("start"), sf.col("end")
    spans = observed.withColumn("start", seconds(sf.col("start_at"))).withColumn(
        "end", seconds(sf.col("end_at"))
    )
    latest = sf.broadcast(spans.agg(sf.max("end").alias("latest")))
    # The newest bucket is not over yet: half of what has passed of it is enough.
    elapsed = sf.least(sf.lit(float(bucket_s)), sf.col("latest") - sf.col("bucket") * bucket_s)
    return (
        spans.withColumn("bucket", sf.explode(slots_of(start, end, bucket_s)))
        .join(sf.broadcast(buckets), "bucket")
        .withColumn("watched", overlap(sf.col("bucket"), start, end, bucket_s))
        .groupBy("bucket", *PATH)
        .agg(sf.sum("watched").alias("watched"))
        .crossJoin(latest)
        .where(sf.col("watched") >= elapsed / 2)
        .select("bucket", *PATH)
    )
