"""Data-quality checks over the published tables, shown in the report."""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec

from holdfast.pipeline.check import OUTCOMES
from holdfast.pipeline.reader import Tables
from holdfast.pipeline.words import count, duration, listing

SILENT_S: Final = 900
"""A node whose newest fact is this much older than the domain's newest one."""
_NAMED_MAX: Final = 5


class Check(msgspec.Struct, frozen=True):
    """One question about the data, and the answer."""

    name: str
    fine: bool
    detail: str


def checks(tables: Tables) -> list[Check]:
    """All checks, in a fixed order."""
    return [
        _balance(tables),
        _set_aside(tables),
        _conflicts(tables),
        _clocks(tables),
        _silent(tables),
        _missing(tables),
        _names(tables),
        _values(tables),
    ]


def _balance(tables: Tables) -> Check:
    stats = tables.snapshot.stats
    rows_in, merged = stats.get("rows_in", 0), stats.get("rows_merged", 0)
    duplicates, conflicts = stats.get("duplicates", 0), stats.get("conflicts", 0)
    kept = merged - duplicates - conflicts
    text = f"{rows_in} rows in accepted segments = {kept} kept + {duplicates} duplicate + {conflicts} contradicting"
    return Check("every row is accounted for", rows_in == merged, text)


def _set_aside(tables: Tables) -> Check:
    bad = Counter(entry.outcome for entry in tables.set_aside())
    found = [f"{bad[name]} {name}" for name in OUTCOMES if bad[name]]
    accepted = f"{tables.snapshot.stats.get('segments', 0)} segments accepted"
    return Check("no segment is set aside", not found, listing(found) or accepted)


def _conflicts(tables: Tables) -> Check:
    conflicts = tables.snapshot.stats.get("conflicts", 0)
    text = "no two contents for one fact number"
    if conflicts:
        text = f"{count(conflicts, 'fact')} with one number and different contents: look for two nodes with one id"
    return Check("fact numbers are unique", not conflicts, text)


def _clocks(tables: Tables) -> Check:
    disordered = tables.snapshot.stats.get("disordered", 0)
    text = "each node's monotonic clock only grows"
    if disordered:
        text = f"{count(disordered, 'fact')} with a lower monotonic time than the fact before"
    return Check("clocks are monotonic", not disordered, text)


def _silent(tables: Tables) -> Check:
    rows = tables.rows("nodes") if tables.has("nodes") else []
    silent = [row for row in rows if row["silent_s"] > SILENT_S]
    named = [f"{row['name']} for {duration(row['silent_s'])}" for row in silent[:_NAMED_MAX]]
    return Check("no node is silent", not silent, listing(named) or count(len(rows), "node"))


def _missing(tables: Tables) -> Check:
    rows = tables.rows("recording") if tables.has("recording") else []
    unexplained = sum(row["unexplained"] for row in rows)
    missing = sum(row["missing"] for row in rows)
    text = "no fact is missing"
    if missing:
        text = f"{count(missing, 'fact')} missing, {unexplained} of them unexplained"
    return Check("no fact is missing without a reason", not unexplained, text)


def _names(tables: Tables) -> Check:
    rows = tables.rows("nodes") if tables.has("nodes") else []
    names = [row["name"] for row in rows]
    twice = sorted({name for name in names if names.count(name) > 1})
    text = f"{listing(twice)} used by several nodes" if twice else "each name belongs to one node"
    return Check("node names are unique", not twice, text)


def _values(tables: Tables) -> Check:
    rows = tables.rows("path_health") if tables.has("path_health") else []
    odd = [
        row
        for row in rows
        if row["size"] < 0
        or row["heard"] < 0
        or (row["coverage"] or 0) > 1.000001
        or not 0 <= row["alive_ratio"] <= 1
        or (row["rtt_p50_us"] or 0) < 0
    ]
    text = f"{count(len(odd), 'path')} with values that cannot be" if odd else "all within range"
    return Check("values are within range", not odd, text)
