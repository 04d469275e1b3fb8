"""Derives metrics from a status. A status may come from another version; missing parts are left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

Samples = list[tuple[Mapping[str, object], Any]]


def one(part: Mapping[str, Any], key: str) -> Samples:
    """One value without labels."""
    return [({}, part[key])] if part.get(key) is not None else []


def each(rows: list[Mapping[str, Any]], label: str, name: str, key: str) -> Samples:
    """The value `key` of every row, labelled with its `name`."""
    return [({label: row.get(name, "")}, row[key]) for row in rows if row.get(key) is not None]


def counted(label: str, counts: Counter[str]) -> Samples:
    """A count for each value of a label."""
    return [({label: key}, count) for key, count in sorted(counts.items())]


def part(status: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A section of the status that is a table."""
    value = status.get(key)
    return value if isinstance(value, Mapping) else {}


def rows(status: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """A section of the status that is a list of tables."""
    value = status.get(key)
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []
