"""Datagram flows: each packet on its own, lost without a word."""

from __future__ import annotations

from heapq import heappush
from typing import TYPE_CHECKING, Final

from holdfast.types import FlowId
from holdfast.wire.packet import AnyPacket

if TYPE_CHECKING:
    from holdfast.sim.host import Host
    from holdfast.sim.network import Adapter
    from holdfast.sim.path import Path
    from holdfast.sim.world import World

HEADS: Final = 28
"""Bytes that IP and UDP put in front of a packet."""

Address = tuple[str, int]


class UdpEnd:
    """One adapter's socket and one remote address. It exists from `OpenFlow` or from the first packet heard."""

    __slots__ = ("adapter", "flow", "host", "key", "open", "path", "peer", "remote", "world")

    def __init__(
        self,
        world: World,
        host: Host,
        adapter: Adapter,
        remote: Address,
        path: Path,
        flow: FlowId,
    ) -> None:
        self.world = world
        self.host = host
        self.adapter = adapter
        self.remote = remote
        self.path = path
        self.flow = flow
        self.peer: UdpEnd | None = None
        """The other side, once it has a flow for us."""
        self.open = True
        local = adapter.address
        self.key = f"udp {local[0]}:{local[1]} {remote[0]}:{remote[1]}".encode()

    def send(self, packets: list[AnyPacket]) -> None:
        """On a path without faults a list travels as one event, and nothing is overtaken."""
        path = self.path
        world = self.world
        path.sent += len(packets)
        if path.faults:
            self._send_through_faults(packets)
            return
        if sum(map(len, packets)) + HEADS > path.mtu:
            packets = self._fitting(packets)
        at = world.now + path.delay_ns + (path.draw(16) * path.jitter_ns >> 16)
        if at < path.last_ns:
            at = path.last_ns
        else:
            path.last_ns = at
        world.sequence = sequence = world.sequence + 1
        heappush(world.heap, (at, sequence, self.arrive, packets))

    def _fitting(self, packets: list[AnyPacket]) -> list[AnyPacket]:
        """What the adapter can send at all: a larger datagram fails at its sender."""
        room = self.path.mtu - HEADS
        fitting = [packet for packet in packets if len(packet) <= room]
        self.path.lost += len(packets) - len(fitting)
        return fitting

    def _send_through_faults(self, packets: list[AnyPacket]) -> None:
        world = self.world
        path = self.path
        fate = world.network.fate
        for packet in self._fitting(packets):
            path.judge(world.now, "udp", self.key, bytes(packet), len(packet) + HEADS, fate)
            if fate.lost:
                if world.trace is not None:
                    world.trace.line(world.now, self.host.name, f"lost udp {self.flow}")
                continue
            at = world.now + path.base_ns() + fate.late_ns
            if not fate.overtaken:
                at = path.last_ns = max(at, path.last_ns)
            for copy in range(fate.copies):
                world.at(at + copy, self.arrive, [fate.packet])

    def arrive(self, packets: list[bytes]) -> None:
        """The packets are at the other adapter; its process may be gone, then they are lost."""
        peer = self.peer
        if peer is None or not peer.open:
            peer = self.peer = self.world.network.udp_peer(self)
            if peer is None:
                self.path.lost += len(packets)
                return
        peer.host.hear_datagrams(peer, packets)

    def close(self) -> None:
        """Forget the flow. The socket stays: the next packet from there makes a new one."""
        self.open = False
        self.adapter.udp.pop(self.remote, None)
