"""Frames of links: handshake, pieces of channels, datagrams."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.wire.frames.base import Frame


class AdapterInfo(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """An adapter as announced to other nodes."""

    name: str
    subnet: str
    host: str
    port: int
    transports: tuple[str, ...]
    multicast: str = ""
    """`host:port` of the multicast group of the subnet; empty without multicast."""
    mtu: int = 1500
    """The largest packet that the adapter is meant to carry."""
    measure: tuple[str, ...] = ()
    """What is measured on separate flows, if both ends enable it: `alt`, `frag`, `mss`."""


class MemberInfo(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A member of the domain and its adapters; a higher incarnation replaces a lower one."""

    node: bytes
    name: str
    incarnation: int
    adapters: tuple[AdapterInfo, ...]


class Hello(Frame, frozen=True, gc=False, array_like=True, tag=1):
    """The first frame on a flow, repeated until the echo of the peer shows that it arrived.

    `epoch` counts the sessions of the sender on this link; the epochs and incarnations of both ends identify a session.
    `session` is the number that the peer must put into packets to the sender. The echo is what the sender has received
    from the peer on this flow: both directions work once both ends have echoed.
    """

    low: int
    high: int
    domain: str
    sealed: bool
    member: MemberInfo
    adapter: str
    epoch: int
    session: int
    echo_incarnation: int = 0
    echo_epoch: int = 0
    ask: bool = True
    """The sender has not been echoed on this flow yet and asks for an answer."""
    to: bytes = b""
    """The intended recipient, if known: an address can get a new owner."""
    use: str = ""
    """The purpose of the flow, as in `links.ports.OpenFlow`: data, or measuring only."""


class Refuse(Frame, frozen=True, gc=False, array_like=True, tag=2):
    """Why a `Hello` was refused; the sender may try again after `retry_ms`."""

    code: str
    text: str
    retry_ms: int = 5000


class Key(Frame, frozen=True, gc=False, array_like=True, tag=3):
    """The key for datagrams to the sender of this frame, under `session`. Only sent over TLS."""

    session: int
    key: bytes
    multicast: bytes = b""
    """The key with which the sender of this frame seals its multicast packets."""


class Chunk(Frame, frozen=True, gc=False, array_like=True, tag=4):
    """A piece of the byte stream of a channel."""

    channel: int
    offset: int
    data: memoryview


class ChunkAck(Frame, frozen=True, gc=False, array_like=True, tag=5):
    """The received part of a channel: everything below `upto`, and `ranges` above it. `limit` is the offset up to which
    the receiver has room."""

    channel: int
    upto: int
    limit: int
    ranges: tuple[tuple[int, int], ...] = ()


class AckRequest(Frame, frozen=True, gc=False, array_like=True, tag=7):
    """Requests acknowledgements at once; on a stream they would be delayed.

    With a `path`, it asks how much has arrived on that flow, and the answer has the same number and `received`."""

    n: int = 0
    path: str = ""
    """The flow in doubt, by the number that its receiver uses."""
    received: int = -1
    """In an answer: bytes of channels that have arrived on it."""


class Members(Frame, frozen=True, gc=False, array_like=True, tag=6):
    """Members that the sender knows."""

    members: tuple[MemberInfo, ...]


class RawBatch(Frame, frozen=True, gc=False, array_like=True, tag=8):
    """Datagrams of an application, several per packet, as a block (see `wire.blocks`)."""

    port: int
    block: memoryview


class Bye(Frame, frozen=True, gc=False, array_like=True, tag=9):
    """The sender leaves intentionally: it is not dead, and its paths are not faulty."""

    rest: bool = False
    """Only this link is closed, because it is unused; the sender stays in the domain."""


class DeliveryQuery(Frame, frozen=True, gc=False, array_like=True, tag=10):
    """Asks how many packets with datagrams of applications have arrived on a flow."""

    path: str
    """The flow, by the number that its receiver uses."""
    sent: int
    """The number of packets sent on it."""


class DeliveryReport(Frame, frozen=True, gc=False, array_like=True, tag=11):
    """The answer to a `DeliveryQuery`."""

    path: str
    """The flow, by the number that its sender uses."""
    sent: int
    received: int


LINK_FRAMES: Final[tuple[type[Frame], ...]] = (
    Hello,
    Refuse,
    Key,
    Chunk,
    ChunkAck,
    AckRequest,
    Members,
    RawBatch,
    Bye,
    DeliveryQuery,
    DeliveryReport,
)
