"""Sockets on the hosts of a lab, to see which packets arrive."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Sequence
from contextlib import ExitStack
from time import monotonic_ns
from typing import Self

from holdfast.lab.lab import Lab

IP_UDP = 28
MULTICAST = "239.255.70.9"
_PORT = 6000
_QUIET_S = 0.12
IP_MTU_DISCOVER, IP_PMTUDISC_DONT, IP_PMTUDISC_PROBE = 10, 0, 3
IP_MULTICAST_ALL = 49


class Wire:
    """What arrives where. Packets are numbered in their first four bytes."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self._stack = ExitStack()
        self._port = _PORT

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def address(self, host: str, subnet: str = "red") -> str:
        return self.lab.plan.address(host, subnet)

    def udp(self, host: str, subnet: str = "red", port: int = 0, df: bool = True) -> socket.socket:
        made = self.lab.socket(
            host, socket.AF_INET, socket.SOCK_DGRAM, bind=(self.address(host, subnet), port)
        )
        made.setsockopt(
            socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE if df else IP_PMTUDISC_DONT
        )
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        made.setblocking(False)
        return self._stack.enter_context(made)

    def next_port(self) -> int:
        self._port += 1
        return self._port

    def arrive(
        self,
        payloads: Sequence[bytes],
        sender: str = "n1",
        listener: str = "n2",
        subnet: str = "red",
        df: bool = True,
    ) -> list[int]:
        """Send datagrams; the numbers of those that came, in the order in which they came."""
        port = self.next_port()
        here = self.udp(listener, subnet, port)
        there = self.udp(sender, subnet, df=df)
        target = (self.address(listener, subnet), port)
        for number, payload in enumerate(payloads):
            there.sendto(number.to_bytes(4, "big") + payload[4:], target)
        return [number for number, _ in self.heard(here)]

    def heard(self, *sockets: socket.socket, quiet_s: float = _QUIET_S) -> list[tuple[int, bytes]]:
        """What comes until nothing comes any more."""
        came = []
        while True:
            ready, _, _ = select.select(sockets, [], [], quiet_s)
            if not ready:
                return came
            for one in ready:
                packet = one.recv(1 << 16)
                came.append((int.from_bytes(packet[:4], "big"), packet))

    def passes(self, size: int, fill: bytes = b"\0", **where: str) -> bool:
        """Whether one UDP packet of this size (IP header included) passes."""
        return self.arrive([(fill * size)[: size - IP_UDP]], **where) == [0]  # type: ignore[arg-type]

    def multicast(self, payload: bytes, sender: str = "n1", subnet: str = "red") -> list[str]:
        """The hosts that hear a multicast packet."""
        port = self.next_port()
        listeners = {}
        for host in self.lab.plan.hosts:
            here = self.lab.socket(host, socket.AF_INET, socket.SOCK_DGRAM, bind=(MULTICAST, port))
            self._stack.enter_context(here)
            here.setsockopt(socket.IPPROTO_IP, IP_MULTICAST_ALL, 0)
            member = socket.inet_aton(MULTICAST) + socket.inet_aton(self.address(host, subnet))
            here.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
            listeners[here] = host
        there = self.udp(sender, subnet)
        there.setsockopt(
            socket.IPPROTO_IP,
            socket.IP_MULTICAST_IF,
            socket.inet_aton(self.address(sender, subnet)),
        )
        there.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 0)
        there.sendto(payload, (MULTICAST, port))
        came = []
        while True:
            ready, _, _ = select.select(list(listeners), [], [], _QUIET_S)
            if not ready:
                return sorted(came)
            came += [listeners[one] for one in ready if one.recv(65535)]

    def tcp(
        self,
        data: bytes = b"x",
        sender: str = "n1",
        listener: str = "n2",
        subnet: str = "red",
        mss: int = 0,
    ) -> bytes:
        """What a listener reads of `data` on a new connection, within a second; empty when none comes about."""
        port = self.next_port()
        server = self.lab.socket(
            listener,
            socket.AF_INET,
            socket.SOCK_STREAM,
            bind=(self.address(listener, subnet), port),
        )
        self._stack.enter_context(server)
        server.listen(1)
        server.settimeout(1)
        there = self.lab.socket(
            sender, socket.AF_INET, socket.SOCK_STREAM, bind=(self.address(sender, subnet), 0)
        )
        self._stack.enter_context(there)
        there.settimeout(0.5)
        # Reset at the end: nothing of it is sent again later.
        there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if mss:
            there.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, mss)
        try:
            there.connect((self.address(listener, subnet), port))
            here, _ = server.accept()
        except OSError:
            return b""
        with here:
            here.settimeout(0.5)
            there.sendall(data)
            return self._read(here, len(data))

    def _read(self, here: socket.socket, size: int) -> bytes:
        came = b""
        deadline = monotonic_ns() + 1_000_000_000
        while len(came) < size and monotonic_ns() < deadline:
            try:
                part = here.recv(1 << 16)
            except OSError:
                break
            if not part:
                break
            came += part
        return came
