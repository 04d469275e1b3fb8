"""The findings of the pipeline about the faults of the demonstration: the incident, its cause, and the audit."""

from __future__ import annotations

from typing import Any, Protocol

Broken = tuple[str, str, str]
"""Sender, listener, subnet."""


class Tables(Protocol):
    """Published tables (`holdfast.pipeline.reader.Tables`)."""

    def has(self, name: str) -> bool: ...

    def rows(self, name: str, columns: list[str] | None = None) -> list[dict[str, Any]]: ...


def incident_of(tables: Tables, broken: Broken) -> tuple[bool, str]:
    """The size incident of the broken path, in the words of the pipeline."""
    for row in tables.rows("incidents"):
        where = (row["sender_name"], row["listener_name"], row["subnet"])
        if where == broken and row["error_class"] == "size":
            return True, f"{row['text']}, for {row['seconds']:.0f} s"
    return False, "no incident of the class size on that path"


def cause_of(tables: Tables, broken: Broken) -> tuple[bool, str]:
    """The located fault with the size error: it must contain the broken pair."""
    ids = {row["name"]: row["node"] for row in tables.rows("nodes")}
    sender, listener, _ = broken
    rows = tables.rows("located_faults") if tables.has("located_faults") else []
    for row in rows:
        groups = [f"{group['kind']} {group['name']}" for group in row["groups"]]
        pair = next((g for g in groups if ids[sender] in g and ids[listener] in g), "")
        if "size" in row["error_classes"] and pair:
            for name, node in ids.items():
                pair = pair.replace(node, name)
            others = (
                f", or {len(groups) - 1} more with the same symptoms" if len(groups) > 1 else ""
            )
            return True, f"{pair}{others}; confidence {row['confidence']:.2f}"
    return False, "no located fault contains the broken pair"


def audit_of(tables: Tables) -> tuple[bool, str]:
    """The verdicts on all groups. A killed node loses its unsealed tail, so some may not be provable."""
    rows = tables.rows("delivery_audit") if tables.has("delivery_audit") else []
    text = "; ".join(
        f"group {row['group']}: {row['verdict']}, {row['coverage']:.0%} of {row['entries']} entries compared"
        for row in rows
    )
    return bool(rows) and all(
        row["verdict"] != "violated" for row in rows
    ), text or "nothing recorded"
