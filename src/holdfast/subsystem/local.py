"""This node as it presents itself to others, and the timeouts that it applies to them."""

from __future__ import annotations

import msgspec

from holdfast.types import MILLISECOND, SECOND, NodeId
from holdfast.wire.frames import VERSION_HIGH, VERSION_LOW, AdapterInfo, MemberInfo


class LinkTiming(msgspec.Struct, frozen=True, gc=False):
    """Timeouts of links; the defaults are for a LAN."""

    hello_ns: int = 100 * MILLISECOND
    hello_ns_max: int = 2 * SECOND
    reconnect_ns: int = 100 * MILLISECOND
    reconnect_ns_max: int = 3 * SECOND
    takeover_ns: int = 3 * SECOND
    """The node with the larger id opens a stream itself if the other has not done so for this long."""
    stall_ns: int = 150 * MILLISECOND
    """A channel whose acknowledgements stop for this long moves, if the peer is heard on another flow."""
    shun_ns: int = 2 * SECOND
    dead_ns: int = 3 * SECOND
    """Silence on all flows for this long ends the session."""
    handshake_ns: int = 5 * SECOND
    remeasure_ns: int = 3 * SECOND
    """A measuring flow that was lost or not established is retried after about this time."""
    renew_ns: int = 20 * MILLISECOND
    """A measuring flow that was in use is reopened after this: both ends know that it is stuck."""
    rotate_ns: int = 60 * SECOND
    """How long a flow of use `alt` is used before another source port replaces it."""


class LocalNode(msgspec.Struct, frozen=True):
    """The identity of this node."""

    node: NodeId
    name: str
    domain: str
    incarnation: int
    adapters: tuple[AdapterInfo, ...]
    sealed: bool
    timing: LinkTiming = LinkTiming()
    low: int = VERSION_LOW
    high: int = VERSION_HIGH

    @property
    def member(self) -> MemberInfo:
        return MemberInfo(self.node, self.name, self.incarnation, self.adapters)

    def adapter(self, name: str) -> AdapterInfo | None:
        for adapter in self.adapters:
            if adapter.name == name:
                return adapter
        return None
