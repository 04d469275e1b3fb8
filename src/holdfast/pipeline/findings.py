"""What the pipeline found, in a few lines: they travel with advice, so that the page of each node shows them."""

from __future__ import annotations

from typing import Any, Final

from holdfast.pipeline.reader import Tables
from holdfast.pipeline.score_text import score_lines
from holdfast.pipeline.words import VERDICTS, component

LINES_MAX: Final = 5
"""Of each kind."""


def findings(tables: Tables) -> tuple[str, ...]:
    """Open incidents, located faults, verdicts and the quality of predictions; the gravest and newest first."""
    names = {row["node"]: row["name"] for row in _rows(tables, "nodes")}
    lines = [f"open incident: {row['text']}" for row in _open(tables)[:LINES_MAX]]
    causes = sorted(_rows(tables, "located_faults"), key=lambda row: row["end_at"], reverse=True)
    lines += [f"likely cause: {cause_text(row, names)}" for row in causes[:LINES_MAX]]
    audit = sorted(_rows(tables, "delivery_audit"), key=lambda row: VERDICTS.index(row["verdict"]))
    lines += [
        f"group {row['group']}: {row['verdict']}, {row['coverage']:.0%} of {row['entries']} entries compared"
        for row in audit[:LINES_MAX]
    ]
    broken = [row for row in _rows(tables, "guarantee_audit") if row["verdict"] == "violated"]
    lines += [
        f"{row['guarantee']} of {row['subject']}: violated, {row['why']}"
        for row in broken[:LINES_MAX]
    ]
    return (*lines, *score_lines(_rows(tables, "prediction_scores"))[:1])


def _open(tables: Tables) -> list[dict[str, Any]]:
    rows = [row for row in _rows(tables, "incidents") if row["open"]]
    return sorted(rows, key=lambda row: row["start_at"], reverse=True)


def cause_text(row: dict[str, Any], names: dict[str, str]) -> str:
    """A located fault in one line, with the names of nodes instead of their ids."""
    kind, name = component(row, names)
    classes = ", ".join(row["error_classes"])
    since = f"{row['start_at']:%Y-%m-%d %H:%M}"
    return f"{kind} {name} ({classes}), since {since}, confidence {row['confidence']:.2f}"


def _rows(tables: Tables, name: str) -> list[dict[str, Any]]:
    return tables.rows(name) if tables.has(name) else []
