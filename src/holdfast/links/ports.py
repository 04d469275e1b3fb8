"""The interface of the link layer: to the driver below and the machines above.

The driver (sockets or the simulator) is below. A *flow* is one 5-tuple: a TCP connection, or a UDP socket with one
remote address. The driver numbers flows and never parses packets.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from holdfast.types import DATA, FlowId, Nanos, NodeId
from holdfast.wire.frames import Frame, MemberInfo
from holdfast.wire.packet import AnyPacket

ACCEPTOR = "acceptor"
"""The unit that receives all driver inputs about flows."""


@lru_cache(maxsize=4096)
def link_unit(peer: bytes) -> str:
    """The unit of the link to `peer`."""
    return "link/" + peer.hex()


MULTICAST = "multicast/"


def multicast_unit(adapter: str) -> str:
    """The unit of the multicast group of an adapter."""
    return MULTICAST + adapter


# -- inputs from the driver, to the unit ACCEPTOR ----------------------------------------------------------------


class Identity(msgspec.Struct, frozen=True, gc=False):
    """The identity in the certificate of the peer."""

    node: bytes
    name: str
    domain: str


class FlowOpened(msgspec.Struct, frozen=True, gc=False):
    """A TCP connection is up (accepted or opened), or a UDP flow exists (requested, or created by a datagram)."""

    flow: FlowId
    adapter: str
    transport: str
    host: str
    port: int
    inbound: bool
    unit: str = ""
    """The unit that requested it with `OpenFlow`; empty if inbound."""
    identity: Identity | None = None
    """From TLS; None on UDP and on plain TCP."""
    use: str = ""
    """As requested in `OpenFlow`; the `Hello` of an inbound flow states its purpose. Only an inbound stream outside TLS
    has it here: `mss:1240`."""
    overhead: int = 0
    """The overhead of a packet that travels alone: IP, UDP or TCP with options, the length prefix on a stream, the TLS
    record. 0 if the driver does not know it."""


class OpenFailed(msgspec.Struct, frozen=True, gc=False):
    """A requested flow could not be opened."""

    adapter: str
    transport: str
    host: str
    port: int
    unit: str
    reason: str
    use: str = ""
    connected: bool = False
    """A TCP connection was established, but its handshake did not complete: larger segments may not pass."""
    credentials: bool = False
    """A certificate was not accepted: this node's or the peer's."""


class FlowClosed(msgspec.Struct, frozen=True, gc=False):
    """The flow is gone. Nothing more arrives on it, and nothing sent on it now will."""

    flow: FlowId
    reason: str


class Arrived(msgspec.Struct, frozen=True, gc=False):
    """Packets received on a flow, in order, with their time (kernel time if available)."""

    flow: FlowId
    packets: list[memoryview]
    at: Nanos


class Credit(msgspec.Struct, frozen=True, gc=False):
    """Whether the flow accepts more: False from when its buffer is full until it has drained."""

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
    `alt` (another source port than that of the data; carries data if the others fail), `mss:1240` (a connection outside
    TLS with segments of exactly this size). Each needs its own socket."""
    segment: int = 0
    """The largest segment of a TCP connection, both ways; 0: as large as the adapters allow."""


class Transmit(msgspec.Struct, frozen=True, gc=False):
    """Send packets on a flow. A stream transport prefixes each with its length."""

    flow: FlowId
    packets: list[AnyPacket]


class CloseFlow(msgspec.Struct, frozen=True, gc=False):
    flow: FlowId
    reason: str


class MayFragment(msgspec.Struct, frozen=True, gc=False):
    """The peer opened this datagram flow to measure fragments: from now on, IP may fragment what is sent on it."""

    flow: FlowId


# -- requests from above, to a link unit, on the pass down -------------------------------------------------------


class SendFrame(msgspec.Struct, frozen=True, gc=False):
    """A datagram, which may be lost. Uses any good flow, or the given one (a probe)."""

    frame: Frame
    cls: int = DATA
    flow: FlowId | None = None
    wire_size: int = 0
    """Pad the packet to this size on the wire, alone in its packet; 0: pack it with others."""


class SendDatagrams(msgspec.Struct, frozen=True, gc=False):
    """Encoded frames as datagrams, each of which may be lost. The same bytes may go to many peers. A frame that is too
    large for any packet uses the channel of the class."""

    cls: int
    frames: list[bytes]


class SendChannel(msgspec.Struct, frozen=True, gc=False):
    """Messages on a channel: reliable and ordered on any path. Channel `cls` carries encoded frames; channels from
    `PORT_MIN` on carry application data."""

    channel: int
    messages: list[bytes]


