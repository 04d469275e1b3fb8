"""Multicast groups of a subnet: a packet is sent once, and each path to a listener applies its own faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.sim.udp import HEADS, Address
from holdfast.types import FlowId
from holdfast.wire.packet import AnyPacket

if TYPE_CHECKING:
    from holdfast.sim.host import Host
    from holdfast.sim.network import Adapter
    from holdfast.sim.world import World


class MulticastEnd:
    """The membership of one adapter in one group: it sends to all other members and receives from them."""

    __slots__ = ("adapter", "flow", "group", "host", "key", "members", "open", "world")

    def __init__(
        self,
        world: World,
        host: Host,
        adapter: Adapter,
        group: Address,
        members: dict[Adapter, MulticastEnd],
        flow: FlowId,
    ) -> None:
        self.world = world
        self.host = host
        self.adapter = adapter
        self.group = group
        self.members = members
        """All members of the group on this subnet, including ourselves."""
        self.flow = flow
        self.open = True
        local = adapter.address
        self.key = f"multicast {local[0]}:{group[1]} {group[0]}:{group[1]}".encode()
        members[adapter] = self

    def send(self, packets: list[AnyPacket]) -> None:
        room = self.adapter.subnet.mtu - HEADS
        fitting = [bytes(packet) for packet in packets if len(packet) <= room]
        for listener in self.members.values():
            if listener is not self:
                self._send_to(listener, fitting)

    def _send_to(self, listener: MulticastEnd, packets: list[bytes]) -> None:
        world = self.world
        path = world.network.path(self.adapter, listener.adapter)
        fate = world.network.fate
        path.sent += len(packets)
        for packet in packets:
            size = len(packet) + HEADS
            path.wire_bytes["multicast"] += size
            path.judge(world.now, "multicast", self.key, packet, size, fate)
            if fate.lost:
                continue
            at = world.now + path.base_ns() + fate.late_ns
            if not fate.overtaken:
                at = path.last_ns = max(at, path.last_ns)
            for copy in range(fate.copies):
                world.at(at + copy, listener.arrive, [fate.packet])

    def arrive(self, packets: list[bytes]) -> None:
        if self.open:
            self.host.hear_datagrams(self, packets)

    def close(self) -> None:
        self.open = False
        if self.members.get(self.adapter) is self:
            del self.members[self.adapter]
