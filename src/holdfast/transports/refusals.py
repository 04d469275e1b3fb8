"""Logs refused connections. A hostile peer cannot flood the log: one line per second, the rest is counted.

A host that is refused for the same reason again and again, such as a node with a wrong configuration, is reported at
growing intervals.
"""

from __future__ import annotations

import logging
import time
from typing import Final

from holdfast.types import SECOND, Nanos

log = logging.getLogger("holdfast.transports")

LINE_EVERY_NS: Final = SECOND
AGAIN_NS: Final = 2 * SECOND
AGAIN_NS_MAX: Final = 600 * SECOND
"""The same host and reason are reported again after the first interval, then at doubling ones up to the second."""
KNOWN_MAX: Final = 256


class Refusals:
    """Log lines about connections that one adapter, or the page, refused."""

    __slots__ = ("_adapter", "_known", "_next_line", "_place", "_silent")

    def __init__(self, adapter: str) -> None:
        self._adapter = adapter
        self._place = f"adapter {adapter}" if adapter else "page"
        self._next_line: Nanos = 0
        self._silent = 0
        self._known: dict[tuple[str, str], tuple[Nanos, Nanos]] = {}
        """By host and reason: when it is reported again, and how long after the last time."""

    def note(self, host: str, port: int, reason: str) -> None:
        now = time.monotonic_ns()
        again_at, wait_ns = self._known.get((host, reason), (0, 0))
        if now < self._next_line or now < again_at:
            self._silent += 1
            return
        if now > again_at + wait_ns:
            wait_ns = 0  # there was none for a while
        self._known.pop((host, reason), None)
        if len(self._known) >= KNOWN_MAX:
            del self._known[next(iter(self._known))]
        wait_ns = min(max(2 * wait_ns, AGAIN_NS), AGAIN_NS_MAX)
        self._known[host, reason] = (now + wait_ns, wait_ns)
        more = f" ({self._silent} more since the last such line)" if self._silent else ""
        log.warning(
            "%s: refused %s:%d: %s%s",
            self._place,
            host,
            port,
            reason,
            more,
            extra={
                "event": "connection_refused",
                "subsystem": "links" if self._adapter else "web",
                "adapter": self._adapter,
                "address": f"{host}:{port}",
                "reason": reason,
                "repeated": self._silent,
            },
        )
        self._next_line = now + LINE_EVERY_NS
        self._silent = 0
