"""Entries of a ledger, as the pipeline writes them."""

from __future__ import annotations

from typing import Any

from holdfast.pipeline.ledger import Entry
from holdfast.telemetry.facts import SCHEMA


def entry(path: str, outcome: str = "kept", **more: Any) -> Entry:
    usual: dict[str, Any] = {
        "path": path, "kind": "path", "day": "2026-11-15", "size": 10, "mtime_ms": 5, "digest": "d", "rows": 3,
        "hours": ["2026-11-15T12"], "outcome": outcome, "reason": "", "schema": SCHEMA, "examine_us": 0,
        "disordered": 0, "run": 1,
    }  # fmt: skip
    return Entry(**(usual | more))
