"""What crosses the border of the link layer: to and from the driver below it, the machines above it.

Below lies the driver (sockets or the simulator). A *flow* is one 5-tuple: a TCP connection, or a UDP socket with one
remote address. The driver numbers flows; it never looks into a packet.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from holdfast.types import DATA, FlowId, Nanos, NodeId
from holdfast.wire.frames import AnyFrame, MemberInfo
from holdfast.wire.packet import AnyPacket

DOOR = "door"
"""The unit that all driver inputs about flows go to."""


@lru_cache(maxsize=4096)
def link_unit(peer: bytes) -> str:
    """The unit that holds the link to `peer`."""
    return "link/" + peer.hex()


MULTICAST = "multicast/"


def multicast_unit(adapter: str) -> str:
    """The unit that holds the multicast group of an adapter."""
    return MULTICAST + adapter


# -- inputs from the driver, to the unit DOOR --------------------------------------------------------------------


class Identity(msgspec.Struct, frozen=True, gc=False):
    """Who the peer's certificate says it is."""

    node: bytes
    name: str
    domain: str


class FlowOpened(msgspec.Struct, frozen=True, gc=False):
    """A TCP connection is up (accepted or made), or a UDP flow exists (asked for, or first heard from)."""

    flow: FlowId
    adapter: str
    transport: str
    host: str
    port: int
    inbound: bool
    unit: str = ""
    """Who asked for it with `OpenFlow`; empty when inbound."""
    identity: Identity | None = None
    """From TLS; None on UDP and on plain TCP."""
    use: str = ""
    """As it was asked for in `OpenFlow`; what an inbound flow is for is said in its `Hello`. Only an inbound stream
    outside TLS says so here: `mss:1240`."""
    overhead: int = 0
    """Bytes that everything below puts around a packet that travels alone: IP, UDP or TCP with its options, the
    length on a stream, the TLS record. 0 where the driver does not know."""


class OpenFailed(msgspec.Struct, frozen=True, gc=False):
    """A flow that was asked for could not be opened."""

    adapter: str
    transport: str
    host: str
    port: int
    unit: str
    reason: str
    use: str = ""


class FlowClosed(msgspec.Struct, frozen=True, gc=False):
    """The flow is gone. Nothing more arrives on it, and nothing sent on it now will."""

    flow: FlowId
    reason: str


class Arrived(msgspec.Struct, frozen=True, gc=False):
    """Packets that came in on a flow, in order, and when (kernel time where there is one)."""

    flow: FlowId
    packets: list[memoryview]
    at: Nanos


class Credit(msgspec.Struct, frozen=True, gc=False):
    """Whether the flow takes more: False from when its buffer is full until it has drained."""

    flow: FlowId
    open: bool


# -- effects for the driver --------------------------------------------------------------------------------------


class OpenFlow(msgspec.Struct, frozen=True, gc=False):
    """Open a flow from an adapter to an address; answered by `FlowOpened` or `OpenFailed`."""

    adapter: str
    transport: str
    host: str
    port: int
    unit: str
    use: str = ""
    """Empty: it carries data. Otherwise it measures (`links.measuring`): `frag` (datagrams that IP may fragment),
    `alt` (another source port than the data has; carries data when the others are broken), `mss:1240` (a connection
    whose segments are just so large, outside TLS). Each asks for a socket of its own."""


class Transmit(msgspec.Struct, frozen=True, gc=False):
    """Send packets on a flow. A stream transport puts a length in front of each."""

    flow: FlowId
    packets: list[AnyPacket]


class CloseFlow(msgspec.Struct, frozen=True, gc=False):
    flow: FlowId
    reason: str


class MayFragment(msgspec.Struct, frozen=True, gc=False):
    """The peer opened this datagram flow to measure fragments: from now on IP may fragment what is sent on it."""

    flow: FlowId


# -- requests from above, to a link unit, on the pass down -------------------------------------------------------


