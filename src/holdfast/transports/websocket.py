"""WebSocket: TCP flows through an HTTP proxy, for networks that are connected only by one.

The flows of this transport are those of TCP, with the same packets, TLS and limits. Below them, each connection is a
WebSocket (binary messages), opened directly or through a proxy with CONNECT. To links it is one more adapter with its
own paths, so health measures it, and traffic moves to it and back as between any two paths.

    Connection (TLS, packets) ── socket pair ── pump ── WebSocket ── [CONNECT proxy] ── WebSocket ── pump ── ...
"""

from __future__ import annotations

import asyncio
import base64
import socket
from contextlib import suppress
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from holdfast.errors import SetupError
from holdfast.links.ports import OpenFlow
from holdfast.transports.connection import Connection
from holdfast.transports.sockets import bind, resolve
from holdfast.transports.tcp import TcpTransport

PATH: Final = "/holdfast"
PROTOCOL: Final = "holdfast"
PIECE: Final = 64 << 10
MESSAGE_BYTES_MAX: Final = 4 << 20
HEAD_BYTES_MAX: Final = 16 << 10
"""The largest answer of a proxy to CONNECT."""
PING_S: Final = 5.0
"""A WebSocket without an answer for about twice this long is closed."""


class WebSocketTransport(TcpTransport):
    """The WebSocket flows of one adapter. `proxy` is `http://[user:password@]host:port`, or empty."""

    def __init__(self, *args: Any, proxy: str = "", **options: Any) -> None:
        super().__init__(*args, **options)
        self._proxy = proxy
        self._runner: Any = None
        self._pumps: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        try:
            from aiohttp import web
        except ImportError as error:
            raise SetupError(
                "a websocket adapter needs aiohttp: pip install 'holdfast[web]'; nothing was started"
            ) from error
        from holdfast.transports.http_connections import HttpConnections

        listener = await bind(self.adapter, self.kind, self._host, self._port)
        self._port = listener.getsockname()[1]
        app = web.Application()
        app.router.add_get(PATH, self._serve)
        connections = HttpConnections(self.adapter, self.limits.flows_max)
        self._runner = connections.runner(
            app, access_log=None, handle_signals=False, shutdown_timeout=1.0
        )
        await self._runner.setup()
        await web.SockSite(self._runner, listener).start()
        self._listener = listener
        if self.faults is not None:
            self.faults.listen(self._fault_healed)

    def open(self, request: OpenFlow) -> None:
        if request.use:
            place = (request.host, request.port)
            connection = Connection(self, *place, unit=request.unit, pipe=None, use=request.use)
            self._failed(connection, "a websocket does not measure segments")
            return
        super().open(request)

    async def stop(self) -> None:
        await super().stop()
        for pump in list(self._pumps):
            pump.cancel()
        if self._pumps:
            await asyncio.wait(self._pumps)
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def _close_listener(self) -> None:
        # Its socket belongs to the web server, which closes it when everything on it has ended.
        self._listener = None

    # -- inbound -------------------------------------------------------------------------------------------------

    async def _serve(self, request: Any) -> Any:
        from aiohttp import web

        if self._listener is None or len(self._connections) >= self.limits.flows_max:
            return web.Response(status=503)
        websocket = web.WebSocketResponse(
            protocols=(PROTOCOL,), max_msg_size=MESSAGE_BYTES_MAX, heartbeat=PING_S, compress=False
        )
        await websocket.prepare(request)
        near, far = _pair()
        host, port = (request.transport.get_extra_info("peername") or ("", 0))[:2]
        self._welcome(near, host, port)
        await self._pump(websocket, far)
        return websocket

    # -- outbound ------------------------------------------------------------------------------------------------

    async def _connect(self, host: str, port: int, mss: int) -> socket.socket:
        await self._until_syn_passes(host, port)
        from aiohttp import ClientError, ClientSession

        sock = await self._reach(host, port)
        session = ClientSession(connector=_given(sock))
        try:
            where = f"[{host}]" if ":" in host else host
            websocket = await session.ws_connect(
                f"http://{where}:{port}{PATH}",
                protocols=(PROTOCOL,),
                max_msg_size=MESSAGE_BYTES_MAX,
                heartbeat=PING_S,
            )
        except ClientError as error:
            await session.close()
            raise OSError(f"no websocket: {error}") from error
        except BaseException:
            await session.close()
            raise
        near, far = _pair()
        task = asyncio.get_running_loop().create_task(self._pump_and_close(websocket, far, session))
        self._pumps.add(task)
        task.add_done_callback(self._pumps.discard)
        return near

    async def _reach(self, host: str, port: int) -> socket.socket:
        """A TCP connection to the peer, through the proxy if there is one."""
        proxy = urlsplit(self._proxy) if self._proxy else None
        target = (proxy.hostname or "", proxy.port or 80) if proxy else (host, port)
        family, remote = await resolve(*target, self.kind)
        _, local = await resolve(self._host, 0, self.kind, family)
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.bind(local)
            await asyncio.get_running_loop().sock_connect(sock, remote)
            if proxy is not None:
                await _tunnel(sock, host, port, proxy.username, proxy.password)
        except BaseException:
            sock.close()
            raise
        return sock

    async def _adopt(self, connection: Connection, sock: socket.socket) -> None:
        """The connection's end of a socket pair has no TCP options."""
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(lambda: connection, sock)
        except (OSError, asyncio.CancelledError) as error:
            sock.close()
            self._drop(connection, str(error))

    # -- bytes ---------------------------------------------------------------------------------------------------

    async def _pump_and_close(self, websocket: Any, sock: socket.socket, session: Any) -> None:
        try:
            await self._pump(websocket, sock)
        finally:
            await session.close()

    async def _pump(self, websocket: Any, sock: socket.socket) -> None:
        """Carry bytes in both directions until one side ends."""
        directions = [
            asyncio.ensure_future(_to_websocket(sock, websocket)),
            asyncio.ensure_future(_from_websocket(websocket, sock)),
        ]
        try:
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for direction in directions:
                direction.cancel()
            await asyncio.wait(directions)
            sock.close()
            with suppress(Exception):  # after any error, the connection is over
                async with asyncio.timeout(1.0):
                    await websocket.close()


