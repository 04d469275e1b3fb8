"""The sending side of a link: channels, datagrams and acknowledgements, each on a suitable flow.

A channel stays on its flow until the flow is lost, health reports that it no longer fits, or the peer reports that
nothing arrives on it (`doubt`). Then it moves (`flow_selection` chooses the new flow), and unacknowledged data is
retransmitted in pieces that fit the new flow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from holdfast.links.channel_out import ChannelOut
from holdfast.links.cipher import Cipher
from holdfast.links.datagrams import DatagramsOut
from holdfast.links.delivery import Delivery
from holdfast.links.doubt import (
    ASK_NS_MIN,
    COPIES_MAX,
    DELIVERED,
    FIRST_COPIES_MAX,
    LATE,
    SMALL_COPIES_MAX,
    SMALL_START,
    STREAM_CONFIRM,
    Doubt,
    answered,
)
from holdfast.links.flow import FlowState
from holdfast.links.flow_selection import FlowChoice, FlowSelection, by_class
from holdfast.links.ports import (
    DATAGRAMS,
    PORT_MIN,
    FlowVerdict,
    PortRoom,
    SendRaw,
    Transmit,
    class_of,
)
from holdfast.links.receiver import ACK_DELAY
from holdfast.machine import Outbox
from holdfast.subsystem import LinkTiming
from holdfast.types import BULK, MILLISECOND, NEVER, SYNC, FlowId, Nanos, NodeId
from holdfast.wire.codec import Part, RoomyPart, encode, fill_of, filled_part, part_size
from holdfast.wire.frames import AckRequest, ChunkAck, DeliveryReport, FilledFrame
from holdfast.wire.packet import AnyPacket

DEEP_STEP: Final = 1 << 20
TURN_BYTES: Final = 1 << 20
"""The maximum that one turn gives to the flow of a channel."""
FRAMES_MAX: Final = 1000
"""Frames per packet."""
WAITS: Final = "waits: "
_EMPTY: Final = memoryview(b"")
_ACK_REQUEST: Final = encode(AckRequest())

_ACK: Final = 40
_RANGE: Final = 19
"""The maximum size of an acknowledgement without ranges, and of one range."""

Moved = Callable[[Nanos, FlowChoice, FlowState, FlowState | None, Outbox], None]


class LinkSender:
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
        self.selection = FlowSelection(flows, cipher)
        self.datagrams = DatagramsOut(peer, flows, self.selection)
        self.delivery = Delivery(flows, self.selection, timing.shun_ns)
        self._order: list[ChannelOut] = []
        """The channels in the order in which they are served."""
        self._peer = peer
        self._flows = flows
        self._cipher = cipher
        self._timing = timing
        self._moved = moved
        self._questions = 0
        self.shout_until: Nanos = 0
        """Until this time, acknowledgements are sent on every flow: the peer has missed some."""

    @property
    def unacked(self) -> int:
        """Bytes of all channels that may not have arrived."""
        return sum(c.waiting_bytes + c.unacked for c in self.channels.values())

    def clear(self, out: Outbox) -> int:
        """Discard everything: the session ended. Returns the number of unacknowledged bytes."""
        unsent = self.unacked
        self.channels.clear()
        self._order.clear()
        self.datagrams.clear(out)
        self.deadline = NEVER
        return unsent

    def _wake_at(self, deadline: Nanos) -> None:
        if deadline < self.deadline:
            self.deadline = deadline

    # -- requests from above -------------------------------------------------------------------------------------

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
        """The flow is gone: what was in flight on it must be retransmitted. Another connection of the same path takes
        its place at once: nothing has moved."""
        twin = self._twin(flow)
        for channel in self._order:
            if twin is not None and channel.flow == flow.flow:
                channel.abandon(flow.flow)
                if self.selection.may_use(twin, channel):
                    channel.flow = twin.flow
                    continue
                channel.flow = flow.flow
            self._lost(channel, flow)
            channel.abandon(flow.flow)
        for choice in self.datagrams.placed():
            self._lost(choice, flow)

    def _twin(self, flow: FlowState) -> FlowState | None:
        """Another connection of the same path. Both nodes open one when they start together, and one of them goes."""
        if not flow.stream:
            return None
        known = (flow.path, flow.degraded)
        twins = (f for f in self._flows.values() if f.flow != flow.flow and f.stream)
        return next((f for f in twins if (f.path, f.degraded) == known), None)

    @staticmethod
    def _lost(choice: FlowChoice, flow: FlowState) -> None:
        if choice.flow == flow.flow:
            choice.flow = None
            choice.reason = _lost_text(flow.path)
            choice.home = choice.home or flow.path

    def judge(self, now: Nanos, verdicts: list[tuple[FlowState, FlowVerdict]], out: Outbox) -> None:
        """Health changed its reports about flows: traffic leaves flows that no longer fit, synchronisation first, and
        may return to flows that fit again. All reports are applied before anything moves: a fault of a path affects all
        its flows, and moving between them does not help."""
        placed: list[FlowChoice] = [*self._order, *self.datagrams.placed()]
        better: list[tuple[FlowState, dict[int, bool]]] = []
        for flow, verdict in verdicts:
            # One with an error that does not matter to this traffic may be the better one again.
            mended = flow.degraded and not verdict.degraded
            may_return = {
                choice.traffic: mended or not (flow.judged and flow.good_for(choice.traffic))
                for choice in placed
            }
            piece_max = flow.piece_max
            flow.take(verdict)
            if flow.piece_max < piece_max:
                for channel in self._order:
                    channel.give_up_larger(flow.flow, flow.piece_max)
            better.append((flow, may_return))
        for choice in by_class(placed):
            here = self.selection.flow_of(choice)
            if here is not None and not here.suits(choice.traffic, now):
                self._leave(now, choice, here.why_not(choice.traffic, now), out)
            for flow, may_return in better:
                if may_return[choice.traffic] and self.selection.given_back(now, choice, flow):
                    self._assign(now, choice, flow, f"{flow.path} is available to it again", out)

    def _leave(self, now: Nanos, choice: FlowChoice, why: str, out: Outbox) -> None:
        """Move traffic off its flow if there is a better one; unacknowledged data is retransmitted."""
        old, flow = self.selection.flow_of(choice), self.selection.better(now, choice)
        barred = old is not None and not self.selection.may_use(old, choice)
        if flow is None and not barred:
            choice.reason = f"{why}; there is nothing better"
            return
        if old is not None and isinstance(choice, ChannelOut):
            choice.abandon(old.flow)
            choice.flow = old.flow
        if flow is None:
            choice.flow = None
            choice.reason = WAITS + why
            return
        self._assign(now, choice, flow, why, out)

    def _assign(
        self, now: Nanos, choice: FlowChoice, flow: FlowState, why: str, out: Outbox
    ) -> None:
        before = self.selection.flow_of(choice)
        # Another connection of the same path took the place of one that was lost: nothing has moved.
        again = before is None and why == _lost_text(flow.path)
        self.selection.assign(now, choice, flow, why)
        used = (
            choice.acked or choice.unacked if isinstance(choice, ChannelOut) else before is not None
        )
        if used and not again:
            choice.moves += 1
            self._moved(now, choice, flow, before, out)

    def check(self, now: Nanos, out: Outbox, late_ns: Nanos = 0) -> None:
        """Check channels whose acknowledgements do not arrive: retransmit, doubt the flow, or leave it. `late_ns`: how
        long this node was delayed; it cannot have heard anything in that time."""
        self.deadline = NEVER
        stall_ns = self._timing.stall_ns
        for used in self._flows.values():
            if used.shrunk_until <= now:
                used.restore()
        for channel in self._order:
            flow = self.selection.flow_of(channel)
            if flow is None:
                continue
            channel.give_up_strays(now, stall_ns)
            if channel.doubt is not None:
                self._look_at_doubt(now, channel, flow, channel.doubt, out)
            since = channel.stalled_since()
            if since is None:
                self._look_at_blocked(now, channel, flow, out)
                continue
            if not flow.stream:
                channel.expire(now, flow.flow)
            wait_ns = self._wait_ns(now, channel, flow)
            if now < since + wait_ns + late_ns:
                self._wake_at(since + wait_ns + late_ns)
            elif channel.doubt is None and not self._begin_doubt(now, channel, flow):
                if now >= since + 2 * stall_ns:
                    self._shrink(now, channel, flow)
                self._wake_at(now + stall_ns)
        self._wake_at(self.delivery.retry(now))

    def delivery_reported(self, now: Nanos, frame: DeliveryReport) -> None:
        """The peer reports how many datagrams have arrived on a flow."""
        self._wake_at(self.delivery.reported(now, frame))

    def _look_at_blocked(
        self, now: Nanos, channel: ChannelOut, flow: FlowState, out: Outbox
    ) -> None:
        """The flow accepts nothing: data of others fills its buffer, which may never drain."""
        if flow.credit or not channel.wants():
            channel.blocked_since = None
            return
        if channel.blocked_since is None:
            channel.blocked_since = now
        until = channel.blocked_since + self._timing.stall_ns
        if now < until:
            self._wake_at(until)
            return
        channel.blocked_since = None
        other = self.selection.another(now, channel, flow)
        if other is not None:
            self._assign(now, channel, other, f"the buffer of {flow.path} does not drain", out)

    def _shrink(self, now: Nanos, channel: ChannelOut, flow: FlowState) -> None:
        """No data of a channel arrives, and there is no better flow: try smaller pieces."""
        if flow.shrink(now + self._timing.shun_ns):
            channel.give_up_larger(flow.flow, flow.piece_max)

    def _wait_ns(self, now: Nanos, channel: ChannelOut, flow: FlowState) -> Nanos:
        """How long acknowledgements may take before the flow is in doubt."""
        delay_ns = ACK_DELAY if flow.stream else 0
        most_ns = self._timing.stall_ns
        return channel.patience.wait_ns(now, channel.rtt_ns, delay_ns, most_ns)

    def _begin_doubt(self, now: Nanos, channel: ChannelOut, flow: FlowState) -> bool:
        """Send what is not acknowledged on another flow as well, and ask there what has arrived on this one. False when
        there is no other."""
        other = self.selection.another(now, channel, flow)
        if other is None:
            return False
        self._questions += 1
        doubt = channel.doubt = Doubt(now, flow, other, self._questions)
        question = encode(doubt.ask(now, self._questions, flow))
        other.apart.append(question)
        self._copy(channel, flow, other, doubt)
        self._copy_small(now, channel, flow, question)
        self._wake_at(now + max(ASK_NS_MIN, self._wait_ns(now, channel, flow)))
        return True

    def _copy_small(
        self, now: Nanos, channel: ChannelOut, flow: FlowState, question: bytes
    ) -> None:
        """Send small copies on every path, each alone in its packet: a few at first, more where copies have failed."""
        size = channel.small_copies.size(now)
        budget = SMALL_COPIES_MAX if size else FIRST_COPIES_MAX
        for carrier in self.selection.small_carriers(channel.channel):
            carrier.apart.append(question)
            before = channel.emitted
            piece_max = carrier.piece_in(min(size or SMALL_START, carrier.size))
            carrier.apart += channel.copies(flow.flow, piece_max, budget)
            carrier.chunk_sent += channel.emitted - before

    @staticmethod
    def _copy(channel: ChannelOut, flow: FlowState, other: FlowState, doubt: Doubt) -> None:
        before, after = channel.emitted, doubt.copied if other.stream else 0
        other.parts += channel.copies(flow.flow, other.piece_max, COPIES_MAX, after)
        doubt.copied = channel.pieces_sent
        other.chunk_sent += channel.emitted - before

    def _look_at_doubt(
        self, now: Nanos, channel: ChannelOut, flow: FlowState, doubt: Doubt, out: Outbox
    ) -> None:
        """Ask again, try a third flow if there is no answer, or leave if the answers report that nothing arrives."""
        stall_ns = self._timing.stall_ns
        other = self._flows.get(doubt.other)
        if flow.flow != doubt.flow or other is None or not self.selection.usable(other):
            channel.doubt = None
            return
        if doubt.until and not self._still_late(now, channel, flow, doubt):
            return
        confirm_ns = stall_ns * (STREAM_CONFIRM if flow.stream else 1)
        age_ns = now - doubt.since
        if doubt.received is None and age_ns >= stall_ns:
            channel.doubt = None  # no answer: the other flow may be the broken one
            other.shun(now + stall_ns, f"no answer on {other.path}")
            channel.small_copies.shrink(now)
            self._begin_doubt(now, channel, flow)
            return
        if doubt.received is not None and age_ns >= confirm_ns:
            channel.doubt = None
            if flow.chunk_sent > doubt.sent or channel.oldest_on(flow.flow):
                why = f"nothing arrived on {flow.path} for {age_ns // MILLISECOND} ms"
                flow.shun(now + (self._timing.shun_ns << channel.relapses(now)), why)
                self._leave(now, channel, why, out)
                if channel.flow == flow.flow:
                    self._shrink(now, channel, flow)
            return
        wait_ns = max(ASK_NS_MIN, self._wait_ns(now, channel, flow))
        if now >= doubt.asked_at + wait_ns:
            since = channel.stalled_since()
            if since is not None and since <= doubt.asked_at:
                channel.small_copies.shrink(now)
            self._questions += 1
            question = encode(doubt.ask(now, self._questions, flow))
            other.apart.append(question)
            if since is not None:
                self._copy(channel, flow, other, doubt)
                self._copy_small(now, channel, flow, question)
        self._wake_at(min(doubt.asked_at + wait_ns, doubt.since + confirm_ns))

    def _still_late(self, now: Nanos, channel: ChannelOut, flow: FlowState, doubt: Doubt) -> bool:
        """Whether acknowledgements stopped again on a flow that delivered late, although both flows are used."""
        since = channel.stalled_since()
        if since is not None and now >= since + self._wait_ns(now, channel, flow):
            doubt.renew(now, flow)
            return True
        if now >= doubt.until:
            channel.doubt = None
        else:
            self._wake_at(doubt.until)
        return False

    def answered(self, now: Nanos, frame: AckRequest) -> None:
        """The peer reports what has arrived on a flow in doubt."""
        for channel in self._order:
            doubt = channel.doubt
            if doubt is None or doubt.n != frame.n:
                continue
            flow = self._flows.get(doubt.flow)
            shown = answered(doubt, flow, frame.received) if flow is not None else DELIVERED
            if shown == LATE:
                doubt.linger(now)
                self._wake_at(doubt.until)
            elif shown == DELIVERED:
                channel.doubt = None
                channel.patience.unfounded(now)

    # -- sending -------------------------------------------------------------------------------------------------

    def flush(self, now: Nanos, out: Outbox) -> None:
        """Give everything sendable to its flow: datagrams, then channels by class."""
        if self.datagrams.queues:
            self.datagrams.flush(now, out)
            self.delivery.ask(now)
        for channel in self._order:
            if channel.is_busy:
                self._pump(now, channel, out)

    def flush_new(self, now: Nanos, out: Outbox) -> None:
        """The same if nothing happened except writes to channels."""
        for channel in self._order:
            if channel.waiting:
                self._pump(now, channel, out)

    def acknowledge(self, now: Nanos, acks: list[ChunkAck], shout: bool) -> None:
        """Acknowledge what arrived. `shout`: an earlier acknowledgement was lost."""
        # On the best flow now, preferably a healthy stream. They do not stay on a flow: where they are lost, the peer
        # treats the flow of the data as broken.
        best = self.selection.best(now, SYNC)
        parts = [encode(ack) for ack in acks]
        largest = max(map(len, parts))
        shout = shout or now < self.shout_until
        for flow in self._flows.values():
            # A duplicate means that our acknowledgement was lost: repeat it on every flow.
            if flow is best or (shout and flow.ready and flow.carries and not flow.closing):
                room = flow.body_max
                fitting = parts if largest <= room else [_shortened(ack, room) for ack in acks]
                # Behind data that does not pass they would not arrive.
                (flow.parts if flow.stream or not shout else flow.apart).extend(fitting)

    def _pump(self, now: Nanos, channel: ChannelOut, out: Outbox) -> None:
        flow = self._flows.get(channel.flow) if channel.flow is not None else None
        if flow is not None and self._send_all(now, channel, flow):
            if channel.channel >= PORT_MIN:
                self._tell_room(channel, out)
            return
        if channel.wants():
            if flow is None or not flow.ready or flow.closing:
                why = f"{flow.path} closes" if flow is not None else channel.reason
                flow = self.selection.best(now, channel.channel)
                if flow is None:
                    return
                self._assign(now, channel, flow, why.removeprefix(WAITS), out)
            elif not flow.stream and class_of(channel.channel) == BULK:
                flow = self._back_to_stream(now, channel, flow, out)
            if flow.credit:
                budget = TURN_BYTES if not flow.choked else self._narrow(flow)
                frames = self._emit(now, channel, flow, budget)
                if flow.choked:
                    if frames and flow.stream:
                        flow.parts.append(_ACK_REQUEST)
                elif frames and flow.stream and channel.wants():
                    self._wake_at(now + 1)
            elif channel.blocked_since is None:
                self._wake_at(now + self._timing.stall_ns)
        if channel.unacked:
            wait_ns = self._wait_ns(now, channel, flow) if flow is not None else NEVER
            if flow is None or not flow.stream:
                wait_ns = min(wait_ns, channel.rto())
            self._wake_at(now + wait_ns)
        if channel.channel >= PORT_MIN:
            self._tell_room(channel, out)

    def _back_to_stream(
        self, now: Nanos, channel: ChannelOut, flow: FlowState, out: Outbox
    ) -> FlowState:
        """Move bulk data from datagrams to a stream that is no longer avoided: a datagram carries a hundredth of a
        write. After a stall that health has not noticed, nothing else would move it."""
        best = self.selection.best(now, channel.channel)
        if channel.doubt is not None or best is None or not best.stream:
            return flow
        if not self.selection.given_back(now, channel, best):
            return flow
        channel.came_back(now)
        self._assign(now, channel, best, f"{best.path} carries bulk data again", out)
        return best

    def _emit(self, now: Nanos, channel: ChannelOut, flow: FlowState, budget: int) -> list[Part]:
        """Send what the flow takes; on the other flow as well while this one is in doubt."""
        doubt, piece_max = channel.doubt, flow.piece_max
        other = self._flows.get(doubt.other) if doubt is not None else None
        if other is not None:
            piece_max = min(piece_max, other.piece_max)
        before = channel.emitted
        frames = channel.pump(now, flow.flow, budget, piece_max, not flow.stream)
        flow.parts.extend(frames)
        flow.chunk_sent += channel.emitted - before
        if other is not None and self.selection.usable(other) and other.credit:
            other.parts.extend(frames)
            other.chunk_sent += channel.emitted - before
        return frames

    def _send_all(self, now: Nanos, channel: ChannelOut, flow: FlowState) -> bool:
        """The fast path, for a stream that accepts anything; False if the general one is needed."""
        if not flow.stream or not flow.ready or not flow.credit or flow.closing or flow.choked:
            return False
        if channel.doubt is not None:
            return False
        before = channel.emitted
        part = channel.send_all(now, flow.flow, flow.piece_max)
        if part is None:
            return False
        flow.parts.append(part)
        flow.chunk_sent += channel.emitted - before
        deadline = now + self._wait_ns(now, channel, flow)
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
        """The bytes that a stream accepts whose larger segments do not pass: one small write, and the next when it has
        arrived. The kernel would merge more into larger segments, at the latest when it retransmits."""
        on_its_way = sum(channel.in_flight(flow.flow) for channel in self._order)
        return 0 if on_its_way else 1

    def transmit(self, flow: FlowState, out: Outbox) -> None:
        """Pack what waits for a flow into packets of the size that it carries."""
        parts, flow.parts = flow.parts, []
        apart, flow.apart = flow.apart, []
        if not self._cipher.usable(flow):
            return  # nothing is sent unsealed; a Hello is repeated when the key has arrived
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
            else:  # frames that can be sent without a copy are sent alone
                size = room_max if type(part) is RoomyPart else part_size(part)
            room -= size
            if (room < 0 or len(batch) == FRAMES_MAX) and batch:
                packets.append(self._cipher.write(flow, batch))
                batch = []
                room = room_max - size
            batch.append(part)
        packets.append(self._cipher.write(flow, batch))
        out.effect(Transmit(flow.flow, packets))

    def filled(self, flow: FlowState, frame: FilledFrame, wire_size: int, out: Outbox) -> None:
        """A frame, alone in a packet that is padded to exactly `wire_size` bytes on the wire."""
        empty = self._cipher.overhead(flow) + 1 + part_size(filled_part(frame, _EMPTY))
        room = max(0, wire_size - empty - flow.overhead)
        pattern = fill_of(frame)
        fill = (pattern * (room // len(pattern) + 1))[:room]
        packet = self._cipher.write(flow, [filled_part(frame, memoryview(fill))], clear=True)
        out.effect(Transmit(flow.flow, [packet]), immediate=True)

    def placement(self, traffic: int) -> tuple[str, str]:
        """The path that some traffic uses, and why; empty if it has no flow yet."""
        choice = self.datagrams.queues.get(traffic) or self.channels.get(traffic)
        if choice is None:
            return "", ""
        flow = self.selection.flow_of(choice)
        return flow.path if flow else "", choice.reason

    def deep_queues(self) -> dict[str, int]:
        """Long queues by adapter, in steps, so that the value does not change with every turn."""
        deep: dict[str, int] = {}
        for channel in self.channels.values():
            if channel.waiting_bytes >= DEEP_STEP:
                flow = self.selection.flow_of(channel)
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
                "port": choice.traffic - DATAGRAMS,
                "path": self.placement(choice.traffic)[0],
                "reason": choice.reason,
                "sent": choice.sent,
                "refused": choice.refused,
                "refusal": choice.refusal,
                "moves": choice.moves,
            }
            for choice in self.datagrams.queues.values()
            if choice.traffic >= DATAGRAMS
        ]


def _lost_text(path: str) -> str:
    return f"{path} was lost"


def _shortened(ack: ChunkAck, room: int) -> bytes:
    """An acknowledgement with as many of its ranges as fit."""
    count = max(0, (room - _ACK) // _RANGE)
    return encode(ChunkAck(ack.channel, ack.upto, ack.limit, ack.ranges[:count]))
