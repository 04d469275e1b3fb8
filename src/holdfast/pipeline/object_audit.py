"""The judgement on objects: strict operations are linearisable, and replicas are one hop away.

Every decided version has a number and the id of the write that made it. So operations on one object are linearisable if
each version has one value, and an operation that began after another one had ended sees its version or a later one, and
writes a later one. Operations of one life are ordered by its own clock, those of two nodes by wall clocks, which may
differ by a stated amount.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

from holdfast.pipeline.guarantees import SKEW_US, Case, Row, by_life, with_true_clocks

ONE_VALUE: Final = "one value per version"
FORWARD: Final = "replicas go forward"
REAL_TIME: Final = "linearisable"
ONE_HOP: Final = "one hop"
CLAIMS: Final = {
    ONE_VALUE: "replicas and operations agree on the write and the content of each version",
    FORWARD: "a replica never decides an older version after a newer one",
    REAL_TIME: "an operation sees the version of every operation that ended before it began, or a later one",
    ONE_HOP: "the replicas that an operation uses have a direct link to its node",
}
DECIDED: Final = "decided"
OPERATION: Final = "object_op"
UP: Final = "up"
_ORDER: Final = {UP: 0, "down": 2}
"""Of what a node recorded at the same moment: a link is up before it is used, and lost after that."""


def judge_object(rows: Sequence[Row], case: Case) -> None:
    """`rows` are the decisions of the replicas of one object, and the operations on it."""
    decided = [row for row in rows if row["event"] == DECIDED]
    operations = [row for row in rows if row["kind"] == OPERATION]
    _judge_values(rows, case)
    for facts in by_life(decided).values():
        for one, other in itertools.pairwise(facts):
            text = f"a replica decided version {other['version']} after {one['version']}"
            case.check(other["version"] > one["version"], FORWARD, text, one, other)
    for facts in by_life(operations).values():
        _sweep(facts, 0, "now_ns", "started_ns", case)
    sound = [row for row in with_true_clocks(rows, "version") if row["kind"] == OPERATION]
    _judge_across(sound, case)


def _judge_values(rows: Sequence[Row], case: Case) -> None:
    known: dict[int, Row] = {}
    for row in rows:
        if not row["write"]:
            continue  # recorded before versions had the id of their write
        one = known.setdefault(row["version"], row)
        if one is row:
            continue
        text = f"version {row['version']} has two values"
        same = (one["write"], one["digest"]) == (row["write"], row["digest"])
        case.check(same, ONE_VALUE, text, one, row)


def _judge_across(operations: Sequence[Row], case: Case) -> None:
    """Operations of several nodes. `at_us` is the end of an operation."""
    if len({row["node"] for row in operations}) > 1:
        walls = [
            {**row, "began_us": row["at_us"] - (row["now_ns"] - row["started_ns"]) // 1000}
            for row in operations
        ]
        _sweep(walls, SKEW_US, "at_us", "began_us", case)


def _sweep(operations: Sequence[Row], skew: int, end: str, begin: str, case: Case) -> None:
    """Compare each operation with the highest version of those that had ended when it began."""
    ended = sorted(operations, key=lambda row: row[end])
    highest: Row | None = None
    seen = 0
    for row in sorted(operations, key=lambda row: row[begin]):
        while seen < len(ended) and ended[seen][end] + skew < row[begin]:
            if highest is None or ended[seen]["version"] > highest["version"]:
                highest = ended[seen]
            seen += 1
        if highest is None:
            continue
        least = highest["version"] + bool(row["is_own"])
        text = (
            f"{row['event']} of version {row['version']} began after {highest['event']} of version "
            f"{highest['version']} had ended"
        )
        case.check(row["version"] >= least, REAL_TIME, text, highest, row)


def judge_hops(rows: Sequence[Row], case: Case) -> None:
    """`rows` are the links of one node, and the operations of its applications."""
    for facts in by_life(rows).values():
        up: dict[str, Row] = {}
        for row in sorted(facts, key=lambda row: (row["now_ns"], _ORDER.get(row["event"], 1))):
            if row["kind"] != OPERATION:
                up[row["peer"]] = row
                continue
            for peer in filter(None, row["peers"].split(",")):
                link = up.get(peer)
                if link is None and not case.complete:
                    case.doubts(f"the links of node {row['node'][:8]} were not recorded")
                    continue
                text = f"replica {peer[:8]} was used without a link to it"
                sound = link is not None and link["event"] == UP
                case.check(sound, ONE_HOP, text, *([link] if link else []), row)
