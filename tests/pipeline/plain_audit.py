"""The claims about groups, checked in the plainest way: an oracle for planted violations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

Row = dict[str, Any]
CONTENT = ("position", "stream", "first", "last", "digest")


def broken_claims(deliveries: list[Row], orders: list[Row], events: list[Row]) -> set[str]:
    """The claims that the facts of one group break."""
    return {
        *_agreement(deliveries),
        *_entries(deliveries),
        *_replicas(deliveries),
        *_drops(deliveries, orders),
        *_leaders(events),
    }


def _agreement(deliveries: list[Row]) -> Iterable[str]:
    by_index: dict[int, set[tuple[Any, ...]]] = defaultdict(set)
    for row in deliveries:
        by_index[row["index"]].add(tuple(row[name] for name in CONTENT))
    if any(len(contents) > 1 for contents in by_index.values()):
        yield "agreement"


def _entries(deliveries: list[Row]) -> Iterable[str]:
    """What the entries say that all replicas agree on."""
    by_index: dict[int, list[Row]] = defaultdict(list)
    for row in deliveries:
        by_index[row["index"]].append(row)
    agreed = [
        rows[0]
        for _, rows in sorted(by_index.items())
        if len({tuple(row[name] for name in CONTENT) for row in rows}) == 1
    ]
    end = -1
    last: dict[str, int] = {}
    for row in agreed:
        if row["position"] < end:
            yield "one place"
        end = row["position"] + row["last"] - row["first"] + 1
        if row["first"] <= last.get(row["stream"], 0):
            yield "once"
        last[row["stream"]] = row["last"]


def _replicas(deliveries: list[Row]) -> Iterable[str]:
    """What each replica did, where it lost no facts."""
    lives: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in deliveries:
        lives[row["node"], row["incarnation"]].append(row)
    for rows in lives.values():
        rows.sort(key=lambda row: row["now_ns"])
        end = rows[0]["position"]
        for before, row in pairwise([rows[0], *rows]):
            if row is not before and row["index"] <= before["index"]:
                yield "in order"
            if row["n_lost"] == before["n_lost"] and row["position"] > end:
                yield "no hole"
            end = max(end, row["position"] + row["last"] - row["first"] + 1)


def _drops(deliveries: list[Row], orders: list[Row]) -> Iterable[str]:
    skipped = {row["index"] for row in orders if row["entry"] == "skip"}
    if any(row["index"] in skipped for row in deliveries):
        yield "no delivery after drop"


def _leaders(events: list[Row]) -> Iterable[str]:
    by_term: dict[int, set[str]] = defaultdict(set)
    for row in events:
        if row["event"] == "leads":
            by_term[row["term"]].add(row["node"])
    if any(len(nodes) > 1 for nodes in by_term.values()):
        yield "one leader per term"
