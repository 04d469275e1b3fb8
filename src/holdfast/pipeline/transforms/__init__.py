"""Pure functions, DataFrame to DataFrame, each with the schema of its result beside it. No IO in here.

Facts are unique by (node, incarnation, kind, n) when they come out of the fact store. The facts of one node are ordered
by incarnation, then `now_ns`, then `n`; no transform compares two nodes' clocks without a stated tolerance.

Hourly transforms (`path_runs`, `link_moves`, `recording_hours`, `delivery_blocks`) are functions of one hour's facts.
Folds (`incidents`) take a carry from the hour before. Views (`path_health`, `delivery_audit` and so on) are made of
hourly tables, not of facts.
"""

from __future__ import annotations

from typing import cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from holdfast.pipeline.units import SPARK_HOUR


def conform(frame: DataFrame, schema: str) -> DataFrame:
    """`frame` with exactly the columns of `schema`, in that order; fails if one is missing or of another type."""
    return frame.to(cast("StructType", StructType.fromDDL(schema)))


def hour_column(at: str = "at") -> Column:
    """The hour that a fact belongs to."""
    return sf.date_format(at, SPARK_HOUR)
