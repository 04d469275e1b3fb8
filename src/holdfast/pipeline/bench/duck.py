"""The first pass of the audit (digests of blocks, compared between replicas) on the same files, by Spark and by DuckDB.

Both get the landing files and the same query; neither keeps anything in between.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.pipeline.bench.cpu import tree_cpu_s
from holdfast.pipeline.bench.data import START, write_deliveries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.pipeline.bench.measures import Measured

REPLICAS: Final = 4
BLOCK: Final = 4096
_BLOCKS: Final = """
SELECT "group" AS g, epoch, "index" // {block} AS block, node, count(*) AS entries,
       bit_xor({hash}("index", position, stream, "first", "last", digest)) AS digest
FROM {facts} GROUP BY ALL
"""
_DIFFERENT: Final = """
SELECT count(*) AS different FROM (
  SELECT g, epoch, block FROM ({blocks}) AS blocks GROUP BY g, epoch, block
  HAVING count(DISTINCT digest) > 1 OR count(DISTINCT entries) > 1)
"""


def bench_duckdb(directory: Path, session: SparkSession, facts: int, measured: Measured) -> None:
    """Seconds of both, and their ratio; the lower of two times counts."""
    landing = directory / "landing"
    entries = facts // REPLICAS
    for node in range(REPLICAS):
        write_deliveries(landing, node, START, entries)
    # Twice: the first query of a session loads and compiles classes.
    (spark_s, spark_cpu_s), different = min(_by_spark(session, landing) for _ in range(2))
    measured.figures |= {
        "block_audit_facts": entries * REPLICAS,
        "block_audit_spark_s": spark_s,
        "block_audit_spark_cpu_s": spark_cpu_s,
    }
    if importlib.util.find_spec("duckdb") is None:
        measured.not_measured["block_audit_spark_vs_duckdb"] = "DuckDB is not installed"
        return
    (duck_s, duck_cpu_s), also = min(_by_duckdb(landing) for _ in range(2))
    assert different == also == 0, "both must find that all replicas agree"
    measured.figures |= {"block_audit_duckdb_s": duck_s, "block_audit_duckdb_cpu_s": duck_cpu_s}
    measured.ratios |= {
        "block_audit_spark_vs_duckdb": spark_s / duck_s,
        "block_audit_spark_vs_duckdb_cpu": spark_cpu_s / duck_cpu_s,
    }


Found = tuple[tuple[float, float], int]
"""The seconds and CPU seconds of a query, and the blocks that differ."""


def _timed(query: Callable[[], int]) -> Found:
    begin, used_s = time.monotonic_ns(), tree_cpu_s()
    found = query()
    return ((time.monotonic_ns() - begin) / 1e9, tree_cpu_s() - used_s), found


def _by_spark(session: SparkSession, landing: Path) -> Found:
    blocks = _BLOCKS.format(block=BLOCK, hash="xxhash64", facts="bench_delivery")
    blocks = blocks.replace(f'"index" // {BLOCK}', f'"index" DIV {BLOCK}').replace('"', "`")

    def query() -> int:
        session.read.parquet(f"{landing}/delivery").createOrReplaceTempView("bench_delivery")
        return int(session.sql(_DIFFERENT.format(blocks=blocks)).collect()[0]["different"])

    return _timed(query)


def _by_duckdb(landing: Path) -> Found:
    import duckdb

    facts = f"read_parquet('{landing}/delivery/*/*.parquet')"
    blocks = _BLOCKS.format(block=BLOCK, hash="hash", facts=facts)

    def query() -> int:
        row = duckdb.connect().execute(_DIFFERENT.format(blocks=blocks)).fetchone()
        assert row is not None
        return int(row[0])

    return _timed(query)
