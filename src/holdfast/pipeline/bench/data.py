"""Telemetry for benchmarks, made with numpy: paths that are sampled every few seconds, groups that deliver entries."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.pipeline.schemas import COLUMNS
from holdfast.telemetry.facts import SCHEMA

START: Final = datetime(2026, 10, 1, tzinfo=UTC)
SAMPLE_S: Final = 5
_PLAIN: Final = {"string": "", "bigint": 0, "boolean": False}


def write_paths(
    landing: Path,
    node: int,
    nodes: int,
    start: datetime,
    hours: int,
    step_s: int = SAMPLE_S,
    seq: int = 0,
) -> int:
    """What one node hears of six others, with a trouble now and then. Gives the number of facts."""
    first_step = int((start - START).total_seconds()) // step_s
    steps = np.arange(first_step, first_step + hours * 3600 // step_s)
    return _write_steps(landing, node, nodes, steps, step_s, start, seq)


def write_small_segments(landing: Path, node: int, nodes: int, segments: int) -> int:
    """As `write_paths`, sealed every minute: six facts in each segment."""
    return sum(
        _write_steps(
            landing, node, nodes, np.array([minute]), 60, START + timedelta(minutes=minute), minute
        )
        for minute in range(segments)
    )


def _write_steps(
    landing: Path, node: int, nodes: int, steps: Any, step_s: int, start: datetime, seq: int
) -> int:
    """The samples of some steps since `START`, as one segment."""
    peers = [(node + k) % max(nodes, 7) for k in range(1, 7)]
    rows = len(steps) * len(peers)
    step = np.repeat(steps, len(peers))
    peer = np.tile(np.arange(len(peers)), len(steps))
    # Every path has a size limit during one of eleven stretches of a quarter of an hour.
    bad = (step * step_s // 900 + peer + node) % 11 == 0
    senders = np.array([f"{number:032x}" for number in peers])[peer]
    columns: dict[str, Any] = {
        "event": "sample",
        "sender": senders,
        "sender_name": np.char.add("n", np.array([str(number) for number in peers])[peer]),
        "sender_adapter": "eth0",
        "listener_adapter": "eth0",
        "subnet": "lan1",
        "transport": "udp",
        "alive": np.ones(rows, bool),
        "size": np.where(bad, 600, 1472),
        "size_max": np.full(rows, 1472),
        "rtt_us": 200 + (step * 37 + peer) % 90,
        "heard": np.full(rows, 10),
        "expected": np.full(rows, 10),
    }
    now_ns = step.astype(np.int64) * step_s * 1_000_000_000 + peer
    return _write(landing, "path", node, now_ns, columns, start, seq, int(steps[0]) * len(peers))


def write_deliveries(
    landing: Path,
    node: int,
    start: datetime,
    entries: int,
    first: int = 0,
    every_ns: int = 10_000_000,
    seq: int = 0,
) -> int:
    """The deliveries of one replica of a group of four, from the entry `first` on, sealed on the day of `start`."""
    index = np.arange(first, first + entries, dtype=np.int64)
    columns: dict[str, Any] = {
        "group": f"g{node // 4}",
        "term": np.ones(entries, np.int64),
        "index": index + 2,
        "position": index * 10,
        "stream": "s",
        "first": index * 10 + 1,
        "last": index * 10 + 10,
        "digest": (index * 7919) & 0xFFFFFFFF,
        "epoch": np.full(entries, 7, np.int64),
    }
    return _write(landing, "delivery", node, index * every_ns + node, columns, start, seq, first)


def _write(
    landing: Path,
    kind: str,
    node: int,
    now_ns: Any,
    columns: dict[str, Any],
    start: datetime,
    seq: int,
    first: int,
) -> int:
    rows = len(now_ns)
    at_us = int(START.timestamp()) * 1_000_000 + now_ns // 1000
    front = {
        "schema": np.full(rows, SCHEMA, np.int32),
        "node": f"{node:032x}",
        "name": f"n{node}",
        "incarnation": np.ones(rows, np.int64),
        "n": np.arange(first, first + rows),
        "at": at_us,
        "now_ns": now_ns,
    }
    arrays = []
    for column in COLUMNS[kind]:
        value = (front | columns).get(column.name, _PLAIN.get(column.spark))
        if isinstance(value, np.ndarray):
            arrays.append(pa.array(value).cast(column.arrow))
        else:
            arrays.append(pa.repeat(pa.scalar(value, column.arrow), rows))
    schema = pa.schema([(column.name, column.arrow) for column in COLUMNS[kind]])
    folder = landing / kind / f"day={start.date().isoformat()}"
    folder.mkdir(parents=True, exist_ok=True)
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), sink, compression="zstd")
    (folder / f"{node:032x}-1-{seq:06d}.parquet").write_bytes(sink.getvalue())
    return rows
