"""What happened to replicas, and which messages leaders dropped: the facts that explain a delivery, or forbid it."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from holdfast.pipeline.transforms import conform, hour_column

GROUP_EVENTS: Final = """hour string, `group` string, epoch bigint, node string, incarnation bigint, n bigint,
    now_ns bigint, at timestamp, event string, term bigint, `index` bigint, stream string, `first` bigint,
    `last` bigint, rollback_index bigint, detail string"""

LEADS: Final = "leads"
RESTORED: Final = "restored"
ROLLED_BACK: Final = "rolled_back"
SKIP: Final = "skip"
KEPT_EVENTS: Final = (
    *(LEADS, RESTORED, ROLLED_BACK, "founded", "refounded", "suspended", "halted", "awaits"),
)


def group_events(group_facts: DataFrame, order_facts: DataFrame) -> DataFrame:
    """Rare events of replicas, and skipped ranges from the order facts of leaders (`event` is `skip`)."""
    text = sf.lit("")
    events = group_facts.where(sf.col("event").isin(*KEPT_EVENTS)).select(
        "*", text.alias("stream"), sf.lit(0).alias("first"), sf.lit(0).alias("last")
    )
    skips = order_facts.where("entry = 'skip'").select(
        "*",
        sf.lit(SKIP).alias("event"),
        sf.lit(-1).alias("rollback_index"),
        text.alias("detail"),
    )
    return _conformed(events).unionByName(_conformed(skips))


def _conformed(rows: DataFrame) -> DataFrame:
    numbers = {name: sf.col(name).cast("bigint") for name in ("first", "last", "rollback_index")}
    return conform(
        rows.withColumns(numbers)
        .withColumn("hour", hour_column())
        .withColumn("epoch", sf.coalesce("epoch", sf.lit(0)))
        .withColumn("rollback_index", sf.coalesce("rollback_index", sf.lit(-1))),
        GROUP_EVENTS,
    )
