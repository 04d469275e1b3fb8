"""What the tests of transports share: a recorder of events, ends on loopback, certificates, a bounded loop."""

from __future__ import annotations

import asyncio
import functools
import itertools
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from holdfast.links.ports import FlowClosed, FlowOpened, OpenFailed, OpenFlow
from holdfast.transports.authority import (
    Authority,
    issue,
    load_authority,
    make_authority,
    write_pair,
)
from holdfast.transports.faults import Faults
from holdfast.transports.tcp import TcpLimits, TcpTransport
from holdfast.transports.tls import Credentials, Tls, load_tls
from holdfast.transports.udp import UdpLimits, UdpTransport
from holdfast.transports.websocket import WebSocketTransport
from holdfast.types import FlowId

PATIENCE_S = 10.0
"""A test that waits longer for an event has failed."""
LEFT, RIGHT = "127.0.0.1", "127.0.1.1"


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test. An exception that asyncio would only log fails it."""

    @functools.wraps(test)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        run(test(*args, **kwargs))

    return wrapper


def run(work: Coroutine[Any, Any, None], loop_factory: Callable[[], Any] | None = None) -> None:
    async def main() -> None:
        unhandled: list[dict[str, Any]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: unhandled.append(context))
        async with asyncio.timeout(30):
            await work
        assert unhandled == []

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())


class Recorder:
    """Events that writes everything down and lets a test wait for it."""

    def __init__(self) -> None:
        self.opens: list[FlowOpened] = []
        self.failures: list[OpenFailed] = []
        self.closes: list[FlowClosed] = []
        self.batches: list[tuple[FlowId, list[memoryview], int]] = []
        self.credits: list[tuple[FlowId, bool]] = []
        self._changed = asyncio.Event()

    def opened(self, event: FlowOpened) -> None:
        self.opens.append(event)
        self._changed.set()

    def open_failed(self, event: OpenFailed) -> None:
        self.failures.append(event)
        self._changed.set()

    def closed(self, event: FlowClosed) -> None:
        self.closes.append(event)
        self._changed.set()

    def arrived(self, flow: FlowId, packets: list[memoryview], at: int) -> None:
        self.batches.append((flow, packets, at))
        self._changed.set()

    def credit(self, flow: FlowId, is_open: bool) -> None:
        self.credits.append((flow, is_open))
        self._changed.set()

    def packets(self, flow: FlowId | None = None) -> list[bytes]:
        return [
            bytes(packet)
            for number, packets, _ in self.batches
            if flow is None or number == flow
            for packet in packets
        ]

    def count(self) -> int:
        return sum(len(packets) for _, packets, _ in self.batches)

    async def until(self, condition: Callable[[], object], what: str = "") -> None:
        """Wait until `condition` holds; it is looked at after every event."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"never happened: {what or condition}; seen: {self!r}") from None

    async def until_count(self, packets: int) -> None:
        await self.until(lambda: self.count() == packets, f"{packets} packets")

    def __repr__(self) -> str:
        return (
            f"opens={self.opens} failures={self.failures} closes={self.closes} "
            f"packets={self.count()} credits={self.credits}"
        )


class End:
    """A transport on one address with its recorder."""

    def __init__(self, transport: TcpTransport | UdpTransport, seen: Recorder) -> None:
        self.transport = transport
        self.seen = seen

    @property
    def host(self) -> str:
        return self.transport.address[0]

    @property
    def port(self) -> int:
        return self.transport.address[1]

    def ask(self, host: str, port: int, unit: str = "asker") -> None:
        """Open a flow, and do not wait for the answer."""
        adapter, kind = self.transport.adapter, self.transport.kind
        self.transport.open(OpenFlow(adapter, kind, host, port, unit))

    async def open_to(self, other: End) -> FlowId:
        """Open a flow and wait until it is there."""
        before = len(self.seen.opens)
        self.ask(other.host, other.port)
        await self.seen.until(
            lambda: len(self.seen.opens) > before or self.seen.failures, "flow opened"
        )
        assert not self.seen.failures, self.seen.failures
        return self.seen.opens[-1].flow

    async def failure_to(self, host: str, port: int) -> str:
        """Open a flow that cannot be, and give the reason."""
        self.ask(host, port)
        await self.seen.until(lambda: self.seen.failures, "open failed")
        return self.seen.failures[-1].reason


