"""The events of a node: recorded as telemetry, written to the log, and kept for the status."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from holdfast.machine import Failure
from holdfast.recording.segment_writer import SegmentWriter
from holdfast.runtime.events import event_of, fields_of, level_of
from holdfast.runtime.failures import write_down
from holdfast.runtime.threads import aside
from holdfast.subsystem import NodeConfig
from holdfast.types import Nanos

EVENTS_KEPT: Final = 200

log = logging.getLogger("holdfast")


class EventLog:
    """Receives the facts and the failed units of a node."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self.segments: SegmentWriter | None = None
        """The telemetry, while the node runs and records any."""
        self.wall_offset_ns: Nanos = 0
        self.recent: deque[dict[str, str]] = deque(maxlen=EVENTS_KEPT)
        """The last events, newest first."""
        self._dumps: set[asyncio.Future[None]] = set()
        """Records of failed units that are being written."""

    def record(self, facts: list[Any]) -> None:
        """Record facts; those that are events also go to the log."""
        if self.segments is not None:
            self.segments.record(facts)
        for fact in facts:
            text = event_of(fact)
            if text:
                at = datetime.fromtimestamp((fact.now_ns + self.wall_offset_ns) / 1e9, UTC)
                self.recent.appendleft(
                    {"at": at.isoformat(timespec="milliseconds"), "kind": fact.kind, "text": text}
                )
                extra = self.fields() | fields_of(fact)
                log.log(level_of(fact), "%s: %s", self._config.name, text, extra=extra)

    def unit_failed(self, failure: Failure) -> None:
        """Log a failed unit, and write its last inputs to a file, off the event loop."""
        log.error(
            "unit %s failed%s: %r",
            failure.unit,
            " and is stopped" if failure.stopped else "",
            failure.error,
            extra=self.fields("unit_failed")
            | {"unit": failure.unit, "stopped": failure.stopped, "error": repr(failure.error)},
        )
        if self._config.data:
            directory = Path(self._config.data) / "failures"
            dump = asyncio.ensure_future(aside(partial(write_down, directory, failure)))
            self._dumps.add(dump)
            dump.add_done_callback(self._dumps.discard)

    async def settle(self) -> None:
        """Wait until the records of failed units are written."""
        if self._dumps:
            await asyncio.wait(self._dumps)

    def fields(self, event: str = "") -> dict[str, Any]:
        """The fields that the log has for every event of this node."""
        config = self._config
        return {"event": event, "subsystem": "node", "node": config.name, "domain": config.domain}

    def status(self) -> dict[str, Any]:
        """The sections `events` and `telemetry` of the status."""
        segments = self.segments
        return {
            "events": list(self.recent),
            "telemetry": {
                "facts": segments.facts if segments else 0,
                "lost": segments.lost if segments else 0,
            },
        }
