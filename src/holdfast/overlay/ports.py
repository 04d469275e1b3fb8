"""What applications ask of the overlay, and what it tells them.

Requests are inputs of the unit `overlay`. Answers are effects for the driver, which hands them to the caller with the
same `op`. A caller numbers its operations; numbers are not used again within one life of a node.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.overlay.frames import Entry
from holdfast.types import Nanos

OVERLAY: Final = "overlay"
"""Name of the unit."""


# -- requests --------------------------------------------------------------------------------------------------------


class PublishRole(msgspec.Struct, frozen=True, gc=False):
    """Add an instance of a role on this node. Answered by `Published`."""

    op: int
    tree: bytes
    role: str
    exclusive: bool = False
    claim: bool = False
    """Exclusive, and only if no node holds the role: the handshake of the paper."""
    realm_only: bool = False
    extent: int = -1
    """Publish within so many hops; -1: without a limit."""


class PublishMany(msgspec.Struct, frozen=True, gc=False):
    """Bulk publish: each is independent of the others."""

    roles: tuple[PublishRole, ...]


class UnpublishRole(msgspec.Struct, frozen=True, gc=False):
    """Remove this node's instance; or, with `instance` and `epoch`, an exclusive one whose node is gone."""

    op: int
    tree: bytes
    role: str
    instance: bytes = b""
    epoch: int = 0


class UnpublishMany(msgspec.Struct, frozen=True, gc=False):
    roles: tuple[UnpublishRole, ...]


class SendToRole(msgspec.Struct, frozen=True, gc=False):
    """Send to all instances of a role, or to one. Answered by any number of `Replied` and exactly one `Ended`; a
    one-way message only by `Ended` when it has left or was refused."""

    op: int
    tree: bytes
    role: str
    data: bytes
    protocol: int = 0
    one: bool = False
    aggregate: bool = False
    one_way: bool = False
    realm_only: bool = False
    instance: bytes = b""
    lifetime_ns: Nanos = 0
    request: bytes = b""
    """A re-send: the id of the request that is sent again."""
    attempt: int = 0
    trace: str = ""
    """The trace context of the sender, handed to the receivers."""


class SendMany(msgspec.Struct, gc=False):
    """The requests of one turn of the event loop, in order. The edge adds to it until the turn begins."""

    requests: list[SendToRole]


class CancelSend(msgspec.Struct, frozen=True, gc=False):
    op: int


class AnswerMessage(msgspec.Struct, frozen=True, gc=False):
    """Reply to a message that was delivered with this token."""

    token: int
    data: bytes
    last: bool = True
    grant: bool = False
    give_up: bool = False
    granted_role: str = ""
    """Another role of the same tree than the one the message was for."""
    failed: bool = False
    """There is no reply: the application failed. The sender receives an error."""


class AnswerMany(msgspec.Struct, frozen=True, gc=False):
    """The answers of one turn of the event loop, in order."""

    answers: tuple[AnswerMessage, ...]


class OpenPort(msgspec.Struct, frozen=True, gc=False):
    """Listen to messages with a protocol id; opening an open port changes it."""

    protocol: int
    trees: tuple[bytes, ...] = ()
    """Trees whose messages without a protocol id are delivered here."""
    snoop: bool = False
    """See messages and replies that pass this node as well."""
    snoop_trees: tuple[bytes, ...] = ()
    """Only on these trees; empty: on all."""


class ClosePort(msgspec.Struct, frozen=True, gc=False):
    protocol: int


CONTINUE: Final = 0
CHANGE: Final = 1
SUSPEND: Final = 2
CONSUME: Final = 3


class SnoopVerdict(msgspec.Struct, frozen=True, gc=False):
    """What to do with a message or reply that a snooper was shown. After SUSPEND another verdict resumes it."""

    token: int
    action: int
    data: bytes = b""


class FindInstances(msgspec.Struct, frozen=True, gc=False):
    """Where all instances of a role are. Answered by `FoundInstances`."""

    op: int
    tree: bytes
    role: str
    realm_only: bool = False


class SetJoinable(msgspec.Struct, frozen=True, gc=False):
    """Whether this node's instance of a role answers finds with its address."""

    tree: bytes
    role: str
    joinable: bool


