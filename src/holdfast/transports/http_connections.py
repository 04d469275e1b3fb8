"""Bounds the connections of an HTTP server, so that clients without a request cannot use up its file descriptors.

A connection is *busy* while a request on it is handled, and idle otherwise: nothing was sent yet, only a part of a
request, or the client may send another one. An idle connection makes room for a newer one, oldest first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from holdfast.transports.refusals import Refusals, log

IDLE_MAX = 64

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpConnections:
    """The connections of one server, of an adapter or (without a name) of the page: at most `IDLE_MAX` idle ones, and
    `busy_max` with a request."""

    def __init__(self, adapter: str, busy_max: int) -> None:
        self.evicted = 0
        self.refused = 0
        self.damaged = 0
        self._busy_max = busy_max
        self._busy: dict[Any, None] = {}
        self._refusals = Refusals(adapter)

    def runner(self, application: web.Application, **options: Any) -> web.AppRunner:
        """A runner whose sites accept connections within the bounds."""
        application.middlewares.append(self._count)
        return _Runner(self, application, logger=self._logger(), **options)

    def _logger(self) -> logging.Logger:
        """For aiohttp. Damaged requests are counted and noted like refused connections: a traceback for each would let
        any client fill the log, and could show a token."""
        logger = logging.Logger("holdfast.http")  # noqa: LOG001 (its filter is for one server)
        logger.parent = log
        logger.addFilter(self._is_ours)
        return logger

    def _is_ours(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError):
            return True
        self.damaged += 1
        self._refusals.note(*_peer(record.args), f"the request is damaged ({type(error).__name__})")
        return False

    def accept(self, server: web.Server) -> asyncio.Protocol:
        """The protocol of a connection that was just accepted."""
        idle = [
            connection
            for connection in server.connections
            if connection not in self._busy
            and connection.transport is not None
            and not connection.transport.is_closing()
        ]
        if len(self._busy) >= self._busy_max:
            self.refused += 1
            return _Refused(self._refusals, f"there are already {self._busy_max} requests")
        if len(idle) >= IDLE_MAX:
            self.evicted += 1
            _abort(idle[0].transport, self._refusals, "closed to make room for newer connections")
        return server()

    @web.middleware
    async def _count(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        connection = request.protocol
        self._busy[connection] = None
        try:
            return await handler(request)
        finally:
            self._busy.pop(connection, None)


class _Runner(web.AppRunner):
    """Gives its sites a protocol factory that keeps to the bounds."""

    def __init__(self, connections: HttpConnections, app: web.Application, **options: Any) -> None:
        super().__init__(app, **options)
        self._connections = connections

    @property
    def server(self) -> Any:
        server = super().server
        return None if server is None else lambda: self._connections.accept(server)


class _Refused(asyncio.Protocol):
    """Closes a connection as soon as it is made."""

    def __init__(self, refusals: Refusals, reason: str) -> None:
        self._refusals = refusals
        self._reason = reason

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        _abort(transport, self._refusals, self._reason)


def _peer(arguments: Any) -> tuple[str, int]:
    """The peer that a log record of aiohttp names."""
    host = arguments[0] if isinstance(arguments, tuple) and arguments else ""
    return str(host), 0


def _abort(transport: Any, refusals: Refusals, reason: str) -> None:
    """Close at once: a client that does not read must not keep what was written for it."""
    host, port = (transport.get_extra_info("peername") or ("", 0))[:2]
    refusals.note(host, port, reason)
    transport.abort()
