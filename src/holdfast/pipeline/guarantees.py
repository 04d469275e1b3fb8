"""Guarantees that are judged subject by subject: what a verdict is, and what the judges share. No Spark.

A judge is a pure function of the recorded facts of one subject: a group, a lock, the transactions of a node, an object.
It reports contradictions. It never takes a fact that is absent for a contradiction where a crash may have cut the
recording off; that is a *doubt*, and the verdict is `not provable`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median_low
from typing import Any, Final

import msgspec

from holdfast.pipeline.audit import HOLDS, NOT_PROVABLE, VIOLATED

Row = Mapping[str, Any]
SKEW_US: Final = 120 * 1_000_000
"""How far the wall clocks of two nodes may differ. Facts of two nodes that are closer together are not ordered."""
NAMED_MAX: Final = 20
"""Violations that are named for one subject; the rest is counted."""


class GuaranteeVerdict(msgspec.Struct, frozen=True, kw_only=True):
    guarantee: str
    subject: str
    verdict: str
    why: str
    facts: int
    checked: int
    """Comparisons that could have failed."""
    violations: int


class GuaranteeViolation(msgspec.Struct, frozen=True, kw_only=True):
    guarantee: str
    subject: str
    claim: str
    text: str
    events: tuple[str, ...]


class Found(msgspec.Struct, frozen=True):
    claim: str
    text: str
    rows: tuple[Row, ...]


class Case:
    """What a judge collects about one subject."""

    def __init__(self, complete: bool = True) -> None:
        self.complete = complete
        """No fact of the lives that take part is known to be lost."""
        self.checked = 0
        self.found: list[Found] = []
        self.doubt = ""

    def check(self, sound: bool, claim: str, text: str, *rows: Row) -> None:
        """One comparison; `text` says what is wrong if it is not sound."""
        self.checked += 1
        if not sound:
            self.found.append(Found(claim, text, rows))

    def doubts(self, why: str) -> None:
        """Something cannot be proved. The first reason stands."""
        self.doubt = self.doubt or why


Judge = Callable[[Sequence[Row], Case], None]


def verdict_on(
    guarantee: str, subject: str, rows: Sequence[Row], judge: Judge, missing: int
) -> tuple[GuaranteeVerdict, list[GuaranteeViolation]]:
    """Judge one subject. `missing` facts of the lives that take part are lost."""
    case = Case(not missing)
    judge(rows, case)
    word, why = _word(case, missing)
    verdict = GuaranteeVerdict(
        guarantee=guarantee,
        subject=subject,
        verdict=word,
        why=why,
        facts=len(rows),
        checked=case.checked,
        violations=len(case.found),
    )
    named = [
        GuaranteeViolation(
            guarantee=guarantee,
            subject=subject,
            claim=found.claim,
            text=found.text,
            events=tuple(told(row) for row in found.rows),
        )
        for found in case.found[:NAMED_MAX]
    ]
    return verdict, named


def _word(case: Case, missing: int) -> tuple[str, str]:
    if case.found:
        return VIOLATED, case.found[0].text
    if missing:
        return NOT_PROVABLE, f"{missing} facts about it are missing"
    if case.doubt:
        return NOT_PROVABLE, case.doubt
    if not case.checked:
        return NOT_PROVABLE, "no two facts could be compared"
    return HOLDS, f"{case.checked} comparisons, no contradiction"


def told(row: Row) -> str:
    """A fact in words."""
    values = [
        f"{name} {row[name]}"
        for name in ("index", "token", "version", "stable", "held", "freed", "taken", "sent")
        if row.get(name) is not None and row[name] >= 0
    ]
    return (
        f"{row['kind']} {row['event']} at node {row['node'][:8]}, incarnation {row['incarnation']}, fact {row['n']}"
        + "".join(f", {value}" for value in values)
    )


def with_true_clocks(rows: Sequence[Row], number: str) -> list[Row]:
    """Rows of the nodes whose wall clocks agree, as far as that can be told.

    `number` grows everywhere at about the same time: the log that a replica holds, the version of an object. A node
    that reaches its values much earlier or later than the node with the most of them, in the median, has another clock.
    """
    reached: dict[str, tuple[list[int], list[int]]] = {}
    for row in sorted(rows, key=lambda row: (row["at_us"], row["n"])):
        values, times = reached.setdefault(row["node"], ([], []))
        if not values or row[number] > values[-1]:
            values.append(row[number])
            times.append(row["at_us"])
    if not reached:
        return []
    known, when = max(reached.items(), key=lambda item: (len(item[1][0]), item[0]))[1]
    sound: dict[str, None] = {}
    for node, (values, times) in reached.items():
        delays = [
            at - when[bisect_left(known, value)]
            for value, at in zip(values, times, strict=True)
            if value <= known[-1]
        ]
        if delays and abs(median_low(delays)) <= SKEW_US // 2:
            sound[node] = None
    return [row for row in rows if row["node"] in sound]


def by_life(rows: Iterable[Row]) -> dict[tuple[str, int], list[Row]]:
    """Rows of each life of a node, in the order of recording."""
    lives: dict[tuple[str, int], list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row["node"], row["incarnation"], row["n"])):
        lives.setdefault((row["node"], row["incarnation"]), []).append(row)
    return lives
