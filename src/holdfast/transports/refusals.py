"""Logs refused connections. A hostile peer cannot flood the log: one line per second, the rest is counted."""

from __future__ import annotations

import logging
import time
from typing import Final

from holdfast.types import SECOND, Nanos

log = logging.getLogger("holdfast.transports")

LINE_EVERY_NS: Final = SECOND


class Refusals:
    """Log lines about connections that one adapter, or the page, refused."""

    __slots__ = ("_adapter", "_next_line", "_place", "_silent")

    def __init__(self, adapter: str) -> None:
        self._adapter = adapter
        self._place = f"adapter {adapter}" if adapter else "page"
        self._next_line: Nanos = 0
        self._silent = 0

    def note(self, host: str, port: int, reason: str) -> None:
        now = time.monotonic_ns()
        if now < self._next_line:
            self._silent += 1
            return
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
