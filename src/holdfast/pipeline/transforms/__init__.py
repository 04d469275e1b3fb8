"""Pure functions, DataFrame to DataFrame, each with the schema of its result beside it. No IO in here.

A fact may be in two segments (a copy, a segment sealed again after a crash), so no transform counts the same number
of a node, incarnation and kind twice. Facts of one node are ordered by incarnation, then `now_ns`, then `n`; nothing
compares two nodes' clocks.
"""

from __future__ import annotations

from typing import cast

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType


def conform(frame: DataFrame, schema: str) -> DataFrame:
    """`frame` with exactly the columns of `schema`, in that order; fails if one is missing or of another type."""
    return frame.to(cast("StructType", StructType.fromDDL(schema)))
