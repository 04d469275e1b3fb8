"""What leaves a link: channels, datagrams and acknowledgements, each on the flow that suits it now.

A channel stays on its flow until the flow is lost, health says that it does not suit it any more, or acknowledgements
stop coming while the peer is heard elsewhere. Then it moves (`lanes` says where to), and what was not acknowledged is
sent again, in pieces that the new flow carries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from holdfast.links.channel_out import ChannelOut
from holdfast.links.cipher import Cipher
from holdfast.links.config import LinkTiming
from holdfast.links.datagrams import DatagramsOut
from holdfast.links.flow import FlowState
from holdfast.links.lanes import Lanes, Placed, by_class
from holdfast.links.ports import (
    DATAGRAMS,
    PORT_MIN,
    FlowVerdict,
    PortRoom,
    SendRaw,
    Transmit,
    class_of,
)
from holdfast.machine import Outbox
from holdfast.types import MILLISECOND, NEVER, SYNC, FlowId, Nanos, NodeId
from holdfast.wire.codec import Part, RoomyPart, encode, part_size, probe_part
from holdfast.wire.frames import ChunkAck, Hurry, Probe
from holdfast.wire.packet import AnyPacket

DEEP_STEP: Final = 1 << 20
TURN_BYTES: Final = 1 << 20
"""What one turn gives to the flow of a channel at most."""
FRAMES_MAX: Final = 1000
"""Frames in one packet."""
WAITS: Final = "waits: "
_EMPTY: Final = memoryview(b"")
_HURRY: Final = encode(Hurry())

_ACK: Final = 40
_RANGE: Final = 19
"""The largest that an acknowledgement without ranges, and one range, can be."""

Moved = Callable[[Nanos, Placed, FlowState, FlowState | None, Outbox], None]


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
        self.deadline: Nanos = NEVER
        self.lanes = Lanes(flows, cipher)
        self.datagrams = DatagramsOut(peer, flows, self.lanes)
        self._order: list[ChannelOut] = []
        """The channels in the order in which they are served."""
        self._peer = peer
        self._flows = flows
        self._cipher = cipher
        self._timing = timing
        self._moved = moved

    @property
    def unacked(self) -> int:
        """Bytes of all channels that may not have arrived."""
        return sum(c.waiting_bytes + c.unacked for c in self.channels.values())

    def clear(self, out: Outbox) -> int:
        """Forget everything: the session ended. How many bytes were not acknowledged."""
        unsent = self.unacked
        self.channels.clear()
        self._order.clear()
        self.datagrams.clear(out)
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
            self._order = sorted(
                self.channels.values(), key=lambda c: (class_of(c.channel), c.channel)
            )
        return found

    def raw(self, item: SendRaw, out: Outbox) -> None:
        """Datagrams of an application."""
        self.datagrams.raw(item, out)

    # -- moving --------------------------------------------------------------------------------------------------

    def lost(self, flow: FlowState) -> None:
        """The flow is gone: what was on its way there must go again."""
        for channel in self._order:
            self._lost(channel, flow)
            channel.abandon(flow.flow)
        for lane in self.datagrams.placed():
            self._lost(lane, flow)

    @staticmethod
    def _lost(lane: Placed, flow: FlowState) -> None:
        if lane.flow == flow.flow:
            lane.flow = None
            lane.reason = f"{flow.path} was lost"
            lane.home = lane.home or flow.path

    def judge(self, now: Nanos, verdicts: list[tuple[FlowState, FlowVerdict]], out: Outbox) -> None:
        """Health has changed its mind about flows: whom one does not suit any more leaves it, synchronisation first,
        and whom one suits again may come back. All of them are believed before anybody moves: what is wrong with a path
        is wrong with all its flows, and to go from one to the other helps nobody."""
        placed: list[Placed] = [*self._order, *self.datagrams.placed()]
        better: list[tuple[FlowState, dict[int, bool]]] = []
        for flow, verdict in verdicts:
            # One that was good, but had an error that does not matter to this traffic, may be the better one again.
            mended = flow.degraded and not verdict.degraded
            may_return = {
                lane.traffic: mended or not (flow.judged and flow.good_for(lane.traffic))
                for lane in placed
            }
            piece_max = flow.piece_max
            flow.take(verdict)
            if flow.piece_max < piece_max:
                for channel in self._order:
                    channel.give_up_larger(flow.flow, flow.piece_max)
            better.append((flow, may_return))
        for lane in by_class(placed):
            here = self.lanes.flow_of(lane)
            if here is not None and not here.suits(lane.traffic, now):
                self._leave(now, lane, here.why_not(lane.traffic, now), out)
            for flow, may_return in better:
                if may_return[lane.traffic] and self.lanes.given_back(now, lane, flow):
                    self._assign(now, lane, flow, f"{flow.path} is given back to it", out)

    def _leave(self, now: Nanos, lane: Placed, why: str, out: Outbox) -> None:
        """Take traffic off its flow if there is a better one; what was not acknowledged is sent again."""
        old, flow = self.lanes.flow_of(lane), self.lanes.better(now, lane)
        barred = old is not None and not self.lanes.may_use(old, lane)
        if flow is None and not barred:
            lane.reason = f"{why}; there is nothing better"
            return
        if old is not None and isinstance(lane, ChannelOut):
            lane.abandon(old.flow)
            lane.flow = old.flow
        if flow is None:
            lane.flow = None
            lane.reason = WAITS + why
            return
        self._assign(now, lane, flow, why, out)

    def _assign(self, now: Nanos, lane: Placed, flow: FlowState, why: str, out: Outbox) -> None:
        before = self.lanes.flow_of(lane)
        self.lanes.assign(now, lane, flow, why)
        used = lane.acked or lane.unacked if isinstance(lane, ChannelOut) else before is not None
        if used:
            lane.moves += 1
            self._moved(now, lane, flow, before, out)

    def check(self, now: Nanos, out: Outbox) -> None:
        """Channels whose acknowledgements do not come: send again, or move to another flow."""
        self.deadline = NEVER
        stall_ns = self._timing.stall_ns
        for channel in self._order:
            flow = self.lanes.flow_of(channel)
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
                why = f"no acknowledgements on {flow.path} for {stall_ns // MILLISECOND} ms"
                self._leave(now, channel, why, out)

    # -- out they go ---------------------------------------------------------------------------------------------

    def flush(self, now: Nanos, out: Outbox) -> None:
        """Give everything that can go to its flow: datagrams, then channels by class."""
        if self.datagrams.lanes:
            self.datagrams.flush(now, out)
        for channel in self._order:
            if channel.is_busy:
                self._pump(now, channel, out)

    def flush_new(self, now: Nanos, out: Outbox) -> None:
        """The same where nothing has happened but that channels were written to."""
        for channel in self._order:
            if channel.waiting:
                self._pump(now, channel, out)

    def acknowledge(self, now: Nanos, acks: list[ChunkAck], shout: bool) -> None:
        """Say what came in. `shout`: the peer did not hear it the first time."""
        # Where they are best off now: a stream, if one is well. They stay nowhere for being there: where they are lost,
        # the peer takes the flow of what they are about for broken.
        best = self.lanes.best(now, SYNC)
        parts = [encode(ack) for ack in acks]
        largest = max(map(len, parts))
        for flow in self._flows.values():
            # A duplicate means that our acknowledgement was not heard: say it on every flow.
            if flow is best or (shout and flow.ready and flow.carries and not flow.closing):
                room = flow.body_max
                fitting = parts if largest <= room else [_shortened(ack, room) for ack in acks]
                flow.parts.extend(fitting)

    def _pump(self, now: Nanos, channel: ChannelOut, out: Outbox) -> None:
        flow = self._flows.get(channel.flow) if channel.flow is not None else None
        if flow is not None and self._send_all(now, channel, flow):
            if channel.channel >= PORT_MIN:
                self._tell_room(channel, out)
            return
        if channel.wants():
            if flow is None or not flow.ready or flow.closing:
                why = f"{flow.path} closes" if flow is not None else channel.reason
                flow = self.lanes.best(now, channel.channel)
                if flow is None:
                    return
                self._assign(now, channel, flow, why.removeprefix(WAITS), out)
            if flow.credit:
                budget = TURN_BYTES if not flow.choked else self._narrow(flow)
                frames = channel.pump(now, flow.flow, budget, flow.piece_max, not flow.stream)
                flow.parts.extend(frames)
                if flow.choked:
                    if frames and flow.stream:
                        flow.parts.append(_HURRY)
                elif frames and flow.stream and channel.wants():
                    self._wake_at(now + 1)
        if channel.unacked:
            stream = flow is None or flow.stream
            self._wake_at(now + (self._timing.stall_ns if stream else channel.rto()))
        if channel.channel >= PORT_MIN:
            self._tell_room(channel, out)

    def _send_all(self, now: Nanos, channel: ChannelOut, flow: FlowState) -> bool:
        """The short way, for a stream that takes whatever comes; False when it has to be the long one."""
        if not flow.stream or not flow.ready or not flow.credit or flow.closing or flow.choked:
            return False
        part = channel.send_all(now, flow.flow, flow.piece_max)
        if part is None:
            return False
        flow.parts.append(part)
        deadline = now + self._timing.stall_ns
        if deadline < self.deadline:
            self.deadline = deadline
        return True

    def _tell_room(self, channel: ChannelOut, out: Outbox) -> None:
        if channel.waiting_bytes != channel.told_waiting:
            channel.told_waiting = channel.waiting_bytes
            out.effect(
                PortRoom(self._peer, channel.channel, channel.waiting_bytes, channel.given_bytes)
            )

    def _narrow(self, flow: FlowState) -> int:
        """What a stream takes whose larger segments do not pass: one small write, then the next when that has
        arrived. More would be joined to larger segments by the kernel, at the latest when it sends again."""
        on_its_way = sum(channel.in_flight(flow.flow) for channel in self._order)
        return 0 if on_its_way else 1

    def transmit(self, flow: FlowState, out: Outbox) -> None:
        """Pack what waits for a flow into packets of the size that it carries."""
        parts, flow.parts = flow.parts, []
        apart, flow.apart = flow.apart, []
        if not self._cipher.usable(flow):
            return  # nothing leaves unsealed; a Hello is repeated when the key has come
        if apart:
            write = self._cipher.write
            out.effect(Transmit(flow.flow, [write(flow, [part]) for part in apart]))
            if not parts:
                return
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

    def placement(self, traffic: int) -> tuple[str, str]:
        """The path that some traffic uses, and why; empty where it has no place yet."""
        lane = self.datagrams.lanes.get(traffic) or self.channels.get(traffic)
        if lane is None:
            return "", ""
        flow = self.lanes.flow_of(lane)
        return flow.path if flow else "", lane.reason

    def deep_queues(self) -> dict[str, int]:
        """What waits by each adapter where much does, in steps, so that it does not change with every turn."""
        deep: dict[str, int] = {}
        for channel in self.channels.values():
            if channel.waiting_bytes >= DEEP_STEP:
                flow = self.lanes.flow_of(channel)
                if flow is not None:
                    deep[flow.adapter] = deep.get(flow.adapter, 0) + channel.waiting_bytes
        return {adapter: waiting - waiting % DEEP_STEP for adapter, waiting in deep.items()}

    def status(self, received: dict[int, int]) -> list[dict[str, Any]]:
        return [
            {
                "channel": c.channel,
                "path": self.placement(c.channel)[0],
                "reason": c.reason,
                "queued": c.waiting_bytes,
                "unacked": c.unacked,
                "sent": c.messages,
                "received": received.get(c.channel, 0),
                "moves": c.moves,
            }
            for c in self.channels.values()
        ]

    def datagram_status(self) -> list[dict[str, Any]]:
        return [
            {
                "port": lane.traffic - DATAGRAMS,
                "path": self.placement(lane.traffic)[0],
                "reason": lane.reason,
                "sent": lane.sent,
                "refused": lane.refused,
                "refusal": lane.refusal,
                "moves": lane.moves,
            }
            for lane in self.datagrams.lanes.values()
            if lane.traffic >= DATAGRAMS
        ]


def _shortened(ack: ChunkAck, room: int) -> bytes:
    """An acknowledgement with as many of its ranges as fit."""
    count = max(0, (room - _ACK) // _RANGE)
    return encode(ChunkAck(ack.channel, ack.upto, ack.limit, ack.ranges[:count]))
