"""How each path is and was: one row per path, made of roll-ups. No fact is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from holdfast.pipeline.incident_fold import current
from holdfast.pipeline.transforms import conform
from holdfast.pipeline.transforms.path_runs import PAIR, PATH, PATH_DDL

PATH_HEALTH: Final = f"""{PATH_DDL}, sender_name string, listener_name string,
    state string, alive boolean, size bigint, size_max bigint,
    first_seen timestamp, last_seen timestamp, facts bigint,
    observed_s double, unobserved_s double, coverage double, alive_ratio double, soft_error_s double, dead_s double,
    degradations bigint, deaths bigint, worst_size bigint,
    heard bigint, expected bigint, loss_ratio double, rtt_p50_us double, rtt_p99_us double, jitter_us_max bigint"""
"""`coverage` is the share of the time from `first_seen` to `last_seen` in which the path was observed. Round trips are
percentiles of a sketch (rank error below 2 %)."""

_NOW: Final = f"{PATH_DDL}, state string, alive boolean, size bigint, size_max bigint"
_NOW_ARROW: Final = pa.schema(
    [
        *((name, pa.string()) for name in (*PATH, "state")),
        ("alive", pa.bool_()),
        ("size", pa.int64()),
        ("size_max", pa.int64()),
    ]
)


def path_health(rollups: DataFrame, carry: DataFrame | None, names: DataFrame) -> DataFrame:
    """One row per path: how it is now, and in numbers how it was during the units of `rollups`.

    `degradations` counts how often the size fell while the path was alive, `deaths` how often it died. `worst_size`
    is the smallest size while alive. `loss_ratio` is empty if nothing was expected.
    """
    last = sf.struct("incarnation", "end_ns")
    sums = (
        "facts",
        "heard",
        "expected",
        "rtt_count",
        "ok_us",
        "soft_us",
        "dead_us",
        "falls",
        "deaths",
    )
    rows = rollups.groupBy(*PATH).agg(
        *(sf.max_by(name, last).alias(name) for name in ("alive", "size", "size_max")),
        sf.max_by("sender_name", sf.when(sf.col("sender_name").isNotNull(), last)).alias(
            "told_name"
        ),
        sf.min("first_seen").alias("first_seen"),
        sf.max("last_seen").alias("last_seen"),
        *(sf.sum(name).alias(name) for name in sums),
        sf.min("size_min").alias("worst_size"),
        sf.kll_merge_agg_bigint("rtt_sketch").alias("sketch"),
        sf.max("jitter_us_max").alias("jitter_us_max"),
    )
    if carry is None:
        rows = rows.withColumn("state", sf.lit(None).cast("string"))
    else:
        rows = rows.join(states_now(carry).select(*PATH, "state"), list(PATH), "left")
    named = rows.join(_named(names, "sender"), "sender", "left").join(
        _named(names, "listener"), "listener", "left"
    )
    return conform(named.withColumns(_columns()).withColumns(_ratios()), PATH_HEALTH)


def states_now(carry: DataFrame) -> DataFrame:
    """The state of each path at the end of a carry: a path that is not heard of any more has no row."""

    def unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows: list[dict[str, Any]] = []
            for row in batch.to_pylist():
                pair = {name: row[name] for name in PAIR}
                for kind, heard, _ in current(row["carry"]):
                    vector = heard.vector
                    rows.append(
                        {
                            **pair,
                            "transport": kind,
                            "state": heard.state,
                            "alive": vector.alive,
                            "size": vector.size,
                            "size_max": vector.size_max,
                        }
                    )
            yield pa.RecordBatch.from_pylist(rows, schema=_NOW_ARROW)

    return carry.mapInArrow(unpack, _NOW)


def _columns() -> dict[str, Column]:
    zero = sf.lit(0)
    times = {
        name: sf.coalesce(name, zero) for name in ("ok_us", "soft_us", "dead_us", "falls", "deaths")
    }
    observed = times["ok_us"] + times["soft_us"] + times["dead_us"]
    span = sf.unix_micros("last_seen") - sf.unix_micros("first_seen")
    measured = sf.col("rtt_count") > 0
    quantile = lambda rank: sf.when(
        measured, sf.kll_sketch_get_quantile_bigint("sketch", sf.lit(rank)).cast("double")
    )
    return {
        "state": sf.coalesce(
            "state", sf.when(sf.col("alive"), sf.lit("ok")).otherwise(sf.lit("dead"))
        ),
        "sender_name": sf.coalesce("sender_name", "told_name", sf.substring("sender", 1, 8)),
        "listener_name": sf.coalesce("listener_name", sf.substring("listener", 1, 8)),
        "observed_s": observed / 1e6,
        "unobserved_s": sf.greatest(span - observed, zero) / 1e6,
        "soft_error_s": times["soft_us"] / 1e6,
        "dead_s": times["dead_us"] / 1e6,
        "degradations": times["falls"],
        "deaths": times["deaths"],
        "rtt_p50_us": quantile(0.5),
        "rtt_p99_us": quantile(0.99),
    }


def _ratios() -> dict[str, Column]:
    whole = sf.col("observed_s") + sf.col("unobserved_s")
    # More can be heard than was expected: a sender that speeds up does so before it says so.
    missing = sf.greatest(sf.col("expected") - sf.col("heard"), sf.lit(0))
    alive = sf.col("observed_s") - sf.col("dead_s")
    return {
        "coverage": sf.when(whole > 0, sf.col("observed_s") / whole),
        "alive_ratio": sf.when(sf.col("observed_s") > 0, alive / sf.col("observed_s")).otherwise(
            sf.col("alive").cast("double")
        ),
        "loss_ratio": sf.when(sf.col("expected") > 0, missing / sf.col("expected")),
    }


def _named(names: DataFrame, side: str) -> DataFrame:
    return sf.broadcast(
        names.select(sf.col("node").alias(side), sf.col("name").alias(f"{side}_name"))
    )
