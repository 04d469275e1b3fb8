"""Frames of links: who talks, pieces of channels, datagrams."""

from __future__ import annotations

import msgspec

from holdfast.wire.frames.base import Frame


class AdapterInfo(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One adapter as others must know it."""

    name: str
    subnet: str
    host: str
    port: int
    transports: tuple[str, ...]
    multicast: str = ""
    """`host:port` of the multicast group that the adapters of its subnet listen to; empty without multicast."""
    mtu: int = 1500
    """The largest packet that it is meant to carry."""
    measure: tuple[str, ...] = ()
    """What is measured with flows of their own, where both ends say so: `alt`, `frag`, `mss`."""


class MemberInfo(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A member of the domain and where it can be reached; a higher incarnation replaces a lower one."""

    node: bytes
    name: str
    incarnation: int
    adapters: tuple[AdapterInfo, ...]


class Hello(Frame, frozen=True, gc=False, array_like=True, tag=1):
    """The first frame on a flow, repeated until the peer's echo shows that it arrived.

    `epoch` counts the sender's sessions on this link; a link's session is the pair of both epochs and both
    incarnations. `session` is the number that the peer must put into packets it sends to the sender. The echo is
    what the sender has heard of the peer on this very flow: both directions of it work once both have echoed.
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
    """The sender has not been echoed on this flow yet: please answer."""
    to: bytes = b""
    """The node that it is meant for, where the sender knows: an address can get a new owner."""
    use: str = ""
    """What the flow is for, as in `links.ports.OpenFlow`: data, or measuring only."""


class Refuse(Frame, frozen=True, gc=False, array_like=True, tag=2):
    """Why the sender of a `Hello` is not let in; it may try again after `retry_ms`."""

    code: str
    text: str
    retry_ms: int = 5000


class Key(Frame, frozen=True, gc=False, array_like=True, tag=3):
    """The key for datagrams to the sender of this frame, under `session`. Only ever sent over TLS."""

    session: int
    key: bytes
    multicast: bytes = b""
    """The key that the sender of this frame puts on what it multicasts."""


class Chunk(Frame, frozen=True, gc=False, array_like=True, tag=4):
    """A piece of a channel's byte stream."""

    channel: int
    offset: int
    data: memoryview


class ChunkAck(Frame, frozen=True, gc=False, array_like=True, tag=5):
    """What arrived of a channel: everything below `upto`, and `ranges` above it. `limit` is the offset that the
    receiver has room for."""

    channel: int
    upto: int
    limit: int
    ranges: tuple[tuple[int, int], ...] = ()


class Hurry(Frame, frozen=True, gc=False, array_like=True, tag=7):
    """The sender waits for acknowledgements: on a stream they would take their time."""


class Members(Frame, frozen=True, gc=False, array_like=True, tag=6):
    """Members that the sender knows of."""

    members: tuple[MemberInfo, ...]


class RawBatch(Frame, frozen=True, gc=False, array_like=True, tag=8):
    """Datagrams of an application, several in one packet: a block (see `wire.blocks`)."""

    port: int
    block: memoryview


class Bye(Frame, frozen=True, gc=False, array_like=True, tag=9):
    """The sender leaves on purpose: it is not dead, and nothing is wrong with its paths."""

    rest: bool = False
    """Only this link is given up, because nobody uses it; the sender stays in the domain."""