PORT_MIN = 16
COPY_PORT = 0
"""The port of copies of application datagrams, which only show whether such contents pass."""
DATAGRAMS = 1 << 20
"""Added to the port of application datagrams where both kinds of traffic are identified by a number."""


def traffic_name(traffic: int) -> str:
    """The display name of this traffic."""
    if traffic > DATAGRAMS:
        return f"datagrams {traffic - DATAGRAMS}"
    return "datagrams" if traffic == DATAGRAMS else f"channel {traffic}"


def class_of(traffic: int) -> int:
    """The class of traffic: application data is `DATA`."""
    return traffic if traffic < PORT_MIN else DATA


class SendRaw(msgspec.Struct, frozen=True, gc=False):
    """Datagrams of an application, packed together; they may be lost."""

    port: int
    messages: list[bytes]


class MemberUpdate(msgspec.Struct, frozen=True, gc=False):
    """The peer is reachable at these addresses now."""

    member: MemberInfo


FIT = 0
HELD = 1
"""It fits again after a failure, but not for long enough yet."""
AVOIDED = 2
"""It fits, but according to advice it is about to fail: traffic leaves it if another flow fits, and prefers it to unfit
ones."""
UNFIT = 3
"""It does not fit; used only if nothing fits."""
BARRED = 4
"""Never used by this traffic, which waits instead."""


class Fitness(msgspec.Struct, frozen=True, gc=False):
    """The fitness of a flow for one kind of traffic, by the needs of that traffic."""

    traffic: int
    """The channel number, or `DATAGRAMS` plus the port of application datagrams. Traffic without an entry is judged as
    `DATA` and as `DATAGRAMS`."""
    state: int
    reason: str = ""
    """In words, if it is not fit."""
    rank: int = 0
    """Lower is better among flows in one state: the preference of the traffic."""
    size: int = 0
    """The packet size that this traffic declared: it is not put into larger packets, nor together with other traffic,
    whose larger packets may be lost where its own pass. 0: any."""


class DatagramRoom(msgspec.Struct, frozen=True, gc=False):
    """To the units above: the largest frame of class `DATA` that one datagram to this peer carries, when it has
    changed. 0: frames use a stream, or none was sent in this session yet."""

    peer: NodeId
    size: int


class AskHeard(msgspec.Struct, frozen=True, gc=False):
    """From health: asks what has arrived between these adapters, of any kind. Answered by `PathHeard`."""

    adapter: str
    remote_adapter: str


class RenewFlow(msgspec.Struct, frozen=True, gc=False):
    """A measuring connection is stuck behind a lost segment, and must be replaced."""

    flow: FlowId


class FlowVerdict(msgspec.Struct, frozen=True, gc=False):
    """The verdict of health on sending on a flow: whether the peer hears it, and the largest packet that passes."""

    flow: FlowId
    alive: bool
    size: int
    """The largest packet that passes; 0 leaves the size of a datagram flow as it is, and means for a stream that
    segments of every size pass."""
    degraded: bool = False
    """The path has a soft error, whichever traffic it affects."""
    rank: int = 0
    """Lower is better among equally able flows."""
    fitness: tuple[Fitness, ...] = ()
    """Empty: a path with a soft error fits no traffic, any other fits all."""


class Leave(msgspec.Struct, frozen=True, gc=False):
    """Announce to the peer that this node is about to stop."""


class Rest(msgspec.Struct, frozen=True, gc=False):
    """To a link that this node does not need: ask the peer whether it can be closed or, if `agreed`, close it."""

    agreed: bool = False


class Reannounce(msgspec.Struct, frozen=True, gc=False):
    """A unit above was rebuilt: report the session and its flows again."""

    unit: str


# -- inputs to the units above -----------------------------------------------------------------------------------


class Received(msgspec.Struct, frozen=True, gc=False):
    """Frames of one packet or one channel batch, for one unit, in order. `flow` is None if they came by channel."""

    peer: NodeId
    frames: list[Frame]
    at: Nanos
    flow: FlowId | None = None


class PeerUp(msgspec.Struct, frozen=True, gc=False):
    """A session with a peer starts: channels are empty and open."""

    peer: NodeId
    member: MemberInfo


