"""Repairs that operators reported, per path: incidents before one are no evidence after it."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from holdfast.pipeline.model_tables import PAIR, REPAIRS_IN
from holdfast.pipeline.transforms import conform

TRANSPORTS: Final = ("udp", "tcp", "frag", "multicast")
"""A repair concerns all kinds of packets of a path."""


def repairs(facts: DataFrame) -> DataFrame:
    """Facts of the kind `repair` as the table that predictions read. Both ends may have recorded the same repair."""
    transports = sf.array(*(sf.lit(name) for name in TRANSPORTS))
    rows = facts.select(*PAIR, sf.col("at").alias("repaired_at")).distinct()
    return conform(rows.withColumn("transport", sf.explode(transports)), REPAIRS_IN)
