"""The link to one peer: datagrams and channels over whichever path works.

`agreement` says with whom and on which flows, `outlet` what leaves, `inlet` what has come; here they meet the turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any, ClassVar, Final

from holdfast.links.agreement import Agreement
from holdfast.links.cipher import Cipher
from holdfast.links.config import Self
from holdfast.links.datagrams import MESSAGE_MAX
from holdfast.links.flow import FlowState
from holdfast.links.inlet import ACK_EARLY, Inlet, Route
from holdfast.links.lanes import Placed
from holdfast.links.outlet import Outlet
from holdfast.links.ports import (
    Arrived,
    CloseFlow,
    Credit,
    FlowClosed,
    FlowOpened,
    FlowVerdict,
    Leave,
    LinkQueue,
    MemberUpdate,
    OpenFailed,
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
from holdfast.links.sessions import Sessions
from holdfast.machine import Machine, Outbox
from holdfast.telemetry.facts import NodeFact
from holdfast.types import MILLISECOND, NEVER, FlowId, Nanos, NodeId
from holdfast.wire.codec import Rejected, encode
from holdfast.wire.frames import (
    AnyFrame,
    Bye,
    Chunk,
    ChunkAck,
    Hello,
    Hurry,
    Key,
    MemberInfo,
    Probe,
    RawBatch,
    Refuse,
)

QUEUE_MAX: Final = 256 << 20
"""What may wait in one channel. Applications are held back long before; whoever else sends so much to a peer that
does not take it loses the session, and is told."""
DEEP_NS: Final = 250 * MILLISECOND
"""How often at most something is said of long queues."""
LAG: Final = 100 * MILLISECOND
"""A wake-up that is later than this shows that this node was held up, so it may have heard nobody."""
_FLUSH: Final = object()
_DAMAGED: Final = ("checksum", "body", "short", "format", "flags")


class LinkMachine(Machine):
    """Unit `link/<peer>`, layer 1."""

    layer: ClassVar[int] = 1

    def __init__(
        self,
        me: Self,
        member: MemberInfo,
        sessions: Sessions,
        routes: Mapping[type, Route],
        listeners: list[str],
        rng: Random,
        entropy: Callable[[int], bytes],
        now: Nanos,
        multicast_key: bytes = b"",
    ) -> None:
        self.peer = NodeId(member.node)
        self.unit = link_unit(member.node)
        self.rejected: dict[str, int] = {}
        self._sealed = me.sealed
        self._routes = routes
        self._cipher = Cipher(me.sealed, entropy, multicast_key)
        self._agreement = agreement = Agreement(
            me, member, sessions, listeners, rng, self._cipher, now, self._lost, self._ended
        )
        self.flows = agreement.flows
        self._outlet = Outlet(self.peer, self.flows, self._cipher, me.timing, self._moved)
        self._inlet = Inlet(self.peer, routes)
        self._large: dict[int, None] = {}
        """Classes of which a frame that is too large for a packet is on its way by channel."""
        self._deep: dict[str, int] = {}
        """What was last said of long queues."""
        self._deep_at: Nanos = 0
        self._touched = False
        """Something happened that may give this link something to send."""
        self._written = False
        """Channels were written to."""
        self._verdicts: list[FlowVerdict] = []
        """What health says in this turn."""
        self._takes: dict[type, Callable[[Nanos, Any, Outbox], None]] = {
            SendChannel: self._send_channel,
            SendRaw: self._send_raw,
            SendDatagrams: self._send_datagrams,
            FlowOpened: agreement.opened,
            FlowClosed: agreement.closed,
            FlowVerdict: self._verdict,
            RenewFlow: self._renew,
            Credit: self._credit,
            OpenFailed: agreement.open_failed,
            MemberUpdate: agreement.update,
            Reannounce: agreement.reannounce,
            Leave: agreement.leave,
            Rest: self._rest,
        }
        self.deadline = agreement.wanted.deadline

    @property
    def member(self) -> MemberInfo:
        return self._agreement.member

    @property
    def up_since(self) -> Nanos | None:
        """Since when there is a session; None while there is none."""
        return self._agreement.up_since

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
            # One call of `down` packs what this brought about together with what the layers above add.
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
        outlet, inlet, agreement = self._outlet, self._inlet, self._agreement
        if agreement.up_since is not None:
            if self._touched or self._deep:
                outlet.flush(now, out)
            elif self._written:
                outlet.flush_new(now, out)
            if (self._touched or self._written or self._deep) and now >= self._deep_at:
                self._tell_queues(now, out)
            if inlet.in_hurry or now >= inlet.deadline - ACK_EARLY:
                self._acknowledge(now)
        self._touched = self._written = False
        for flow in self.flows.values():
            if flow.parts or flow.apart:
                outlet.transmit(flow, out)
        self.deadline = min(
            agreement.deadline, agreement.wanted.deadline, outlet.deadline, inlet.deadline
        )

    def wake(self, now: Nanos, out: Outbox) -> None:
        late_ns, self.deadline = now - self.deadline, NEVER
        self._agreement.wake(now, late_ns if late_ns > LAG else 0, out)
        if self._agreement.up_since is not None:
            self._outlet.check(now, out)
        self._touched = True
        out.down(self.unit, _FLUSH)

    def _lost(self, flow: FlowState) -> None:
        self._outlet.lost(flow)

    @property
    def unacked(self) -> int:
        """Bytes of channels that may not have arrived."""
        return self._outlet.unacked

    def _ended(self, out: Outbox) -> int:
        """The session is over, and with it every channel; how many bytes were not acknowledged."""
        self._touched = True
        self._deep = {}
        self._inlet.clear()
        return self._outlet.clear(out)

    # -- what is to be sent --------------------------------------------------------------------------------------

    def _send_channel(self, now: Nanos, item: SendChannel, out: Outbox) -> None:
        if self._agreement.up_since is None:
            return  # whoever holds a channel has been told that the peer is down
        channel = self._outlet.channels.get(item.channel) or self._outlet.channel(item.channel)
        channel.write(item.messages)
        self._written = True
        if channel.waiting_bytes > QUEUE_MAX:
            self._agreement.end(now, f"channel {item.channel} is full", out)

    def _send_raw(self, _now: Nanos, item: SendRaw, out: Outbox) -> None:
        if self._agreement.up_since is None:
            reason = f"there is no session with {self.member.name}"
            out.effect(PortRefused(self.peer, item.port, len(item.messages), reason))
        else:
            self._outlet.raw(item, out)

    def _send_datagrams(self, now: Nanos, item: SendDatagrams, out: Outbox) -> None:
        if self._agreement.up_since is None:
            return
        for part in item.frames:
            if self._goes_in_pieces(item.cls, len(part)):
                self._send_channel(now, SendChannel(item.cls, [part]), out)
            else:
                self._outlet.datagrams.frame(item.cls, part)

    def _goes_in_pieces(self, cls: int, size: int) -> bool:
        """No packet holds it, so it goes by channel; or it would overtake one that did, and late looks like lost."""
        if size > MESSAGE_MAX:
            self._large[cls] = None
        elif cls in self._large:
            channel = self._outlet.channels.get(cls)
            if channel is None or not channel.is_busy:
                del self._large[cls]
        return cls in self._large

    def _send_frame(self, item: SendFrame, out: Outbox) -> None:
        if item.flow is None:
            self._touched = True
            if self._agreement.up_since is not None:
                self._outlet.datagrams.frame(item.cls, encode(item.frame))
            return
        flow = self.flows.get(item.flow)
        if flow is None or not flow.ready or flow.closing or not self._cipher.usable(flow):
            return
        if item.wire_size and isinstance(item.frame, Probe):
            self._outlet.probe(flow, item.frame, item.wire_size, out)
        else:
            flow.parts.append(encode(item.frame))

    def _acknowledge(self, now: Nanos) -> None:
        leaving = False
        for flow in self.flows.values():
            if flow.parts:
                leaving = True
                break
        acks, unheard = self._inlet.acks(now, leaving)
        if acks:
            self._outlet.acknowledge(now, acks, unheard)

    def _tell_queues(self, now: Nanos, out: Outbox) -> None:
        """Who measures should leave room where traffic waits. Queues come and go, so it is not said often."""
        self._deep_at = now + DEEP_NS
        deep = self._outlet.deep_queues()
        for adapter in dict.fromkeys((*self._deep, *deep)):
            if self._deep.get(adapter, 0) != deep.get(adapter, 0):
                self._agreement.announce(out, LinkQueue(self.peer, adapter, deep.get(adapter, 0)))
        self._deep = deep

    def _credit(self, _now: Nanos, item: Credit, _out: Outbox) -> None:
        flow = self.flows.get(item.flow)
        if flow is not None:
            flow.credit = item.open

    def _verdict(self, _now: Nanos, verdict: FlowVerdict, _out: Outbox) -> None:
        """Health has learnt something about a flow, and maybe about others of the same path."""
        self._verdicts.append(verdict)

    def _judge(self, now: Nanos, out: Outbox) -> None:
        verdicts, self._verdicts = self._verdicts, []
        flows = self.flows
        known = [(flows[verdict.flow], verdict) for verdict in verdicts if verdict.flow in flows]
        if known:
            self._outlet.judge(now, known, out)

    def _renew(self, _now: Nanos, item: RenewFlow, out: Outbox) -> None:
        flow = self.flows.get(item.flow)
        if flow is not None and flow.stream and not flow.carries:
            self._agreement.close(flow, "stuck: another takes its place", out)

    def _rest(self, now: Nanos, item: Rest, out: Outbox) -> None:
        """Nobody here needs this link: ask the peer, or end it if the peer has asked."""
        if self._agreement.up_since is None:
            return
        for flow in self.flows.values():
            if flow.ready and not flow.closing:
                flow.parts.append(encode(Bye(rest=True)))
                self._outlet.transmit(flow, out)
        if item.agreed:
            self._agreement.end(now, "at rest", out, hang_up=True, resting=True)

    # -- packets in ----------------------------------------------------------------------------------------------

    def _arrived(self, now: Nanos, item: Arrived, out: Outbox) -> None:
        flow = self.flows.get(item.flow)
        if flow is None:
            # Of before this unit was rebuilt: nobody knows it, so it must begin again.
            out.effect(CloseFlow(item.flow, "not known here"))
            return
        by_unit: dict[str, list[AnyFrame]] = {}
        read, agreement = self._cipher.read, self._agreement
        for data in item.packets:
            if flow.closing:
                break
            frames = read(flow, data)
            if isinstance(frames, Rejected):
                self._reject(now, flow, frames, out)
                continue
            flow.heard_at = now
            # A hello asks for a session: it is no sign that there is one.
            if flow.ready and flow.carries and frames and type(frames[0]) is not Hello:
                agreement.heard_at = now
            if not flow.proven:
                flow.proven = self._touched = True
                agreement.hello(now, flow)
            self._take_frames(now, flow, frames, by_unit, out)
        inlet = self._inlet
        if inlet.ready:
            inlet.hand_on(item.at, out)
        if inlet.in_hurry:
            self._touched = True
        elif inlet.deadline < self.deadline:
            self.deadline = inlet.deadline
        for unit, group in by_unit.items():
            out.up(unit, Received(self.peer, group, item.at, item.flow))

    def _take_frames(
        self,
        now: Nanos,
        flow: FlowState,
        frames: list[AnyFrame],
        by_unit: dict[str, list[AnyFrame]],
        out: Outbox,
    ) -> None:
        """What a packet holds: pieces of channels, what is for units above, and what is for the link itself."""
        routes, inlet = self._routes, self._inlet
        for frame in frames:
            kind = type(frame)
            if kind is Chunk:
                if flow.ready:
                    problem = inlet.take(now, frame, flow.stream)  # type: ignore[arg-type]  # it is one
                    if problem is not None:
                        self._damaged(now, flow, frame, problem, out)  # type: ignore[arg-type]
            elif (route := routes.get(kind)) is not None:
                for unit in route(frame) if flow.ready else ():
                    if unit in by_unit:
                        by_unit[unit].append(frame)
                    else:
                        by_unit[unit] = [frame]
            elif kind is RawBatch:
                if flow.ready:
                    inlet.raw(frame)  # type: ignore[arg-type]  # it is one
            else:
                self._own(now, flow, frame, out)

    def _reject(self, now: Nanos, flow: FlowState, rejected: Rejected, out: Outbox) -> None:
        count = self.rejected.get(rejected.reason, 0) + 1
        self.rejected[rejected.reason] = count
        if (
            count & (count - 1) == 0
        ):  # the 1st, 2nd, 4th, 8th ...: a flood does not become a flood of facts
            detail = f"{self.member.name} {flow.path}: {rejected.reason} {rejected.detail}"
            out.fact(NodeFact(now, "rejected", detail, count))
        if not flow.proven:
            self._agreement.close(flow, "it does not show that it is the peer", out)
        elif flow.stream and rejected.reason in _DAMAGED:
            # A stream that is damaged once cannot be trusted to be in step; what was lost is sent again.
            self._agreement.close(flow, f"damaged packet: {rejected.reason} {rejected.detail}", out)

    def _own(self, now: Nanos, flow: FlowState, frame: AnyFrame, out: Outbox) -> None:
        """A frame that is for the link itself."""
        match frame:
            case Hello():
                self._touched = True
                self._agreement.hello_came(now, flow, frame, out)
            case Refuse():
                self._agreement.last_refusal = frame.text[:200]
                out.fact(
                    NodeFact(
                        now, "refused", f"by {self.member.name}: {self._agreement.last_refusal}"
                    )
                )
                self._agreement.close(flow, f"refused: {self._agreement.last_refusal}", out)
            case _ if not flow.ready:
                return
            case ChunkAck():
                self._ack(now, frame)
            case Hurry():
                self._inlet.in_hurry = True
            case Key() if not flow.own_seal and self._sealed:
                self._agreement.key_came(now, frame, out)
                self._touched = True
            case Bye(rest=True):
                self._agreement.announce(out, RestAsked(self.peer))
            case Bye():
                self._agreement.end(now, "the peer left", out, left=True)
            case _:
                self.rejected["unexpected"] = self.rejected.get("unexpected", 0) + 1

    def _damaged(
        self, now: Nanos, flow: FlowState, frame: Chunk, problem: Rejected, out: Outbox
    ) -> None:
        """A piece of a channel could not be taken."""
        if problem.reason == "window":
            return
        if problem.reason == "channel":
            self._reject(now, flow, problem, out)
            return
        # The stream of this channel cannot be read on: only a new session can mend it.
        self._agreement.end(now, f"channel {frame.channel} damaged: {problem.detail}", out)

    def _ack(self, now: Nanos, frame: ChunkAck) -> None:
        channel = self._outlet.channels.get(frame.channel)
        if channel is None:
            return
        if not channel.ack(now, frame, self._datagram_flows):
            self.rejected["ack"] = self.rejected.get("ack", 0) + 1
        if not self._touched:
            flow = self._outlet.lanes.flow_of(channel)
            # Where there is one small write at a time, the others wait for this one.
            self._touched = channel.wants() or (flow is not None and flow.choked)

    def _datagram_flows(self) -> dict[FlowId, bool]:
        return {flow.flow: not flow.stream for flow in self.flows.values()}

    # -- for people ----------------------------------------------------------------------------------------------

    def _moved(
        self, now: Nanos, lane: Placed, flow: FlowState, before: FlowState | None, out: Outbox
    ) -> None:
        was = before.path if before else ""
        reason = f"{traffic_name(lane.traffic)}: {lane.reason}"
        out.fact(self._agreement.fact(now, "moved", path=flow.path, path_before=was, reason=reason))

    def placement(self, traffic: int) -> tuple[str, str]:
        """The path that some traffic uses, and why."""
        return self._outlet.placement(traffic)

    def status(self) -> dict[str, Any]:
        """The link as the page and `holdfast status` show it."""
        return {
            "peer": self.member.name,
            "state": "up" if self._agreement.up_since is not None else "down",
            "session": self._cipher.session,
            "refused": self._agreement.last_refusal,
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
            "channels": self._outlet.status(self._inlet.received),
            "rejected": self.rejected | {"frame": self._inlet.unreadable},
            "datagrams": self._outlet.datagram_status(),
            "datagrams_dropped": self._outlet.datagrams.dropped,
        }
