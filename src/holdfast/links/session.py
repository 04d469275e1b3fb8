"""The session of two nodes, and the flows that belong to it.

A session is identified by the (incarnation, epoch) pairs of both nodes. It starts on the first flow on which both have
echoed each other, and further flows join it. It ends when the peer shows a newer pair, or when nothing is heard on any
flow for `dead_ns`. Channels live in a session, independent of its flows.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from holdfast.links.cipher import Cipher
from holdfast.links.config import GRID_NS, aligned
from holdfast.links.flow import TAG_MAX, FlowState
from holdfast.links.handshake import (
    NAME_MAX,
    check_addressee,
    check_hello,
    refusal,
    version_of,
)
from holdfast.links.measuring import FRAG
from holdfast.links.ports import (
    CloseFlow,
    FlowClosed,
    FlowLost,
    FlowOpened,
    FlowReady,
    FlowUnheard,
    Leave,
    MayFragment,
    MemberUpdate,
    MulticastKey,
    OpenFailed,
    PeerDown,
    PeerRefused,
    PeerUp,
    Reannounce,
    SessionBegun,
    SessionEnded,
    Transmit,
    link_unit,
)
from holdfast.links.session_table import SessionTable
from holdfast.links.wanted_flows import WantedFlows
from holdfast.machine import Outbox
from holdfast.subsystem import LocalNode, Subscribers
from holdfast.telemetry.facts import LinkFact, NodeFact
from holdfast.types import NEVER, FlowId, Nanos, NodeId
from holdfast.wire.codec import encode
from holdfast.wire.frames import Bye, Hello, Key, MemberInfo, Refuse
from holdfast.wire.seal import KEY

FLOWS_MAX: Final = 1024
HELLOS_MAX: Final = 7
"""A stream on which this many hellos had no answer is closed, and another one is tried."""


class Session:
    """One end of the session with one peer. Its frames wait in the flows for the end of the turn."""

    def __init__(
        self,
        me: LocalNode,
        member: MemberInfo,
        session_table: SessionTable,
        subscribers: Subscribers,
        rng: Random,
        cipher: Cipher,
        now: Nanos,
        lost: Callable[[FlowState], None],
        ended: Callable[[Outbox], int],
    ) -> None:
        """`lost` is called for a flow that is gone, and `ended` at the end of the session, which returns the number of
        unacknowledged bytes."""
        self.me = me
        self.peer = NodeId(member.node)
        self.member = member
        self.unit = link_unit(member.node)
        self.up_since: Nanos | None = None
        self.epoch = session_table.next_epoch(member.node)
        self.peer_incarnation = 0
        self.peer_epoch = 0
        self.version = me.low
        self.flows: dict[FlowId, FlowState] = {}
        self.last_refusal = ""
        self.heard_at = now
        """When the peer was last heard on a flow that carries data."""
        self.deadline: Nanos = NEVER
        self.cipher = cipher
        self.cipher.renew(session_table.open(self.unit))
        self.wanted = WantedFlows(me, member.node, self.unit, rng)
        self.wanted.update(member, now)
        self.tags = 0
        self._spare_tags: list[tuple[int, int]] = []
        """Tags of former flows with the number of the last packet, from which a later flow continues."""
        self._peer_name = member.name
        self._session_table = session_table
        self._subscribers = subscribers
        self._multicast_key = b""
        """The key with which the peer seals its multicast packets."""
        self._lost = lost
        self._ended = ended

    def wake(self, now: Nanos, late_ns: Nanos, out: Outbox) -> None:
        """Handle flows that are silent or not established, and open the required ones. `late_ns`: how long this node
        did not run."""
        self.deadline = NEVER
        dead_ns = self.me.timing.dead_ns
        if late_ns:
            self._excuse(now, min(late_ns, dead_ns))
        for flow in list(self.flows.values()):
            if not flow.closing:
                self._check_flow(now, flow, out)
        is_up = self.up_since is not None
        for request in self.wanted.due(now, self.flows, self.cipher.has_key, is_up):
            out.effect(request)
        if self.up_since is None:
            return
        if now - self.heard_at >= dead_ns:
            self._narrow_streams()
            self.end(now, "nothing heard on any path", out, hang_up=True)
        else:
            self._wake_at(self.heard_at + dead_ns)
            # Often enough to notice a delay of this node itself, which only a late wake-up shows. All links wake
            # together and with the heartbeats, because frequent wake-ups of a process cost more than the work in them.
            self._wake_at(aligned(now + dead_ns // 4, GRID_NS))

    def _narrow_streams(self) -> None:
        """Nothing is heard. Without datagrams the reason may be a size limit: a stream stops behind its first larger
        segment."""
        ready = [flow for flow in self.flows.values() if flow.ready and flow.carries]
        if all(flow.stream for flow in ready):
            for flow in ready:
                self.wanted.narrow(flow.flow)

    # -- flows -------------------------------------------------------------------------------------------------------

    def opened(self, now: Nanos, info: FlowOpened, out: Outbox) -> None:
        remote_adapter = self.wanted.opened(info)
        if info.flow in self.flows:
            return  # a datagram flow that both ends requested
        flow = FlowState(info, 0)
        if len(self.flows) >= FLOWS_MAX or not self._tag(flow):
            out.effect(CloseFlow(info.flow, "this link has had too many flows"))
            return
        self.flows[info.flow] = flow
        flow.heard_at = now
        flow.remote_adapter = remote_adapter
        # Session numbers are visible on the wire: a sender that uses one must also prove that it has the key.
        flow.proven = not (flow.own_seal and self.me.sealed) or not info.inbound
        if flow.proven:
            self.hello(now, flow)

    def open_failed(self, now: Nanos, item: OpenFailed, out: Outbox) -> None:
        if not item.use:
            if item.credentials and self.up_since is None and item.reason != self.last_refusal:
                self.announce(out, PeerRefused(self.peer, item.reason))
            self.last_refusal = item.reason
        self.wanted.failed(item, now)

    def _tag(self, flow: FlowState) -> bool:
        """Assign the tag of the packet numbers of a flow; False if there is none left."""
        if not flow.own_seal:
            return True
        if self._spare_tags:
            flow.tag, flow.counter = self._spare_tags.pop(0)
            return True
        self.tags += 1
        flow.tag = self.tags
        return self.tags <= TAG_MAX

    def closed(self, now: Nanos, closed: FlowClosed, out: Outbox) -> None:
        self.wanted.closed(closed.flow, now)
        flow = self.flows.pop(closed.flow, None)
        if flow is None:
            return
        if flow.own_seal:
            self._spare_tags.append((flow.tag, flow.counter))
        if flow.ready:
            self._lost(flow)
            out.fact(self.fact(now, "flow_lost", path=flow.path, reason=closed.reason))
            self.announce(out, FlowLost(self.peer, flow.flow, closed.reason))

    def close(self, flow: FlowState, reason: str, out: Outbox) -> None:
        if not flow.closing:
            flow.closing = True
            out.effect(CloseFlow(flow.flow, reason))

    def _check_flow(self, now: Nanos, flow: FlowState, out: Outbox) -> None:
        """Repeat the hello on a flow that is not established; close a stream without answers."""
        if flow.close_at <= now:
            self.close(flow, "another connection does", out)
            return
        self._wake_at(flow.close_at)
        if flow.ready:
            silent_at = flow.heard_at + self.me.timing.dead_ns
            # A measuring flow may be silent for long; its sockets notice when nothing passes.
            watched = flow.stream and flow.carries
            if watched and silent_at <= now:
                # Its kernels may wait for minutes before they retransmit; a new connection is faster.
                self.close(flow, "nothing heard on it", out)
            elif watched:
                self._wake_at(silent_at)
            return
        if flow.hello_at <= now:
            if flow.hellos >= HELLOS_MAX and (flow.stream or not self.wanted.persists(flow.flow)):
                self._unheard(now, flow, out)
                return
            flow.hellos += 1
            self.hello(now, flow)
        self._wake_at(flow.hello_at)

    def _unheard(self, now: Nanos, flow: FlowState, out: Outbox) -> None:
        """There is no answer on this flow. For a measuring flow of an established link, that is a result."""
        reason = "no answer to a hello"
        if flow.stream:
            self.wanted.narrow(flow.flow)
        self.close(flow, reason, out)
        if flow.use and not flow.inbound and self.up_since is not None:
            ready = self._flow_ready(flow)
            place = (ready.adapter, ready.remote_adapter, ready.subnet, ready.transport)
            self.announce(out, FlowUnheard(self.peer, *place, flow.use))
            out.fact(self.fact(now, "flow_unheard", path=flow.path, reason=reason))

    def _wake_at(self, deadline: Nanos) -> None:
        if deadline < self.deadline:
            self.deadline = deadline

    def _excuse(self, now: Nanos, late: Nanos) -> None:
        """This node was delayed, so its silence in that time is no evidence against the peer."""
        self.heard_at = min(now, self.heard_at + late)
        for flow in self.flows.values():
            flow.heard_at = min(now, flow.heard_at + late)

    # -- the session -------------------------------------------------------------------------------------------------

    def hello(self, now: Nanos, flow: FlowState, ask: bool = True) -> None:
        """Queue a `Hello` on a flow, and set when it is repeated."""
        me = self.me
        hello = Hello(
            low=me.low,
            high=me.high,
            domain=me.domain,
            sealed=me.sealed,
            member=me.member,
            adapter=flow.adapter,
            epoch=self.epoch,
            session=self.cipher.session,
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

    def hello_came(self, now: Nanos, flow: FlowState, hello: Hello, out: Outbox) -> None:
        refuse = check_hello(self.me, hello, flow.info.identity, not flow.own_seal)
        if refuse is None:
            refuse = self._check_peer(hello) or check_addressee(self.me, hello)
        if refuse is not None:
            # Nothing is sent unsealed, not even a refusal.
            if not flow.own_seal or not self.me.sealed:
                out.effect(Transmit(flow.flow, [refusal(refuse)]))
            self.close(flow, refuse.text, out)
            out.fact(NodeFact(now, "refused", refuse.text))
            return
        flow.remote_adapter = hello.adapter[:NAME_MAX]
        if flow.inbound and not flow.ready and flow.take_use(hello.use):
            if flow.use == FRAG:
                out.effect(MayFragment(flow.flow))
            # Without TLS, only now it is known to be a measuring flow: its packet numbers must be distinct.
            if flow.own_seal and not flow.tag and not self._tag(flow):
                self.close(flow, "this link has had too many flows", out)
                return
        if not self._same_subnet(flow, hello.member):
            self._introduced(now, flow, hello, out)
            return
        known = (self.peer_incarnation, self.peer_epoch)
        shown = (hello.member.incarnation, hello.epoch)
        if hello.epoch == 0 or shown < known:
            # The peer does not know us yet, or the packet is stale: only identify ourselves.
            if hello.ask:
                self.hello(now, flow)
            return
        if shown > known:
            self._adopt(now, hello, out)
        flow.echo = shown
        self.cipher.peer_session = hello.session
        heard_us = (hello.echo_incarnation, hello.echo_epoch) == (self.me.incarnation, self.epoch)
        # A session starts on a flow that data may use: other flows do not show that data passes.
        if heard_us and not flow.ready and (not flow.use or self.up_since is not None):
            self._ready(now, flow, out)
        if hello.ask or not heard_us:
            self.hello(now, flow, ask=not flow.ready)

    def _check_peer(self, hello: Hello) -> Refuse | None:
        """A link belongs to one node and, during a session, to one name: certificates are issued for names."""
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
        """A flow between two subnets (a joining node may use any adapter): it only shows where the peer is."""
        self.wanted.update(hello.member, now)
        if not self.wanted:
            self.last_refusal = (
                f"no adapter of {self.me.name} is on a subnet of {hello.member.name}"
            )
        if flow.inbound:
            if hello.ask:
                self.hello(now, flow, ask=False)
        else:
            self.close(flow, "introduced", out)

    def _adopt(self, now: Nanos, hello: Hello, out: Outbox) -> None:
        """The peer shows a new session: it restarted, or ended the old one."""
        restarted = hello.member.incarnation > self.peer_incarnation
        if self.up_since is not None:
            reason = "the peer restarted" if restarted else "the peer ended the session"
            self.end(now, reason, out)
        self.member = hello.member
        self.peer_incarnation = hello.member.incarnation
        self.peer_epoch = hello.epoch
        self.version = version_of(self.me, hello)
        self.cipher.forget_peer()
        self._multicast_key = b""
        self.wanted.update(hello.member, now)

    def _ready(self, now: Nanos, flow: FlowState, out: Outbox) -> None:
        flow.ready = True
        flow.hello_at = NEVER
        flow.hellos = 0
        flow.heard_at = now
        replaced = self.wanted.settled(flow.flow, now)
        if replaced in self.flows:
            self._retire(now, self.flows[replaced])
        if flow.carries:
            self.heard_at = now
        self._wake_at(now + self.me.timing.dead_ns)
        if self.up_since is None:
            self.up_since = now
            self.wanted.wake(now)
            self._peer_name = self.member.name
            out.fact(self.fact(now, "up", path=flow.path))
            self.announce(out, PeerUp(self.peer, self.member))
            out.effect(SessionBegun(self.peer))
        if self.me.sealed and not flow.own_seal:
            flow.parts.append(encode(self.cipher.key_frame()))
        out.fact(self.fact(now, "flow_ready", path=flow.path))
        self.announce(out, self._flow_ready(flow))
        self._drop_twins(now, flow)

    def _drop_twins(self, now: Nanos, flow: FlowState) -> None:
        """One stream per pair of adapters: the newest that the node with the smaller id opened. One flow per
        measurement: the newest, because the peer may already know that the previous one is stalled."""
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
        """Another flow replaces it. It is closed later, so that the peer learns of the other one first and does not
        treat the path as dead."""
        flow.close_at = min(flow.close_at, now + self.me.timing.hello_ns)
        self._wake_at(flow.close_at)

    def end(
        self,
        now: Nanos,
        reason: str,
        out: Outbox,
        hang_up: bool = False,
        left: bool = False,
        resting: bool = False,
    ) -> None:
        """End all channels and report it. The next session has a new epoch, so that nothing stale is taken for it.
        `hang_up`: the flows are useless too. `left`: the peer has left and will not answer. `resting`: neither end
        needs the link."""
        self.up_since = None
        unsent = self._ended(out)
        self.cipher.renew(self._session_table.open(self.unit))
        self.epoch = self._session_table.next_epoch(self.peer)
        for flow in list(self.flows.values()):
            flow.parts.clear()
            flow.apart.clear()
            if flow.ready:
                flow.ready = False
                self.announce(out, FlowLost(self.peer, flow.flow, reason, left or resting))
            if hang_up or left:
                self.close(flow, reason, out)
            elif not flow.closing and flow.proven:
                flow.hellos = 0
                self.hello(now, flow)
        out.fact(self.fact(now, "down", reason=f"{reason}; {unsent} bytes not acknowledged"))
        self.announce(out, PeerDown(self.peer, reason, left, resting))
        out.effect(SessionEnded(self.peer, reason, unsent))

    def key_came(self, now: Nanos, key: Key, out: Outbox) -> None:
        """The key for datagrams: their flows can be opened now, and waiting ones can send."""
        if not self.cipher.take_key(key):
            return
        self._wake_at(now + 1)
        for flow in self.flows.values():
            if flow.own_seal and not flow.ready and flow.proven:
                flow.hellos = 0
                flow.hello_at = now + 1
        if len(key.multicast) == KEY:
            self._multicast_key = key.multicast
            self.announce(out, MulticastKey(self.peer, key.multicast))

    # -- announcements -----------------------------------------------------------------------------------------------

    def announce(self, out: Outbox, item: Any) -> None:
        """Hand an event to the units that subscribed to its type."""
        for unit in self._subscribers.of(type(item)):
            out.up(unit, item)

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

    def reannounce(self, _now: Nanos, item: Reannounce, out: Outbox) -> None:
        """A unit above was rebuilt: announce the session and its flows to it."""
        if self.up_since is None:
            return
        unit, hears = item.unit, self._subscribers.hears
        if hears(unit, PeerUp):
            out.up(unit, PeerUp(self.peer, self.member))
        if hears(unit, MulticastKey) and self._multicast_key:
            out.up(unit, MulticastKey(self.peer, self._multicast_key))
        if hears(unit, FlowReady):
            for flow in self.flows.values():
                if flow.ready:
                    out.up(unit, self._flow_ready(flow))

    def update(self, now: Nanos, item: MemberUpdate, _out: Outbox) -> None:
        self.member = item.member
        self.wanted.update(item.member, now)

    def leave(self, _now: Nanos, _item: Leave, _out: Outbox) -> None:
        for flow in self.flows.values():
            if flow.ready:
                flow.parts.append(encode(Bye()))

    def fact(
        self, now: Nanos, event: str, path: str = "", path_before: str = "", reason: str = ""
    ) -> LinkFact:
        return LinkFact(now, event, self.peer.hex(), self.member.name, path, path_before, reason)
