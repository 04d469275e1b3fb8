"""The pieces of the report's page: what it is made of, tables, badges, names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final

import msgspec

from holdfast.pipeline.words import count

Rows = list[dict[str, Any]]

TONES: Final = {
    "ok": "ok",
    "soft error": "soft",
    "dead": "dead",
    "holds": "ok",
    "not provable": "soft",
    "violated": "dead",
    "attention": "soft",
}
"""Words for states and verdicts to the class that colours them."""


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the page is made of: rows of published tables."""

    snapshot: int
    recording: Rows = []
    nodes: Rows = []
    health: Rows = []
    hours: Rows = []
    incidents: Rows = []
    deliveries: Rows = []
    audit: Rows = []
    ranges: Rows = []
    violations: Rows = []
    dialogs: Rows = []
    dialog_violations: Rows = []
    guarantees: Rows = []
    guarantee_violations: Rows = []
    localisation: Rows = []
    scores: Rows = []
    predictions: Rows = []
    busy: Rows = []
    checks: list[Any] = []
    set_aside: list[tuple[str, str, str]] = []


def names_of(content: Content) -> dict[str, str]:
    """Node to the name people know it by, with the start of its id where a name is missing or not the only one."""
    named: dict[str, str] = {}
    for row in content.health:
        named.setdefault(row["sender"], row["sender_name"])
        named[row["listener"]] = row["listener_name"]
    for row in (*content.recording, *content.nodes):
        named[row["node"]] = row["name"]
    taken = list(named.values())
    return {
        node: name if name and taken.count(name) == 1 else f"{name} {node[:8]}".strip()
        for node, name in named.items()
    }


def table(header: str, lines: Iterable[Sequence[str]], card: bool = True) -> str:
    """Cells are HTML. Columns of the header are divided by `|`; one that starts with `#` holds numbers."""
    titles = [title.strip() for title in header.split("|")]
    numeric = [' class="n"' if title.startswith("#") else "" for title in titles]
    head = "".join(
        f"<th{cls}>{title.removeprefix('#')}</th>"
        for title, cls in zip(titles, numeric, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(f"<td{cls}>{cell}</td>" for cell, cls in zip(line, numeric, strict=True))
        + "</tr>"
        for line in lines
    )
    filled = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="card">{filled}</div>' if card else filled


def path_name(row: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """`brno → jena`, not escaped; the start of the id where a name is not known."""
    sender, listener = row["sender"], row["listener"]
    return f"{names.get(sender, sender[:8])} → {names.get(listener, listener[:8])}"


def and_more(number: int, noun: str, rest: str = "") -> str:
    """A note below a table that leaves `number` lines out; empty if it leaves none out."""
    return f'<p class="note">And {count(number, "more " + noun)}{rest}.</p>' if number > 0 else ""


def violation_text(row: Mapping[str, Any], about: str = "") -> str:
    """One violation: the claim in a sentence, then an event per line."""
    return "\n    ".join([f"{about}{row['claim']}: {row['text']}", *row["events"]])


def violations_box(texts: Sequence[str]) -> str:
    """Violations as an open box; empty without any."""
    if not texts:
        return ""
    named = escape("\n\n".join(texts))
    return f"<details open><summary>Violations</summary><pre>{named}</pre></details>"


def badge(word: str) -> str:
    return f'<span class="badge {TONES[word]}">{escape(word)}</span>'


def or_zero(value: float, shown: str) -> str:
    return shown if value else '<span class="zero">0</span>'
