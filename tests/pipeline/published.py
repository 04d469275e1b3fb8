"""Published tables made by hand: a snapshot and its Parquet files, without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.pipeline.garbage import new_attempt
from holdfast.pipeline.snapshot import Part, Snapshot, Snapshots, TableFile
from holdfast.pipeline.storage.local import LocalStore
from holdfast.pipeline.storage.port import join, to_uri


def publish(root: Path, created_us: int, tables: Mapping[str, list[dict[str, Any]]]) -> Snapshot:
    """The next snapshot under `root`, with these rows."""
    store, uri = LocalStore(), to_uri(root)
    snapshots, attempt = Snapshots(store, uri), new_attempt(created_us)
    parts = {}
    for table, rows in tables.items():
        content = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rows), content)
        name = f"tables/{table}/{attempt}/part.parquet"
        data = content.getvalue().to_pybytes()
        store.create(join(uri, name), data)
        parts[table] = {"": Part((TableFile(name, len(data), len(rows)),))}
    number = snapshots.next_number()
    return snapshots.publish(
        Snapshot(number=number, attempt=attempt, created_us=created_us, tables=parts)
    )


def incident(text: str, start: Any, end: Any = None, error_class: str = "size") -> dict[str, Any]:
    return {
        "error_class": error_class,
        "start_at": start,
        "end_at": end,
        "open": end is None,
        "text": text,
    }


def group_verdict(group: str, verdict: str, why: str) -> dict[str, Any]:
    return {
        "group": group,
        "epoch": 0,
        "verdict": verdict,
        "why": why,
        "coverage": 0.5,
        "entries": 80,
    }


def fault(kind: str, name: str, start: Any, end: Any) -> dict[str, Any]:
    return {
        "kind": kind,
        "name": name,
        "start_at": start,
        "end_at": end,
        "error_classes": ["size"],
        "confidence": 0.987,
        "failing": 6,
        "passing": 0,
    }


def violation(claim: str, text: str, *events: str) -> dict[str, Any]:
    return {"claim": claim, "text": text, "events": list(events)}
