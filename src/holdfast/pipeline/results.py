"""The newest published results in short form, for the page of a node. Reads with pyarrow; needs no Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from holdfast.errors import HoldfastError
from holdfast.pipeline.findings import cause_text
from holdfast.pipeline.reader import Tables, open_tables
from holdfast.pipeline.score_text import score_lines
from holdfast.pipeline.snapshot import Snapshots
from holdfast.pipeline.storage.port import Missing, Store, to_uri
from holdfast.pipeline.storage.stores import Stores
from holdfast.pipeline.words import VERDICTS

INCIDENTS_MAX: Final = 50
FAULTS_MAX: Final = 20
VERDICTS_MAX: Final = 50
VIOLATIONS_MAX: Final = 20

_INCIDENT: Final = ("error_class", "start_at", "end_at", "open", "text")


class PublishedResults:
    """Reads the tables under `root` again when a new snapshot appears, and keeps the answer until then."""

    def __init__(self, root: str | Path, store: Store | None = None) -> None:
        self._root = to_uri(root)
        self._shown = str(root)
        self._store = store or Stores()
        self._seen = 0
        self._found: dict[str, Any] = {}

    def read(self) -> dict[str, Any]:
        """The results, or a `problem`. Blocks while it reads; never raises for the content of the directory."""
        try:
            newest = max(Snapshots(self._store, self._root).numbers(), default=0)
            if newest and newest == self._seen:
                return self._found
            found = results(open_tables(self._root, self._store))
        except (HoldfastError, Missing, OSError) as problem:
            self._seen = 0
            return {"source": self._shown, "problem": str(problem) or repr(problem)}
        self._seen, self._found = newest, {"source": self._shown, "problem": ""} | found
        return self._found


def results(tables: Tables) -> dict[str, Any]:
    """What one snapshot says: incidents, located faults, verdicts, violations and the quality of predictions."""
    names = {row["node"]: row["name"] for row in _rows(tables, "nodes", ["node", "name"])}
    incidents, incidents_left_out = _newest_incidents(tables)
    faults = sorted(_rows(tables, "located_faults"), key=lambda row: row["end_at"], reverse=True)
    verdicts = sorted(_verdicts(tables), key=lambda row: VERDICTS.index(row["verdict"]))
    violations = [
        {"text": f"{row['claim']}: {row['text']}", "events": row["events"]}
        for name in ("delivery_violations", "dialog_violations", "guarantee_violations")
        for row in _rows(tables, name, ["claim", "text", "events"])
    ]
    return {
        "snapshot": tables.snapshot.number,
        "made_at": _iso(datetime.fromtimestamp(tables.snapshot.created_us / 1e6, UTC)),
        "incidents": incidents,
        "incidents_left_out": incidents_left_out,
        "faults": [_fault(row, names) for row in faults[:FAULTS_MAX]],
        "verdicts": verdicts[:VERDICTS_MAX],
        "violations": violations[:VIOLATIONS_MAX],
        "violations_left_out": max(0, len(violations) - VIOLATIONS_MAX),
        "predictions": score_lines(_rows(tables, "prediction_scores")),
    }


def _newest_incidents(tables: Tables) -> tuple[list[dict[str, Any]], int]:
    """Open ones first, then by start, the newest first; and how many are left out."""
    if not tables.has("incidents"):
        return [], 0
    # Sorted and cut before rows become Python objects: the table may hold years.
    found = tables.read("incidents", list(_INCIDENT))
    found = found.sort_by([("open", "descending"), ("start_at", "descending")])
    rows = found.slice(0, INCIDENTS_MAX).to_pylist()
    for row in rows:
        row["start_at"] = _iso(row["start_at"])
        row["end_at"] = _iso(row["end_at"]) if row["end_at"] else None
    return rows, max(0, found.num_rows - INCIDENTS_MAX)


def _fault(row: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    return {
        "text": cause_text(row, names),
        "start_at": _iso(row["start_at"]),
        "end_at": _iso(row["end_at"]),
        "confidence": row["confidence"],
        "failing": row["failing"],
        "passing": row["passing"],
    }


def _verdicts(tables: Tables) -> Iterable[dict[str, Any]]:
    """One per group and epoch; dialogs and other subjects are counted by verdict, because there may be many."""
    for row in _rows(tables, "delivery_audit"):
        epoch = f" epoch {row['epoch']:x}" if row["epoch"] else ""
        compared = f"{row['coverage']:.0%} of {row['entries']} entries compared"
        yield _verdict(f"group {row['group']}{epoch}", row["verdict"], f"{row['why']}; {compared}")
    yield from _counted(_rows(tables, "dialog_audit"), lambda _: "dialogs")
    yield from _counted(_rows(tables, "guarantee_audit"), lambda row: str(row["guarantee"]))


def _counted(
    rows: list[dict[str, Any]], name_of: Callable[[dict[str, Any]], str]
) -> Iterable[dict[str, Any]]:
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        found.setdefault((name_of(row), row["verdict"]), []).append(row["why"])
    for (name, verdict), reasons in found.items():
        yield _verdict(f"{name} ({len(reasons)})", verdict, f"for example: {reasons[0]}")


def _verdict(subject: str, verdict: str, why: str) -> dict[str, Any]:
    return {"subject": subject, "verdict": verdict, "why": why}


def _rows(tables: Tables, name: str, columns: list[str] | None = None) -> list[dict[str, Any]]:
    return tables.rows(name, columns) if tables.has(name) else []


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds")
