"""Facts about paths, reduced to runs: one row per stretch in which a path said the same, split at hours.

A pure function of the facts of an hour: no row depends on another hour. Everything that looks further back (incidents,
path health, questions over history) reads these rows, never the facts. Aggregates merge: sums, extremes, a sketch of
round trips.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as sf

from holdfast.pipeline.incident_fold import HOLD_US
from holdfast.pipeline.transforms import conform, hour_column
from holdfast.pipeline.verdict import LOSSY_PPM

PAIR: Final = ("sender", "sender_adapter", "listener", "listener_adapter", "subnet")
"""A path without its transport: one adapter to another, one direction."""
PATH: Final = (*PAIR, "transport")
"""What identifies a path. Names of nodes are attributes as of a time and identify nothing."""

PATH_DDL: Final = ", ".join(f"{name} string" for name in PATH)

PATH_RUNS: Final = f"""{PATH_DDL}, hour string, incarnation bigint, start_at timestamp, end_at timestamp,
    start_ns bigint, end_ns bigint, n_first bigint, n_last bigint, facts bigint, lost_before boolean,
    alive boolean, size bigint, size_max bigint, lossy boolean, loss_ppm_max bigint, bad_patterns string,
    holes string, flows bigint, flows_bad bigint, heard bigint, expected bigint,
    rtt_us_sum bigint, rtt_count bigint, rtt_us_min bigint, rtt_us_max bigint, rtt_sketch binary,
    jitter_us_max bigint, rate_kbps_max bigint, worsened_max bigint, sender_name string, listener_name string,
    delayed boolean, delay_us_max bigint, limited boolean, rate_limit_kbps_min bigint, data_lost boolean,
    interrupted boolean, outage_ms_max bigint, outage_every_ms_max bigint"""

_VECTOR: Final = (
    *("alive", "size", "size_max", "lossy", "bad_patterns", "holes", "flows", "flows_bad"),
    *("delayed", "limited", "data_lost", "interrupted"),
)


def path_runs(path_facts: DataFrame) -> DataFrame:
    """One row per run of equal attribute vectors on a path, within one hour and one life of the listener."""
    of_path = Window.partitionBy(*PATH, "incarnation", "hour").orderBy("now_ns", "n")
    marked = (
        _with_losses(path_facts)
        .withColumn("vector", sf.struct(*_VECTOR))
        .withColumn("starts", _starts(of_path))
        .withColumn("lost_here", sf.col("losses") > sf.lag("losses").over(of_path))
        .withColumn("run", sf.sum("starts").over(of_path))
    )
    rtt = sf.when(sf.col("rtt_us") > 0, sf.col("rtt_us"))
    last = sf.struct("now_ns", "n")
    named = lambda column: sf.max_by(column, sf.when(sf.col(column) != "", last))
    rows = marked.groupBy(*PATH, "incarnation", "hour", "run").agg(
        sf.min("at").alias("start_at"),
        sf.max("at").alias("end_at"),
        sf.min("now_ns").alias("start_ns"),
        sf.max("now_ns").alias("end_ns"),
        sf.min("n").alias("n_first"),
        sf.max("n").alias("n_last"),
        sf.count("*").alias("facts"),
        sf.coalesce(sf.max("lost_here"), sf.lit(False)).alias("lost_before"),
        sf.first("vector").alias("vector"),
        sf.max("loss_ppm").alias("loss_ppm_max"),
        sf.sum("heard").alias("heard"),
        sf.sum("expected").alias("expected"),
        sf.sum(rtt).alias("rtt_us_sum"),
        sf.count(rtt).alias("rtt_count"),
        sf.min(rtt).alias("rtt_us_min"),
        sf.max(rtt).alias("rtt_us_max"),
        sf.kll_sketch_agg_bigint(rtt).alias("rtt_sketch"),
        sf.max("jitter_us").alias("jitter_us_max"),
        sf.max("rate_kbps").alias("rate_kbps_max"),
        sf.max("worsened").alias("worsened_max"),
        sf.max("delay_us").alias("delay_us_max"),
        sf.min(sf.when(sf.col("limited"), sf.col("rate_limit_kbps"))).alias("rate_limit_kbps_min"),
        sf.max("outage_ms").alias("outage_ms_max"),
        sf.max("outage_every_ms").alias("outage_every_ms_max"),
        named("sender_name").alias("sender_name"),
        named("name").alias("listener_name"),
    )
    return conform(rows.select("*", "vector.*"), PATH_RUNS)


def _with_losses(path_facts: DataFrame) -> DataFrame:
    """Facts with a count of the losses that their node had before them in this hour."""
    of_node = Window.partitionBy("listener", "incarnation", "hour").orderBy("n")
    missing = sf.col("n") - sf.lag("n").over(of_node) > 1
    lossy = sf.coalesce(sf.col("loss_ppm") >= LOSSY_PPM, sf.lit(False))
    plain = {
        name: sf.coalesce(name, sf.lit("")) for name in ("bad_patterns", "holes", "sender_name")
    }
    numbers = {name: sf.coalesce(name, sf.lit(0)) for name in ("flows", "flows_bad")}
    shown = {
        "lossy": lossy,
        "delayed": sf.coalesce(sf.col("delay_us") > 0, sf.lit(False)),
        "limited": sf.coalesce(sf.col("rate_limit_kbps") > 0, sf.lit(False)),
        "data_lost": sf.coalesce("data_lost", sf.lit(False)),
        "interrupted": sf.coalesce(sf.col("outage_ms") > 0, sf.lit(False)),
    }
    return (
        path_facts.withColumnRenamed("node", "listener")
        .withColumn("hour", hour_column())
        .withColumns({**plain, **numbers, **shown})
        .withColumn("missing", sf.coalesce(missing, sf.lit(False)).cast("int"))
        .withColumn("losses", sf.sum("missing").over(of_node))
    )


def _starts(of_path: WindowSpec) -> Column:
    """1 where a run begins: another vector, a pause, or lost facts."""
    goes_on = (
        (sf.col("vector") == sf.lag("vector").over(of_path))
        & (sf.unix_micros("at") - sf.unix_micros(sf.lag("at").over(of_path)) <= HOLD_US)
        & (sf.col("losses") == sf.lag("losses").over(of_path))
    )
    return sf.when(sf.coalesce(goes_on, sf.lit(False)), 0).otherwise(1)
