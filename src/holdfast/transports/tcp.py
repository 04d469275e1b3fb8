"""TCP: one listening socket per adapter, and the connections that it accepts and opens.

Plain, or TLS if it has credentials. Resources that an unauthenticated peer can use are bounded: connections that have
not sent anything, the time they have for it, and the total number of connections.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, ClassVar, Final

from holdfast.links.measuring import mss_of
from holdfast.links.ports import FlowClosed, FlowOpened, OpenFailed, OpenFlow
from holdfast.transports.connection import Connection, Stage, TcpLimits
from holdfast.transports.faults import Faults
from holdfast.transports.port import Counters, Events, NextFlow
from holdfast.transports.refusals import Refusals, log
from holdfast.transports.secure import Pipe
from holdfast.transports.sockets import bind, resolve, why
from holdfast.transports.tls import Tls, is_credentials
from holdfast.types import SECOND, FlowId
from holdfast.wire.packet import AnyPacket

BACKLOG: Final = 128
ACCEPTS_MAX: Final = 16
"""Connections accepted in a row before other work of the event loop."""
SYN_BYTES: Final = 20
"""Size of the options of a SYN; the faults count its headers."""
SYN_RETRY_S: Final = 1.0
"""When Linux retransmits a lost SYN."""
ACCEPT_PAUSE_S: Final = 0.1
"""How long to wait if the process has no file descriptors left."""

__all__ = ["TcpLimits", "TcpTransport"]


class TcpTransport:
    """The TCP flows of one adapter."""

    kind: ClassVar[str] = "tcp"

    def __init__(
        self,
        adapter: str,
        host: str,
        port: int,
        events: Events,
        next_flow: NextFlow,
        *,
        tls: Tls | None = None,
        faults: Faults | None = None,
        limits: TcpLimits | None = None,
    ) -> None:
        self.adapter = adapter
        self.domain = tls.domain if tls else ""
        self.events = events
        self.limits = limits or TcpLimits()
        self.faults = faults
        self.counters = Counters()
        self._host = host
        self._port = port
        self._next_flow = next_flow
        self._tls = tls
        self._refusals = Refusals(adapter)
        self._listener: socket.socket | None = None
        self._accept_again: asyncio.TimerHandle | None = None
        self._connections: dict[Connection, None] = {}
        """All usable connections, in any stage."""
        self._newcomers: dict[Connection, None] = {}
        """Accepted connections that have not sent anything yet, oldest first."""
        self._measuring: dict[Connection, None] = {}
        self._flows: dict[FlowId, Connection] = {}
        self._ending: dict[Connection, None] = {}
        """No longer usable, but the socket is still open."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._quiet = asyncio.Event()

    @property
    def address(self) -> tuple[str, int]:
        return self._host, self._port

    async def start(self) -> None:
        listener = await bind(self.adapter, self.kind, self._host, self._port)
        listener.listen(BACKLOG)
        self._port = listener.getsockname()[1]
        self._listener = listener
        asyncio.get_running_loop().add_reader(listener, self._accept)
        if self.faults is not None:
            self.faults.listen(self._fault_healed)

    def open(self, request: OpenFlow) -> None:
        secure = self._tls is not None and not request.use
        pipe = Pipe(self._tls.client, server_side=False) if self._tls and secure else None
        place = (request.host, request.port)
        connection = Connection(self, *place, unit=request.unit, pipe=pipe, use=request.use)
        connection.segment = request.segment
        if self._listener is None:
            self._failed(connection, "this node is stopping, or has not started")
            return
        if len(self._connections) >= self.limits.flows_max:
            self._failed(connection, f"there are already {self.limits.flows_max} connections")
            return
        if request.use and not self.measures(connection):
            self._failed(connection, "there are too many measuring connections")
            return
        self._connections[connection] = None
        self._run(self._make(connection))

    def use_tls(self, tls: Tls) -> None:
        """Use other credentials for new connections."""
        self._tls = tls
        self.domain = tls.domain

    def transmit(self, flow: FlowId, packets: list[AnyPacket]) -> None:
        connection = self._flows.get(flow)
        if connection is not None:
            connection.transmit(packets)

    def close_flow(self, flow: FlowId, reason: str) -> None:
        connection = self._flows.get(flow)
        if connection is not None:
            connection.end(reason)

    def may_fragment(self, flow: FlowId) -> None:
        """Streams have no fragments."""

    def pause(self, flow: FlowId) -> None:
        connection = self._flows.get(flow)
        if connection is not None:
            connection.pause_reading()

    def resume(self, flow: FlowId) -> None:
        connection = self._flows.get(flow)
        if connection is not None:
            connection.resume_reading()

    async def stop(self) -> None:
        self._close_listener()
        if self.faults is not None:
            self.faults.unlisten(self._fault_healed)
        await asyncio.sleep(0)  # every task has started now, so each cleans up after itself
        for connection in list(self._connections):
            connection.end("this node stops")
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._ending:
            # Each of them is aborted when its linger time is over.
            self._quiet.clear()
            await self._quiet.wait()

    # -- from connections ----------------------------------------------------------------------------------------

    def admitted(self, connection: Connection) -> None:
        flow = connection.flow = self._next_flow()
        self._flows[flow] = connection
        self.events.opened(
            FlowOpened(
                flow,
                self.adapter,
                self.kind,
                connection.host,
                connection.port,
                connection.inbound,
                connection.unit,
                connection.identity,
                connection.use,
                connection.overhead,
            )
        )

    def measures(self, connection: Connection) -> bool:
        if len(self._measuring) >= self.limits.measuring_max:
            return False
        self._measuring[connection] = None
        return True

    def spoke(self, connection: Connection) -> None:
        self._newcomers.pop(connection, None)

    def ended(self, connection: Connection, reason: str) -> None:
        self._connections.pop(connection, None)
        self._newcomers.pop(connection, None)
        self._measuring.pop(connection, None)
        self._ending[connection] = None
        if connection.flow is not None:
            del self._flows[connection.flow]
            self.events.closed(FlowClosed(connection.flow, reason))
        elif connection.inbound:
            self._refuse(connection.host, connection.port, reason)
        else:
            self._failed(connection, reason)

    def vanished(self, connection: Connection) -> None:
        self._ending.pop(connection, None)
        if not self._ending:
            self._quiet.set()

    # -- inside --------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        if self._listener is None:
            return
        for _ in range(ACCEPTS_MAX):
            try:
                sock, address = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                self._rest(error)
                return
            self._welcome(sock, address[0], address[1])

    def _welcome(self, sock: socket.socket, host: str, port: int) -> None:
        if len(self._connections) >= self.limits.flows_max:
            sock.close()
            self._refuse(host, port, f"there are already {self.limits.flows_max} connections")
            return
        if len(self._newcomers) >= self.limits.newcomers_max:
            self.counters.evicted += 1
            oldest = next(iter(self._newcomers))
            oldest.end(
                "closed to make room for newer connections: nothing was sent on it yet",
                at_once=True,
            )
        pipe = Pipe(self._tls.server, server_side=True) if self._tls else None
        connection = Connection(self, host, port, unit=None, pipe=pipe)
        self._connections[connection] = None
        self._newcomers[connection] = None
        sock.setblocking(False)
        self._run(self._adopt(connection, sock))

    async def _make(self, connection: Connection) -> None:
        try:
            async with asyncio.timeout(self.limits.connect_ns / SECOND):
                mss = mss_of(connection.use) or connection.segment
                sock = await self._connect(connection.host, connection.port, mss)
        except TimeoutError:
            seconds = self.limits.connect_ns / SECOND
            self._drop(connection, f"no answer within {seconds:g} s")
        except OSError as error:
            self._drop(connection, why(error))
        except asyncio.CancelledError:
            self._drop(connection, "this node stops")
            raise
        else:
            await self._adopt(connection, sock)

    async def _connect(self, host: str, port: int, mss: int) -> socket.socket:
        """A connected socket from the address of the adapter. `mss` limits the segments of both directions: our kernel
        obeys it and announces it to the other one."""
        await self._until_syn_passes(host, port)
        loop = asyncio.get_running_loop()
        family, remote = await resolve(host, port, self.kind)
        _, local = await resolve(self._host, 0, self.kind, family)
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            if mss:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, mss)
            sock.bind(local)
            await loop.sock_connect(sock, remote)
        except BaseException:
            sock.close()
            raise
        return sock

    async def _adopt(self, connection: Connection, sock: socket.socket) -> None:
        """Let asyncio read and write the socket of a connection."""
        loop = asyncio.get_running_loop()
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.connect_accepted_socket(lambda: connection, sock)
        except (OSError, asyncio.CancelledError) as error:
            sock.close()
            self._drop(connection, why(error))

    async def _until_syn_passes(self, host: str, port: int) -> None:
        """On a path that drops everything, the kernel would retransmit its SYN repeatedly."""
        faults = self.faults
        while faults is not None:
            rule = faults.hit(self.adapter, self.kind, host, port, SYN_BYTES)
            if rule is None:
                return
            healed = asyncio.Event()
            faults.listen(healed.set)
            try:
                with suppress(TimeoutError):
                    await asyncio.wait_for(healed.wait(), SYN_RETRY_S if rule.retries else None)
            finally:
                faults.unlisten(healed.set)

    def _drop(self, connection: Connection, reason: str) -> None:
        """Give up a connection that has no socket."""
        connection.end(reason)
        if connection.stage is not Stage.GONE:
            connection.stage = Stage.GONE
            self.vanished(connection)

    def _failed(self, connection: Connection, reason: str) -> None:
        self.events.open_failed(
            OpenFailed(
                self.adapter,
                self.kind,
                connection.host,
                connection.port,
                connection.unit,
                reason,
                connection.use,
                connection.made and not connection.use,
                is_credentials(reason),
            )
        )

    def _refuse(self, host: str, port: int, reason: str) -> None:
        self.counters.refused += 1
        self._refusals.note(host, port, reason)

    def _fault_healed(self) -> None:
        for connection in [*self._connections, *self._ending]:
            connection.fault_healed()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _rest(self, error: OSError) -> None:
        """Out of file descriptors: accepting again at once would spin."""
        if self._listener is None:
            return
        log.warning(
            "adapter %s: cannot accept: %s; retrying in 0.1 s",
            self.adapter,
            why(error),
            extra={
                "event": "accept_failed",
                "subsystem": "links",
                "adapter": self.adapter,
                "error": why(error),
            },
        )
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener)
        self._accept_again = loop.call_later(ACCEPT_PAUSE_S, self._resume_accepting)

    def _resume_accepting(self) -> None:
        self._accept_again = None
        if self._listener is not None:
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _close_listener(self) -> None:
        if self._accept_again is not None:
            self._accept_again.cancel()
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
