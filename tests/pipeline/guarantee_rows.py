"""Facts as the rows that judges get, without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from tests.pipeline.making import Fact

from holdfast.pipeline.guarantees import GuaranteeVerdict, GuaranteeViolation
from holdfast.pipeline.judges import (
    HOPS,
    LOCKS,
    OBJECTS,
    STABILITY,
    TRANSACTIONS,
    judge_subject,
)
from holdfast.sim.facts import Life

Subjects = dict[tuple[str, str], list[dict[str, Any]]]
"""Guarantee and subject to rows."""
OF: Final = {
    "stability": (STABILITY,),
    "group": (STABILITY,),
    "lock": (LOCKS,),
    "dialog_transaction": (TRANSACTIONS,),
    "dialog_range": (TRANSACTIONS,),
    "object": (OBJECTS,),
    "object_op": (OBJECTS, HOPS),
    "link": (HOPS,),
}
KEPT: Final = {"group": ("restored",), "object": ("decided",), "link": ("up", "down")}


def subjects(facts: Iterable[tuple[str, Fact]]) -> Subjects:
    """Facts with their kind, by what they are evidence of."""
    found: Subjects = {}
    for kind, one in facts:
        row = _row(kind, one)
        if row is not None:
            for guarantee in OF.get(kind, ()):
                found.setdefault((guarantee, _subject(guarantee, row)), []).append(row)
    return found


def of_lives(lives: Iterable[Life]) -> list[tuple[str, Fact]]:
    """What simulated nodes recorded, as rows of segments."""
    found: list[tuple[str, Fact]] = []
    for life in lives:
        numbers: dict[str, int] = {}
        for one in life.facts:
            n = numbers[one.kind] = numbers.get(one.kind, -1) + 1
            at = datetime.fromtimestamp((one.now_ns + life.wall_offset_ns) / 1e9, UTC)
            front = {"node": life.node_hex, "incarnation": life.incarnation, "n": n, "at": at}
            found.append((one.kind, {**msgspec.structs.asdict(one), **front}))
    return found


def verdicts_on(lives: Iterable[Life]) -> tuple[list[GuaranteeVerdict], list[GuaranteeViolation]]:
    """The audit of everything that simulated nodes recorded."""
    verdicts: list[GuaranteeVerdict] = []
    violations: list[GuaranteeViolation] = []
    for (guarantee, subject), rows in subjects(of_lives(lives)).items():
        found = judge_subject(guarantee, subject, rows, {})
        verdicts += found[0]
        violations += found[1]
    return verdicts, violations


def _row(kind: str, one: Fact) -> dict[str, Any] | None:
    if kind in KEPT and one["event"] not in KEPT[kind]:
        return None
    row = {**one, "kind": kind, "at_us": round(one["at"].timestamp() * 1_000_000)}
    if kind == "stability":
        row["event"] = "sample"
    if kind == "dialog_range":
        if not row["transaction"]:
            return None
        size = row["last"] - row["first"] + 1
        row |= {
            "taken": size if row["event"] == "taken" else 0,
            "sent": size if row["event"] == "captured" else 0,
        }
    return row


def _subject(guarantee: str, row: Mapping[str, Any]) -> str:
    if guarantee == STABILITY:
        return f"{row['group']}/{row['epoch']:X}"
    if guarantee == LOCKS:
        return f"{row['group']}/{row['epoch']:X}/{row['lock']}"
    return str(row["object"] if guarantee == OBJECTS else row["node"])
