"""What each adapter carried per hour: sums and maxima of load facts, so that busy windows need no facts."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from holdfast.pipeline.transforms import conform, hour_column

LOAD_HOURS: Final = """hour string, node string, adapter string, subnet string, interval_ms bigint,
    sent_bytes bigint, received_bytes bigint, sent_packets bigint, received_packets bigint, queued_bytes_max bigint,
    drops bigint, speed_bps bigint"""

_SUMS: Final = (
    *("interval_ms", "sent_bytes", "received_bytes", "sent_packets", "received_packets", "drops"),
)


def load_hours(load_facts: DataFrame) -> DataFrame:
    """One row per adapter and hour."""
    rows = (
        load_facts.withColumn("hour", hour_column())
        .groupBy("hour", "node", "adapter", "subnet")
        .agg(
            *(sf.sum(sf.coalesce(name, sf.lit(0))).alias(name) for name in _SUMS),
            sf.max(sf.coalesce("queued_bytes", sf.lit(0))).alias("queued_bytes_max"),
            sf.max(sf.coalesce("speed_bps", sf.lit(0))).alias("speed_bps"),
        )
    )
    return conform(rows, LOAD_HOURS)