class PeerDown(msgspec.Struct, frozen=True, gc=False):
    """A session ended: the peer has a new incarnation, or all paths are dead. Unacknowledged data may be lost."""

    peer: NodeId
    reason: str
    left: bool = False
    """The peer announced that it stops."""
    resting: bool = False
    """Neither end needs the link; the peer stays a member, and nothing is wrong with it."""


class PeerRefused(msgspec.Struct, frozen=True, gc=False):
    """There is no session, and none can be established: a certificate was not accepted. Reported once for each
    reason."""

    peer: NodeId
    reason: str


class RestAsked(msgspec.Struct, frozen=True, gc=False):
    """The peer no longer needs this link."""

    peer: NodeId


class MemberLeft(msgspec.Struct, frozen=True, gc=False):
    """To the directory: a member to which this node needs no link has left the domain."""

    node: NodeId
    incarnation: int


class NeighboursChanged(msgspec.Struct, frozen=True, gc=False):
    """The neighbours may have changed: check which links are required."""


class NeedLink(msgspec.Struct, frozen=True, gc=False):
    """To the directory: a lease on the link to a member, neighbour or not. Each holder has a separate lease; the link
    is closed when the last one is released."""

    peer: NodeId
    holder: str = ""
    """The unit that needs the link, or empty for the applications of this node."""


class ReleaseLink(msgspec.Struct, frozen=True, gc=False):
    """To the directory: the holder no longer needs the link."""

    peer: NodeId
    holder: str = ""


class LinkImpossible(msgspec.Struct, frozen=True, gc=False):
    """From the directory to the holder of a lease: the node is not a member, or shares no subnet with this one."""

    peer: NodeId
    reason: str


class FlowReady(msgspec.Struct, frozen=True, gc=False):
    """The session is established on this flow: it can be measured and used."""

    peer: NodeId
    flow: FlowId
    adapter: str
    remote_adapter: str
    subnet: str
    transport: str
    use: str = ""


class LinkQueue(msgspec.Struct, frozen=True, gc=False):
    """Bytes of channels that wait to be sent to a peer by an adapter; reported when it changes considerably."""

    peer: NodeId
    adapter: str
    waiting: int


class DataMissing(msgspec.Struct, frozen=True, gc=False):
    """No datagram that applications of the peer send on this flow arrives; or some arrive again."""

    peer: NodeId
    flow: FlowId
    missing: bool
    still: bool = False
    """It was reported before, and still holds."""


class PathHeard(msgspec.Struct, frozen=True, gc=False):
    """Arrivals from a peer between two adapters, on all flows: the time of the last packet, and the bytes of all
    packets so far."""

    peer: NodeId
    adapter: str
    remote_adapter: str
    at: Nanos
    size: int


class FlowLost(msgspec.Struct, frozen=True, gc=False):
    """The flow can no longer be used, temporarily or permanently."""

    peer: NodeId
    flow: FlowId
    reason: str
    left: bool = False
    """The peer announced that it stops: nothing is wrong with the path."""


class FlowUnheard(msgspec.Struct, frozen=True, gc=False):
    """A measuring flow could not be established although the link is up: its ports or its packet kind do not pass, in
    one direction or both. Another one is tried later."""

    peer: NodeId
    adapter: str
    remote_adapter: str
    subnet: str
    transport: str
    use: str


class MulticastKey(msgspec.Struct, frozen=True, gc=False):
    """The key with which a peer seals its multicast packets, received over TLS. For units `multicast/<adapter>`."""

    peer: NodeId
    key: bytes


class PortReady(msgspec.Struct, frozen=True, gc=False):
    """Effect for the driver: messages for an application port. `channel` distinguishes the services."""

    peer: NodeId
    port: int
    channel: bool
    messages: list[memoryview]


class SessionEnded(msgspec.Struct, frozen=True, gc=False):
    """Effect for the driver: all channels to this peer have ended, and these bytes may not have arrived."""

    peer: NodeId
    reason: str
    unacked: int


class SessionBegun(msgspec.Struct, frozen=True, gc=False):
    """Effect for the driver: channels to this peer can be opened."""

    peer: NodeId


class PortRoom(msgspec.Struct, frozen=True, gc=False):
    """Effect for the driver: bytes waiting in the queue of a channel, after each change."""

    peer: NodeId
    port: int
    queued: int
    taken: int
    """Bytes of all messages that this channel ever received, each with four more. The sender derives from it what it
    has passed on and the channel has not seen yet."""


class PortRefused(msgspec.Struct, frozen=True, gc=False):
    """Effect for the driver: application datagrams that were not sent: how many, and why."""

    peer: NodeId
    port: int
    count: int
    reason: str
