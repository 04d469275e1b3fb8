"""Asks running nodes to seal their telemetry before a run, and says up to when each node has reported.

A node seals its segments only every few minutes. Without this, a run right after an incident reports the state before
it. A node that does not run has sealed everything when it stopped; one that was killed seals the rest when it starts
again, which is why its last time is stated.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from holdfast.errors import HoldfastError, NodeStopped
from holdfast.pipeline.storage.port import scheme_of
from holdfast.runtime.control import ask

SEAL_S: Final = 30.0
TELEMETRY: Final = "telemetry"
"""The folder of a node's data directory in which its landing folder is."""


class Reported(msgspec.Struct, frozen=True, kw_only=True):
    """Up to when one node has reported."""

    name: str
    until_ns: int
    """Wall-clock time of the last sealed segment; 0 if there is none."""
    running: bool
    problem: str = ""


def seal_running(landings: Iterable[str]) -> tuple[Reported, ...]:
    """Seal the telemetry of the nodes of this machine. Landings elsewhere are left out, and so are copies and
    synthetic telemetry: no node seals them, and the times of their files say nothing."""
    local = [
        Path(landing.removeprefix("file://")).resolve()
        for landing in landings
        if scheme_of(landing) == "file"
    ]
    return tuple(_seal(landing) for landing in local if landing.parent.name == TELEMETRY)


def text_of(reported: Reported) -> str:
    """One line for people."""
    if not reported.until_ns:
        return f"{reported.name}: nothing is sealed yet{_because(reported)}"
    until = datetime.fromtimestamp(reported.until_ns / 1e9, UTC)
    state = "running" if reported.running else "not running"
    return f"{reported.name}: up to {until:%Y-%m-%d %H:%M:%S} UTC ({state}){_because(reported)}"


def _because(reported: Reported) -> str:
    return f"; {reported.problem}" if reported.problem else ""


def _seal(landing: Path) -> Reported:
    """The telemetry of a node is in its data directory, beside the control socket."""
    data = landing.parent.parent
    name, sealed_ns = data.name, _newest_ns(landing)
    try:
        answer = ask(data / "control.sock", {"do": "seal"}, SEAL_S)
    except NodeStopped:
        return Reported(name=name, until_ns=sealed_ns, running=False)
    except HoldfastError as error:
        return Reported(name=name, until_ns=sealed_ns, running=True, problem=str(error))
    return Reported(
        name=str(answer.get("name", name)),
        until_ns=int(answer.get("until_ns", sealed_ns)),
        running=True,
        problem=str(answer.get("problem", "")),
    )


def _newest_ns(landing: Path) -> int:
    times = (file.stat().st_mtime_ns for file in landing.glob("*/day=*/*.parquet"))
    return max(times, default=0)
