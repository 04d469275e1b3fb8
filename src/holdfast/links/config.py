"""What links need to know: who this node is, and how patient it is."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.types import MILLISECOND, SECOND, Nanos, NodeId
from holdfast.wire.frames import VERSION_HIGH, VERSION_LOW, AdapterInfo, MemberInfo

GRID_NS: Final = 100 * MILLISECOND
"""What is regular and not urgent happens at multiples of this, together with heartbeats."""


def aligned(now: Nanos, step: Nanos) -> Nanos:
    """The next time on a common grid, so that one wake-up serves much."""
    return (now // step + 1) * step


class LinkTiming(msgspec.Struct, frozen=True, gc=False):
    """Patience of links; the defaults are for a LAN."""

    hello_ns: int = 100 * MILLISECOND
    hello_ns_max: int = 2 * SECOND
    reconnect_ns: int = 100 * MILLISECOND
    reconnect_ns_max: int = 3 * SECOND
    takeover_ns: int = 3 * SECOND
    """The node with the larger id opens a stream itself when the other has not for this long."""
    stall_ns: int = 150 * MILLISECOND
    """A channel whose acknowledgements stop for this long moves, if the peer is heard on another flow."""
    shun_ns: int = 2 * SECOND
    dead_ns: int = 3 * SECOND
    """Nothing heard on any flow for this long ends the session."""
    handshake_ns: int = 5 * SECOND
    remeasure_ns: int = 3 * SECOND
    """A flow that measures and was lost, or never agreed on, is tried again after about this time."""
    renew_ns: int = 20 * MILLISECOND
    """One that was in use until now is opened again after this: both ends know that it is stuck."""
    rotate_ns: int = 60 * SECOND
    """How long a flow of use `alt` is used before another source port takes its place."""


LAN = LinkTiming()
WAN = LinkTiming(
    hello_ns=500 * MILLISECOND,
    hello_ns_max=5 * SECOND,
    reconnect_ns=500 * MILLISECOND,
    reconnect_ns_max=10 * SECOND,
    takeover_ns=10 * SECOND,
    stall_ns=1 * SECOND,
    shun_ns=10 * SECOND,
    dead_ns=15 * SECOND,
    handshake_ns=15 * SECOND,
    remeasure_ns=10 * SECOND,
    renew_ns=100 * MILLISECOND,
    rotate_ns=300 * SECOND,
)


class Self(msgspec.Struct, frozen=True):
    """This node, as it presents itself."""

    node: NodeId
    name: str
    domain: str
    incarnation: int
    adapters: tuple[AdapterInfo, ...]
    sealed: bool
    timing: LinkTiming = LAN
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