class Location(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """An instance and its node: what a find returns, and what can be handed to another node."""

    tree: bytes
    role: str
    instance: bytes
    node: bytes
    realm: str


class ConnectTo(msgspec.Struct, frozen=True, gc=False):
    """Open one-hop links to these instances, which may be on several trees. Answered by `Connected`."""

    op: int
    locations: tuple[Location, ...]
    neighbourhood: int = 2


class Disconnect(msgspec.Struct, frozen=True, gc=False):
    tree: bytes


class SearchRole(msgspec.Struct, frozen=True, gc=False):
    """Where the first instance of a role is registered. Answered by `SearchResult`."""

    op: int
    tree: bytes
    role: str


class WalkTree(msgspec.Struct, frozen=True, gc=False):
    """All nodes of a tree and their neighbours on it. Answered by `TreeNodes`."""

    op: int
    tree: bytes


# -- effects ---------------------------------------------------------------------------------------------------------


class Published(msgspec.Struct, frozen=True, gc=False):
    op: int
    instance: bytes
    ok: bool
    reason: str = ""


class Unpublished(msgspec.Struct, frozen=True, gc=False):
    op: int
    ok: bool
    reason: str = ""


class RoleLost(msgspec.Struct, frozen=True, gc=False):
    """This node's instance was removed: another one holds the role exclusively."""

    tree: bytes
    role: str
    instance: bytes
    winner: bytes
    reason: str


class RoleGained(msgspec.Struct, frozen=True, gc=False):
    """A reply granted this role to this node."""

    tree: bytes
    role: str
    instance: bytes
    moved: bool


class Delivered(msgspec.Struct, frozen=True, gc=False):
    """A message for an instance on this node. Answer with `AnswerMessage`, unless it is one-way."""

    token: int
    port: int
    tree: bytes
    role: str
    instance: bytes
    protocol: int
    data: bytes
    request: bytes
    attempt: int
    one_way: bool
    endpoint: bool
    has_role: bool = True
    trace: str = ""


class Withdrawn(msgspec.Struct, frozen=True, gc=False):
    """A delivered message needs no answer any more: it was cancelled, it expired, or the way back is gone."""

    token: int
    reason: str


class Snooped(msgspec.Struct, frozen=True, gc=False):
    """A message or a reply passes this node and waits for `SnoopVerdict`."""

    token: int
    port: int
    tree: bytes
    role: str
    protocol: int
    data: bytes
    reply: bool
    request: bytes
    endpoint: bool
    has_role: bool


class Replied(msgspec.Struct, frozen=True, gc=False):
    op: int
    instance: bytes
    data: bytes
    granted: str = ""


class Ended(msgspec.Struct, frozen=True, gc=False):
    """The one end of a request. `kind`: `done`, `null` (something failed), `not_found`, `cancelled`, `refused`."""

    op: int
    kind: str
    request: bytes
    expected: tuple[bytes, ...] = ()
    answered: tuple[bytes, ...] = ()
    failed: tuple[tuple[bytes, str], ...] = ()
    unknown: tuple[bytes, ...] = ()
    """Expected, but nothing was heard of them: they may have left, or not."""
    incomplete: bool = False
    """Instances that no node could name may be missing."""
    replies: tuple[tuple[bytes, bytes], ...] = ()
    """Aggregated: every reply with the instance that gave it."""
    reason: str = ""


class FoundInstances(msgspec.Struct, frozen=True, gc=False):
    op: int
    locations: tuple[Location, ...]
    complete: bool
    reason: str = ""


class Connected(msgspec.Struct, frozen=True, gc=False):
    """`tree` can be used in `SendToRole`. Those in `multi_hop` have no direct link and are reached over their tree."""

    op: int
    tree: bytes
    one_hop: tuple[bytes, ...]
    multi_hop: tuple[tuple[bytes, str], ...] = ()


class SearchResult(msgspec.Struct, frozen=True, gc=False):
    op: int
    entry: Entry | None
    ok: bool


class TreeNodes(msgspec.Struct, frozen=True, gc=False):
    op: int
    nodes: tuple[tuple[bytes, tuple[bytes, ...]], ...]
    """Each node with its neighbours on the tree."""
    complete: bool
    """Every node of the tree answered."""


class OverlayEvent(msgspec.Struct, frozen=True, gc=False):
    """`tree_built`, `role_not_found`, `partition`, `unpartition`, `swept`, `dropped`."""

    event: str
    tree: bytes = b""
    role: str = ""
    nodes: tuple[bytes, ...] = ()
    detail: str = ""


OVERLAY_EFFECTS: Final = (
    Published,
    Unpublished,
    RoleLost,
    RoleGained,
    Delivered,
    Withdrawn,
    Snooped,
    Replied,
    Ended,
    FoundInstances,
    Connected,
    SearchResult,
    TreeNodes,
    OverlayEvent,
)
