"""Frames of the overlay, tags 64 to 95. Everything in them is checked in `checks` before it is used.

Builder frames, messages and replies travel on one channel of a link (rule 16). The map and the colours do not belong to
a tree and travel on the channel for synchronisation.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.wire.codec import learn
from holdfast.wire.frames import Frame

INFINITE: Final = -1
"""Spew hops without a limit; extent without a limit."""

# Kinds of waves.
RECOVER: Final = 0
PUBLISH: Final = 1
UNPUBLISH: Final = 2
SEARCH: Final = 3

# Operations of a SEARCH wave at the node that it is for.
GET: Final = 0
PUT: Final = 1
REMOVE: Final = 2
RELINK: Final = 3
"""To the node of an instance: link to the given entry, or register if there is none."""
TAKEN: Final = 4
"""To the giver of a role: the taker has it."""
RETURNED: Final = 5
"""To the giver of a role: the taker does not want it."""
ASK_TAKER: Final = 6
"""To the taker of a role: do you have it?"""

UNBUILD: Final = 7
"""To an end of a removed edge: the role is not built."""
EDGES: Final = 8
"""To any node: its neighbours on a tree."""
HELD: Final = 9
"""To a node that may have owned an entry of the search: the one that it still has."""

# Registrations.
REGISTER: Final = 0
REGISTER_AGAIN: Final = 1
"""The instance has been registered before, perhaps with another owner."""
CLAIM: Final = 2
"""Takes the role from no instance that is registered."""

# Status of a wave's answer.
DONE: Final = 0
SEEN: Final = 1
FAILED: Final = 2

# Kinds of replies.
DATA_REPLY: Final = 0
END: Final = 1
"""Nothing more comes, and nothing is wrong."""
NULL: Final = 2
"""A link or a node failed, or the message was given up; replies may be missing."""
NOT_FOUND: Final = 3
HIDDEN: Final = 4
"""The copy ended without meaning: a cycle or a stale route."""
MOVED: Final = 5
"""The route has been re-pointed: send it where the role went."""

# How the copy for one instance ended.
ANSWERED: Final = 0
NO_LISTENER: Final = 1
CONSUMED: Final = 2
SWEPT: Final = 3
EXPIRED: Final = 4
REFUSED: Final = 5
LINK_FAILED: Final = 6
GONE: Final = 7
CANCELLED: Final = 8
HANDLER_FAILED: Final = 9
OUTCOMES: Final = (
    "answered",
    "no_listener",
    "consumed",
    "swept",
    "expired",
    "refused",
    "link_failed",
    "gone",
    "cancelled",
    "handler_failed",
)

# Edge operations.
EDGE_CREATE: Final = 0
EDGE_ASK: Final = 1
EDGE_AGREE: Final = 2
EDGE_KEEP: Final = 3
EDGE_FORCED: Final = 4
EDGE_EVICTED: Final = 5
"""The sender has forgotten the tree to make room for another."""
EDGE_UNUSED: Final = 6
"""A route of the sender moved to another link, and it has none left over this edge."""


class OverlayHello(Frame, frozen=True, gc=False, array_like=True, tag=64):
    """First frame of a session between two overlay units, repeated when an epoch changes (rule 15)."""

    epoch: int
    echo: int
    """The receiver's epoch as the sender knows it; 0 when it does not."""
    realm: str
    incarnation: int
    colour: bytes = b""
    clock: int = 0
    settled: bool = False
    """There are roles on the sender's side, so it does not yield its colour silently (rule 4)."""
    copy: bool = False
    """Sent ahead of the first data, on their channel: they may overtake the hello on the other one."""


class MapRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What a node says of itself: its realm and its links. A higher (incarnation, version) replaces a lower one."""

    node: bytes
    incarnation: int
    version: int
    realm: str
    stores: bool
    peers: tuple[bytes, ...]


class MapUpdate(Frame, frozen=True, gc=False, array_like=True, tag=65):
    rows: tuple[MapRow, ...]
    answers: bool = False
    """With these rows the receiver has all that its digest lacked."""


class MapDigest(Frame, frozen=True, gc=False, array_like=True, tag=82):
    """The versions of all rows that the sender has: (node, incarnation, version). The receiver sends what is newer."""

    rows: tuple[tuple[bytes, int, int], ...]


class Colour(Frame, frozen=True, gc=False, array_like=True, tag=66):
    colour: bytes
    clock: int
    settled: bool = False
    gone: tuple[bytes, ...] = ()
    """The colour was made because these nodes could not be reached any more."""


class CutHealed(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Un-partition event: node `near` of `realm` has a new link to `far`."""

    near: bytes
    realm: str
    far: bytes
    number: int
    """Counted by `near`."""
    colours: tuple[bytes, bytes] = (b"", b"")
    """Of the two sides: several links may join them at once, and a few events are enough."""


class Unpartition(Frame, frozen=True, gc=False, array_like=True, tag=67):
    event: CutHealed


