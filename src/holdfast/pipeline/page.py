"""The pieces of the report's page: what it is made of, tables, badges, names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, Final

import msgspec

Rows = list[dict[str, Any]]

TONES: Final = {
    "ok": "ok",
    "soft error": "soft",
    "dead": "dead",
    "holds": "ok",
    "not provable": "soft",
    "violated": "dead",
}
"""Words for states and verdicts to the class that colours them."""


class Content(msgspec.Struct, frozen=True):
    """Everything the page is made of."""

    recording: Rows
    health: Rows
    troubles: Rows
    deliveries: Rows
    audit: Rows
    set_aside: list[tuple[str, str]]
    runs: dict[str, str]


def names_of(content: Content) -> dict[str, str]:
    """Node to the name people know it by, with the start of its id where a name is missing or not the only one."""
    named: dict[str, str] = {}
    for row in content.health:
        named.setdefault(row["sender"], row["sender_name"])
        named[row["listener"]] = row["listener_name"]
    for row in content.deliveries:
        named[row["replica"]] = row["replica_name"]
    for row in content.recording:
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


def badge(word: str) -> str:
    return f'<span class="badge {TONES[word]}">{escape(word)}</span>'


def or_zero(value: float, shown: str) -> str:
    return shown if value else '<span class="zero">0</span>'
