"""Advice from the published tables (SPEC P9): risks of paths, busy windows, how sound each node is.

Only predictions that the scores allow (`advised`) become risks. Without such predictions the advice has no risks and
says so by being empty; nodes then work as before.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from holdfast.errors import MisuseError
from holdfast.pipeline.findings import findings
from holdfast.pipeline.reader import Tables
from holdfast.pipeline.storage.port import AlreadyThere, Missing, Store, join
from holdfast.recording.advice import decode_advice, encode_advice
from holdfast.telemetry.advice import (
    PPM,
    Advice,
    BusyWindow,
    PathId,
    PathRisk,
    Placement,
    mark_avoided,
)

FOLDER: Final = "advice"
_PATH: Final = ("sender", "sender_adapter", "listener", "listener_adapter", "subnet", "transport")
EDITIONS_KEPT: Final = 12


class AdviceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Thresholds and limits that go into the advice."""

    enter: float = 0.5
    leave: float = 0.3
    valid_s: int = 3600
    dwell_s: int = 600
    moves_max: int = 10

    def __post_init__(self) -> None:
        if not 0 <= self.leave < self.enter <= 1:
            raise MisuseError(
                f"advice needs 0 <= leave < enter <= 1, not {self.leave} and {self.enter}; nothing was published"
            )
        if self.valid_s <= 0 or self.dwell_s < 0 or self.moves_max < 0:
            raise MisuseError(
                "advice needs a positive validity and no negative limit; nothing was published"
            )


def make_advice(
    tables: Tables, settings: AdviceSettings, now_us: int, previous: Advice | None = None
) -> Advice:
    """The advice for a snapshot."""
    enter, leave = round(settings.enter * PPM), round(settings.leave * PPM)
    held = {risk.path: risk.risk_ppm for risk in previous.risks if risk.avoid} if previous else {}
    risks = [_risk(row) for row in _rows(tables, "predictions") if row["advised"]]
    return Advice(
        snapshot=tables.snapshot.number,
        created_us=now_us,
        valid_until_us=now_us + settings.valid_s * 1_000_000,
        enter_ppm=enter,
        leave_ppm=leave,
        dwell_us=settings.dwell_s * 1_000_000,
        moves_max=settings.moves_max,
        risks=mark_avoided(risks, held, enter, leave, settings.moves_max),
        busy=tuple(_busy(tables)),
        placements=tuple(_placements(tables, {risk.path for risk in risks})),
        findings=findings(tables),
    )


def publish_advice(store: Store, root: str, advice: Advice) -> str:
    """Write an edition; gives its URI. An edition of the same snapshot that is there already stays."""
    folder = join(root, FOLDER)
    uri = join(folder, f"{advice.snapshot:08d}.parquet")
    try:
        store.create(uri, encode_advice(advice))
    except AlreadyThere:
        store.replace(uri, encode_advice(advice))
    files = [stat.uri for stat in store.files(folder)]
    for old in files[:-EDITIONS_KEPT]:
        store.remove(old)
    return uri


def last_advice(store: Store, root: str) -> Advice | None:
    """The newest edition that can be read."""
    for stat in sorted(store.files(join(root, FOLDER)), reverse=True):
        try:
            return decode_advice(store.read(stat.uri))
        except (ValueError, Missing):
            continue
    return None


def _rows(tables: Tables, name: str) -> list[dict[str, Any]]:
    return tables.rows(name) if tables.has(name) else []


def _risk(row: dict[str, Any]) -> PathRisk:
    path: PathId = tuple(row[name] for name in _PATH)
    until_us = int(row["valid_until"].timestamp() * 1_000_000)
    risk_ppm = max(0, min(PPM, round(row["probability"] * PPM)))
    return PathRisk(path, risk_ppm, until_us, why=row.get("why") or "")


def _busy(tables: Tables) -> list[BusyWindow]:
    return [
        BusyWindow(
            row["node"],
            row["adapter"],
            int(window["start_at"].timestamp() * 1_000_000),
            int(window["end_at"].timestamp() * 1_000_000),
            max(0, min(PPM, round(row["probe_share"] * PPM))),
        )
        for row in _rows(tables, "busy_windows")
        for window in row["coming"] or ()
    ]


def _placements(tables: Tables, at_risk: set[PathId]) -> list[Placement]:
    """Per node, the share of its paths that are sound now, and the share that is at risk."""
    total: dict[str, list[int]] = {}
    for row in _rows(tables, "path_health"):
        risky = tuple(row[name] for name in _PATH) in at_risk
        for node in (row["sender"], row["listener"]):
            counts = total.setdefault(node, [0, 0, 0])
            counts[0] += 1
            counts[1] += row["state"] == "ok"
            counts[2] += risky
    return [
        Placement(node, ok * PPM // paths, risky * PPM // paths)
        for node, (paths, ok, risky) in sorted(total.items())
    ]