async def _to_websocket(sock: socket.socket, websocket: Any) -> None:
    loop = asyncio.get_running_loop()
    with suppress(OSError, RuntimeError):
        while data := await loop.sock_recv(sock, PIECE):
            await websocket.send_bytes(data)


async def _from_websocket(websocket: Any, sock: socket.socket) -> None:
    from aiohttp import WSMsgType

    loop = asyncio.get_running_loop()
    with suppress(OSError):
        async for message in websocket:
            if message.type is not WSMsgType.BINARY:
                return  # Holdfast never sends text
            await loop.sock_sendall(sock, message.data)


def _pair() -> tuple[socket.socket, socket.socket]:
    near, far = socket.socketpair()
    near.setblocking(False)
    far.setblocking(False)
    return near, far


async def _tunnel(
    sock: socket.socket, host: str, port: int, user: str | None, password: str | None
) -> None:
    """Ask an HTTP proxy to connect to the peer. Raises `OSError` with its answer."""
    loop = asyncio.get_running_loop()
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    lines = [f"CONNECT {where} HTTP/1.1", f"Host: {where}"]
    if user is not None:
        secret = f"{unquote(user)}:{unquote(password or '')}".encode()
        lines.append(f"Proxy-Authorization: Basic {base64.b64encode(secret).decode()}")
    await loop.sock_sendall(sock, ("\r\n".join(lines) + "\r\n\r\n").encode())
    head = b""
    while b"\r\n\r\n" not in head:
        # One byte at a time: the bytes after the head belong to the WebSocket.
        part = await loop.sock_recv(sock, 1)
        if not part or len(head) > HEAD_BYTES_MAX:
            raise OSError("the proxy closed the connection, or does not speak HTTP")
        head += part
    status = head.split(b"\r\n", 1)[0].split()
    if len(status) < 2 or not status[0].startswith(b"HTTP/1.") or status[1] != b"200":
        answer = head.split(b"\r\n", 1)[0][:100].decode("ascii", "replace")
        raise OSError(f"the proxy refused to connect to {where}: {answer}")


def _given(sock: socket.socket) -> Any:
    """An aiohttp connector for one connection, on a socket that is already connected."""
    from aiohttp import BaseConnector

    class Given(BaseConnector):
        async def _create_connection(self, *_: Any, **__: Any) -> Any:
            loop = asyncio.get_running_loop()
            made = await loop.create_connection(self._factory, sock=sock)
            return made[1]

    return Given(force_close=True)