class SendFrame(msgspec.Struct, frozen=True, gc=False):
    """A datagram: may be lost. Takes any good flow, or just the given one (a probe)."""

    frame: AnyFrame
    cls: int = DATA
    flow: FlowId | None = None
    wire_size: int = 0
    """Fill up the packet to this size on the wire, alone in its packet; 0: pack it with others."""


class SendDatagrams(msgspec.Struct, frozen=True, gc=False):
    """Frames that are encoded already, as datagrams: each may be lost. The same bytes may go to many peers. One that is
    too large for any packet goes by the channel of the class."""

    cls: int
    frames: list[bytes]


class SendChannel(msgspec.Struct, frozen=True, gc=False):
    """Messages on a channel: reliable, in order, whatever path. Channel `cls` carries encoded frames; channels from
    `PORT_MIN` on carry what applications send."""

    channel: int
    messages: list[bytes]


PORT_MIN = 16
DATAGRAMS = 1 << 20
"""Added to the port of an application's datagrams where both kinds of traffic are named by a number."""


def traffic_name(traffic: int) -> str:
    """What people call this traffic."""
    if traffic > DATAGRAMS:
        return f"datagrams {traffic - DATAGRAMS}"
    return "datagrams" if traffic == DATAGRAMS else f"channel {traffic}"


def class_of(traffic: int) -> int:
    """The class that traffic belongs to: what applications send is `DATA`."""
    return traffic if traffic < PORT_MIN else DATA


class SendRaw(msgspec.Struct, frozen=True, gc=False):
    """Datagrams of an application: packed together, may be lost."""

    port: int
    messages: list[bytes]


class MemberUpdate(msgspec.Struct, frozen=True, gc=False):
    """The peer is reachable at these addresses now."""

    member: MemberInfo


FIT = 0
HELD = 1
"""It suits again, but it has failed before, and was not sound for long enough since."""
UNFIT = 2
"""It does not suit; used only while nothing suits."""
BARRED = 3
"""Never to be used by this traffic, which rather waits."""


class Fitness(msgspec.Struct, frozen=True, gc=False):
    """What a flow is worth to one kind of traffic, by the need of that traffic."""

    traffic: int
    """A channel's number, or `DATAGRAMS` plus the port of an application's datagrams. Those without an entry of
    their own are judged as `DATA`, and as `DATAGRAMS`."""
    state: int
    reason: str = ""
    """In plain words, where it is not just fit."""
    rank: int = 0
    """Lower is better among flows in one state: what the traffic would rather have."""
    size: int = 0
    """The packets that this traffic asked for: it is put into no larger ones, and not together with others, whose
    larger packets may be lost where its own pass. 0: any."""


class RenewFlow(msgspec.Struct, frozen=True, gc=False):
    """A connection that measures is stuck: everything behind what was lost on it waits. Another must take its place."""

    flow: FlowId


class FlowVerdict(msgspec.Struct, frozen=True, gc=False):
    """What health knows of sending on a flow: whether the peer hears it, and the largest packet that passes."""

    flow: FlowId
    alive: bool
    size: int
    """The largest packet that passes; 0 leaves a datagram flow's size as it is, and says of a stream that it carries
    segments of every size."""
    degraded: bool = False
    """The path has a soft error, whomever it hurts."""
    rank: int = 0
    """Lower is better among flows that are equally able."""
    fitness: tuple[Fitness, ...] = ()
    """Empty: a path with a soft error suits nobody, any other suits all."""


class Leave(msgspec.Struct, frozen=True, gc=False):
    """Say goodbye to the peer: this node is about to stop."""


class Rest(msgspec.Struct, frozen=True, gc=False):
    """To a link that nobody here needs: ask the peer whether it may rest, or, when `agreed`, end it."""

    agreed: bool = False


class Reannounce(msgspec.Struct, frozen=True, gc=False):
    """A unit above was rebuilt: tell it again about the session and its flows."""

    unit: str


