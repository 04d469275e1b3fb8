"""What the audit of deliveries rests on, and what a violation is. No Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.pipeline.transforms.group_events import ROLLED_BACK

Row = Mapping[str, Any]
Life = tuple[str, int, str, int]
"""Group, epoch, node, incarnation."""


class Violation(msgspec.Struct, frozen=True, order=True):
    """One event, or pair of events, that contradicts a claim."""

    group: str
    epoch: int
    index: int
    claim: str
    text: str
    events: tuple[str, ...]


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the judgement rests on. Rows are mappings with the columns of the hourly tables."""

    edges: Sequence[Row]
    breaks: Sequence[Row]
    streams: Sequence[Row]
    gaps: Sequence[Row]
    events: Sequence[Row]
    recorded: Sequence[Row]
    """Ranges of delivery fact numbers: `node`, `incarnation`, `first`, `last`, `facts`."""
    ranges: Sequence[Row]
    """Outcomes of the comparison. Adjacent ones with one outcome and the same replicas are one range."""
    differing: Sequence[Row]
    """Entries that replicas recorded differently: `group`, `epoch`, `index`, `told`."""
    overlapping: Sequence[Row]
    names: Mapping[str, str]


def life_of(row: Row) -> Life:
    return row["group"], row["epoch"], row["node"], row["incarnation"]


def rollbacks(events: Iterable[Row]) -> list[dict[str, Any]]:
    """What was rolled back: deliveries of a life from an index on, made before a time of its own clock."""
    return [
        {
            "group": event["group"], "epoch": event["epoch"], "node": event["node"],
            "incarnation": event["incarnation"], "from_index": event["rollback_index"],
            "before_ns": event["now_ns"],
        }
        for event in events
        if event["event"] == ROLLED_BACK and event["rollback_index"] >= 0
    ]  # fmt: skip


def name_of(row: Row, names: Mapping[str, str]) -> str:
    """The life of a node that recorded a row, in words."""
    name = names.get(row["node"], row["node"][:8])
    return f"{name} (incarnation {row['incarnation']})"
