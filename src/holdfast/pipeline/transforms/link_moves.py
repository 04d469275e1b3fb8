"""Traffic that left a path: channel moves and lost flows, as the sending node recorded them."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from holdfast.pipeline.transforms import conform, hour_column

LINK_MOVES: Final = """hour string, node string, incarnation bigint, n bigint, at timestamp, event string,
    peer string, local_adapter string, remote_adapter string, transport string, path_after string, reason string"""


def link_moves(link_facts: DataFrame) -> DataFrame:
    """One row per channel move or lost flow. The adapters and the transport are those of the path that was left."""
    left = sf.when(sf.col("event") == "moved", sf.col("path_before")).otherwise(sf.col("path"))
    parts = sf.split(sf.split(left, r"\+")[0], "/")
    rows = (
        link_facts.where("event IN ('moved', 'flow_lost')")
        .withColumn("hour", hour_column())
        .withColumn("parts", parts)
        .where(sf.size("parts") == 3)
        .withColumn("local_adapter", sf.col("parts")[0])
        .withColumn("remote_adapter", sf.col("parts")[1])
        .withColumn("transport", sf.col("parts")[2])
        .withColumn(
            "path_after", sf.when(sf.col("event") == "moved", sf.col("path")).otherwise(sf.lit(""))
        )
    )
    return conform(rows, LINK_MOVES)