# -- inputs to the units above -----------------------------------------------------------------------------------


class Received(msgspec.Struct, frozen=True, gc=False):
    """Frames of one packet or one channel batch, for one unit, in order. `flow` is None when they came by channel."""

    peer: NodeId
    frames: list[AnyFrame]
    at: Nanos
    flow: FlowId | None = None


class PeerUp(msgspec.Struct, frozen=True, gc=False):
    """A session with a peer begins: channels are empty and open."""

    peer: NodeId
    member: MemberInfo


class PeerDown(msgspec.Struct, frozen=True, gc=False):
    """A session ended: the peer is a new incarnation, or every path is dead. What was not acknowledged may be lost."""

    peer: NodeId
    reason: str
    left: bool = False
    """It said goodbye."""
    resting: bool = False
    """Neither end needs the link; the peer stays a member, and nothing is wrong with it."""


class RestAsked(msgspec.Struct, frozen=True, gc=False):
    """The peer does not need this link any more."""

    peer: NodeId


class MemberLeft(msgspec.Struct, frozen=True, gc=False):
    """To the directory: a member that this node need not have a link to has left the domain."""

    node: NodeId
    incarnation: int


class NeighboursChanged(msgspec.Struct, frozen=True, gc=False):
    """Somebody else may be a neighbour now: look whom this node must have links to."""


class NeedLink(msgspec.Struct, frozen=True, gc=False):
    """To the directory: an application talks to a member, so there must be a link to it, neighbour or not."""

    peer: NodeId


class FlowReady(msgspec.Struct, frozen=True, gc=False):
    """Both ends have agreed on the session on this flow: it can be measured and used."""

    peer: NodeId
    flow: FlowId
    adapter: str
    remote_adapter: str
    subnet: str
    transport: str
    use: str = ""


class LinkQueue(msgspec.Struct, frozen=True, gc=False):
    """So many bytes of channels wait to be sent to a peer by an adapter; said when that changes much."""

    peer: NodeId
    adapter: str
    waiting: int


class FlowLost(msgspec.Struct, frozen=True, gc=False):
    """The flow cannot be used any more, for now or for good."""

    peer: NodeId
    flow: FlowId
    reason: str
    left: bool = False
    """The peer said goodbye: nothing is wrong with the path."""


class FlowUnheard(msgspec.Struct, frozen=True, gc=False):
    """A flow that was opened to measure with could not be agreed on, although the link is up: what is special about
    it (its ports, or its kind) does not pass, in one direction or both. Another one is tried later."""

    peer: NodeId
    adapter: str
    remote_adapter: str
    subnet: str
    transport: str
    use: str


class MulticastKey(msgspec.Struct, frozen=True, gc=False):
    """The key with which a peer seals what it multicasts; it came over TLS. For units `multicast/<adapter>`."""

    peer: NodeId
    key: bytes


class PortReady(msgspec.Struct, frozen=True, gc=False):
    """Effect for the driver: messages that came for an application's port. `channel` tells which service."""

    peer: NodeId
    port: int
    channel: bool
    messages: list[memoryview]


class SessionEnded(msgspec.Struct, frozen=True, gc=False):
    """Effect for the driver: every channel to this peer has ended, and these bytes may not have arrived."""

    peer: NodeId
    reason: str
    unacked: int


class PortRoom(msgspec.Struct, frozen=True, gc=False):
    """Effect for the driver: bytes that wait in a channel's queue, whenever that has changed."""

    peer: NodeId
    port: int
    queued: int
    taken: int
    """Bytes of all messages that this channel was ever given, each with four more: whoever sends knows by it what it
    has handed over and the channel has not seen yet."""


class PortRefused(msgspec.Struct, frozen=True, gc=False):
    """Effect for the driver: datagrams of an application that were not sent, how many, and why."""

    peer: NodeId
    port: int
    count: int
    reason: str
