"""HTTP servers of a node (WebSocket adapters, the page) keep their connections bounded, whoever connects."""

from __future__ import annotations

import asyncio
import socket

import aiohttp
import pytest
from tests.unit.transports.harness import PATIENCE_S, connected, end, on_loop, read_all

from holdfast.transports.http_connections import IDLE_MAX
from holdfast.web import WebServer

SLOW = [b"", b"GET /holdfast HTTP/1.1\r\nHost: localhost\r\n"]
"""What a client sends that never completes a request."""
MORE = 40


async def strangers(host: str, port: int, count: int, said: bytes) -> list[socket.socket]:
    """Connections that stay without a request, one after the other."""
    loop = asyncio.get_running_loop()
    found = []
    for _ in range(count):
        sock = socket.socket()
        sock.setblocking(False)
        async with asyncio.timeout(PATIENCE_S):
            await loop.sock_connect(sock, (host, port))
            await loop.sock_sendall(sock, said)
        found.append(sock)
    return found


async def check_only_the_oldest_are_closed(socks: list[socket.socket]) -> None:
    for sock in socks[:MORE]:
        assert await read_all(sock) == b""
    for sock in socks[MORE:]:
        with pytest.raises(BlockingIOError):
            sock.recv(1)


@pytest.mark.parametrize("said", SLOW)
@on_loop
async def test_clients_without_a_request_cannot_keep_nodes_from_connecting(said: bytes) -> None:
    async with end("websocket") as left, end("websocket", "127.0.1.1") as right:
        socks = await strangers(right.host, right.port, IDLE_MAX + MORE, said)
        try:
            await check_only_the_oldest_are_closed(socks)
            async with connected(left, right):
                pass
        finally:
            for sock in socks:
                sock.close()


@on_loop
async def test_a_flow_does_not_make_room_for_strangers() -> None:
    async with (
        end("websocket") as left,
        end("websocket", "127.0.1.1") as right,
        connected(left, right) as (flow, _),
    ):
        socks = await strangers(right.host, right.port, IDLE_MAX + MORE, b"")
        try:
            await check_only_the_oldest_are_closed(socks)
            before = right.seen.count()
            left.transport.transmit(flow, [b"still here"])
            await right.seen.until(lambda: right.seen.count() > before, "packet")
        finally:
            for sock in socks:
                sock.close()


DAMAGED = [
    b"GET /api/status?token=hidden HTTP/9.9\r\n\r\n",
    b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
    b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
]


@on_loop
async def test_damaged_requests_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """One line a second, without a traceback and without the bytes that were sent."""
    async with WebServer("127.0.0.1", 0, lambda: {"schema": 1}) as server:
        for request in DAMAGED:
            for sock in await strangers("127.0.0.1", server.port, 5, request):
                assert (await read_all(sock)).startswith(b"HTTP/1.0 400 ")
                sock.close()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) < len(DAMAGED) * 5
    assert "page: refused 127.0.0.1:0: the request is damaged" in lines[0]
    assert not any(record.exc_info for record in caplog.records)
    assert "hidden" not in caplog.text


@pytest.mark.parametrize("said", SLOW)
@on_loop
async def test_clients_without_a_request_cannot_keep_others_from_the_page(said: bytes) -> None:
    async with WebServer("127.0.0.1", 0, lambda: {"schema": 1}) as server:
        socks = await strangers("127.0.0.1", server.port, IDLE_MAX + MORE, said)
        try:
            await check_only_the_oldest_are_closed(socks)
            async with (
                aiohttp.ClientSession() as session,
                session.get(server.url + "api/status") as answer,
            ):
                assert await answer.json() == {"schema": 1}
        finally:
            for sock in socks:
                sock.close()
