"""The parent of Spark's Python workers on this machine, instead of `pyspark.daemon`.

A worker is a fork of it, and Spark ends workers that have been idle for a minute. What is loaded here no worker needs
to load, which takes a second of CPU time each; and the collector, which runs after each task, does not look at it.
"""

from __future__ import annotations

import gc

import pandas as pd  # noqa: F401  Spark loads it for every function over Arrow.
import pyarrow.parquet  # noqa: F401
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import holdfast.pipeline.ingest
import holdfast.pipeline.transforms.audit_view
import holdfast.pipeline.transforms.dialog_view
import holdfast.pipeline.transforms.guarantee_view
import holdfast.pipeline.transforms.incidents  # noqa: F401

if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    manager()
