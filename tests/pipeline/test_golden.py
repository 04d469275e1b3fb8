"""Segments of every schema version that was ever written stay readable (P1: schema evolution).

`make_golden` adds the folder of a version; files that are there are never changed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from tests.pipeline.making import NOON, node_id

from holdfast.pipeline.check import check
from holdfast.pipeline.frames import read_files
from holdfast.pipeline.schemas import COLUMNS, spark_schema
from holdfast.pipeline.storage.port import to_uri
from holdfast.telemetry.facts import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GOLDEN = Path(__file__).parent / "golden"
FILES = sorted(GOLDEN.glob("schema-*/*.parquet"))
NOW_US = int(NOON.timestamp()) * 1_000_000


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_segment_of_an_earlier_version_is_kept(path: Path) -> None:
    verdict = check(path.read_bytes(), f"{node_id('alba')}-1-000000.parquet", path.stem, NOW_US)
    assert (verdict.outcome, verdict.reason) == ("kept", "")
    assert verdict.rows == pq.read_metadata(path).num_rows > 0


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_columns_are_only_ever_added(path: Path) -> None:
    """Every column of the file is still known; a column that the file lacks has a default."""
    names = set(pq.read_schema(path).names)
    known = {column.name: column for column in COLUMNS[path.stem]}
    assert names <= known.keys()
    assert all(column.optional for name, column in known.items() if name not in names)


def test_every_version_has_golden_segments() -> None:
    versions = {int(folder.name.removeprefix("schema-")) for folder in GOLDEN.iterdir()}
    assert versions == set(range(1, SCHEMA + 1))
    assert {path.stem for path in FILES if path.parent.name == f"schema-{SCHEMA}"} == set(COLUMNS)


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["path", "delivery"])
def test_one_read_takes_segments_of_all_versions(kind: str, spark: SparkSession) -> None:
    """Also the largest numbers, which nodes store as differences."""
    files = [path for path in FILES if path.stem == kind]
    rows = read_files(spark, spark_schema(kind), [to_uri(path) for path in files]).collect()
    assert len(files) == SCHEMA
    assert len(rows) == sum(pq.read_metadata(path).num_rows for path in files)
    number = "rtt_us" if kind == "path" else "digest"
    assert 2**63 - 1 in {row[number] for row in rows}
    newer = {"path": "loss_window_ms", "delivery": "epoch"}[kind]
    assert {row["schema"] for row in rows if row[newer] is None} == {1}
