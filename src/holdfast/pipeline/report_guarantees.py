"""The part of the report about stability, locks, transactions and objects."""

from __future__ import annotations

from html import escape
from typing import Any, Final

from holdfast.pipeline.page import Content, badge, table, violation_text, violations_box
from holdfast.pipeline.words import VERDICTS, grouped

_SHOWN_MAX: Final = 50


def show_guarantees(content: Content) -> str:
    """One line per guarantee and verdict, worst first, and every violation with its events; empty without facts."""
    if not content.guarantees:
        return ""
    names = dict.fromkeys(row["guarantee"] for row in content.guarantees)
    lines = [
        line
        for word in VERDICTS
        for name in names
        if (line := _line(name, word, content.guarantees)) is not None
    ]
    violations = [
        violation_text(row, f"{row['subject']}: ")
        for row in content.guarantee_violations[:_SHOWN_MAX]
    ]
    return (
        "<h2>Do the other guarantees hold?</h2>\n"
        '<p class="note">Each group, lock, node with transactions and object is judged by what nodes recorded.</p>\n'
        + table("Guarantee |Verdict |For example |#Subjects |#Comparisons", lines)
        + violations_box(violations)
    )


def _line(name: str, word: str, rows: list[dict[str, Any]]) -> list[str] | None:
    found = [row for row in rows if (row["guarantee"], row["verdict"]) == (name, word)]
    if not found:
        return None
    first = found[0]
    return [
        escape(name),
        badge(word),
        escape(f"{first['subject'][:40]}: {first['why']}"),
        grouped(len(found)),
        grouped(sum(row["checked"] for row in found)),
    ]
