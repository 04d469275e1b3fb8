"""The multicast group of an adapter: measures whether a packet that is sent once reaches every node of the group.

A packet to the group begins with the id of its sender, because there is no session between all of them:

    16 bytes node id | a packet as in `wire.packet`, with the sender's incarnation in place of the session

In a sealed domain, each node seals its multicast packets with its own key, which every peer receives over TLS. To
health, each peer in the group is a flow of transport `multicast`. It is used for measuring only: nothing but heartbeats
and probes is accepted from a group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from holdfast.links.flow import IP_UDP
from holdfast.links.ports import (
    Arrived,
    FlowClosed,
    FlowLost,
    FlowOpened,
    FlowReady,
    MulticastKey,
    OpenFailed,
    OpenFlow,
    PeerDown,
    PeerUp,
    Reannounce,
    Received,
    SendFrame,
    Transmit,
    multicast_unit,
)
from holdfast.machine import Machine, Outbox, ReplayWindow
from holdfast.subsystem import LocalNode, Route, Subscribers
from holdfast.telemetry.facts import NodeFact
from holdfast.types import MICROSECOND, NEVER, FlowId, Nanos, NodeId
from holdfast.wire.codec import Part, Rejected, encode, fill_of, filled_part, part_size
from holdfast.wire.frames import AdapterInfo, FilledFrame, Frame, MemberInfo
from holdfast.wire.packet import (
    HEAD,
    SEALED,
    read_head,
    read_plain,
    read_sealed,
    write_plain,
    write_sealed,
)
from holdfast.wire.seal import TAG, Seal

NODE_ID: Final = 16
ADAPTER_SHIFT: Final = 48
"""All groups of a node share its key, so the upper bits of a packet number distinguish them."""
PEER_SHIFT: Final = 32
_SESSION: Final = 0xFFFFFFFF
_EMPTY: Final = memoryview(b"")


class _Peer:
    """A node in the same multicast group."""

    __slots__ = ("adapter", "flow", "session", "window")

    def __init__(self, member: MemberInfo, adapter: str, before: _Peer | None) -> None:
        self.adapter = adapter
        self.session = member.incarnation & _SESSION
        self.flow: FlowId | None = None
        """Its number as known to health, once it can be heard."""
        # Its packet numbers continue across sessions, and so does the replay window.
        known = before is not None and before.session == self.session
        self.window: ReplayWindow = before.window if before and known else ReplayWindow()


class MulticastMachine(Machine):
    """Unit `multicast/<adapter>`."""

    layer: ClassVar[str] = "links"
    hears: ClassVar[tuple[type, ...]] = (PeerUp, PeerDown, MulticastKey)

    def __init__(
        self,
        me: LocalNode,
        adapter: AdapterInfo,
        key: bytes,
        routes: Mapping[type, Route],
        subscribers: Subscribers,
        now: Nanos,
    ) -> None:
        self.me = me
        self.adapter = adapter
        self.unit = multicast_unit(adapter.name)
        self.rejected: dict[str, int] = {}
        self._routes = routes
        self._subscribers = subscribers
        self._seal = Seal(key) if me.sealed else None
        self._keys: dict[NodeId, Seal] = {}
        """Keys of peers, including those without a session yet."""
        self._peers: dict[NodeId, _Peer] = {}
        self._former: dict[NodeId, _Peer] = {}
        """Peers whose session has ended; at most as many as there are links."""
        self._flow: FlowId | None = None
        self._overhead = IP_UDP
        self._index = [a.name for a in me.adapters].index(adapter.name)
        self._number = 0
        self._count = 0
        self._tries = 0
        self.deadline = now + 1

    # -- inputs --------------------------------------------------------------------------------------------------

    def up(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        for item in inputs:
            kind = type(item)
            if kind is Arrived:
                self._arrived(now, item, out)
            elif kind is PeerUp:
                self._peer_up(item, out)
            elif kind is PeerDown:
                self._forget(item.peer, item.reason, item.left, out)
                self._keys.pop(item.peer, None)
            elif kind is MulticastKey:
                self._keys[item.peer] = Seal(item.key)
                self._introduce(item.peer, out)
            elif kind is FlowOpened:
                self._opened(item, out)
            elif kind is FlowClosed:
                self._closed(now, item.flow, item.reason, out)
            elif kind is OpenFailed:
                self._retry(now)
                self._count_rejected(now, "join", item.reason, out)
            elif kind is Reannounce and self._subscribers.hears(item.unit, FlowReady):
                for peer in self._peers:
                    self._announce_to((item.unit,), peer, out)

    def down(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        sent: list[tuple[Frame, int]] = []
        for item in inputs:
            # What is passed for several peers is sent once: all of them receive it.
            if type(item) is SendFrame and (item.frame, item.wire_size) not in sent:
                sent.append((item.frame, item.wire_size))
                self._send(now, item, out)

    def wake(self, now: Nanos, out: Outbox) -> None:
        self.deadline = NEVER
        if self._flow is None:
            host, _, port = self.adapter.multicast.rpartition(":")
            out.effect(OpenFlow(self.adapter.name, "multicast", host, int(port), self.unit))

    # -- the group -----------------------------------------------------------------------------------------------

    def _opened(self, info: FlowOpened, out: Outbox) -> None:
        self._flow = info.flow
        self._overhead = info.overhead or IP_UDP
        self._tries = 0
        for peer in self._peers:
            self._introduce(peer, out)

    def _closed(self, now: Nanos, flow: FlowId, reason: str, out: Outbox) -> None:
        if flow != self._flow:
            return
        self._flow = None
        for node, peer in self._peers.items():
            self._lost(node, peer, reason, False, out)
        self._retry(now)

    def _retry(self, now: Nanos) -> None:
        timing = self.me.timing
        self.deadline = now + min(
            timing.reconnect_ns << min(self._tries, 10), timing.reconnect_ns_max
        )
        self._tries += 1

    # -- peers ---------------------------------------------------------------------------------------------------

    def _peer_up(self, item: PeerUp, out: Outbox) -> None:
        self._forget(item.peer, "a new session", False, out)
        for theirs in item.member.adapters:
            if (theirs.subnet, theirs.multicast) == (self.adapter.subnet, self.adapter.multicast):
                before = self._former.pop(item.peer, None)
                self._peers[item.peer] = _Peer(item.member, theirs.name, before)
                self._introduce(item.peer, out)
                return

    def _introduce(self, node: NodeId, out: Outbox) -> None:
        """Report a peer to health, as soon as everything needed to hear it is known."""
        peer = self._peers.get(node)
        if peer is None or peer.flow is not None or self._flow is None:
            return
        if self.me.sealed and node not in self._keys:
            return
        # The driver numbers flows from 1 upwards; the group is one of them, and its members have negative numbers.
        self._count += 1
        peer.flow = FlowId(-(self._flow << PEER_SHIFT | self._count))
        self._announce_to(self._subscribers.of(FlowReady), node, out)

    def _announce_to(self, units: Sequence[str], node: NodeId, out: Outbox) -> None:
        peer = self._peers[node]
        if peer.flow is None:
            return
        mine = self.adapter
        ready = FlowReady(node, peer.flow, mine.name, peer.adapter, mine.subnet, "multicast")
        for unit in units:
            out.up(unit, ready)

    def _forget(self, node: NodeId, reason: str, left: bool, out: Outbox) -> None:
        peer = self._peers.pop(node, None)
        if peer is not None:
            self._lost(node, peer, reason, left, out)
            self._former[node] = peer

    def _lost(self, node: NodeId, peer: _Peer, reason: str, left: bool, out: Outbox) -> None:
        if peer.flow is None:
            return
        for unit in self._subscribers.of(FlowLost):
            out.up(unit, FlowLost(node, peer.flow, reason, left))
        peer.flow = None

    # -- packets -------------------------------------------------------------------------------------------------

    def _send(self, now: Nanos, item: SendFrame, out: Outbox) -> None:
        if self._flow is None:
            return
        frame, clear = item.frame, False
        if item.wire_size and isinstance(frame, FilledFrame):
            clear = True
            empty = NODE_ID + HEAD + (TAG if self.me.sealed else 0) + 1
            room = item.wire_size - self._overhead - empty - part_size(filled_part(frame, _EMPTY))
            pattern = fill_of(frame)
            fill = (pattern * (max(0, room) // len(pattern) + 1))[: max(0, room)]
            part: Part = filled_part(frame, memoryview(fill))
        else:
            part = encode(frame)
        packet = self.me.node + self._write(now, part, clear)
        out.effect(Transmit(self._flow, [packet]), immediate=True)

    def _write(self, now: Nanos, part: Part, clear: bool) -> bytes:
        # It starts at the clock value, so that a rebuilt unit does not reuse a number.
        self._number = self._number + 1 if self._number else max(1, now // MICROSECOND)
        number = self._index << ADAPTER_SHIFT | self._number
        session = self.me.incarnation & _SESSION
        if self._seal is None:
            return write_plain(session, number, [part])
        return write_sealed(session, number, [part], self._seal, clear)

    def _arrived(self, now: Nanos, item: Arrived, out: Outbox) -> None:
        if item.flow != self._flow:
            return  # from before this unit was rebuilt, or before it left the group
        by_unit: dict[tuple[NodeId, str], list[Frame]] = {}
        for data in item.packets:
            node = NodeId(bytes(data[:NODE_ID]))
            if node == self.me.node:
                continue  # we receive what we sent as well
            frames = self._read(node, data)
            if isinstance(frames, Rejected):
                self._count_rejected(now, frames.reason, frames.detail, out)
                continue
            for frame in frames:
                if frame.by_multicast and type(frame) in self._routes:
                    for unit in self._routes[type(frame)](frame):
                        by_unit.setdefault((node, unit), []).append(frame)
        for (node, unit), group in by_unit.items():
            out.up(unit, Received(node, group, item.at, self._peers[node].flow))

    def _read(self, node: NodeId, data: memoryview) -> list[Frame] | Rejected:
        """The frames of a packet, if it is new and comes from a known peer."""
        peer = self._peers.get(node)
        if peer is None or peer.flow is None:
            return Rejected("stranger", "not a peer that shares this group")
        packet = read_head(data[NODE_ID:])
        if isinstance(packet, Rejected):
            return packet
        if packet.session != peer.session:
            return Rejected("session", "of another incarnation")
        if not peer.window.fresh(packet.number):
            return Rejected("replay")
        if not self.me.sealed:
            frames = read_plain(packet)
        elif not packet.flags & SEALED:
            return Rejected("seal", "a plain packet in a sealed domain")
        else:
            frames = read_sealed(packet, self._keys[node])
        # After the seal or the checksum: a forged or damaged number must not move the window.
        if not isinstance(frames, Rejected):
            peer.window.accept(packet.number)
        return frames

    def _count_rejected(self, now: Nanos, reason: str, detail: str, out: Outbox) -> None:
        count = self.rejected.get(reason, 0) + 1
        self.rejected[reason] = count
        if count & (count - 1) == 0:
            text = f"multicast {self.adapter.multicast}: {reason} {detail}"
            out.fact(NodeFact(now, "rejected", text, count))