@asynccontextmanager
async def end(
    kind: str,
    host: str = LEFT,
    *,
    tls: Tls | None = None,
    faults: Faults | None = None,
    limits: TcpLimits | UdpLimits | None = None,
    adapter: str = "red",
) -> AsyncIterator[End]:
    seen = Recorder()
    counter = itertools.count(1)
    next_flow: Callable[[], FlowId] = lambda: FlowId(next(counter))
    transport: TcpTransport | UdpTransport
    if kind == "udp":
        assert not isinstance(limits, TcpLimits)
        transport = UdpTransport(adapter, host, 0, seen, next_flow, faults=faults, limits=limits)
    else:
        assert not isinstance(limits, UdpLimits)
        make = WebSocketTransport if kind.startswith("websocket") else TcpTransport
        transport = make(adapter, host, 0, seen, next_flow, tls=tls, faults=faults, limits=limits)
    await transport.start()
    try:
        yield End(transport, seen)
    finally:
        await transport.stop()


@asynccontextmanager
async def connected(left: End, right: End) -> AsyncIterator[tuple[FlowId, FlowId]]:
    """A flow between two ends, with its number at both. A UDP flow exists at the other end once it was heard."""
    flow = await left.open_to(right)
    left.transport.transmit(flow, [b"first"])
    await right.seen.until(right.seen.count, "first packet")
    yield flow, right.seen.batches[-1][0]


@asynccontextmanager
async def joined(
    kind: str,
    *,
    tls: tuple[Tls, Tls] | None = None,
    faults: Faults | None = None,
    limits: TcpLimits | UdpLimits | None = None,
) -> AsyncIterator[tuple[End, End, FlowId, FlowId]]:
    """Two ends and a flow between them; faults and limits are those of the left one, which opened it."""
    of_left, of_right = tls or (None, None)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        left = await enter(end(kind, LEFT, tls=of_left, faults=faults, limits=limits))
        right = await enter(end(kind, RIGHT, tls=of_right))
        flow, other = await enter(connected(left, right))
        yield left, right, flow, other


async def with_patience(work: Awaitable[Any], what: str) -> Any:
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await work
    except TimeoutError:
        raise AssertionError(f"never happened: {what}") from None


def dial(target: End) -> socket.socket:
    """A stranger's TCP connection, non-blocking, not ours."""
    sock = socket.create_connection((target.host, target.port), timeout=PATIENCE_S)
    sock.setblocking(False)
    return sock


async def read_all(sock: socket.socket) -> bytes:
    """What a stranger gets to read until the other side closes; a reset counts as the end."""
    loop = asyncio.get_running_loop()
    data = b""
    try:
        while piece := await with_patience(loop.sock_recv(sock, 65536), "end of stream"):
            data += piece
    except ConnectionResetError:
        pass
    return data


# -- certificates ------------------------------------------------------------------------------------------------


def authority_in(folder: Path, domain: str = "demo", **times: Any) -> Authority:
    write_pair(folder, "ca", make_authority(domain, 3650, **times), force=True)
    return load_authority(folder)


def credentials(folder: Path, name: str, *, days: int = 30, **times: Any) -> Credentials:
    """A certificate of the authority in `folder`."""
    pair = issue(load_authority(folder), name, days, **times)
    certificate, key = write_pair(folder, name, pair, force=True)
    return Credentials(str(folder / "ca.pem"), str(certificate), str(key))


def tls_for(folder: Path, name: str, domain: str = "demo", **times: Any) -> Tls:
    """What a node would use; with `now`, as if it had been loaded at that time."""
    return load_tls(credentials(folder, name, **times), domain, name, **times)
