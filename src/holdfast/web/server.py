"""The server of the web page: where it listens, and what is required before it does."""

from __future__ import annotations

import asyncio
import errno
import logging
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import AddressInUse, SetupError
from holdfast.runtime.threads import aside
from holdfast.web.access import Access, is_loopback, is_sendable
from holdfast.web.snapshots import Snapshots

if TYPE_CHECKING:
    from aiohttp import web

    from holdfast.web.application import Pages, ReadTree

SHUTDOWN_S_MAX: Final = 2.0
REQUESTS_MAX: Final = 128
"""Requests that are handled at the same time, with those of connected pages."""
RESULTS_EVERY_S: Final = 10.0
"""Interval between looks for new results of the pipeline."""

_logger = logging.getLogger(__name__)


class WebServer:
    """Serves the page of one node on one address. `status` is called on the event loop and must not block; `tree` reads
    a whole tree of the overlay, for the map. `results` reads what the pipeline published; it is called in a thread, and
    its answer is the part `results` of the status.

    On an address that is not loopback, a token is required. It is sent unencrypted, so also pass an `ssl_context`, or
    put the page behind an encrypting proxy or tunnel.
    """

    def __init__(
        self,
        address: str,
        port: int,
        status: Callable[[], dict[str, Any]],
        token: str | None = None,
        *,
        ssl_context: ssl.SSLContext | None = None,
        tree: ReadTree | None = None,
        results: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        try:
            import aiohttp  # noqa: F401 (asked for here, so that a node says so before it does anything)
        except ImportError:
            raise SetupError(
                "the page needs aiohttp, which is not installed; the page was not started. "
                "Install it with: pip install 'holdfast[web]'"
            ) from None
        if token is not None and not is_sendable(token):
            raise SetupError(
                "the token of the page must be printable ASCII without spaces, and not empty, "
                "because it is sent in a header; the page was not started"
            )
        if token is None and not is_loopback(address):
            raise SetupError(
                f"the page on {address} is reachable from other machines, so it needs a token; it was "
                "not started. Configure a token, or let it listen on 127.0.0.1"
            )
        self.address = address
        self._port = port
        self._status = status
        self._tree = tree
        self._read_results = results
        self._results: dict[str, Any] = {}
        self._reader: asyncio.Task[None] | None = None
        self._access = Access(token)
        self._ssl_context = ssl_context
        self._pages: Pages | None = None
        self._runner: web.AppRunner | None = None

    @property
    def port(self) -> int:
        """The port; after the start, the actual one if 0 was given."""
        return self._port

    @property
    def url(self) -> str:
        """The URL of the page, without the token."""
        scheme = "https" if self._ssl_context else "http"
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{scheme}://{host}:{self._port}/"

    async def start(self) -> None:
        """Listen. Raises `AddressInUse` if another process uses the port, and `SetupError` if it is not available."""
        from aiohttp import web

        from holdfast.transports.http_connections import HttpConnections
        from holdfast.web.application import Pages

        assert self._runner is None, "started twice"
        status = self._status if self._read_results is None else self._status_and_results
        self._pages = Pages(Snapshots(status), self._access, self._tree)
        # No access log: the token may be in the URL. Cancellation: a client that disconnects frees its place at once.
        self._runner = HttpConnections("", REQUESTS_MAX).runner(
            self._pages.application(),
            access_log=None,
            handler_cancellation=True,
            keepalive_timeout=15.0,
            shutdown_timeout=SHUTDOWN_S_MAX,
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.address, self._port, ssl_context=self._ssl_context)
        try:
            await site.start()
        except OSError as failure:
            await self.close()
            raise _cannot_listen(self.address, self._port, failure) from None
        self._port = site.port
        if self._read_results is not None:
            self._reader = asyncio.ensure_future(self._follow_results(self._read_results))

    def _status_and_results(self) -> dict[str, Any]:
        return self._status() | {"results": self._results}

    async def _follow_results(self, read: Callable[[], dict[str, Any]]) -> None:
        while True:
            try:
                self._results = await aside(read)
            except Exception as failure:
                _logger.exception(
                    "the results of the pipeline cannot be read",
                    extra={"event": "results_unreadable", "subsystem": "web"},
                )
                self._results = {"problem": repr(failure)}
            await asyncio.sleep(RESULTS_EVERY_S)

    async def close(self) -> None:
        """Stop serving. Open pages show that the node is down."""
        if self._reader is not None:
            self._reader.cancel()
        if self._runner is None or self._pages is None:
            return
        self._pages.close()
        await self._runner.cleanup()
        self._runner = None

    async def __aenter__(self) -> WebServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _cannot_listen(address: str, port: int, failure: OSError) -> SetupError:
    if failure.errno == errno.EADDRINUSE:
        return AddressInUse(
            f"the page cannot listen on {address} port {port}: another process uses that port; "
            "the page was not started. Stop that process, or choose another port (0 selects a "
            "free one)"
        )
    if failure.errno == errno.EACCES:
        return SetupError(
            f"this user may not listen on {address} port {port}; the page was not started. Choose "
            "a port of 1024 or higher"
        )
    return SetupError(
        f"the page cannot listen on {address} port {port} ({failure.strerror or failure}); the page was not started. "
        "Choose an address that this machine has"
    )