class Entry(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Where the first instance of a role is."""

    tree: bytes
    role: str
    instance: bytes
    epoch: int
    exclusive: bool
    realm: str


class Wave(Frame, frozen=True, gc=False, array_like=True, tag=68):
    """A builder message that is answered exactly once by every node that it is sent to (rule 6)."""

    wave: bytes
    root: bytes
    """The wave that this one is a leg of; nodes process each root once."""
    kind: int
    tree: bytes
    role: str
    hops: int = 0
    ttl_ms: int = 20_000
    hop_us: int = 0
    """The sender's measured hop time."""
    target: bytes = b""
    """The node that it is routed to; empty where the forwarding rules apply."""
    then: bytes = b""
    """The neighbour of the target to which it goes on: the far end of a healed cut."""
    spew: int = 0
    realm_only: bool = False
    extent: int = INFINITE
    exclude: tuple[bytes, ...] = ()
    instance: bytes = b""
    epoch: int = 0
    exclusive: bool = False
    seq: int = 0
    """Of the instance's routes. In a registration: whether it is the first one, a repeated one, or a claim."""
    leaf: bool = False
    """Unpublish: no other instance is reached through this one."""
    op: int = 0
    scope: int = 0
    """0: the realm's table, 1: the domain's."""
    entry: Entry | None = None
    any_one: bool = False
    """One instance is enough."""


class Found(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """An instance that a wave reached, and how far it is from the sender of the answer."""

    instance: bytes
    epoch: int
    exclusive: bool
    seq: int
    hops: int


class WaveAnswer(Frame, frozen=True, gc=False, array_like=True, tag=69):
    wave: bytes
    status: int
    hop_us: int = 0
    found: tuple[Found, ...] = ()
    met: tuple[bytes, ...] = ()
    """Publish: instances at which the message stopped."""
    beaten_epoch: int = 0
    """Publish: a higher exclusive instance was met."""
    beaten_by: bytes = b""
    entry: Entry | None = None
    accepted: bool = False


class Bulk(Frame, frozen=True, gc=False, array_like=True, tag=70):
    """Several builder messages for one link."""

    waves: tuple[Wave, ...]


class Edge(Frame, frozen=True, gc=False, array_like=True, tag=71):
    tree: bytes
    op: int
    others: tuple[bytes, ...] = ()
    """Forced removal by a node that forgets the tree: its other edges, so that the pieces find each other."""


class Message(Frame, frozen=True, gc=False, array_like=True, tag=72):
    request: bytes
    attempt: int
    tree: bytes
    role: str
    protocol: int
    data: bytes
    ttl_ms: int
    hops: int = 0
    instance: bytes = b""
    """Only for this instance."""
    prefer: bytes = b""
    """One instance: the one that the previous node chose."""
    one: bool = False
    aggregate: bool = False
    one_way: bool = False
    realm_only: bool = False
    late: bool = False
    """Sent on a route that was found while replies were pending; breaks nothing (rule 10)."""
    direct: bool = False
    """Sent over a direct connection: delivered here, never forwarded."""
    taker: bytes = b""
    """The instance id that the sender would take if the role were granted to it; empty: that of the request."""
    trace: str = ""
    """The trace context of the sender (W3C `traceparent`), for the receiver's spans; empty: it does not trace."""
    entry: bytes = b""
    """The node by which this copy came into the realm it is in; empty where it began."""


class Part(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One reply of one instance."""

    instance: bytes
    data: bytes
    grant: str = ""
    """The role that is granted; empty when none is."""
    give_up: bool = False
    exclusive: bool = False
    epoch: int = 0
    """Of the granted instance."""
    moved_from: bytes = b""


class Reply(Frame, frozen=True, gc=False, array_like=True, tag=73):
    request: bytes
    attempt: int
    kind: int
    last: bool
    parts: tuple[Part, ...] = ()
    expected: tuple[bytes, ...] = ()
    outcomes: tuple[tuple[bytes, int], ...] = ()
    unknown: bool = False
    """Instances that no node could name may be missing."""
    reason: str = ""


class Cancel(Frame, frozen=True, gc=False, array_like=True, tag=74):
    request: bytes
    attempt: int


class Break(Frame, frozen=True, gc=False, array_like=True, tag=75):
    """The message came back in a circle over this link: remove the edge (cycle) or the route (stale)."""

    tree: bytes
    role: str
    request: bytes
    attempt: int
    stale: bool


class Reverse(Frame, frozen=True, gc=False, array_like=True, tag=76):
    """Make a reverse route towards the sender of a message that cycled."""

    tree: bytes
    role: str
    request: bytes
    attempt: int
    broke: tuple[bytes, bytes]
    """The two ends of the edge that was removed."""


class AskTrees(Frame, frozen=True, gc=False, array_like=True, tag=78):
    limit: int


class TreeInfo(msgspec.Struct, frozen=True, gc=False, array_like=True):
    tree: bytes
    role: str
    built: bool
    found: tuple[Found, ...]


class Trees(Frame, frozen=True, gc=False, array_like=True, tag=79):
    trees: tuple[TreeInfo, ...]


class Credit(Frame, frozen=True, gc=False, array_like=True, tag=80):
    messages: int


class HopPing(Frame, frozen=True, gc=False, array_like=True, tag=81):
    sent_ns: int
    echo: bool = False


OverlayFrame = (
    OverlayHello
    | MapUpdate
    | MapDigest
    | Colour
    | Unpartition
    | Wave
    | WaveAnswer
    | Bulk
    | Edge
    | Message
    | Reply
    | Cancel
    | Break
    | Reverse
    | AskTrees
    | Trees
    | Credit
    | HopPing
)
OVERLAY_FRAMES: Final = (
    OverlayHello,
    MapUpdate,
    MapDigest,
    Colour,
    Unpartition,
    Wave,
    WaveAnswer,
    Bulk,
    Edge,
    Message,
    Reply,
    Cancel,
    Break,
    Reverse,
    AskTrees,
    Trees,
    Credit,
    HopPing,
)

learn(OVERLAY_FRAMES)
