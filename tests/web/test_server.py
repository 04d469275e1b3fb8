"""The server of the page, over real sockets on loopback."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from importlib import resources
from typing import Any

import aiohttp
import pytest
from tests.web.fake_status import FakeDomain

from holdfast.errors import AddressInUse, SetupError
from holdfast.types import MILLISECOND, SECOND
from holdfast.web import WebServer, application, snapshots

Status = Callable[[], dict[str, Any]]


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


@asynccontextmanager
async def serving(
    status: Status, token: str | None = None
) -> AsyncIterator[tuple[WebServer, aiohttp.ClientSession]]:
    server = WebServer("127.0.0.1", 0, status, token)
    async with server, aiohttp.ClientSession(server.url) as session:
        yield server, session


class Events:
    """Reads a stream of events, one at a time."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._content = response.content

    async def line(self) -> str:
        return (await self._content.readuntil(b"\n\n")).decode().removesuffix("\n\n")

    async def snapshot(self) -> dict[str, Any]:
        while not (line := await self.line()).startswith("data: "):
            assert line == ": alive"
        status: dict[str, Any] = json.loads(line.removeprefix("data: "))
        return status


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time runs a hundred times as fast."""
    monkeypatch.setattr(snapshots, "INTERVAL_NS", 2 * MILLISECOND)
    monkeypatch.setattr(snapshots, "COST_FACTOR", 0)


# -- what is served ------------------------------------------------------------------------------------------------


def test_the_page_and_its_files_are_served() -> None:
    async def scenario() -> None:
        async with serving(FakeDomain().status) as (_, session):
            async with session.get("/") as page:
                assert page.status == 200
                assert page.content_type == "text/html"
                html = await page.text()
            for name in re.findall(r'(?:src|href)="([^"]+)"', html):
                async with session.get(f"/{name}") as file:
                    assert file.status == 200, name
            async with session.get("/app.js") as script:
                assert script.content_type == "text/javascript"

    run(scenario())


def test_nothing_of_the_page_comes_from_elsewhere() -> None:
    """The page works on a machine without internet."""
    static = resources.files("holdfast.web").joinpath("static")
    for file in static.iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"""https?:|["'(]//|@import\s+url""", text), file.name
        for name in re.findall(r'from "\./([^"]+)"', text):
            assert static.joinpath(name).is_file(), f"{file.name} imports {name}"


def test_the_status_is_served_as_json() -> None:
    async def scenario() -> None:
        domain = FakeDomain()
        async with serving(domain.status) as (_, session), session.get("/api/status") as answer:
            assert answer.content_type == "application/json"
            assert await answer.json() == domain.status()

    run(scenario())


def test_the_metrics_are_served_as_prometheus_text() -> None:
    async def scenario() -> None:
        async with (
            serving(FakeDomain().status) as (_, session),
            session.get("/metrics") as answer,
        ):
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert 'holdfast_members{state="up"} 3\n' in await answer.text()

    run(scenario())


def test_a_status_that_fails_is_an_error_for_programs() -> None:
    def broken() -> dict[str, Any]:
        raise ZeroDivisionError("oops")

    async def scenario() -> None:
        async with serving(broken) as (_, session):
            for path in ("/api/status", "/metrics"):
                async with session.get(path) as answer:
                    assert answer.status == 500
                    assert "status of the node is not available" in await answer.text()
            async with session.get("/api/events") as stream:
                assert "oops" in (await Events(stream).snapshot())["error"]

    run(scenario())


def test_security_headers_are_on_every_answer() -> None:
    async def scenario() -> None:
        async with serving(FakeDomain().status, "secret") as (_, session):
            for method, path, status in [
                ("GET", "/", 401),
                ("GET", "/?token=secret", 200),
                ("GET", "/app.js", 200),
                ("GET", "/api/status", 401),
                ("GET", "/api/events?token=secret", 200),
                ("POST", "/api/status?token=secret", 405),
                ("GET", "/none?token=secret", 404),
            ]:
                async with session.request(method, path) as answer:
                    assert answer.status == status, path
                    policy = answer.headers["Content-Security-Policy"]
                    assert "default-src 'none'" in policy
                    assert "unsafe" not in policy
                    assert answer.headers["X-Content-Type-Options"] == "nosniff"
                    assert answer.headers["X-Frame-Options"] == "DENY"
                    assert answer.headers["Referrer-Policy"] == "no-referrer"
                    assert "Python" not in answer.headers["Server"]

    run(scenario())


# -- the stream of events --------------------------------------------------------------------------------------------


