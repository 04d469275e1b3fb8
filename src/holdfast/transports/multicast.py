"""Multicast: one socket per adapter with a multicast group. All members of the group share one flow.

The socket is bound to the group, so it receives nothing else. It joins and sends with the address of the adapter, with
TTL 1. Other nodes on this machine receive its packets as well, and so does this node.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path
from time import monotonic_ns
from typing import ClassVar, Final

from holdfast.links.ports import FlowClosed, FlowOpened, OpenFailed, OpenFlow
from holdfast.transports.faults import Faults
from holdfast.transports.port import Counters, Events, NextFlow
from holdfast.transports.sockets import UDP_HEADS, resolve, why
from holdfast.types import FlowId
from holdfast.wire.packet import AnyPacket

DATAGRAM_MAX: Final = 65536
DRAIN_MAX: Final = 256
SOCKET_BYTES: Final = 1 << 20
_IP_MTU_DISCOVER: Final = 10
_PMTUDISC_PROBE: Final = 3
_IPV6_MTU_DISCOVER: Final = 23
_INTERFACES: Final = Path("/proc/thread-self/net/if_inet6")
_IPV6_MULTICAST_ALL: Final = 29
_IP_MULTICAST_ALL: Final = 49
"""Otherwise a socket receives groups that any other socket of this machine has joined, on any adapter."""


class MulticastTransport:
    """The multicast group of one adapter. Joined when the flow is opened, and left when it is closed."""

    kind: ClassVar[str] = "multicast"

    def __init__(
        self,
        adapter: str,
        host: str,
        group: tuple[str, int],
        events: Events,
        next_flow: NextFlow,
        *,
        faults: Faults | None = None,
    ) -> None:
        self.adapter = adapter
        self.events = events
        self.faults = faults
        self.counters = Counters()
        self._host = host
        self._group = group
        self._family = socket.AF_INET6 if ":" in group[0] else socket.AF_INET
        self._next_flow = next_flow
        self._socket: socket.socket | None = None
        self._flow: FlowId | None = None

    @property
    def address(self) -> tuple[str, int]:
        return self._group

    async def start(self) -> None:
        """Only resolve the adapter: a group that cannot be joined must not prevent the start of the node."""
        with suppress(OSError):
            _, (self._host, *_) = await resolve(self._host, 0, "udp", self._family)

    def open(self, request: OpenFlow) -> None:
        place = (self.adapter, self.kind, request.host, request.port)
        if self._flow is None:
            try:
                self._socket = self._join()
            except OSError as error:
                self.events.open_failed(OpenFailed(*place, request.unit, why(error), request.use))
                return
            self._flow = self._next_flow()
            asyncio.get_running_loop().add_reader(self._socket, self._drain)
        heads = UDP_HEADS[self._family]
        self.events.opened(
            FlowOpened(self._flow, *place, inbound=False, unit=request.unit, overhead=heads)
        )

    def transmit(self, flow: FlowId, packets: list[AnyPacket]) -> None:
        if self._socket is None or flow != self._flow:
            return
        for packet in packets:
            data = bytes(packet)
            if self.faults is not None and self.faults.hit(
                self.adapter, self.kind, *self._group, len(data)
            ):
                continue
            try:
                self._socket.sendto(data, self._group)
                self.counters.packets_out += 1
            except (BlockingIOError, InterruptedError):
                self.counters.dropped += 1
            except OSError:
                self.counters.send_errors += 1

    def close_flow(self, flow: FlowId, reason: str) -> None:
        if flow != self._flow or self._socket is None:
            return
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self._socket = self._flow = None
        self.events.closed(FlowClosed(flow, reason))

    def may_fragment(self, flow: FlowId) -> None:
        """Multicast packets are never fragmented."""

    def pause(self, flow: FlowId) -> None:
        if self._socket is not None and flow == self._flow:
            asyncio.get_running_loop().remove_reader(self._socket)

    def resume(self, flow: FlowId) -> None:
        if self._socket is not None and flow == self._flow:
            asyncio.get_running_loop().add_reader(self._socket, self._drain)

    async def stop(self) -> None:
        if self._flow is not None:
            self.close_flow(self._flow, "this node stops")

    # -- inside --------------------------------------------------------------------------------------------------

    def _join(self) -> socket.socket:
        sock = socket.socket(self._family, socket.SOCK_DGRAM)
        try:
            sock.setblocking(False)
            # Several nodes of one machine may be in the group; each receives everything.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
            if self._family == socket.AF_INET6:
                self._join_6(sock)
            else:
                self._join_4(sock)
        except OSError:
            sock.close()
            raise
        return sock

    def _join_4(self, sock: socket.socket) -> None:
        group, port = self._group
        here = socket.inet_aton(self._host)
        if sys.platform == "linux":
            sock.setsockopt(socket.IPPROTO_IP, _IP_MULTICAST_ALL, 0)
            sock.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PMTUDISC_PROBE)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 1)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, here)
        sock.bind((group, port))
        membership = struct.pack("4s4s", socket.inet_aton(group), here)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)

    def _join_6(self, sock: socket.socket) -> None:
        """IPv6 groups are joined on an interface, by index."""
        group, port = self._group
        index = interface_of(self._host)
        if sys.platform == "linux":
            sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_MULTICAST_ALL, 0)
            sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 1)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 1)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
        sock.bind((group, port, 0, index))
        membership = struct.pack("16sI", socket.inet_pton(socket.AF_INET6, group), index)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, membership)

    def _drain(self) -> None:
        if self._socket is None or self._flow is None:
            return
        packets: list[memoryview] = []
        for _ in range(DRAIN_MAX):
            try:
                data = self._socket.recv(DATAGRAM_MAX)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                self.counters.receive_errors += 1
                continue
            packets.append(memoryview(data))
        if packets:
            self.counters.packets_in += len(packets)
            self.events.arrived(self._flow, packets, monotonic_ns())


def interface_of(host: str) -> int:
    """The index of the interface with this IPv6 address. Raises `OSError` if there is none."""
    wanted = socket.inet_pton(socket.AF_INET6, host).hex()
    # Per thread: the file belongs to its network namespace.
    for line in _INTERFACES.read_text().splitlines():
        address, index, *_ = line.split()
        if address == wanted:
            return int(index, 16)
    raise OSError(errno.EADDRNOTAVAIL, f"no interface has the address {host}")
