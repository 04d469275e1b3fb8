"""Facts and segments for the tests of the pipeline, made with pyarrow alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.pipeline.schemas import COLUMNS, arrow_schema
from holdfast.telemetry.facts import SCHEMA

SECOND = 1_000_000_000
NOON = datetime(2026, 11, 15, 12, 0, 0, tzinfo=UTC)
"""The wall clock when every node's own clock shows 0."""
TODAY = NOON.date()

Fact = dict[str, Any]


def node_id(name: str) -> str:
    """A stable id for a name."""
    return (name.encode().hex() * 32)[:32]


def fact(kind: str, name: str, n: int, at_s: float, incarnation: int = 1, **fields: Any) -> Fact:
    """One row of a segment; fields that are not given have a plain value."""
    plain: dict[str, Any] = {"string": "", "bigint": 0, "boolean": False}
    row = {column.name: plain.get(column.spark) for column in COLUMNS[kind]}
    now_ns = round(at_s * SECOND)
    row |= {
        "schema": SCHEMA,
        "node": node_id(name),
        "name": name,
        "incarnation": incarnation,
        "n": n,
        "at": NOON + timedelta(microseconds=now_ns // 1000),
        "now_ns": now_ns,
    }
    if kind == "lost":
        row["lost_incarnation"] = incarnation
    unknown = fields.keys() - row.keys()
    assert not unknown, f"{kind} facts have no {unknown}"
    return row | fields


def path_fact(
    listener: str, sender: str, n: int, at_s: float, size: int = 1472, **fields: Any
) -> Fact:
    """What `listener` hears of `sender` on subnet lan1 over udp, unless told otherwise."""
    usual: dict[str, Any] = {
        "event": "change",
        "sender": node_id(sender),
        "sender_name": sender,
        "sender_adapter": "eth0",
        "listener_adapter": "eth0",
        "subnet": "lan1",
        "transport": "udp",
        "alive": True,
        "size": size,
        "size_max": 1472,
        "rtt_us": 200,
        "heard": 10,
        "expected": 10,
    }
    return fact("path", listener, n, at_s, **(usual | fields))


def delivery(
    replica: str, n: int, index: int, position: int, first: int, last: int, **fields: Any
) -> Fact:
    """Entry `index` of group g, delivered one second after the one before it."""
    usual: dict[str, Any] = {
        "group": "g",
        "term": 1,
        "index": index,
        "position": position,
        "stream": "s",
        "first": first,
        "last": last,
        "digest": 1000 + index,
    }
    at_s = fields.pop("at_s", float(n))
    return fact("delivery", replica, n, at_s, **(usual | fields))


def table_of(kind: str, facts: Iterable[Fact]) -> pa.Table:
    return pa.Table.from_pylist(list(facts), schema=arrow_schema(kind))


def write_segment(
    landing: Path, kind: str, facts: Sequence[Fact], day: str = "2026-11-15", seq: int = 0
) -> Path:
    """Seal facts of one node as a segment."""
    first = facts[0]
    folder = landing / kind / f"day={day}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{first['node']}-{first['incarnation']}-{seq:06d}.parquet"
    pq.write_table(table_of(kind, facts), path, compression="zstd")
    return path