def test_a_watcher_gets_a_snapshot_at_once_and_then_each_change(quick: None) -> None:
    async def scenario() -> None:
        domain = FakeDomain()
        async with serving(domain.status) as (_, session), session.get("/api/events") as stream:
            assert stream.content_type == "text/event-stream"
            events = Events(stream)
            assert await events.snapshot() == domain.status()
            domain.fault("n1", "n2", "red", "udp", size=1000)
            sizes = {
                path["size"]
                for path in (await events.snapshot())["paths"]
                if (path["sender"], path["listener"]) == ("n1", "n2")
            }
            assert 1000 in sizes

    run(scenario())


def test_nothing_is_sent_while_nothing_changes_but_that_the_node_is_there(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "KEEP_ALIVE_S", 0.01)

    async def scenario() -> None:
        domain = FakeDomain()
        async with serving(domain.status) as (_, session), session.get("/api/events") as stream:
            events = Events(stream)
            await events.snapshot()
            asked = domain.asked
            while domain.asked <= asked + 5:
                domain.uptime_s += 1
                assert await events.line() == ": alive"

    run(scenario())


def test_a_watcher_hears_that_the_node_is_there_however_long_a_snapshot_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(application, "KEEP_ALIVE_S", 0.01)
    monkeypatch.setattr(snapshots, "INTERVAL_NS", 1000 * SECOND)

    async def scenario() -> None:
        domain = FakeDomain()
        async with serving(domain.status) as (_, session), session.get("/api/events") as stream:
            events = Events(stream)
            await events.snapshot()
            assert await events.line() == ": alive"
            assert domain.asked == 1

    run(scenario())


def test_a_slow_watcher_gets_only_the_newest_and_delays_no_other(quick: None) -> None:
    changes = 300

    async def scenario() -> None:
        n = 0

        def status() -> dict[str, Any]:
            nonlocal n
            n = min(n + 1, changes)
            return {"n": n, "pad": "x" * 300_000}

        async with serving(status) as (server, session):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 20)
            writer.write(b"GET /api/events HTTP/1.0\r\nHost: localhost\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            async with session.get("/api/events") as stream:
                while (await Events(stream).snapshot())["n"] < changes:
                    pass
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            seen = [0]
            while seen[-1] < changes:
                seen.append(json.loads((await reader.readuntil(b"\n\n"))[6:])["n"])
            writer.close()
            # What was under way when it stopped reading fills the buffers of the kernel, and no more than those.
            assert seen == sorted(set(seen))
            assert len(seen) < changes / 4
            assert seen[-1] - seen[-2] > changes / 2

    run(scenario())


def test_a_watcher_that_takes_nothing_is_let_go(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "STUCK_S_MAX", 0.05)

    async def scenario() -> None:
        n = 0

        def status() -> dict[str, Any]:
            nonlocal n
            n += 1
            return {"n": n, "pad": "x" * 1_000_000}

        async with serving(status) as (server, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"GET /api/events HTTP/1.0\r\nHost: localhost\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            # The stream's reader stops taking at its limit, so from here on this client is stuck.
            pages = server._pages
            assert pages is not None
            assert pages._watchers == 1
            while pages._watchers:  # noqa: ASYNC110 (there is no event to wait for: nobody tells a stuck client)
                await asyncio.sleep(0.01)
            writer.transport.abort()

    run(scenario())


def test_a_watcher_that_goes_frees_its_place_at_once(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "WATCHERS_MAX", 1)

    async def scenario() -> None:
        async with serving(FakeDomain().status) as (_, session):
            for _ in range(3):
                async with session.get("/api/events") as stream:
                    await Events(stream).snapshot()
                    async with session.get("/api/events") as second:
                        assert second.status == 503
                        assert "already connected to this node" in await second.text()
                    stream.close()
                while True:
                    async with session.get("/api/events") as again:
                        if again.status == 200:
                            break

    run(scenario())


def test_closing_the_server_ends_all_streams_at_once() -> None:
    async def scenario() -> None:
        async with serving(FakeDomain().status) as (server, session):
            async with session.get("/api/events") as stream:
                await Events(stream).snapshot()
                async with asyncio.timeout(1.5):
                    await server.close()
                assert await stream.content.read() == b""
            with pytest.raises(aiohttp.ClientConnectorError):
                await session.get("/api/status")

    run(scenario())


# -- who may see it --------------------------------------------------------------------------------------------------


def test_off_loopback_a_token_is_required() -> None:
    for address in ("0.0.0.0", "192.168.0.1", "::", "node.example"):
        with pytest.raises(SetupError, match="needs a token"):
            WebServer(address, 0, FakeDomain().status, None)
        WebServer(address, 0, FakeDomain().status, "secret")
    for token in ("", "gehe\u00efm"):
        with pytest.raises(SetupError, match="printable ASCII"):
            WebServer("127.0.0.1", 0, FakeDomain().status, token)


def test_with_a_token_data_needs_it_and_the_page_asks_for_it() -> None:
    async def scenario() -> None:
        domain = FakeDomain()
        async with serving(domain.status, "secret") as (_, session):
            for path in ("/api/status", "/api/events", "/metrics", "/none"):
                for headers in ({}, {"Authorization": "Bearer wrong"}):
                    async with session.get(path, headers=headers) as refused:
                        assert refused.status == 401
                        assert "demo" not in await refused.text()
            assert domain.asked == 0
            async with session.get("/api/status?token=secret") as by_address:
                assert by_address.status == 200
            async with session.get(
                "/api/status", headers={"Authorization": "Bearer secret"}
            ) as by_header:
                assert by_header.status == 200
            async with session.get("/") as page:
                assert page.status == 401
                assert "This page needs a token" in await page.text()

    run(scenario())


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "10.0.0.1", ""])
def test_a_foreign_page_cannot_read_over_a_name_that_points_here(host: str) -> None:
    """DNS rebinding: the browser connects to loopback, but says another name."""

    async def scenario() -> None:
        async with serving(FakeDomain().status) as (_, session):
            for path in ("/", "/app.js", "/api/status", "/api/events", "/metrics"):
                async with session.get(path, headers={"Host": host}) as refused:
                    assert refused.status == 403
                    assert "demo" not in await refused.text()

    run(scenario())


