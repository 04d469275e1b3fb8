"""A network made of nothing but a heap of events: datagrams, streams, and what goes wrong with both.

Everything that can go wrong is a field of `Path`, one direction between two adapters. Streams are reliable and in
order while they last: what a path does not carry now waits, and everything behind it waits too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from holdfast.links.flow import IP_UDP
from holdfast.links.ports import (
    Arrived,
    CloseFlow,
    Credit,
    FlowClosed,
    FlowOpened,
    Identity,
    OpenFailed,
    OpenFlow,
    Transmit,
)
from holdfast.types import MICROSECOND, MILLISECOND, SECOND, FlowId, Nanos
from holdfast.wire.packet import PACKET_MAX

Address = tuple[str, int]
Place = tuple[str, str]
"""A node's name and its adapter's."""

IP_TCP = 40
SEGMENT = 1500
POLL_NS = 20 * MILLISECOND
CONNECT_NS = 1 * SECOND
FULL_BYTES = 1 << 20


class Path:
    """One direction between two adapters."""

    def __init__(self) -> None:
        self.cut_udp = False
        self.cut_tcp = False
        self.over = 0
        """Packets larger than this on the wire do not pass; 0: all do."""
        self.loss = 0.0
        self.duplicate = 0.0
        self.corrupt = 0.0
        self.delay_ns: Nanos = 50 * MICROSECOND
        self.jitter_ns: Nanos = 0
        self.rate = 0
        """Bytes per second that streams get; 0: any number."""
        self.damage = 0
        """How many of the next packets on streams get a flipped bit."""
        self.drop: Callable[[bytes], bool] | None = None
        """Datagrams for which this is true do not pass."""

    def cut(self, on: bool = True) -> None:
        self.cut_udp = self.cut_tcp = on

    def blocks_stream(self, size: int) -> bool:
        return self.cut_tcp or 0 < self.over < min(size + IP_TCP, SEGMENT)

    def blocks_datagram(self, packet: bytes) -> bool:
        if self.cut_udp or 0 < self.over < len(packet) + IP_UDP:
            return True
        return self.drop is not None and self.drop(packet)


class Host(Protocol):
    """What the network needs of the world around it."""

    now: Nanos

    def at(self, when: Nanos, call: Callable[[], None]) -> None: ...
    def give(self, node: str, item: Any) -> None: ...
    def chance(self, probability: float) -> bool: ...
    def spread(self, width: int) -> int: ...


class End:
    """One end of a stream, and what it has sent."""

    def __init__(self, place: Place, flow: FlowId, path: Path) -> None:
        self.place = place
        self.flow = flow
        self.path = path
        self.open = True
        self.stalled = False
        """The kernel holds everything back: a connection that a firewall has forgotten."""
        self.queue: deque[bytes] = deque()
        self.queued = 0
        self.full = False
        self.busy = False
        self.finished = False
        self.last_ns: Nanos = 0
        self.other: End


class Network:
    """All adapters, the paths between them, the flows on them."""

    def __init__(self, host: Host, mtu: int) -> None:
        self.host = host
        self.mtu = mtu
        self.adapters: dict[Address, Place] = {}
        self.addresses: dict[Place, Address] = {}
        self.identities: dict[str, Identity] = {}
        """What each node's certificate says; empty in a plain domain."""
        self.paths: dict[tuple[Place, Place], Path] = {}
        self.datagram_flows: dict[tuple[Place, Address], FlowId] = {}
        self.remotes: dict[FlowId, tuple[Place, Address]] = {}
        self.streams: dict[FlowId, End] = {}
        self.captured: list[tuple[Place, Place, bytes]] | None = None
        self.sent: dict[str, int] = {"udp": 0, "tcp": 0}
        self.lost_to: list[Address] = []
        """Where datagrams were sent although nobody is there."""
        self._flows = 0

    # -- for tests -----------------------------------------------------------------------------------------------

    def path(self, sender: Place, listener: Place) -> Path:
        return self.paths.setdefault((sender, listener), Path())

    def stream_ends(self, node: str, peer: str, adapter: str = "") -> list[End]:
        """The open ends of streams that `node` has to `peer`."""
        return [
            end
            for end in self.streams.values()
            if end.open
            and end.place[0] == node
            and end.other.place[0] == peer
            and adapter in ("", end.place[1])
        ]

    def capture(self) -> list[tuple[Place, Place, bytes]]:
        """From now on every datagram that is sent, with its sender and its listener."""
        self.captured = []
        return self.captured

    def inject(self, listener: Place, source: Address, packet: bytes) -> None:
        """A datagram from any address one likes, as an attacker sends it."""
        flow = self._heard_from(listener, source)
        self.host.give(listener[0], Arrived(flow, [memoryview(packet)], self.host.now))

    # -- effects -------------------------------------------------------------------------------------------------

    def effect(self, node: str, effect: Any) -> None:
        if isinstance(effect, Transmit):
            if effect.flow in self.streams:
                self._send_stream(self.streams[effect.flow], effect.packets)
            elif effect.flow in self.remotes:
                self._send_datagrams(effect)
        elif isinstance(effect, OpenFlow):
            self._open(node, effect)
        elif isinstance(effect, CloseFlow):
            self._close(node, effect)

    def _open(self, node: str, request: OpenFlow) -> None:
        place, remote = (node, request.adapter), (request.host, request.port)
        if request.transport == "udp":
            flow = self.datagram_flows.get((place, remote)) or self._new_datagram_flow(
                place, remote
            )
            self.host.give(
                node,
                FlowOpened(flow, request.adapter, "udp", *remote, inbound=False, unit=request.unit),
            )
            return
        target = self.adapters.get(remote)
        failed = OpenFailed(request.adapter, "tcp", *remote, request.unit, "nobody listens")
        if target is None:
            self._later(MILLISECOND, lambda: self.host.give(node, failed))
        elif self.path(place, target).cut_tcp or self.path(target, place).cut_tcp:
            self._later(CONNECT_NS, lambda: self.host.give(node, failed))
        else:
            delay = self.path(place, target).delay_ns + self.path(target, place).delay_ns
            self._later(delay, lambda: self._connected(place, target, request))

    def _connected(self, place: Place, target: Place, request: OpenFlow) -> None:
        if self.addresses.get(place) is None or self.addresses.get(target) is None:
            return
        near = End(place, self._next_flow(), self.path(place, target))
        far = End(target, self._next_flow(), self.path(target, place))
        near.other, far.other = far, near
        self.streams[near.flow], self.streams[far.flow] = near, far
        host, port = self.addresses[place][0], 30_000 + near.flow
        self.host.give(
            target[0],
            FlowOpened(
                far.flow, target[1], "tcp", host, port, True, "", self.identities.get(place[0])
            ),
        )
        self.host.give(
            place[0],
            FlowOpened(
                near.flow,
                place[1],
                "tcp",
                request.host,
                request.port,
                False,
                request.unit,
                self.identities.get(target[0]),
            ),
        )

    def _close(self, node: str, effect: CloseFlow) -> None:
        end = self.streams.get(effect.flow)
        if end is not None:
            if end.open:
                end.open = False
                self.host.give(node, FlowClosed(effect.flow, effect.reason))
                self._pump(end)
        elif effect.flow in self.remotes:
            del self.datagram_flows[self.remotes.pop(effect.flow)]
            self.host.give(node, FlowClosed(effect.flow, effect.reason))

    def vanish(self, node: str, silent: bool) -> None:
        """The process is gone; `silent`: the machine too, so nobody is told."""
        for end in list(self.streams.values()):
            if end.place[0] == node:
                end.open = False
                end.queue.clear()
                end.stalled = silent
                self._pump(end)
        for key, flow in list(self.datagram_flows.items()):
            if key[0][0] == node:
                del self.datagram_flows[key], self.remotes[flow]
        for place in [p for p in self.addresses if p[0] == node]:
            del self.adapters[self.addresses.pop(place)]

    # -- datagrams -----------------------------------------------------------------------------------------------

    def _send_datagrams(self, effect: Transmit) -> None:
        place, remote = self.remotes[effect.flow]
        target = self.adapters.get(remote)
        for packet in effect.packets:
            self.sent["udp"] += 1
            if target is None:
                self.lost_to.append(remote)
                continue
            if self.captured is not None:
                self.captured.append((place, target, packet))
            path, host = self.path(place, target), self.host
            if len(packet) + IP_UDP > self.mtu:
                continue  # the kernel refuses it: it must not be fragmented
            if path.blocks_datagram(packet) or host.chance(path.loss):
                continue
            for _ in range(1 + host.chance(path.duplicate)):
                arriving = (
                    _flip(packet, host.spread(8 * len(packet)))
                    if host.chance(path.corrupt)
                    else packet
                )
                delay = path.delay_ns + (host.spread(path.jitter_ns) if path.jitter_ns else 0)
                self._later(delay, lambda p=arriving, t=target: self._datagram(t, place, p))  # type: ignore[misc]

    def _datagram(self, target: Place, source: Place, packet: bytes) -> None:
        if target in self.addresses and source in self.addresses:
            flow = self._heard_from(target, self.addresses[source])
            self.host.give(target[0], Arrived(flow, [memoryview(packet)], self.host.now))

    def _heard_from(self, place: Place, remote: Address) -> FlowId:
        flow = self.datagram_flows.get((place, remote))
        if flow is None:
            flow = self._new_datagram_flow(place, remote)
            self.host.give(place[0], FlowOpened(flow, place[1], "udp", *remote, inbound=True))
        return flow

    def _new_datagram_flow(self, place: Place, remote: Address) -> FlowId:
        flow = self.datagram_flows[(place, remote)] = self._next_flow()
        self.remotes[flow] = (place, remote)
        return flow

    # -- streams -------------------------------------------------------------------------------------------------

    def _send_stream(self, end: End, packets: list[bytes]) -> None:
        if not end.open:
            return
        self.sent["tcp"] += len(packets)
        assert max(map(len, packets)) <= PACKET_MAX, "the peer would close this stream"
        end.queue.extend(map(bytes, packets))
        end.queued += sum(map(len, packets))
        if end.queued > FULL_BYTES and not end.full:
            end.full = True
            self.host.give(end.place[0], Credit(end.flow, False))
        self._pump(end)

    def _pump(self, end: End) -> None:
        if end.busy or end.finished:
            return
        path, host = end.path, self.host
        batch: list[bytes] = []
        size, room = 0, path.rate // 100 if path.rate else 1 << 40
        while end.queue and size < room:
            if end.stalled or path.blocks_stream(len(end.queue[0])):
                break
            packet = end.queue.popleft()
            size += len(packet)
            if path.damage:
                path.damage -= 1
                if self.identities:
                    self._break(end)
                    return
                packet = _flip(packet, 8 * len(packet) - 1)
            batch.append(packet)
        took = size * SECOND // path.rate if path.rate else 0
        if batch:
            when = max(end.last_ns, host.now + path.delay_ns + took)
            end.last_ns = when
            host.at(when, lambda: self._deliver(end, batch, size))
        if end.queue:
            end.busy = True
            self._later(took or POLL_NS, lambda: self._pump_again(end))
        elif not end.open and not end.stalled and not path.cut_tcp:
            end.finished = True
            host.at(max(end.last_ns, host.now + path.delay_ns), lambda: self._finish(end))
        elif not end.open:
            end.busy = True
            self._later(POLL_NS, lambda: self._pump_again(end))

    def _break(self, end: End) -> None:
        """Inside TLS a damaged record ends the connection, on both sides."""
        for side in (end, end.other):
            if side.open:
                side.open, side.finished = False, True
                self.streams.pop(side.flow, None)
                self.host.give(side.place[0], FlowClosed(side.flow, "bad record"))

    def _pump_again(self, end: End) -> None:
        end.busy = False
        self._pump(end)

    def _deliver(self, end: End, batch: list[bytes], size: int) -> None:
        end.queued -= size
        other = end.other
        if other.open:
            self.host.give(
                other.place[0], Arrived(other.flow, [memoryview(p) for p in batch], self.host.now)
            )
        if end.full and end.open and end.queued < FULL_BYTES // 4:
            end.full = False
            self.host.give(end.place[0], Credit(end.flow, True))

    def _finish(self, end: End) -> None:
        """The other side learns that this one has closed."""
        other = end.other
        if other.open:
            other.open = False
            self.host.give(other.place[0], FlowClosed(other.flow, "closed by the peer"))
        other.finished = True
        self.streams.pop(end.flow, None)
        self.streams.pop(other.flow, None)

    # -- small things --------------------------------------------------------------------------------------------

    def _later(self, delay: Nanos, call: Callable[[], None]) -> None:
        self.host.at(self.host.now + delay, call)

    def _next_flow(self) -> FlowId:
        self._flows += 1
        return FlowId(self._flows)


def _flip(packet: bytes, bit: int) -> bytes:
    damaged = bytearray(packet)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)
