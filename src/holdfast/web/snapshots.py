"""The status of the node, encoded once for all clients, at a rate that the node can afford."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from time import monotonic_ns
from typing import Any, Final

import msgspec

from holdfast.types import MILLISECOND, SECOND

INTERVAL_NS: Final = 250 * MILLISECOND
COST_FACTOR: Final = 10
"""A status that takes long (a large domain) is built less often: at most a tenth of the time of the node."""

# Ages grow by themselves, and the page counts them. In JSON, a quote inside a string is escaped, so only keys match.
# Two patterns, because one with a fixed start is found several times faster.
_SINCE = re.compile(rb'since_s":[^,}]*')
_UPTIME = re.compile(rb'uptime_s":[^,}]*')

_logger = logging.getLogger(__name__)


class Snapshot(msgspec.Struct, frozen=True):
    """The status at one moment. `version` increases when anything except an age has changed."""

    version: int
    status: dict[str, Any]
    body: bytes
    failed: bool = False


class Snapshots:
    """Keeps the newest snapshot, without a history or queue: a late client gets the current state."""

    def __init__(
        self, status: Callable[[], dict[str, Any]], clock_ns: Callable[[], int] = monotonic_ns
    ) -> None:
        self._status = status
        self._clock_ns = clock_ns
        self._latest: Snapshot | None = None
        self._essence = b""
        self._asked_ns = 0
        self._pause_ns = INTERVAL_NS

    @property
    def pause_s(self) -> float:
        """How long to wait before it makes sense to ask again."""
        return self._pause_ns / SECOND

    def latest(self) -> Snapshot:
        """The newest snapshot, at most `pause_s` old."""
        now_ns = self._clock_ns()
        if self._latest is None or now_ns - self._asked_ns >= self._pause_ns:
            self._latest = self._take(self._latest.version if self._latest else 0)
            self._asked_ns = now_ns
            cost_ns = self._clock_ns() - now_ns
            self._pause_ns = max(INTERVAL_NS, COST_FACTOR * cost_ns)
        return self._latest

    def _take(self, version: int) -> Snapshot:
        failed = False
        try:
            status = self._status()
            body = msgspec.json.encode(status)
        except Exception as failure:
            # An error in the status must not take the page down, because it is needed then.
            if self._latest is None or not self._latest.failed:
                _logger.exception(
                    "the status of the node is not available",
                    extra={"event": "status_failed", "subsystem": "web"},
                )
            failed = True
            status = {"schema": 1, "error": f"the status of the node is not available: {failure!r}"}
            body = msgspec.json.encode(status)
        essence = _UPTIME.sub(b"", _SINCE.sub(b"", body))
        if essence != self._essence:
            version += 1
            self._essence = essence
        return Snapshot(version, status, body, failed)
