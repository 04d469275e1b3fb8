"""What leaves a link: channels, datagrams and acknowledgements, each on the flow that suits it now.

A channel stays on its flow until the flow is lost, health says that it got worse, or acknowledgements stop coming
while the peer is heard elsewhere. Then it moves, and what was not acknowledged is sent again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from holdfast.links.channel import ChannelOut
from holdfast.links.cipher import Cipher
from holdfast.links.config import LinkTiming
from holdfast.links.flow import STREAM_PACKET_MAX, FlowState
from holdfast.links.ports import PORT_MIN, PortRoom, SendRaw, Transmit
from holdfast.machine import Outbox
from holdfast.types import DATA, NEVER, FlowId, Nanos, NodeId
from holdfast.wire.blocks import pack_block
from holdfast.wire.codec import Part, RoomyPart, encode, part_size, probe_part
from holdfast.wire.frames import ChunkAck, Probe, RawBatch
from holdfast.wire.packet import AnyPacket

TURN_BYTES: Final = 1 << 20
"""What one turn gives to the flow of a channel at most."""
DATAGRAMS_MAX: Final = 1 << 20
"""Datagrams that wait for a flow to take more, in bytes; beyond that new ones are dropped and counted."""
FRAMES_MAX: Final = 1000
"""Frames in one packet."""
_EMPTY: Final = memoryview(b"")

_ACK: Final = 40
_RANGE: Final = 19
"""The largest that an acknowledgement without ranges, and one range, can be."""

Moved = Callable[[Nanos, ChannelOut, FlowState, FlowState | None, Outbox], None]


class Outlet:
    """The sending side of a link."""

    def __init__(
        self,
        peer: NodeId,
        flows: dict[FlowId, FlowState],
        cipher: Cipher,
        timing: LinkTiming,
        moved: Moved,
    ) -> None:
        self.channels: dict[int, ChannelOut] = {}
        self.datagrams_dropped = 0
        self.deadline: Nanos = NEVER
        self._peer = peer
        self._flows = flows
        self._cipher = cipher
        self._timing = timing
        self._moved = moved
        self._datagrams: dict[int, list[bytes]] = {}
        self._datagram_bytes = 0

    def clear(self) -> int:
        """Forget everything: the session ended. How many bytes were not acknowledged."""
        unsent = sum(c.waiting_bytes + c.unacked for c in self.channels.values())
        self.channels.clear()
        self._datagrams.clear()
        self._datagram_bytes = 0
        self.deadline = NEVER
        return unsent

    def _wake_at(self, deadline: Nanos) -> None:
        if deadline < self.deadline:
            self.deadline = deadline

    # -- what comes from above -----------------------------------------------------------------------------------

    def channel(self, number: int) -> ChannelOut:
        found = self.channels.get(number)
        if found is None:
            found = self.channels[number] = ChannelOut(number)
        return found

    def datagram(self, cls: int, part: bytes) -> None:
        if len(part) > STREAM_PACKET_MAX or self._datagram_bytes + len(part) > DATAGRAMS_MAX:
            self.datagrams_dropped += 1
            return
        self._datagrams.setdefault(cls, []).append(part)
        self._datagram_bytes += len(part)

    def raw(self, item: SendRaw, now: Nanos) -> None:
        """Pack an application's datagrams into as few packets as their sizes allow."""
        flow = self._datagram_flow(now)
        if flow is None:
            self.datagrams_dropped += len(item.messages)
            return
        room_max = flow.body_max - 24
        batch: list[bytes] = []
        room = room_max
        for message in item.messages:
            room -= 4 + len(message)
            if room < 0 and batch:
                self.datagram(DATA, encode(RawBatch(item.port, memoryview(pack_block(batch)))))
                batch = []
                room = room_max - 4 - len(message)
            batch.append(message)
        if batch:
            self.datagram(DATA, encode(RawBatch(item.port, memoryview(pack_block(batch)))))

    # -- which flow ----------------------------------------------------------------------------------------------

    def best(self, now: Nanos) -> FlowState | None:
        """The flow that suits a channel best now."""
        best: FlowState | None = None
        best_cost: tuple[int, int, int] | None = None
        for flow in self._flows.values():
            if not (flow.ready and flow.carries) or flow.closing or not self._cipher.usable(flow):
                continue
            cost = flow.cost(now)
            if best_cost is None or cost < best_cost:
                best, best_cost = flow, cost
        return best

    def _datagram_flow(self, now: Nanos) -> FlowState | None:
        """Datagrams prefer a datagram flow: a lost one must not hold up those behind it."""
        best: FlowState | None = None
        for flow in self._flows.values():
            if flow.stream or not (flow.ready and flow.carries and flow.alive) or flow.closing:
                continue
            better = best is None or (flow.use, flow.rank) < (best.use, best.rank)
            if better and self._cipher.usable(flow):
                best = flow
        return best or self.best(now)

    def _flow_of(self, channel: ChannelOut) -> FlowState | None:
        return self._flows.get(channel.flow) if channel.flow is not None else None

    # -- moving --------------------------------------------------------------------------------------------------

    def lost(self, flow: FlowState) -> None:
        """The flow is gone: what was on its way there must go again."""
        for channel in self.channels.values():
            channel.abandon(flow.flow)

    def judged(self, now: Nanos, flow: FlowState, worse: bool, out: Outbox) -> None:
        """Health has changed its mind about a flow: leave it, or come back to it."""
        for channel in self.channels.values():
            if worse and channel.flow == flow.flow:
                self._move(now, channel, out)
            elif not worse and channel.flow is not None and channel.flow != flow.flow:
                self._move_back(now, channel, out)

    def _move(self, now: Nanos, channel: ChannelOut, out: Outbox) -> None:
        """Take a channel off its flow if there is a better one; what was not acknowledged is sent again."""
        old, flow = self._flow_of(channel), self.best(now)
        if flow is None or flow is old:
            return
        if old is not None:
            channel.abandon(old.flow)
            channel.flow = old.flow
        self._assign(now, channel, flow, out)

    def _move_back(self, now: Nanos, channel: ChannelOut, out: Outbox) -> None:
        """A better flow exists again. New bytes go there; what is on its way is left to arrive."""
        flow, best = self._flow_of(channel), self.best(now)
        if flow is None or best is None or best.cost(now)[:2] >= flow.cost(now)[:2]:
            return
        self._assign(now, channel, best, out)

    def _assign(self, now: Nanos, channel: ChannelOut, flow: FlowState, out: Outbox) -> None:
        before = self._flow_of(channel)
        channel.flow = flow.flow
        if channel.acked or channel.unacked:
            channel.moves += 1
            self._moved(now, channel, flow, before, out)

    def check(self, now: Nanos, out: Outbox) -> None:
        """Channels whose acknowledgements do not come: send again, or move to another flow."""
        self.deadline = NEVER
        stall_ns = self._timing.stall_ns
        for channel in self.channels.values():
            flow = self._flow_of(channel)
            if flow is None:
                continue
            channel.give_up_strays(now, stall_ns)
            since = channel.stalled_since()
            if since is None:
                continue
            if not flow.stream and channel.expire(now, flow.flow) and channel.backoff < 4:
                continue
            if now < since + stall_ns:
                self._wake_at(since + stall_ns)
                continue
            self._wake_at(now + stall_ns)
            # The peer is alive if it was heard lately on another flow; if it is silent everywhere, wait.
            others = [
                f.heard_at for f in self._flows.values() if f.ready and f.carries and f is not flow
            ]
            if others and max(others) >= since + stall_ns // 2:
                flow.shunned_until = now + self._timing.shun_ns
                self._move(now, channel, out)

    # -- out they go ---------------------------------------------------------------------------------------------

    def flush(self, now: Nanos, acks: list[ChunkAck], shout: bool, out: Outbox) -> None:
        """Give everything that can go to its flow: acknowledgements, datagrams, then channels by class."""
        if acks:
            self._flush_acks(now, acks, shout)
        if self._datagrams:
            self._flush_datagrams(now)
        for number in sorted(self.channels):
            self._pump(now, self.channels[number], out)

    def _flush_acks(self, now: Nanos, acks: list[ChunkAck], shout: bool) -> None:
        best = self.best(now)
        parts = [encode(ack) for ack in acks]
        largest = max(map(len, parts))
        for flow in self._flows.values():
            # A duplicate means that our acknowledgement was not heard: say it on every flow.
            if flow is best or (shout and flow.ready and flow.carries and not flow.closing):
                room = flow.body_max
                fitting = parts if largest <= room else [_shortened(ack, room) for ack in acks]
                flow.parts.extend(fitting)

    def _flush_datagrams(self, now: Nanos) -> None:
        flow = self._datagram_flow(now)
        if flow is None or not flow.credit:
            return
        for cls in sorted(self._datagrams):
            parts = self._datagrams[cls]
            if not flow.stream and max(map(len, parts)) > flow.body_max:
                parts = self._send_large(now, parts, flow.body_max)
            flow.parts.extend(parts)
        self._datagrams.clear()
        self._datagram_bytes = 0

    def _send_large(self, now: Nanos, parts: list[bytes], room: int) -> list[bytes]:
        """What no datagram can hold goes by stream, or would be lost for certain; the others are given back."""
        streams = [
            f
            for f in self._flows.values()
            if f.stream and f.ready and f.carries and not f.closing and f.credit
        ]
        large = [part for part in parts if len(part) > room]
        if streams:
            min(streams, key=lambda flow: flow.cost(now)).parts.extend(large)
        else:
            self.datagrams_dropped += len(large)
        return [part for part in parts if len(part) <= room]

    def _pump(self, now: Nanos, channel: ChannelOut, out: Outbox) -> None:
        flow: FlowState | None = self._flow_of(channel)
        if channel.wants():
            if flow is None or not flow.ready or flow.closing:
                flow = self.best(now)
                if flow is None:
                    return
                self._assign(now, channel, flow, out)
            if flow.credit:
                frames = channel.pump(now, flow.flow, TURN_BYTES, flow.piece_max, not flow.stream)
                flow.parts.extend(frames)
                if channel.wants() and frames and flow.stream:
                    self._wake_at(now + 1)
        if channel.unacked:
            stream = flow is None or flow.stream
            self._wake_at(now + (self._timing.stall_ns if stream else channel.rto()))
        if channel.channel >= PORT_MIN:
            out.effect(PortRoom(self._peer, channel.channel, channel.waiting_bytes))

    def transmit(self, flow: FlowState, out: Outbox) -> None:
        """Pack what waits for a flow into packets of the size that it carries."""
        parts, flow.parts = flow.parts, []
        if not self._cipher.usable(flow):
            return  # nothing leaves unsealed; a Hello is repeated when the key has come
        if len(parts) == 1:
            out.effect(Transmit(flow.flow, [self._cipher.write(flow, parts)]))
            return
        room_max = flow.body_max
        packets: list[AnyPacket] = []
        batch: list[Part] = []
        room = room_max
        for part in parts:
            if type(part) is bytes:
                size = len(part)
            else:  # what can go without a copy goes alone
                size = room_max if type(part) is RoomyPart else part_size(part)
            room -= size
            if (room < 0 or len(batch) == FRAMES_MAX) and batch:
                packets.append(self._cipher.write(flow, batch))
                batch = []
                room = room_max - size
            batch.append(part)
        packets.append(self._cipher.write(flow, batch))
        out.effect(Transmit(flow.flow, packets))

    def probe(self, flow: FlowState, probe: Probe, wire_size: int, out: Outbox) -> None:
        """A probe, alone in a packet that is filled up to just `wire_size` bytes on the wire."""
        empty = self._cipher.overhead(flow) + 1 + part_size(probe_part(probe, _EMPTY))
        room = max(0, wire_size - empty - flow.overhead)
        pattern = bytes(probe.fill) or b"\0"
        fill = (pattern * (room // len(pattern) + 1))[:room]
        packet = self._cipher.write(flow, [probe_part(probe, memoryview(fill))], clear=True)
        out.effect(Transmit(flow.flow, [packet]), immediate=True)

    def status(self, received: dict[int, int]) -> list[dict[str, Any]]:
        return [
            {
                "channel": c.channel,
                "path": flow.path if (flow := self._flow_of(c)) else "",
                "queued": c.waiting_bytes,
                "unacked": c.unacked,
                "sent": c.messages,
                "received": received.get(c.channel, 0),
                "moves": c.moves,
            }
            for c in self.channels.values()
        ]


def _shortened(ack: ChunkAck, room: int) -> bytes:
    """An acknowledgement with as many of its ranges as fit."""
    count = max(0, (room - _ACK) // _RANGE)
    return encode(ChunkAck(ack.channel, ack.upto, ack.limit, ack.ranges[:count]))
