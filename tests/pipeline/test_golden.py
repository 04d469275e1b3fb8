"""Segments of every schema version that was ever written stay readable (P1: schema evolution).

A new version adds a folder here; files of earlier versions are never changed.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.pipeline.making import NOON, node_id

from holdfast.pipeline.check import check
from holdfast.pipeline.schemas import COLUMNS
from holdfast.telemetry.facts import SCHEMA

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


def test_every_earlier_version_has_golden_segments() -> None:
    versions = {int(folder.name.removeprefix("schema-")) for folder in GOLDEN.iterdir()}
    assert versions == set(range(1, SCHEMA))
