"""Datagram flows: each packet separate, and lost without notice."""

from __future__ import annotations

from heapq import heappush
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from holdfast.types import FlowId
from holdfast.wire.packet import AnyPacket

if TYPE_CHECKING:
    from holdfast.sim.host import Host
    from holdfast.sim.network import Adapter
    from holdfast.sim.path import Path
    from holdfast.sim.world import World

HEADS: Final = 28
"""Size of the IP and UDP headers of a packet."""
IP_HEAD: Final = 20
DATAGRAM_MAX: Final = 65_535 - HEADS

Address = tuple[str, int]


class UdpEnd:
    """One socket of an adapter and one remote address. Created by `OpenFlow` or by the first packet received."""

    __slots__ = (
        "adapter",
        "flow",
        "fragments",
        "host",
        "key",
        "local",
        "open",
        "path",
        "peer",
        "remote",
        "world",
    )

    def __init__(
        self,
        world: World,
        host: Host,
        adapter: Adapter,
        local: Address,
        remote: Address,
        path: Path,
        flow: FlowId,
    ) -> None:
        self.world = world
        self.host = host
        self.adapter = adapter
        self.local = local
        self.remote = remote
        self.path = path
        self.flow = flow
        self.fragments = False
        """A datagram above the MTU is fragmented; otherwise it does not leave the host."""
        self.peer: UdpEnd | None = None
        """The other side, once it has a flow for us."""
        self.open = True
        self.key = f"udp {local[0]}:{local[1]} {remote[0]}:{remote[1]}".encode()

    def send(self, packets: list[AnyPacket]) -> None:
        """On a path without faults, a list travels as one event, and nothing is overtaken."""
        path = self.path
        world = self.world
        path.sent += len(packets)
        if path.faults or self.fragments:
            self._send_one_by_one(packets)
            return
        size = len(packets[0]) if len(packets) == 1 else sum(map(len, packets))
        if size + HEADS > path.mtu:
            packets = self._fitting(packets)
            size = sum(map(len, packets))
        path.wire_bytes["udp"] += size + HEADS * len(packets)
        at = world.now + path.delay_ns + (path.draw(16) * path.jitter_ns >> 16)
        if at < path.last_ns:
            at = path.last_ns
        else:
            path.last_ns = at
        world.sequence = sequence = world.sequence + 1
        heappush(world.heap, (at, sequence, self.arrive, packets))

    def _fitting(self, packets: list[AnyPacket]) -> list[AnyPacket]:
        """The packets that the adapter can send: a larger datagram fails at its sender."""
        room = DATAGRAM_MAX if self.fragments else self.path.mtu - HEADS
        fitting = [packet for packet in packets if len(packet) <= room]
        self.path.lost += len(packets) - len(fitting)
        return fitting

    def _send_one_by_one(self, packets: list[AnyPacket]) -> None:
        """Each packet has its own fate; a fragmented one arrives only if all its fragments do."""
        world = self.world
        path = self.path
        fate = world.network.fate
        for packet in map(bytes, self._fitting(packets)):
            if len(packet) + HEADS > path.mtu:
                self._send_fragments(packet)
                continue
            path.wire_bytes["udp"] += len(packet) + HEADS
            path.judge(world.now, "udp", self.key, packet, len(packet) + HEADS, fate)
            if fate.lost:
                self._log_lost()
                continue
            self._deliver(fate.packet, fate.late_ns, fate.overtaken, fate.copies)

    def _send_fragments(self, packet: bytes) -> None:
        """Fragments as IP creates them: all but the last carry a multiple of eight bytes, the first the UDP header."""
        world, path = self.world, self.path
        fate = world.network.fate
        room = (path.mtu - IP_HEAD) & ~7
        cuts = [0, *range(room - (HEADS - IP_HEAD), len(packet), room), len(packet)]
        arrived: list[bytes] = []
        late_ns = 0
        overtaken = False
        for number, (start, end) in enumerate(pairwise(cuts)):
            size = end - start + (IP_HEAD if number else HEADS)
            path.wire_bytes["frag"] += size
            path.judge(world.now, "frag", self.key, packet[start:end], size, fate)
            if not fate.lost:
                arrived.append(fate.packet)
                late_ns = max(late_ns, fate.late_ns)
                overtaken = overtaken or fate.overtaken
        if len(arrived) < len(cuts) - 1:
            self._log_lost()
        else:
            self._deliver(b"".join(arrived), late_ns, overtaken, 1)

    def _deliver(self, packet: bytes, late_ns: int, overtaken: bool, copies: int) -> None:
        world, path = self.world, self.path
        at = world.now + path.base_ns() + late_ns
        if not overtaken:
            at = path.last_ns = max(at, path.last_ns)
        for copy in range(copies):
            world.at(at + copy, self.arrive, [packet])

    def _log_lost(self) -> None:
        world = self.world
        if world.trace is not None:
            world.trace.line(world.now, self.host.name, f"lost udp {self.flow}")

    def arrive(self, packets: list[bytes]) -> None:
        """The packets are at the other adapter; they are lost if its process is gone."""
        peer = self.peer
        if peer is None or not peer.open:
            peer = self.peer = self.world.network.udp_peer(self)
            if peer is None:
                self.path.lost += len(packets)
                return
        peer.host.hear_datagrams(peer, packets)

    def close(self) -> None:
        """Remove the flow. The socket of the adapter stays: the next packet from there creates a new one."""
        self.open = False
        self.world.network.forget_udp(self)
