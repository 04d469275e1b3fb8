"""How each path is and was: one row per path, and one row per time of trouble.

A fact about a path says what its listener hears from that moment on. So it holds until the next fact on the same
path, or, for the last one, until the listener's last fact on any path in the same incarnation: until then the
listener was there and saw no change. Durations come from the listener's own monotonic time. A size of 0 means that
sizes are not measured, or not yet: that is no trouble.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from holdfast.pipeline.transforms import conform

PATH: Final = (
    "sender",
    "sender_name",
    "sender_adapter",
    "listener",
    "listener_name",
    "listener_adapter",
    "subnet",
    "transport",
)
"""What names a path. Its listener is the node that recorded the fact."""

OK: Final = "ok"
SOFT_ERROR: Final = "soft error"
DEAD: Final = "dead"

_PATH_COLUMNS: Final = ", ".join(f"{name} string" for name in PATH)

PATH_HEALTH: Final = f"""{_PATH_COLUMNS},
    state string, alive boolean, size bigint, size_max bigint,
    first_seen timestamp, last_seen timestamp, facts bigint,
    observed_s double, alive_ratio double, soft_error_s double, dead_s double,
    degradations bigint, deaths bigint, worst_size bigint,
    heard bigint, expected bigint, loss_ratio double, rtt_p50_us double, rtt_p99_us double"""

PATH_TROUBLES: Final = f"""{_PATH_COLUMNS},
    state string, size bigint, size_max bigint, incarnation bigint,
    start_at timestamp, end_at timestamp, open boolean, ended_by string, start_ns bigint, seconds double,
    facts bigint"""


def path_health(path_facts: DataFrame) -> DataFrame:
    """One row per path: how it is now, and in numbers how it was.

    `degradations` counts how often the size fell while the path was alive, `deaths` how often it died. `worst_size`
    is the smallest size while alive. `loss_ratio` is what was expected and not heard; it is empty if nothing was
    expected, and so are the round trip times of a path on which none was measured.
    """
    nanos = sf.col("until_ns") - sf.col("now_ns")
    order = sf.struct("incarnation", "now_ns", "n")
    rtt = sf.when(sf.col("rtt_us") > 0, sf.col("rtt_us"))
    rows = (
        _spans(path_facts)
        .groupBy(*PATH)
        .agg(
            sf.max_by("state", order).alias("state"),
            sf.max_by("alive", order).alias("alive"),
            sf.max_by("size", order).alias("size"),
            sf.max_by("size_max", order).alias("size_max"),
            sf.min_by("at", order).alias("first_seen"),
            sf.max_by("at", order).alias("last_seen"),
            sf.count("*").alias("facts"),
            (sf.sum(nanos) / 1e9).alias("observed_s"),
            _seconds_while(sf.col("alive"), nanos).alias("alive_s"),
            _seconds_while(sf.col("state") == SOFT_ERROR, nanos).alias("soft_error_s"),
            _seconds_while(sf.col("state") == DEAD, nanos).alias("dead_s"),
            sf.count_if(_fell()).alias("degradations"),
            sf.count_if(_died()).alias("deaths"),
            sf.min(sf.when(sf.col("alive") & (sf.col("size") > 0), sf.col("size"))).alias(
                "worst_size"
            ),
            sf.sum("heard").alias("heard"),
            sf.sum("expected").alias("expected"),
            sf.percentile(rtt, 0.5).alias("rtt_p50_us"),
            sf.percentile(rtt, 0.99).alias("rtt_p99_us"),
        )
    )
    alive_now = sf.col("alive").cast("double")
    return conform(
        rows.withColumn(
            "alive_ratio",
            sf.when(sf.col("observed_s") > 0, sf.col("alive_s") / sf.col("observed_s")).otherwise(
                alive_now
            ),
        ).withColumn("loss_ratio", _loss()),
        PATH_HEALTH,
    )


def path_troubles(path_facts: DataFrame) -> DataFrame:
    """One row per stretch of time in which a path was not `ok` and did not change: its state, and the size that passed.

    A trouble ends when the path is `repaired`, when it turns into another one (`size changed`, `died`, `came back`),
    or when the listener has `restarted`. Otherwise it is open, and `seconds` counts to the last the listener said.
    """
    ordered = Window.partitionBy(*PATH, "incarnation").orderBy("now_ns", "n")
    same = (sf.col("state") == sf.col("state_before")) & (
        (sf.col("state") == DEAD) | (sf.col("size") == sf.col("size_before"))
    )
    starts = sf.when(sf.coalesce(same, sf.lit(False)), 0).otherwise(1)
    last = sf.struct("now_ns", "n")
    stretches = (
        _spans(path_facts)
        .withColumn("stretch", sf.sum(starts).over(ordered))
        .where(sf.col("state") != OK)
        .groupBy(*PATH, "incarnation", "stretch")
        .agg(
            sf.first("state").alias("state"),
            sf.max_by("size", last).alias("size"),
            sf.max_by("size_max", last).alias("size_max"),
            sf.min_by("at", last).alias("start_at"),
            sf.min("now_ns").alias("start_ns"),
            sf.max("until_ns").alias("until_ns"),
            sf.max_by("until_at", last).alias("until_at"),
            sf.max_by("state_after", last).alias("state_after"),
            sf.max_by("is_last_incarnation", last).alias("is_last_incarnation"),
            sf.count("*").alias("facts"),
        )
    )
    return conform(
        stretches.withColumn("ended_by", _ended_by())
        .withColumn("open", sf.col("ended_by").isNull())
        .withColumn("end_at", sf.when(~sf.col("open"), sf.col("until_at")))
        .withColumn("seconds", (sf.col("until_ns") - sf.col("start_ns")) / 1e9),
        PATH_TROUBLES,
    )


def soft_error_intervals(path_facts: DataFrame) -> DataFrame:
    """The times in which a path was alive but did not carry its full size."""
    return path_troubles(path_facts).where(sf.col("state") == SOFT_ERROR)


def _spans(path_facts: DataFrame) -> DataFrame:
    """Each fact with its state, until when it holds, and what was before and after it on the same path."""
    ordered = Window.partitionBy(*PATH, "incarnation").orderBy("now_ns", "n")
    # A fact that is in two segments stands beside itself here; `distinct` would cost as much as all the rest.
    is_copy = sf.col("n") == sf.col("n_before")
    facts = (
        path_facts.withColumnsRenamed({"node": "listener", "name": "listener_name"})
        .withColumn("state", _state())
        .withColumn("n_before", sf.lag("n").over(ordered))
        .where(~sf.coalesce(is_copy, sf.lit(False)))
    )
    of_listener = Window.partitionBy("listener")
    ends = (
        path_facts.groupBy(sf.col("node").alias("listener"), "incarnation")
        .agg(
            sf.max("now_ns").alias("end_ns"),
            sf.max_by("at", sf.struct("now_ns", "n")).alias("end_at"),
        )
        .withColumn(
            "is_last_incarnation",
            sf.col("incarnation") == sf.max("incarnation").over(of_listener),
        )
    )
    return (
        facts.withColumns(
            {
                "state_before": sf.lag("state").over(ordered),
                "size_before": sf.lag("size").over(ordered),
                "state_after": sf.lead("state").over(ordered),
                "ns_after": sf.lead("now_ns").over(ordered),
                "at_after": sf.lead("at").over(ordered),
            }
        )
        .join(sf.broadcast(ends), ["listener", "incarnation"])
        .withColumn("until_ns", sf.coalesce("ns_after", "end_ns"))
        .withColumn("until_at", sf.coalesce("at_after", "end_at"))
    )


def _state() -> Column:
    return (
        sf.when(~sf.col("alive"), DEAD)
        .when((sf.col("size") > 0) & (sf.col("size") < sf.col("size_max")), SOFT_ERROR)
        .otherwise(OK)
    )


def _fell() -> Column:
    """Alive now and before, and the size is smaller. A path's first fact is where it starts, not a fall."""
    return (
        (sf.col("state") != DEAD)
        & (sf.col("state_before") != DEAD)
        & (sf.col("size") > 0)
        & (sf.col("size") < sf.col("size_before"))
    )


def _died() -> Column:
    return (sf.col("state") == DEAD) & (sf.col("state_before") != DEAD)


def _seconds_while(condition: Column, nanos: Column) -> Column:
    return sf.sum(sf.when(condition, nanos).otherwise(0)) / 1e9


def _loss() -> Column:
    # More can be heard than was expected: a sender that speeds up does so before it says so.
    missing = sf.greatest(sf.col("expected") - sf.col("heard"), sf.lit(0))
    return sf.when(sf.col("expected") > 0, missing / sf.col("expected"))


def _ended_by() -> Column:
    state, after = sf.col("state"), sf.col("state_after")
    return (
        sf.when(after == OK, "repaired")
        .when((state == SOFT_ERROR) & (after == DEAD), "died")
        .when((state == DEAD) & (after == SOFT_ERROR), "came back")
        .when(after == SOFT_ERROR, "size changed")
        .when(~sf.col("is_last_incarnation"), "restarted")
    )
