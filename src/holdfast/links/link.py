"""The link to one peer: datagrams and channels over all working paths.

`session` manages the session and its flows, `sender` the sending side, `receiver` the receiving side; this machine
connects them to the turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any, ClassVar, Final, NamedTuple

from holdfast.links.cipher import Cipher
from holdfast.links.datagrams import MESSAGE_MAX
from holdfast.links.flow import FlowState
from holdfast.links.flow_selection import FlowChoice
from holdfast.links.ports import (
    COPY_PORT,
    Arrived,
    AskHeard,
    CloseFlow,
    Credit,
    DatagramRoom,
    DataMissing,
    FlowClosed,
    FlowOpened,
    FlowVerdict,
    Leave,
    LinkQueue,
    MemberUpdate,
    OpenFailed,
    PathHeard,
    PortRefused,
    Reannounce,
    Received,
    RenewFlow,
    Rest,
    RestAsked,
    SendChannel,
    SendDatagrams,
    SendFrame,
    SendRaw,
    link_unit,
    traffic_name,
)
from holdfast.links.receiver import ACK_EARLY, LinkReceiver
from holdfast.links.sender import LinkSender
from holdfast.links.session import Session
from holdfast.links.session_table import SessionTable
from holdfast.machine import Machine, Outbox
from holdfast.subsystem import LocalNode, Route, Subscribers
from holdfast.telemetry.facts import NodeFact
from holdfast.types import MILLISECOND, NEVER, FlowId, Nanos, NodeId
from holdfast.wire.codec import Rejected, encode
from holdfast.wire.frames import (
    AckRequest,
    Bye,
    Chunk,
    ChunkAck,
    DeliveryQuery,
    DeliveryReport,
    FilledFrame,
    Frame,
    Hello,
    Key,
    MemberInfo,
    RawBatch,
    Refuse,
)

QUEUE_MAX: Final = 256 << 20
"""The limit of one channel queue. Applications are held back long before; any other unit that sends this much to a peer
that does not accept it loses the session, and is informed."""
DEEP_NS: Final = 250 * MILLISECOND
"""The minimum interval between reports of long queues."""
SHOUT_NS: Final = 1000 * MILLISECOND
"""How long acknowledgements are sent on every flow after the peer has missed some."""
LAG: Final = 100 * MILLISECOND
"""A later wake-up shows that this node was delayed and may have heard nothing."""
_FLUSH: Final = object()
_DAMAGED: Final = ("checksum", "body", "short", "format", "flags")


class LinkParts(NamedTuple):
    """The parts of a link."""

    session: Session
    sender: LinkSender
    receiver: LinkReceiver
    cipher: Cipher


class LinkMachine(Machine):
    """Unit `link/<peer>`."""

    layer: ClassVar[str] = "links"

    def __init__(
        self,
        me: LocalNode,
        member: MemberInfo,
        session_table: SessionTable,
        routes: Mapping[type, Route],
        subscribers: Subscribers,
        rng: Random,
        entropy: Callable[[int], bytes],
        now: Nanos,
        multicast_key: bytes = b"",
    ) -> None:
        self.peer = NodeId(member.node)
        self.unit = link_unit(member.node)
        self.queue_max: int = QUEUE_MAX
        self.rejected: dict[str, int] = {}
        self._sealed = me.sealed
        self._routes = routes
        self._cipher = Cipher(me.sealed, entropy, multicast_key)
        self._session = session = Session(
            me, member, session_table, subscribers, rng, self._cipher, now, self._lost, self._ended
        )
        self.flows = session.flows
        self._sender = LinkSender(self.peer, self.flows, self._cipher, me.timing, self._moved)
        self._receiver = LinkReceiver(self.peer, routes)
        self._large: dict[int, None] = {}
        """Classes of which a frame that is too large for a packet is in flight by channel."""
        self._deep: dict[str, int] = {}
        """The last reported queues."""
        self._deep_at: Nanos = 0
        self._room = 0
        """The last reported room of a datagram."""
        self._touched = False
        """Something happened that may give this link something to send."""
        self._written = False
        """Channels that were written to."""
        self._verdicts: list[FlowVerdict] = []
        """Reports of health in this turn."""
        self._takes: dict[type, Callable[[Nanos, Any, Outbox], None]] = {
            SendChannel: self._send_channel,
            SendRaw: self._send_raw,
            SendDatagrams: self._send_datagrams,
            FlowOpened: session.opened,
            FlowClosed: session.closed,
            FlowVerdict: self._verdict,
            RenewFlow: self._renew,
            AskHeard: self._asked_heard,
            Credit: self._credit,
            OpenFailed: session.open_failed,
            MemberUpdate: session.update,
            Reannounce: self._reannounce,
            Leave: session.leave,
            Rest: self._rest,
        }
        self.deadline = session.wanted.deadline

    @property
    def member(self) -> MemberInfo:
        return self._session.member

    @property
    def up_since(self) -> Nanos | None:
        """Since when there is a session; None if there is none."""
        return self._session.up_since

    # -- the machine ---------------------------------------------------------------------------------------------

    def up(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        for item in inputs:
            kind = type(item)
            if kind is Arrived:
                self._arrived(now, item, out)
                continue
            self._touched = True
            if (take := self._takes.get(kind)) is not None:
                take(now, item, out)
        if self._verdicts:
            self._judge(now, out)
        if self._touched:
            # One call of `down` packs this together with requests of the layers above.
            out.down(self.unit, _FLUSH)

    def down(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        for item in inputs:
            kind = type(item)
            if kind is SendChannel:
                self._send_channel(now, item, out)
                continue
            if kind is SendFrame:
                self._send_frame(item, out)
                continue
            self._touched = True
            if (take := self._takes.get(kind)) is not None:
                take(now, item, out)
        if self._verdicts:
            self._judge(now, out)
        sender, receiver, session = self._sender, self._receiver, self._session
        if session.up_since is not None:
            if self._touched or self._deep:
                sender.flush(now, out)
            elif self._written:
                sender.flush_new(now, out)
            if (self._touched or self._written or self._deep) and now >= self._deep_at:
                self._tell_queues(now, out)
            if receiver.in_hurry or now >= receiver.deadline - ACK_EARLY:
                self._acknowledge(now)
        if sender.datagrams.room != self._room:
            self._room = sender.datagrams.room
            session.announce(out, DatagramRoom(self.peer, self._room))
        self._touched = self._written = False
        for flow in self.flows.values():
            if flow.parts or flow.apart:
                sender.transmit(flow, out)
        self.deadline = min(
            session.deadline, session.wanted.deadline, sender.deadline, receiver.deadline
        )

    def wake(self, now: Nanos, out: Outbox) -> None:
        late_ns, self.deadline = now - self.deadline, NEVER
        self._session.wake(now, late_ns if late_ns > LAG else 0, out)
        if self._session.up_since is not None:
            self._sender.check(now, out, late_ns if late_ns > LAG else 0)
        self._touched = True
        out.down(self.unit, _FLUSH)

    def _lost(self, flow: FlowState) -> None:
        self._sender.lost(flow)

    @property
    def unacked(self) -> int:
        """Bytes of channels that may not have arrived."""
        return self._sender.unacked

    def _ended(self, out: Outbox) -> int:
        """The session is over, with all its channels; returns the number of unacknowledged bytes."""
        self._touched = True
        self._deep = {}
        self._room = 0
        self._receiver.clear()
        return self._sender.clear(out)

    # -- requests to send ----------------------------------------------------------------------------------------

    def _send_channel(self, now: Nanos, item: SendChannel, out: Outbox) -> None:
        if self._session.up_since is None:
            return  # holders of a channel have been informed that the peer is down
        channel = self._sender.channels.get(item.channel) or self._sender.channel(item.channel)
        channel.write(item.messages)
        self._written = True
        if channel.waiting_bytes > self.queue_max:
            self._session.end(now, f"channel {item.channel} is full", out)

    def _send_raw(self, _now: Nanos, item: SendRaw, out: Outbox) -> None:
        if self._session.up_since is None:
            reason = f"there is no session with {self.member.name}"
            out.effect(PortRefused(self.peer, item.port, len(item.messages), reason))
        else:
            self._sender.raw(item, out)

    def _send_datagrams(self, now: Nanos, item: SendDatagrams, out: Outbox) -> None:
        if self._session.up_since is None:
            return
        for part in item.frames:
            if self._goes_in_pieces(item.cls, len(part)):
                self._send_channel(now, SendChannel(item.cls, [part]), out)
            else:
                self._sender.datagrams.frame(item.cls, part)

    def _goes_in_pieces(self, cls: int, size: int) -> bool:
        """A frame that fits no packet uses the channel; so do those behind it, which would overtake it and make it look
        lost."""
        if size > MESSAGE_MAX:
            self._large[cls] = None
        elif cls in self._large:
            channel = self._sender.channels.get(cls)
            if channel is None or not channel.is_busy:
                del self._large[cls]
        return cls in self._large

    def _send_frame(self, item: SendFrame, out: Outbox) -> None:
        if item.flow is None:
            self._touched = True
            if self._session.up_since is not None:
                self._sender.datagrams.frame(item.cls, encode(item.frame))
            return
        flow = self.flows.get(item.flow)
        if flow is None or not flow.ready or flow.closing or not self._cipher.usable(flow):
            return
        if item.wire_size and isinstance(item.frame, FilledFrame):
            self._sender.filled(flow, item.frame, item.wire_size, out)
        else:
            flow.parts.append(encode(item.frame))

    def _acknowledge(self, now: Nanos) -> None:
        leaving = False
        for flow in self.flows.values():
            if flow.parts:
                leaving = True
                break
        acks, unheard = self._receiver.acks(now, leaving)
        if acks:
            self._sender.acknowledge(now, acks, unheard)

    def _tell_queues(self, now: Nanos, out: Outbox) -> None:
        """Probing should leave room where traffic waits. Queues change often, so this is reported rarely."""
        self._deep_at = now + DEEP_NS
        deep = self._sender.deep_queues()
        for adapter in dict.fromkeys((*self._deep, *deep)):
            if self._deep.get(adapter, 0) != deep.get(adapter, 0):
                self._session.announce(out, LinkQueue(self.peer, adapter, deep.get(adapter, 0)))
        self._deep = deep

    def _credit(self, _now: Nanos, item: Credit, _out: Outbox) -> None:
        flow = self.flows.get(item.flow)
        if flow is not None:
            flow.credit = item.open

    def _verdict(self, _now: Nanos, verdict: FlowVerdict, _out: Outbox) -> None:
        """Health reports about a flow, and possibly others of the same path."""
        self._verdicts.append(verdict)

    def _judge(self, now: Nanos, out: Outbox) -> None:
        verdicts, self._verdicts = self._verdicts, []
        flows = self.flows
        known = [(flows[verdict.flow], verdict) for verdict in verdicts if verdict.flow in flows]
        if known:
            self._sender.judge(now, known, out)

    def _asked_heard(self, _now: Nanos, item: AskHeard, out: Outbox) -> None:
        """Health receives no heartbeats on a path: report what else has arrived there."""
        ends = (item.adapter, item.remote_adapter)
        flows = [f for f in self.flows.values() if (f.adapter, f.remote_adapter) == ends]
        if flows:
            at, size = max(f.heard_at for f in flows), sum(f.bytes_heard for f in flows)
            self._session.announce(out, PathHeard(self.peer, *ends, at, size))

    def _reannounce(self, now: Nanos, item: Reannounce, out: Outbox) -> None:
        self._session.reannounce(now, item, out)
        self._room = -1  # reported again with the next turn

    def _renew(self, _now: Nanos, item: RenewFlow, out: Outbox) -> None:
        flow = self.flows.get(item.flow)
        if flow is not None and flow.stream and not flow.carries:
            self._session.close(flow, "stalled: it is replaced", out)

    def _rest(self, now: Nanos, item: Rest, out: Outbox) -> None:
        """This node does not need the link: ask the peer, or end it if the peer has asked. Not while messages wait for
        their acknowledgement: the directory tries again later."""
        if self._session.up_since is None or self.unacked:
            return
        for flow in self.flows.values():
            if flow.ready and not flow.closing:
                flow.parts.append(encode(Bye(rest=True)))
                self._sender.transmit(flow, out)
        if item.agreed:
            self._session.end(now, "at rest", out, hang_up=True, resting=True)

    # -- packets in ----------------------------------------------------------------------------------------------

    def _arrived(self, now: Nanos, item: Arrived, out: Outbox) -> None:
        flow = self.flows.get(item.flow)
        if flow is None:
            # From before this unit was rebuilt: its state is lost, so it must start again.
            out.effect(CloseFlow(item.flow, "not known here"))
            return
        by_unit: dict[str, list[Frame]] = {}
        read, session = self._cipher.read, self._session
        for data in item.packets:
            if flow.closing:
                break
            frames = read(flow, data)
            if isinstance(frames, Rejected):
                self._reject(now, flow, frames, out)
                continue
            flow.heard_at = now
            flow.bytes_heard += len(data)
            # A hello requests a session and does not show that there is one.
            if flow.ready and flow.carries and frames and type(frames[0]) is not Hello:
                session.heard_at = now
            if not flow.proven:
                flow.proven = self._touched = True
                session.hello(now, flow)
            self._take_frames(now, flow, frames, by_unit, out)
        receiver = self._receiver
        if receiver.ready:
            receiver.hand_on(item.at, out)
        if receiver.in_hurry:
            self._touched = True
        elif receiver.deadline < self.deadline:
            self.deadline = receiver.deadline
        for unit, group in by_unit.items():
            out.up(unit, Received(self.peer, group, item.at, item.flow))

    def _take_frames(
        self,
        now: Nanos,
        flow: FlowState,
        frames: list[Frame],
        by_unit: dict[str, list[Frame]],
        out: Outbox,
    ) -> None:
        """The contents of a packet: pieces of channels, frames for other units, and frames for the link itself."""
        routes, receiver = self._routes, self._receiver
        for frame in frames:
            kind = type(frame)
            if kind is Chunk:
                if flow.ready:
                    self._take_chunk(now, flow, frame, out)  # type: ignore[arg-type]  # it is one
            elif (route := routes.get(kind)) is not None:
                for unit in route(frame) if flow.ready else ():
                    if unit in by_unit:
                        by_unit[unit].append(frame)
                    else:
                        by_unit[unit] = [frame]
            elif kind is RawBatch:
                if flow.ready:
                    flow.raw_heard += 1
                    if frame.port != COPY_PORT:  # type: ignore[attr-defined]  # it is one
                        receiver.raw(frame)  # type: ignore[arg-type]  # it is one
            else:
                self._own(now, flow, frame, out)

    def _take_chunk(self, now: Nanos, flow: FlowState, frame: Chunk, out: Outbox) -> None:
        flow.chunk_heard += len(frame.data)
        problem = self._receiver.take(now, frame, flow.stream)
        if problem is not None:
            self._damaged(now, flow, frame, problem, out)

    def _reject(self, now: Nanos, flow: FlowState, rejected: Rejected, out: Outbox) -> None:
        count = self.rejected.get(rejected.reason, 0) + 1
        self.rejected[rejected.reason] = count
        if (
            count & (count - 1) == 0
        ):  # the 1st, 2nd, 4th, 8th ...: a flood does not cause a flood of facts
            detail = f"{self.member.name} {flow.path}: {rejected.reason} {rejected.detail}"
            out.fact(NodeFact(now, "rejected", detail, count))
        if not flow.proven:
            self._session.close(flow, "the sender does not prove that it is the peer", out)
        elif flow.stream and rejected.reason in _DAMAGED:
            # A damaged stream may be out of step; what was lost is retransmitted.
            self._session.close(flow, f"damaged packet: {rejected.reason} {rejected.detail}", out)

    def _own(self, now: Nanos, flow: FlowState, frame: Frame, out: Outbox) -> None:
        """A frame for the link itself."""
        match frame:
            case Hello():
                self._touched = True
                self._session.hello_came(now, flow, frame, out)
            case Refuse():
                self._session.last_refusal = frame.text[:200]
                out.fact(
                    NodeFact(now, "refused", f"by {self.member.name}: {self._session.last_refusal}")
                )
                self._session.close(flow, f"refused: {self._session.last_refusal}", out)
            case _ if not flow.ready:
                return
            case ChunkAck():
                self._ack(now, frame)
            case AckRequest(received=-1):
                self._hurry(now, flow, frame)
            case AckRequest():
                self._sender.answered(now, frame)
                self._touched = True
            case DeliveryQuery():
                self._delivery_asked(now, flow, frame, out)
            case DeliveryReport():
                self._sender.delivery_reported(now, frame)
                self._touched = True
            case Key() if not flow.own_seal and self._sealed:
                self._session.key_came(now, frame, out)
                self._touched = True
            case Bye(rest=True):
                self._session.announce(out, RestAsked(self.peer))
            case Bye():
                self._session.end(now, "the peer left", out, left=True)
            case _:
                self.rejected["unexpected"] = self.rejected.get("unexpected", 0) + 1

    def _hurry(self, now: Nanos, flow: FlowState, frame: AckRequest) -> None:
        """The peer waits for acknowledgements, and may have a flow in doubt: report on all flows what has arrived
        there."""
        self._receiver.in_hurry = True
        if not frame.path:
            return
        self._touched = True
        self._sender.shout_until = now + SHOUT_NS
        self._receiver.repeat(now)
        doubted = [f for f in self.flows.values() if f.ready and f.path == frame.path]
        if len(doubted) != 1:
            return
        answer = encode(AckRequest(frame.n, "", doubted[0].chunk_heard))
        for other in self.flows.values():
            if other.ready and other.carries and not other.closing:
                other.apart.append(answer)

    def _delivery_asked(
        self, now: Nanos, flow: FlowState, frame: DeliveryQuery, out: Outbox
    ) -> None:
        """The peer asks how many of its datagrams have arrived on a flow: answer, and inform health if none has."""
        for asked in self.flows.values():
            if not asked.ready or asked.path != frame.path:
                continue
            if not asked.arrival.is_apart(now):
                return
            self._touched = True
            report = DeliveryReport(asked.remote_path, frame.sent, asked.raw_heard)
            flow.parts.append(encode(report))
            changed, fails = (
                asked.arrival.take(now, frame.sent, asked.raw_heard),
                asked.arrival.fails,
            )
            if changed or fails:
                item = DataMissing(self.peer, asked.flow, fails, still=not changed)
                self._session.announce(out, item)
            return

    def _damaged(
        self, now: Nanos, flow: FlowState, frame: Chunk, problem: Rejected, out: Outbox
    ) -> None:
        """A piece of a channel could not be accepted."""
        if problem.reason == "window":
            return
        if problem.reason == "channel":
            self._reject(now, flow, problem, out)
            return
        # The stream of this channel cannot be read any further: only a new session can repair it.
        self._session.end(now, f"channel {frame.channel} damaged: {problem.detail}", out)

    def _ack(self, now: Nanos, frame: ChunkAck) -> None:
        channel = self._sender.channels.get(frame.channel)
        if channel is None:
            return
        if not channel.ack(now, frame, self._datagram_flows):
            self.rejected["ack"] = self.rejected.get("ack", 0) + 1
        if not self._touched:
            flow = self._sender.selection.flow_of(channel)
            # If only one small write is allowed at a time, the others wait for this one.
            self._touched = channel.wants() or (flow is not None and flow.choked)

    def _datagram_flows(self) -> dict[FlowId, bool]:
        return {flow.flow: not flow.stream for flow in self.flows.values()}

    # -- status and inspection -----------------------------------------------------------------------------------

    def _moved(
        self, now: Nanos, choice: FlowChoice, flow: FlowState, before: FlowState | None, out: Outbox
    ) -> None:
        was = before.path if before else ""
        reason = f"{traffic_name(choice.traffic)}: {choice.reason}"
        out.fact(self._session.fact(now, "moved", path=flow.path, path_before=was, reason=reason))

    def placement(self, traffic: int) -> tuple[str, str]:
        """The path that some traffic uses, and why."""
        return self._sender.placement(traffic)

    def inspect(self) -> LinkParts:
        """The parts of this machine, for tests and debuggers."""
        return LinkParts(self._session, self._sender, self._receiver, self._cipher)

    def status(self) -> dict[str, Any]:
        """The link as shown by the page and `holdfast status`."""
        return {
            "peer": self.member.name,
            "state": "up" if self._session.up_since is not None else "down",
            "session": self._cipher.session,
            "refused": self._session.last_refusal,
            "flows": [
                {
                    "path": f.path,
                    "ready": f.ready,
                    "alive": f.alive,
                    "size": f.size,
                    "use": f.use,
                    "unfit": {
                        traffic_name(fit.traffic): fit.reason
                        for fit in f.fitness.values()
                        if fit.state
                    },
                }
                for f in self.flows.values()
            ],
            "channels": self._sender.status(self._receiver.received),
            "rejected": self.rejected | {"frame": self._receiver.unreadable},
            "datagrams": self._sender.datagram_status(),
            "datagrams_dropped": self._sender.datagrams.dropped,
        }
