"""One row per path and unit: what long look-backs read instead of runs. All aggregates merge."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from holdfast.pipeline.transforms import conform
from holdfast.pipeline.transforms.path_runs import PATH, PATH_DDL

PATH_ROLLUP: Final = f"""{PATH_DDL}, first_seen timestamp, last_seen timestamp, incarnation bigint, end_ns bigint,
    alive boolean, size bigint, size_max bigint, sender_name string, facts bigint, heard bigint, expected bigint,
    loss_ppm_max bigint, rtt_us_sum bigint, rtt_count bigint, rtt_us_max bigint, rtt_sketch binary,
    jitter_us_max bigint, worsened_max bigint, ok_us bigint, soft_us bigint, dead_us bigint, falls bigint,
    deaths bigint, size_min bigint"""


def path_rollup(runs: DataFrame, hours: DataFrame) -> DataFrame:
    """One row per unit and path, from the path runs and the path hours of some units (both with a column `unit`)."""
    last = sf.struct("incarnation", "end_ns")
    seen = runs.groupBy("unit", *PATH).agg(
        sf.min("start_at").alias("first_seen"),
        sf.max("end_at").alias("last_seen"),
        sf.max_by("incarnation", last).alias("incarnation"),
        sf.max_by("end_ns", last).alias("end_ns"),
        *(sf.max_by(name, last).alias(name) for name in ("alive", "size", "size_max")),
        sf.max_by("sender_name", sf.when(sf.col("sender_name").isNotNull(), last)).alias(
            "sender_name"
        ),
        *(
            sf.sum(name).alias(name)
            for name in ("facts", "heard", "expected", "rtt_us_sum", "rtt_count")
        ),
        *(
            sf.max(name).alias(name)
            for name in ("loss_ppm_max", "rtt_us_max", "jitter_us_max", "worsened_max")
        ),
        sf.kll_merge_agg_bigint("rtt_sketch").alias("rtt_sketch"),
    )
    spent = hours.groupBy("unit", *PATH).agg(
        *(sf.sum(name).alias(name) for name in ("ok_us", "soft_us", "dead_us", "falls", "deaths")),
        sf.min(sf.when(sf.col("size_min") > 0, sf.col("size_min"))).alias("size_min"),
    )
    return seen.join(spent, ["unit", *PATH], "left")


def conformed(rows: DataFrame) -> DataFrame:
    """`path_rollup` with exactly its columns, and `unit`."""
    return conform(rows, f"{PATH_ROLLUP}, unit string")