def test_a_tunnel_from_another_port_of_localhost_is_fine() -> None:
    async def scenario() -> None:
        async with serving(FakeDomain().status) as (_, session):
            for host in ("localhost:9999", "127.0.0.1", "[::1]:80"):
                async with session.get("/api/status", headers={"Host": host}) as answer:
                    assert answer.status == 200

    run(scenario())


def test_a_request_without_a_host_is_refused() -> None:
    async def scenario() -> None:
        async with serving(FakeDomain().status) as (server, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"GET /api/status HTTP/1.0\r\n\r\n")
            assert b" 403 " in await reader.readline()
            writer.close()

    run(scenario())


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET /../server.py HTTP/1.0\r\nHost: localhost\r\n\r\n",
        b"GET /%2e%2e/server.py HTTP/1.0\r\nHost: localhost\r\n\r\n",
        b"GET //etc/passwd HTTP/1.0\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.0\r\nHost: " + b"x" * 100_000 + b"\r\n\r\n",
        b"GET /api/status?token=%ff%fe HTTP/1.0\r\nHost: localhost\r\n\r\n",
        b"GET /api/status HTTP/1.0\r\nHost: localhost\r\nAuthorization: \xff\r\n\r\n",
    ],
)
@pytest.mark.parametrize("token", [None, "secret"])
def test_strange_requests_get_nothing_and_harm_nothing(
    request_bytes: bytes, token: str | None
) -> None:
    async def scenario() -> None:
        async with serving(FakeDomain().status, token) as (server, session):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(request_bytes)
            writer.write_eof()
            answer = await reader.read()
            assert b"class WebServer" not in answer
            assert b" 500 " not in answer
            writer.close()
            async with session.get("/api/status?token=secret") as fine:
                assert fine.status == 200

    run(scenario())


# -- listening -------------------------------------------------------------------------------------------------------


def test_a_port_in_use_is_a_clear_error() -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as holder:
            port = holder.getsockname()[1]
            server = WebServer("127.0.0.1", port, FakeDomain().status, None)
            with pytest.raises(AddressInUse, match=f"port {port}: another process uses that port"):
                await server.start()
        await server.start()  # The port is free now, and the first try left nothing behind.
        await server.close()

    run(scenario())


def test_an_address_that_this_machine_lacks_is_a_clear_error() -> None:
    server = WebServer("192.0.2.1", 0, FakeDomain().status, "secret")
    with pytest.raises(SetupError, match=r"cannot listen on 192\.0\.2\.1 port 0"):
        run(server.start())


def test_the_url_says_where_to_look() -> None:
    async def scenario() -> None:
        async with serving(FakeDomain().status) as (server, _):
            assert server.port != 0
            assert server.url == f"http://127.0.0.1:{server.port}/"

    run(scenario())
    assert WebServer("::1", 80, FakeDomain().status, None).url == "http://[::1]:80/"


def test_without_aiohttp_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(SetupError, match=r"pip install 'holdfast\[web\]'"):
        WebServer("127.0.0.1", 0, FakeDomain().status, None)
