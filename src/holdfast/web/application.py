"""The routes: the page, the status, the status as an event stream, a tree of the overlay, the metrics."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import resources
from typing import Final

from aiohttp import web

from holdfast.errors import HoldfastError
from holdfast.web.access import Access
from holdfast.web.metrics import CONTENT_TYPE, metrics_text
from holdfast.web.snapshots import Snapshots

WATCHERS_MAX: Final = 32
TREE_S_MAX: Final = 15.0
"""The time limit for reading a whole tree."""
KEEP_ALIVE_S: Final = 5.0
STUCK_S_MAX: Final = 30.0
"""A client that reads nothing for this long is disconnected; if it is alive, it reconnects."""

_TYPES: Final = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Server": "holdfast",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

ReadTree = Callable[[bytes], Awaitable[tuple[Mapping[str, Sequence[str]], bool]]]
"""All nodes of a tree by name, each with its neighbours in the tree; and whether every node answered."""
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Pages:
    """The handlers, and the number of connected clients."""

    def __init__(self, snapshots: Snapshots, access: Access, tree: ReadTree | None = None) -> None:
        self._snapshots = snapshots
        self._tree = tree
        self._access = access
        self._files = _static_files()
        self._watchers = 0
        self._closing = asyncio.Event()

    def application(self) -> web.Application:
        application = web.Application(middlewares=[self._guard])
        application.on_response_prepare.append(_add_headers)
        application.router.add_get("/", self._page)
        application.router.add_get("/api/status", self._status)
        application.router.add_get("/api/events", self._events, allow_head=False)
        application.router.add_get("/metrics", self._metrics)
        application.router.add_get("/api/tree", self._whole_tree)
        for name in self._files:
            application.router.add_get(f"/{name}", self._file)
        return application

    def close(self) -> None:
        """Disconnect all clients, so that the server can stop at once."""
        self._closing.set()

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        if not self._access.host_is_ours(request.headers.get("Host")):
            return _plain(
                403,
                "This page is available on this machine only: open it as http://localhost or "
                "http://127.0.0.1. To use another name, configure a token for the page.",
            )
        # The static files contain no data of the node, and the page must be loaded to ask for the token.
        open_to_all = request.path == "/" or request.path[1:] in self._files
        if not open_to_all and not self._token_is_right(request):
            return _plain(
                401, "This request needs the token of the page, as Authorization: Bearer."
            )
        return await handler(request)

    def _token_is_right(self, request: web.Request) -> bool:
        return self._access.token_is_right(
            request.query.get("token"), request.headers.get("Authorization")
        )

    async def _page(self, request: web.Request) -> web.StreamResponse:
        # Without the token it is the same page, which then asks for it.
        status = 200 if self._token_is_right(request) else 401
        return self._send_file("index.html", status)

    async def _file(self, request: web.Request) -> web.StreamResponse:
        return self._send_file(request.path[1:], 200)

    def _send_file(self, name: str, status: int) -> web.Response:
        body, content_type = self._files[name]
        return web.Response(body=body, status=status, content_type=content_type, charset="utf-8")

    async def _status(self, request: web.Request) -> web.StreamResponse:
        snapshot = self._snapshots.latest()
        return web.Response(
            body=snapshot.body,
            status=500 if snapshot.failed else 200,
            content_type="application/json",
        )

    async def _whole_tree(self, request: web.Request) -> web.StreamResponse:
        """All nodes of a tree of the overlay, each with its neighbours in the tree."""
        tree = request.query.get("id", "")
        if not re.fullmatch(r"[0-9a-f]{32}", tree):
            return _plain(400, "Name the tree by the 32 hexadecimal digits of its id.")
        if self._tree is None:
            return _plain(404, "This node has no overlay.")
        try:
            async with asyncio.timeout(TREE_S_MAX):
                nodes, complete = await self._tree(bytes.fromhex(tree))
        except (HoldfastError, TimeoutError) as failure:
            return _plain(
                503, f"The tree could not be read: {str(failure) or 'no answer in time'}."
            )
        return web.json_response({"nodes": nodes, "complete": complete})

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        snapshot = self._snapshots.latest()
        if snapshot.failed:
            return _plain(500, str(snapshot.status["error"]))
        body = metrics_text(snapshot.status).encode()
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if self._watchers >= WATCHERS_MAX:
            response = _plain(
                503, f"{WATCHERS_MAX} pages are already connected to this node. Close one."
            )
            response.headers["Retry-After"] = "5"
            return response
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        self._watchers += 1
        try:
            await stream.prepare(request)
            await self._watch(request, stream)
        except (ConnectionError, TimeoutError):
            # Gone or stuck: unsent data would only keep the connection open.
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._watchers -= 1
        return stream

    async def _watch(self, request: web.Request, stream: web.StreamResponse) -> None:
        """Send changes until the client disconnects. While a write waits for a slow client, snapshots are skipped."""
        now_s = asyncio.get_running_loop().time
        sent_version, sent_s = 0, now_s()
        while not self._closing.is_set() and request.transport is not None:
            snapshot = self._snapshots.latest()
            if snapshot.version != sent_version:
                event = b"data: " + snapshot.body + b"\n\n"
            elif now_s() - sent_s >= KEEP_ALIVE_S:
                event = b": alive\n\n"
            else:
                event = b""
            if event:
                async with asyncio.timeout(STUCK_S_MAX):
                    await stream.write(event)
                sent_version, sent_s = snapshot.version, now_s()
            await self._pause()

    async def _pause(self) -> None:
        # However long a snapshot takes, the client must see in time that the node is alive.
        try:
            async with asyncio.timeout(min(self._snapshots.pause_s, KEEP_ALIVE_S / 4)):
                await self._closing.wait()
        except TimeoutError:
            return


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)


def _plain(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=text + "\n")


def _static_files() -> dict[str, tuple[bytes, str]]:
    """All static files, by name. They are few and small, and no other file can be requested."""
    files = {}
    for entry in resources.files("holdfast.web").joinpath("static").iterdir():
        content_type = _TYPES.get("." + entry.name.rpartition(".")[2])
        if content_type is not None:
            files[entry.name] = (entry.read_bytes(), content_type)
    return files
