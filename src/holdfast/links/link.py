"""The link to one peer: its flows, its session, datagrams and channels over whichever path works.

A session is the pair of both nodes' (incarnation, epoch). It begins on the first flow on which both have echoed
each other, more flows join it, and it ends when the peer shows a newer pair or when nothing was heard on any flow
for `dead_ns`. Channels live in a session; flows come and go below them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any, ClassVar, Final

from holdfast.links.cipher import Cipher
from holdfast.links.config import Self
from holdfast.links.flow import TAG_MAX, FlowState
from holdfast.links.handshake import (
    NAME_MAX,
    check_addressee,
    check_hello,
    refusal,
    version_of,
)
from holdfast.links.inlet import ACK_EARLY, Inlet, Route
from holdfast.links.lanes import Placed
from holdfast.links.measuring import FRAG
from holdfast.links.outlet import Outlet
from holdfast.links.ports import (
    MULTICAST,
    Arrived,
    CloseFlow,
    Credit,
    FlowClosed,
    FlowLost,
    FlowOpened,
    FlowReady,
    FlowUnheard,
    FlowVerdict,
    Leave,
    LinkQueue,
    MayFragment,
    MemberUpdate,
    MulticastKey,
    OpenFailed,
    PeerDown,
    PeerUp,
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
    SessionEnded,
    Transmit,
    link_unit,
    traffic_name,
)
from holdfast.links.sessions import Sessions
from holdfast.links.wanted import WantedFlows
from holdfast.machine import Machine, Outbox
from holdfast.telemetry.facts import LinkFact, NodeFact
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
from holdfast.wire.seal import KEY

QUEUE_MAX: Final = 256 << 20
"""What may wait in one channel. Applications are held back long before; whoever else sends so much to a peer that
does not take it loses the session, and is told."""
FLOWS_MAX: Final = 1024
HELLOS_MAX: Final = 7
"""A stream on which so many hellos had no answer is closed, and another one is tried."""
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
        self.me = me
        self.peer = NodeId(member.node)
        self.member = member
        self.unit = link_unit(member.node)
        self.up_since: Nanos | None = None
        self.epoch = sessions.next_epoch(member.node)
        self.peer_incarnation = 0
        self.peer_epoch = 0
        self.version = me.low
        self.flows: dict[FlowId, FlowState] = {}
        self.rejected: dict[str, int] = {}
        self.last_refusal = ""
        self._peer_name = member.name
        self._sessions = sessions
        self._routes = routes
        self._listeners = listeners
        self._tags = 0
        self._spare_tags: list[tuple[int, int]] = []
        """Tags of flows that are gone, with the number of the last packet: a later flow counts on from there."""
        self._heard_at = now
        self._multicast_key = b""
        """With which the peer seals what it multicasts."""
        self._cipher = Cipher(me.sealed, entropy, multicast_key)
        self._cipher.renew(sessions.open(self.unit))
        self._outlet = Outlet(self.peer, self.flows, self._cipher, me.timing, self._moved)
        self._inlet = Inlet(self.peer, routes)
        self._deep: dict[str, int] = {}
        """What was last said of long queues."""
        self._deep_at: Nanos = 0
        self._touched = False
        """Something happened that may give this link something to send."""
        self._takes: dict[type, Callable[[Nanos, Any, Outbox], None]] = {
            SendChannel: self._send_channel,
            SendRaw: self._send_raw,
            SendDatagrams: self._send_datagrams,
            FlowOpened: self._opened,
            FlowClosed: self._closed,
            FlowVerdict: self._verdict,
            RenewFlow: self._verdict,
            Credit: self._credit,
            OpenFailed: self._open_failed,
            MemberUpdate: self._member_update,
            Reannounce: self._reannounce,
            Leave: self._say_goodbye,
            Rest: self._rest,
        }
        self._wanted = WantedFlows(me, member.node, self.unit, rng)
        self._wanted.update(member, now)
        self.deadline = self._wanted.deadline

    # -- inputs --------------------------------------------------------------------------------------------------

    def up(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        for item in inputs:
            kind = type(item)
            if kind is Arrived:
                self._arrived(now, item, out)
                continue
            self._touched = True
            if (take := self._takes.get(kind)) is not None:
                take(now, item, out)
        if self._touched:
            # One call of `down` packs what this brought about together with what the layers above add.
            out.down(self.unit, _FLUSH)

    def down(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        for item in inputs:
            kind = type(item)
            if kind is SendFrame:
                self._send_frame(item, out)
                continue
            self._touched = True
            if (take := self._takes.get(kind)) is not None:
                take(now, item, out)
        outlet, inlet = self._outlet, self._inlet
        if self.up_since is not None:
            if self._touched or self._deep:
                outlet.flush(now, out)
                if now >= self._deep_at:
                    self._tell_queues(now, out)
            if inlet.in_hurry or now >= inlet.deadline - ACK_EARLY:
                self._acknowledge(now)
        self._touched = False
        for flow in self.flows.values():
            if flow.parts or flow.apart:
                outlet.transmit(flow, out)
        self.deadline = min(self.deadline, outlet.deadline, self._wanted.deadline, inlet.deadline)

    def wake(self, now: Nanos, out: Outbox) -> None:
        late, self.deadline = now - self.deadline, NEVER
        if late > LAG:
            self._excuse(now, min(late, self.me.timing.dead_ns))
        for flow in list(self.flows.values()):
            if not flow.closing:
                self._check_flow(now, flow, out)
        is_up = self.up_since is not None
        for request in self._wanted.due(now, self.flows, self._cipher.has_key, is_up):
            out.effect(request)
        if self.up_since is not None:
            if now - self._heard_at >= self.me.timing.dead_ns:
                self._end_session(now, "nothing heard on any path", out, hang_up=True)
            else:
                self._wake_at(self._heard_at + self.me.timing.dead_ns)
                # Often enough to notice when this node itself was held up: only a late wake-up shows that.
                self._wake_at(now + self.me.timing.dead_ns // 4)
                self._outlet.check(now, out)
        self._touched = True
        out.down(self.unit, _FLUSH)

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
                self._announce(out, LinkQueue(self.peer, adapter, deep.get(adapter, 0)))
        self._deep = deep

    def _excuse(self, now: Nanos, late: Nanos) -> None:
        """This node was held up: what it did not hear in that time says nothing about the peer."""
        self._heard_at = min(now, self._heard_at + late)
        for flow in self.flows.values():
            flow.heard_at = min(now, flow.heard_at + late)

    def _check_flow(self, now: Nanos, flow: FlowState, out: Outbox) -> None:
        """Ask again on a flow that is not agreed on; close a stream that nothing comes back on."""
        if flow.close_at <= now:
            self._close(flow, "another connection does", out)
            return
        self._wake_at(flow.close_at)
        if flow.ready:
            silent_at = flow.heard_at + self.me.timing.dead_ns
            # What only measures may be silent for long; its sockets notice when nothing passes any more.
            watched = flow.stream and flow.carries
            if watched and silent_at <= now:
                # Its kernels may go on for minutes before they try again: a new one is there sooner.
                self._close(flow, "nothing heard on it", out)
            elif watched:
                self._wake_at(silent_at)
            return
        if flow.hello_at <= now:
            if flow.hellos >= HELLOS_MAX and (flow.stream or not self._wanted.persists(flow.flow)):
                self._unheard(now, flow, out)
                return
            flow.hellos += 1
            self._hello(now, flow)
        self._wake_at(flow.hello_at)

    def _unheard(self, now: Nanos, flow: FlowState, out: Outbox) -> None:
        """Nobody answers on this flow. If it was to measure and the link is up, that is a measurement, too."""
        reason = "no answer to a hello"
        self._close(flow, reason, out)
        if flow.use and not flow.inbound and self.up_since is not None:
            ready = self._flow_ready(flow)
            place = (ready.adapter, ready.remote_adapter, ready.subnet, ready.transport)
            self._announce(out, FlowUnheard(self.peer, *place, flow.use))
            out.fact(self._fact(now, "flow_unheard", path=flow.path, reason=reason))

    def _wake_at(self, deadline: Nanos) -> None:
        if deadline < self.deadline:
            self.deadline = deadline

    def _send_channel(self, now: Nanos, item: SendChannel, out: Outbox) -> None:
        if self.up_since is None:
            return  # whoever holds a channel has been told that the peer is down
        channel = self._outlet.channel(item.channel)
        channel.write(item.messages)
        if channel.waiting_bytes > QUEUE_MAX:
            self._end_session(now, f"channel {item.channel} is full", out)

    def _send_raw(self, _now: Nanos, item: SendRaw, out: Outbox) -> None:
        if self.up_since is None:
            reason = f"there is no session with {self.member.name}"
            out.effect(PortRefused(self.peer, item.port, len(item.messages), reason))
        else:
            self._outlet.raw(item, out)

    def _send_datagrams(self, _now: Nanos, item: SendDatagrams, _out: Outbox) -> None:
        if self.up_since is not None:
            for part in item.frames:
                self._outlet.datagrams.frame(item.cls, part)

    def _send_frame(self, item: SendFrame, out: Outbox) -> None:
        if item.flow is None:
            self._touched = True
            if self.up_since is not None:
                self._outlet.datagrams.frame(item.cls, encode(item.frame))
            return
        flow = self.flows.get(item.flow)
        if flow is None or not flow.ready or flow.closing or not self._cipher.usable(flow):
            return
        if item.wire_size and isinstance(item.frame, Probe):
            self._outlet.probe(flow, item.frame, item.wire_size, out)
        else:
            flow.parts.append(encode(item.frame))

    # -- flows ---------------------------------------------------------------------------------------------------

    def _opened(self, now: Nanos, info: FlowOpened, out: Outbox) -> None:
        remote_adapter = self._wanted.opened(info)
        if info.flow in self.flows:
            return  # a datagram flow that both ends asked for
        flow = FlowState(info, 0)
        if len(self.flows) >= FLOWS_MAX or not self._tag(flow):
            out.effect(CloseFlow(info.flow, "this link has had too many flows"))
            return
        self.flows[info.flow] = flow
        flow.heard_at = now
        flow.remote_adapter = remote_adapter
        # A session number can be read on the cable: who comes with one must show that it has the key as well.
        flow.proven = not (flow.own_seal and self.me.sealed) or not info.inbound
        if flow.proven:
            self._hello(now, flow)

    def _open_failed(self, now: Nanos, item: OpenFailed, _out: Outbox) -> None:
        if not item.use:
            self.last_refusal = item.reason
        self._wanted.failed(item, now)

    def _credit(self, _now: Nanos, item: Credit, _out: Outbox) -> None:
        flow = self.flows.get(item.flow)
        if flow is not None:
            flow.credit = item.open

    def _tag(self, flow: FlowState) -> bool:
        """Give a flow the tag of its packet numbers; False when there is none left."""
        if not flow.own_seal:
            return True
        if self._spare_tags:
            flow.tag, flow.counter = self._spare_tags.pop(0)
            return True
        self._tags += 1
        flow.tag = self._tags
        return self._tags <= TAG_MAX

    def _closed(self, now: Nanos, closed: FlowClosed, out: Outbox) -> None:
        self._wanted.closed(closed.flow, now)
        flow = self.flows.pop(closed.flow, None)
        if flow is None:
            return
        if flow.own_seal:
            self._spare_tags.append((flow.tag, flow.counter))
        if flow.ready:
            self._outlet.lost(flow)
            out.fact(self._fact(now, "flow_lost", path=flow.path, reason=closed.reason))
            self._announce(out, FlowLost(self.peer, flow.flow, closed.reason))

    def _close(self, flow: FlowState, reason: str, out: Outbox) -> None:
        if not flow.closing:
            flow.closing = True
            out.effect(CloseFlow(flow.flow, reason))

    def _verdict(self, now: Nanos, verdict: FlowVerdict | RenewFlow, out: Outbox) -> None:
        """Health has learnt something about a flow."""
        flow = self.flows.get(verdict.flow)
        if flow is None:
            return
        if isinstance(verdict, FlowVerdict):
            self._outlet.judge(now, flow, verdict, out)
        elif flow.stream and not flow.carries:
            self._close(flow, "stuck: another takes its place", out)

    # -- the session ---------------------------------------------------------------------------------------------

    def _hello(self, now: Nanos, flow: FlowState, ask: bool = True) -> None:
        """Queue a `Hello` on a flow, and when it will be repeated if nothing comes back."""
        me = self.me
        hello = Hello(
            low=me.low,
            high=me.high,
            domain=me.domain,
            sealed=me.sealed,
            member=me.member,
            adapter=flow.adapter,
            epoch=self.epoch,
            session=self._cipher.session,
            echo_incarnation=flow.echo[0],
            echo_epoch=flow.echo[1],
            ask=ask,
            to=self.peer,
            use=flow.use,
        )
        flow.parts.append(encode(hello))
        wait = min(me.timing.hello_ns << min(flow.hellos, 10), me.timing.hello_ns_max)
        flow.hello_at = now + wait
        self._wake_at(flow.hello_at)

    def _on_hello(self, now: Nanos, flow: FlowState, hello: Hello, out: Outbox) -> None:
        refuse = check_hello(self.me, hello, flow.info.identity, not flow.own_seal)
        if refuse is None:
            refuse = self._check_peer(hello) or check_addressee(self.me, hello)
        if refuse is not None:
            # Nothing leaves unsealed, not even a no.
            if not flow.own_seal or not self.me.sealed:
                out.effect(Transmit(flow.flow, [refusal(refuse)]))
            self._close(flow, refuse.text, out)
            out.fact(NodeFact(now, "refused", refuse.text))
            return
        flow.remote_adapter = hello.adapter[:NAME_MAX]
        if flow.inbound and not flow.ready and flow.take_use(hello.use):
            if flow.use == FRAG:
                out.effect(MayFragment(flow.flow))
            # Without TLS only now it is known to measure: its numbers must be told from those of other flows.
            if flow.own_seal and not flow.tag and not self._tag(flow):
                self._close(flow, "this link has had too many flows", out)
                return
        if not self._same_subnet(flow, hello.member):
            self._introduced(now, flow, hello, out)
            return
        known = (self.peer_incarnation, self.peer_epoch)
        shown = (hello.member.incarnation, hello.epoch)
        if hello.epoch == 0 or shown < known:
            # Somebody who does not know us yet, or a packet from the past: only say who we are.
            if hello.ask:
                self._hello(now, flow)
            return
        if shown > known:
            self._adopt(now, hello, out)
        flow.echo = shown
        self._cipher.peer_session = hello.session
        heard_us = (hello.echo_incarnation, hello.echo_epoch) == (self.me.incarnation, self.epoch)
        # A session begins on a flow that data may use: what passes elsewhere is no sign that data does.
        if heard_us and not flow.ready and (not flow.use or self.up_since is not None):
            self._ready(now, flow, out)
        if hello.ask or not heard_us:
            self._hello(now, flow, ask=not flow.ready)

    def _check_peer(self, hello: Hello) -> Refuse | None:
        """A link is with one node, and while a session lasts, with one name: certificates are for names."""
        if hello.member.node != self.peer:
            return Refuse("identity", f"this flow belongs to {self.member.name}")
        if self.up_since is not None and hello.member.name != self._peer_name:
            return Refuse("identity", f"this node is {self._peer_name} and is up")
        return None

    def _same_subnet(self, flow: FlowState, member: MemberInfo) -> bool:
        mine = self.me.adapter(flow.adapter)
        subnets = [a.subnet for a in member.adapters if a.name == flow.remote_adapter]
        return mine is not None and mine.subnet in subnets

    def _introduced(self, now: Nanos, flow: FlowState, hello: Hello, out: Outbox) -> None:
        """A flow between two subnets (who joins may come from anywhere): it tells where the peer is, no more."""
        self._wanted.update(hello.member, now)
        if not self._wanted:
            self.last_refusal = (
                f"no adapter of {self.me.name} is on a subnet of {hello.member.name}"
            )
        if flow.inbound:
            if hello.ask:
                self._hello(now, flow, ask=False)
        else:
            self._close(flow, "introduced", out)

    def _adopt(self, now: Nanos, hello: Hello, out: Outbox) -> None:
        """The peer shows a new session: a restart, or it gave up on us."""
        restarted = hello.member.incarnation > self.peer_incarnation
        if self.up_since is not None:
            reason = "the peer restarted" if restarted else "the peer gave up"
            self._end_session(now, reason, out)
        self.member = hello.member
        self.peer_incarnation = hello.member.incarnation
        self.peer_epoch = hello.epoch
        self.version = version_of(self.me, hello)
        self._cipher.forget_peer()
        self._multicast_key = b""
        self._wanted.update(hello.member, now)

    def _ready(self, now: Nanos, flow: FlowState, out: Outbox) -> None:
        flow.ready = True
        flow.hello_at = NEVER
        flow.hellos = 0
        flow.heard_at = now
        replaced = self._wanted.settled(flow.flow, now)
        if replaced in self.flows:
            self._retire(now, self.flows[replaced])
        if flow.carries:
            self._heard_at = now
        self._wake_at(now + self.me.timing.dead_ns)
        if self.up_since is None:
            self.up_since = now
            self._wanted.wake(now)
            self._peer_name = self.member.name
            out.fact(self._fact(now, "up", path=flow.path))
            self._announce(out, PeerUp(self.peer, self.member))
        if self.me.sealed and not flow.own_seal:
            flow.parts.append(encode(self._cipher.key_frame()))
        out.fact(self._fact(now, "flow_ready", path=flow.path))
        self._announce(out, self._flow_ready(flow))
        self._drop_twins(now, flow)

    def _drop_twins(self, now: Nanos, flow: FlowState) -> None:
        """One stream for each pair of adapters: the one that the node with the smaller id opened, and its newest.
        One flow for each thing that is measured: the newest, because the other side may know already that the one
        before it is stalled."""
        if not flow.stream and not flow.use:
            return
        inbound = self.me.node > self.peer
        place = (flow.adapter, flow.remote_adapter, flow.stream, flow.use)
        for twin in self.flows.values():
            if twin is flow or not twin.ready or twin.close_at < NEVER:
                continue
            if (twin.adapter, twin.remote_adapter, twin.stream, twin.use) != place:
                continue
            stays = not flow.use and flow.inbound != inbound and twin.inbound == inbound
            self._retire(now, flow if stays else twin)

    def _retire(self, now: Nanos, flow: FlowState) -> None:
        """Another flow serves in its place. Not at once: the peer should know of the other one before, or it takes
        the path for dead."""
        flow.close_at = min(flow.close_at, now + self.me.timing.hello_ns)
        self._wake_at(flow.close_at)

    def _end_session(
        self,
        now: Nanos,
        reason: str,
        out: Outbox,
        hang_up: bool = False,
        left: bool = False,
        resting: bool = False,
    ) -> None:
        """End every channel, loudly. What comes next has a new epoch, so that nothing of the past is taken for it.
        `hang_up`: the flows are of no use either. `left`: the peer said goodbye, and will not answer. `resting`:
        both ends can do without."""
        self.up_since = None
        self._touched = True
        self._deep = {}
        unsent = self._outlet.clear(out)
        self._inlet.clear()
        self._cipher.renew(self._sessions.open(self.unit))
        self.epoch = self._sessions.next_epoch(self.peer)
        for flow in list(self.flows.values()):
            flow.parts.clear()
            flow.apart.clear()
            if flow.ready:
                flow.ready = False
                self._announce(out, FlowLost(self.peer, flow.flow, reason, left or resting))
            if hang_up or left:
                self._close(flow, reason, out)
            elif not flow.closing and flow.proven:
                flow.hellos = 0
                self._hello(now, flow)
        out.fact(self._fact(now, "down", reason=f"{reason}; {unsent} bytes not acknowledged"))
        self._announce(out, PeerDown(self.peer, reason, left, resting))
        out.effect(SessionEnded(self.peer, reason, unsent))

    def _rest(self, now: Nanos, item: Rest, out: Outbox) -> None:
        """Nobody here needs this link: ask the peer, or end it if the peer has asked."""
        if self.up_since is None:
            return
        for flow in self.flows.values():
            if flow.ready and not flow.closing:
                flow.parts.append(encode(Bye(rest=True)))
                self._outlet.transmit(flow, out)
        if item.agreed:
            self._end_session(now, "at rest", out, hang_up=True, resting=True)

    def _flow_ready(self, flow: FlowState) -> FlowReady:
        mine = self.me.adapter(flow.adapter)
        return FlowReady(
            self.peer,
            flow.flow,
            flow.adapter,
            flow.remote_adapter,
            mine.subnet if mine else "",
            flow.info.transport,
            flow.use,
        )

    def _announce(self, out: Outbox, item: Any) -> None:
        for unit in self._listeners:
            out.up(unit, item)

    def _member_update(self, now: Nanos, item: MemberUpdate, _out: Outbox) -> None:
        self.member = item.member
        self._wanted.update(item.member, now)

    def _say_goodbye(self, _now: Nanos, _item: Leave, _out: Outbox) -> None:
        for flow in self.flows.values():
            if flow.ready:
                flow.parts.append(encode(Bye()))

    def _reannounce(self, _now: Nanos, item: Reannounce, out: Outbox) -> None:
        """A unit above was rebuilt and knows nothing: tell it what there is."""
        unit = item.unit
        if self.up_since is None:
            return
        out.up(unit, PeerUp(self.peer, self.member))
        if unit.startswith(MULTICAST) and self._multicast_key:
            out.up(unit, MulticastKey(self.peer, self._multicast_key))
        for flow in self.flows.values():
            if flow.ready:
                out.up(unit, self._flow_ready(flow))

    # -- packets in ----------------------------------------------------------------------------------------------

    def _arrived(self, now: Nanos, item: Arrived, out: Outbox) -> None:
        flow = self.flows.get(item.flow)
        if flow is None:
            # Of before this unit was rebuilt: nobody knows it, so it must begin again.
            out.effect(CloseFlow(item.flow, "not known here"))
            return
        by_unit: dict[str, list[AnyFrame]] = {}
        read = self._cipher.read
        for data in item.packets:
            if flow.closing:
                break
            frames = read(flow, data)
            if isinstance(frames, Rejected):
                self._reject(now, flow, frames, out)
                continue
            flow.heard_at = now
            if flow.ready and flow.carries and frames and type(frames[0]) is not Hello:
                self._heard_at = now  # a hello asks for a session: it is no sign that there is one
            if not flow.proven:
                flow.proven = self._touched = True
                self._hello(now, flow)
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
            self._close(flow, "it does not show that it is the peer", out)
        elif flow.stream and rejected.reason in _DAMAGED:
            # A stream that is damaged once cannot be trusted to be in step; what was lost is sent again.
            self._close(flow, f"damaged packet: {rejected.reason} {rejected.detail}", out)

    def _own(self, now: Nanos, flow: FlowState, frame: AnyFrame, out: Outbox) -> None:
        """A frame that is for the link itself."""
        match frame:
            case Hello():
                self._touched = True
                self._on_hello(now, flow, frame, out)
            case Refuse():
                self.last_refusal = frame.text[:200]
                out.fact(NodeFact(now, "refused", f"by {self.member.name}: {self.last_refusal}"))
                self._close(flow, f"refused: {self.last_refusal}", out)
            case _ if not flow.ready:
                return
            case ChunkAck():
                self._ack(now, frame)
            case Hurry():
                self._inlet.in_hurry = True
            case Key() if not flow.own_seal and self.me.sealed:
                if self._cipher.take_key(frame):
                    self._key_came(now)
                    self._hand_on_key(frame, out)
            case Bye(rest=True):
                self._announce(out, RestAsked(self.peer))
            case Bye():
                self._end_session(now, "the peer left", out, left=True)
            case _:
                self.rejected["unexpected"] = self.rejected.get("unexpected", 0) + 1

    def _key_came(self, now: Nanos) -> None:
        """Datagram flows can be opened now, and those that wait can speak."""
        self._wake_at(now + 1)
        for flow in self.flows.values():
            if flow.own_seal and not flow.ready and flow.proven:
                flow.hellos = 0
                flow.hello_at = now + 1

    def _hand_on_key(self, key: Key, out: Outbox) -> None:
        if len(key.multicast) == KEY:
            self._multicast_key = key.multicast
            for unit in self._listeners:
                if unit.startswith(MULTICAST):
                    out.up(unit, MulticastKey(self.peer, key.multicast))

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
        self._end_session(now, f"channel {frame.channel} damaged: {problem.detail}", out)

    def _ack(self, now: Nanos, frame: ChunkAck) -> None:
        channel = self._outlet.channels.get(frame.channel)
        if channel is None:
            return
        if not channel.ack(now, frame, self._datagram_flows):
            self.rejected["ack"] = self.rejected.get("ack", 0) + 1
        self._touched = self._touched or channel.wants()

    def _datagram_flows(self) -> dict[FlowId, bool]:
        return {flow.flow: not flow.stream for flow in self.flows.values()}

    # -- for people ----------------------------------------------------------------------------------------------

    def _moved(
        self, now: Nanos, lane: Placed, flow: FlowState, before: FlowState | None, out: Outbox
    ) -> None:
        was = before.path if before else ""
        reason = f"{traffic_name(lane.traffic)}: {lane.reason}"
        out.fact(self._fact(now, "moved", path=flow.path, path_before=was, reason=reason))

    def _fact(
        self, now: Nanos, event: str, path: str = "", path_before: str = "", reason: str = ""
    ) -> LinkFact:
        return LinkFact(now, event, self.peer.hex(), self.member.name, path, path_before, reason)

    def placement(self, traffic: int) -> tuple[str, str]:
        """The path that some traffic uses, and why."""
        return self._outlet.placement(traffic)

    def status(self) -> dict[str, Any]:
        """The link as the page and `holdfast status` show it."""
        return {
            "peer": self.member.name,
            "state": "up" if self.up_since is not None else "down",
            "session": self._cipher.session,
            "refused": self.last_refusal,
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
