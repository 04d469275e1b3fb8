"""The part of the report about dialogs: whether both ends saw what was promised."""

from __future__ import annotations

from html import escape
from typing import Final

from holdfast.pipeline.page import (
    Content,
    and_more,
    badge,
    table,
    violation_text,
    violations_box,
)
from holdfast.pipeline.words import VERDICTS, grouped

_SHOWN_MAX: Final = 50


def show_dialogs(content: Content) -> str:
    """Verdicts, worst first, and every violation with its events; empty without dialogs."""
    if not content.dialogs:
        return ""
    rows = sorted(content.dialogs, key=lambda row: (VERDICTS.index(row["verdict"]), row["dialog"]))
    lines = [
        [
            f"<code>{escape(row['dialog'][-12:])}</code> from its {escape(row['sender'])}",
            badge(row["verdict"]),
            escape(row["why"]),
            *(grouped(row[name]) for name in ("captured", "taken", "deleted", "compared")),
        ]
        for row in rows[:_SHOWN_MAX]
    ]
    violations = [violation_text(row) for row in content.dialog_violations[:_SHOWN_MAX]]
    return (
        "<h2>Do dialogs keep their promises?</h2>\n"
        '<p class="note">Each direction of a dialog: what the sender captured, what the receiver took. Numbers prove '
        "order and single delivery, digests prove the content.</p>\n"
        + table("Dialog |Verdict |Why |#Captured |#Taken |#Deleted |#Compared", lines)
        + and_more(len(rows) - len(lines), "direction")
        + violations_box(violations)
    )
