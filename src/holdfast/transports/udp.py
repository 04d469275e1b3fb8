"""UDP: one socket per adapter; a flow is one remote address. Measuring flows have their own sockets.

It reads the socket directly, because the asyncio datagram transport reads one datagram per loop iteration. Here, a
wake-up reads everything available, within a limit, and delivers it once per flow. The kernel receive time is read once
per wake-up, or for every call if the datagrams waited because this process did not run. Where the kernel can, several
datagrams of one size take one call (`trains`), except on measuring flows. Faults are applied to each datagram before.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import socket
import struct
import sys
from collections import deque
from time import monotonic_ns, time_ns
from typing import ClassVar, Final

import msgspec

from holdfast.links.measuring import FRAG
from holdfast.links.ports import FlowClosed, FlowOpened, OpenFailed, OpenFlow
from holdfast.transports import trains
from holdfast.transports.faults import Faults
from holdfast.transports.port import Counters, Events, NextFlow
from holdfast.transports.sides import Sides
from holdfast.transports.sockets import UDP_HEADS, SockAddr, bind, resolve, why
from holdfast.types import MILLISECOND, SECOND, FlowId, Nanos
from holdfast.wire.packet import AnyPacket

DATAGRAM_MAX: Final = 65536
DRAIN_MAX: Final = 1024
DRAIN_MAX_BYTES: Final = 1 << 20
"""Datagrams read in a row before other work of the event loop. What is left in the socket is overtaken by news of it on
other connections, and requested again."""
QUEUED_OVERHEAD: Final = 64

_IP_MTU_DISCOVER: Final = 10
_IPV6_MTU_DISCOVER: Final = 23
_PMTUDISC_DONT: Final = 0
"""IP fragments datagrams above the MTU of the adapter."""
_PMTUDISC_PROBE: Final = 3
"""Never fragment, and ignore the cached path MTU: a repaired path must be detected."""
_SIOCGSTAMPNS: Final = 0x8907
_STAMP: Final = struct.Struct("=qq")
STAMP_AGE_MAX_NS: Final = 5 * SECOND
"""An older timestamp means that the wall clock was set, not that a datagram waited that long."""
WAITED_NS: Final = 10 * MILLISECOND
"""If the first datagram waited longer than this, the others did not arrive together with it."""
APART_NS: Final = 5 * MILLISECOND
"""Datagrams that arrived further apart than this are delivered with separate receive times."""


class UdpLimits(msgspec.Struct, frozen=True):
    """Limits of a UDP transport."""

    unanswered_max: int = 256
    """Flows created by an incoming datagram on which nothing was sent. The oldest one makes room."""
    flows_max: int = 4096
    socket_bytes: int = 4 << 20
    """Requested from the kernel for each direction; it may grant less."""
    queue_max_bytes: int = 4 << 20
    """Queued bytes while the socket accepts no more; further datagrams are dropped and counted."""
    sides_max: int = 1024
    """Additional sockets of the adapter, for measuring flows."""


class _Flow:
    __slots__ = ("address", "blocked", "fragments", "host", "number", "port")

    def __init__(self, number: FlowId, address: SockAddr, host: str, port: int) -> None:
        self.number = number
        self.address = address
        self.host = host
        self.port = port
        self.blocked = False
        self.fragments = False
        """IP may fragment datagrams of this flow, although the socket does not allow it by default."""


class UdpTransport:
    """The UDP flows of one adapter."""

    kind: ClassVar[str] = "udp"

    def __init__(
        self,
        adapter: str,
        host: str,
        port: int,
        events: Events,
        next_flow: NextFlow,
        *,
        faults: Faults | None = None,
        limits: UdpLimits | None = None,
        mtu: int = DATAGRAM_MAX,
        use: str = "",
    ) -> None:
        """`mtu` determines which datagrams count as fragmented for faults. `use` is for a measuring socket, which
        accepts only packets from the peers it was opened for."""
        self.adapter = adapter
        self.use = use
        self.events = events
        self.limits = limits or UdpLimits()
        self.faults = faults
        self.counters = Counters()
        self._host = host
        self._port = port
        self._mtu = mtu
        self._heads = UDP_HEADS[socket.AF_INET]
        self._next_flow = next_flow
        self._socket: socket.socket | None = None
        self._sides = Sides(self)
        self._reading = False
        self._sends_trains = False
        self._takes_trains = False
        self._flows: dict[FlowId, _Flow] = {}
        self._by_address: dict[SockAddr, _Flow] = {}
        self._unanswered: dict[FlowId, _Flow] = {}
        """Oldest first."""
        self._paused: dict[FlowId, None] = {}
        self._queue: deque[tuple[_Flow, bytes]] = deque()
        self._queue_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> tuple[str, int]:
        return self._host, self._port

    async def start(self) -> None:
        self.begin(await bind(self.adapter, self.kind, self._host, self._port))

    def begin(self, sock: socket.socket) -> None:
        """Use this bound socket."""
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, self.limits.socket_bytes)
        _set_discovery(sock, _PMTUDISC_DONT if self.use == FRAG else _PMTUDISC_PROBE)
        if hasattr(socket, "IP_MULTICAST_ALL") and sock.family == socket.AF_INET:
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_ALL, 0)
        self._sends_trains = not self.use and trains.can_send(sock)
        self._takes_trains = not self.use and trains.accept(sock)
        self._heads = UDP_HEADS.get(sock.family, self._heads)
        self._port = sock.getsockname()[1]
        self._socket = sock
        self._received_at()  # the kernel keeps receive times from the first request on
        self._read_on()

    def open(self, request: OpenFlow) -> None:
        if self._socket is None:
            self._failed(request, "this node is stopping, or has not started")
            return
        if request.use and not self.use:
            self._sides.open(request, self._socket)
            return
        try:
            found = socket.getaddrinfo(
                request.host,
                request.port,
                self._socket.family,
                socket.SOCK_DGRAM,
                flags=socket.AI_NUMERICHOST,
            )
        except (socket.gaierror, UnicodeError):
            task = asyncio.get_running_loop().create_task(self._look_up(request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._announce(request, found[0][4])

    def transmit(self, flow: FlowId, packets: list[AnyPacket]) -> None:
        target = self._flows.get(flow)
        if target is None or self._socket is None:
            self._sides.transmit(flow, packets)
            return
        self._unanswered.pop(flow, None)
        if self.faults is not None and self.faults.rules:
            packets = self._what_passes(self.faults, target, packets)
        self.counters.packets_out += len(packets)
        if target.fragments:
            self._send_fragments(self._socket, target, packets)
            return
        if self._queue:
            self._wait(target, packets)
        elif len(packets) == 1:
            self._send(self._socket, target, packets, 0)
        else:
            self._send_all(self._socket, target, packets)

    def close_flow(self, flow: FlowId, reason: str) -> None:
        target = self._flows.pop(flow, None)
        if target is None:
            self._sides.close_flow(flow, reason)
            return
        del self._by_address[target.address]
        self._unanswered.pop(flow, None)
        self.events.closed(FlowClosed(flow, reason))
        self.resume(flow)

    def may_fragment(self, flow: FlowId) -> None:
        target = self._flows.get(flow)
        if target is not None:
            target.fragments = True

    def pause(self, flow: FlowId) -> None:
        """All flows share the socket, so all wait; the kernel buffers what arrives and drops what does not fit."""
        if flow in self._flows and self._socket is not None:
            self._paused[flow] = None
            self._read_off()
        else:
            self._sides.pause(flow)

    def resume(self, flow: FlowId) -> None:
        self._paused.pop(flow, None)
        if not self._paused:
            self._read_on()
        self._sides.resume(flow)

    async def stop(self) -> None:
        sock, self._socket = self._socket, None
        await self._sides.stop()
        await asyncio.sleep(0)  # every task has started now, so each returns its result
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for flow in list(self._flows):
            self.close_flow(flow, "this node stops")
        self._queue.clear()
        self._queue_bytes = 0
        if sock is not None:
            loop = asyncio.get_running_loop()
            loop.remove_reader(sock)
            loop.remove_writer(sock)
            sock.close()

    # -- reading -------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        if self._socket is None:
            return
        receive, receive_train = self._socket.recvfrom, self._socket.recvmsg
        takes_trains = self._takes_trains
        heard: dict[SockAddr, list[memoryview]] = {}
        room = DRAIN_MAX_BYTES
        at, count, calls, waited = 0, 0, 0, False
        for _ in range(DRAIN_MAX):
            try:
                if takes_trains:
                    data, notes, _, address = receive_train(DATAGRAM_MAX, trains.NOTES_BYTES)
                    arrived = trains.cut(data, notes) if notes else [memoryview(data)]
                else:
                    data, address = receive(DATAGRAM_MAX)
                    arrived = [memoryview(data)]
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                self.counters.receive_errors += (
                    1  # an ICMP error about an earlier datagram: not conclusive
                )
                continue
            calls += 1
            if calls == 1:
                at = self._received_at()
                waited = monotonic_ns() - at >= WAITED_NS
            elif waited and (received_at := self._received_at()) - at >= APART_NS:
                self._deliver(heard, at)
                heard, at = {}, received_at
            count += len(arrived)
            if address in heard:
                heard[address] += arrived
            else:
                heard[address] = arrived
            room -= len(data)
            if room <= 0 or count >= DRAIN_MAX:
                break
        if calls > 1 and not waited:
            at = self._received_at()
        self._deliver(heard, at)

    def _deliver(self, heard: dict[SockAddr, list[memoryview]], at: Nanos) -> None:
        for address, packets in heard.items():
            flow = self._by_address.get(address) or self._first_heard(address)
            if flow is not None:
                self.counters.packets_in += len(packets)
                self.events.arrived(flow.number, packets, at)

    def _received_at(self) -> Nanos:
        """When the last datagram arrived, on the monotonic clock: from the kernel, or now."""
        if self._socket is None or sys.platform != "linux":
            return monotonic_ns()
        stamp = bytearray(_STAMP.size)
        try:
            fcntl.ioctl(self._socket, _SIOCGSTAMPNS, stamp)
        except OSError:
            return monotonic_ns()
        seconds, rest = _STAMP.unpack(stamp)
        before, wall, now = monotonic_ns(), time_ns(), monotonic_ns()
        if now - before > MILLISECOND:
            # This process did not run between the two clocks: the time in between would count as age.
            wall, now = time_ns(), monotonic_ns()
        age = wall - (seconds * SECOND + rest)
        return now - age if 0 < age < STAMP_AGE_MAX_NS else now

    def _first_heard(self, address: SockAddr) -> _Flow | None:
        """An unknown sender. The number of such flows is bounded."""
        if self.use:
            self.counters.dropped += 1
            return None
        if len(self._flows) >= self.limits.flows_max and not self._unanswered:
            self.counters.dropped += 1
            return None
        if self._unanswered and (
            len(self._unanswered) >= self.limits.unanswered_max
            or len(self._flows) >= self.limits.flows_max
        ):
            self.counters.evicted += 1
            oldest = next(iter(self._unanswered))
            self.close_flow(
                oldest, "closed to make room for newer senders: this one was never answered"
            )
        flow = self._new_flow(address, str(address[0]), int(address[1]))
        self._unanswered[flow.number] = flow
        self.events.opened(
            FlowOpened(
                flow.number,
                self.adapter,
                self.kind,
                flow.host,
                flow.port,
                inbound=True,
                overhead=self._heads,
            )
        )
        return flow

    def _read_on(self) -> None:
        if not self._reading and self._socket is not None:
            self._reading = True
            asyncio.get_running_loop().add_reader(self._socket, self._drain)

    def _read_off(self) -> None:
        if self._reading and self._socket is not None:
            self._reading = False
            asyncio.get_running_loop().remove_reader(self._socket)

    # -- sending -------------------------------------------------------------------------------------------------

    def _send_all(self, sock: socket.socket, flow: _Flow, packets: list[AnyPacket]) -> None:
        """In trains, if the kernel can cut them; the datagrams of one that cannot be sent are sent one by one."""
        at = single_until = 0
        while at < len(packets):
            count = 1
            if self._sends_trains and at >= single_until:
                count = trains.length(packets, at)
            if count == 1:
                if not self._send(sock, flow, packets, at):
                    return
                at += 1
                continue
            try:
                trains.send(sock, packets[at : at + count], flow.address)
            except (BlockingIOError, InterruptedError):
                self._wait(flow, packets[at:])
                return
            except OSError as error:
                self._sends_trains = not trains.never_again(error)
                single_until = at + count
            else:
                at += count

    def _send(self, sock: socket.socket, flow: _Flow, packets: list[AnyPacket], at: int) -> bool:
        """Send one datagram. False if the socket accepts no more: this one and the following ones wait."""
        try:
            sock.sendto(packets[at], flow.address)  # type: ignore[arg-type]  # whole blocks only go on streams
        except (BlockingIOError, InterruptedError):
            self._wait(flow, packets[at:])
            return False
        except OSError as error:
            self._not_sent(error)
        return True

    def _what_passes(
        self, faults: Faults, flow: _Flow, packets: list[AnyPacket]
    ) -> list[AnyPacket]:
        host, port = str(flow.address[0]), flow.port
        fragments = flow.fragments or self.use == FRAG
        room = self._mtu - self._heads
        passing = []
        for packet in packets:
            kind = "frag" if fragments and len(packet) > room else self.kind
            size = min(len(packet), room) if fragments else len(packet)
            if faults.hit(self.adapter, kind, host, port, size) is None:
                passing.append(packet)
        return passing

    def _send_fragments(self, sock: socket.socket, flow: _Flow, packets: list[AnyPacket]) -> None:
        """The socket serves all flows, so fragmentation is enabled only for this send."""
        _set_discovery(sock, _PMTUDISC_DONT)
        for packet in packets:
            try:
                sock.sendto(bytes(packet), flow.address)
            except (BlockingIOError, InterruptedError):
                self.counters.dropped += 1
            except OSError as error:
                self._not_sent(error)
        _set_discovery(sock, _PMTUDISC_PROBE)

    def _wait(self, flow: _Flow, packets: list[AnyPacket]) -> None:
        """The socket accepts no more for now."""
        if not self._queue and self._socket is not None:
            asyncio.get_running_loop().add_writer(self._socket, self._go_on)
        for packet in packets:
            size = len(packet) + QUEUED_OVERHEAD
            if self._queue_bytes + size > self.limits.queue_max_bytes:
                self.counters.dropped += 1
                continue
            self._queue.append((flow, bytes(packet)))
            self._queue_bytes += size
            self.counters.queued_bytes_max = max(self.counters.queued_bytes_max, self._queue_bytes)
        if not flow.blocked:
            flow.blocked = True
            self.events.credit(flow.number, False)

    def _go_on(self) -> None:
        if self._socket is None:
            return
        while self._queue:
            flow, packet = self._queue[0]
            try:
                self._socket.sendto(packet, flow.address)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._not_sent(error)
            self._queue.popleft()
            self._queue_bytes -= len(packet) + QUEUED_OVERHEAD
        asyncio.get_running_loop().remove_writer(self._socket)
        for flow in list(self._flows.values()):
            if flow.blocked:
                flow.blocked = False
                self.events.credit(flow.number, True)

    def _not_sent(self, error: OSError) -> None:
        # A datagram can be lost anywhere; here the kernel happens to report it. Health evaluates it.
        if error.errno == errno.EMSGSIZE:
            self.counters.too_large += 1
        else:
            self.counters.send_errors += 1

    # -- flows ---------------------------------------------------------------------------------------------------

    async def _look_up(self, request: OpenFlow) -> None:
        family = self._socket.family if self._socket is not None else socket.AF_UNSPEC
        try:
            _, address = await resolve(request.host, request.port, self.kind, family)
        except OSError as error:
            self._failed(request, why(error))
        except asyncio.CancelledError:
            self._failed(request, "this node stops")
            raise
        else:
            self._announce(request, address)

    def _announce(self, request: OpenFlow, address: SockAddr) -> None:
        flow = self._by_address.get(address)
        if flow is None:
            if len(self._flows) >= self.limits.flows_max:
                self._failed(request, f"there are already {self.limits.flows_max} flows")
                return
            flow = self._new_flow(address, request.host, request.port)
        self._unanswered.pop(flow.number, None)
        self.events.opened(
            FlowOpened(
                flow.number,
                self.adapter,
                self.kind,
                request.host,
                request.port,
                inbound=False,
                unit=request.unit,
                use=request.use,
                overhead=self._heads,
            )
        )

    def _new_flow(self, address: SockAddr, host: str, port: int) -> _Flow:
        flow = _Flow(self._next_flow(), address, host, port)
        self._flows[flow.number] = flow
        self._by_address[address] = flow
        return flow

    def _failed(self, request: OpenFlow, reason: str) -> None:
        self.events.open_failed(
            OpenFailed(
                self.adapter,
                self.kind,
                request.host,
                request.port,
                request.unit,
                reason,
                request.use,
            )
        )

    def side(self, use: str, events: Events, local: SockAddr, family: int) -> UdpTransport:
        """Another socket with the same address, on any port. Raises `OSError`."""
        made = UdpTransport(
            self.adapter,
            self._host,
            0,
            events,
            self._next_flow,
            faults=self.faults,
            limits=self.limits,
            mtu=self._mtu,
            use=use,
        )
        made.counters = self.counters
        sock = socket.socket(family, socket.SOCK_DGRAM)
        try:
            sock.setblocking(False)
            sock.bind((local[0], 0, *local[2:]))
            made.begin(sock)
        except OSError:
            sock.close()
            raise
        return made


def _set_discovery(sock: socket.socket, mode: int) -> None:
    """Whether datagrams above the MTU are fragmented or refused."""
    if sys.platform != "linux":
        return
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, mode)
    else:
        sock.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, mode)
