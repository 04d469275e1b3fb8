"""How long each node takes to bring back what it was asked for, and so how long to wait before asking again.

Requests and what is sent again travel by channels, which lose nothing while a session lasts: what has not come yet is
most likely on its way. To ask again too soon brings everything twice, and makes a leader take for lost what is not.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.types import Nanos, NodeId

NODES_MAX: Final = 1024
FLOOR: Final = 4
"""However quick a node was, it is given this part of the time that a node that is not known has."""


class _Known(msgspec.Struct, gc=False):
    mean_ns: Nanos
    spread_ns: Nanos


class RoundTrips:
    """Smoothed as TCP does it (RFC 6298), in integers."""

    __slots__ = ("_first_ns", "_known", "_max_ns")

    def __init__(self, first_ns: Nanos, max_ns: Nanos) -> None:
        self._first_ns = first_ns
        self._max_ns = max_ns
        self._known: dict[NodeId, _Known] = {}

    def took(self, node: NodeId, ns: Nanos) -> None:
        """What a node was asked for is here, so long after it was first asked."""
        ns = min(ns, self._max_ns)
        known = self._known.get(node)
        if known is None:
            if len(self._known) >= NODES_MAX:
                del self._known[next(iter(self._known))]
            self._known[node] = _Known(ns, ns // 2)
            return
        known.spread_ns += (abs(ns - known.mean_ns) - known.spread_ns) // 4
        known.mean_ns += (ns - known.mean_ns) // 8

    def mean_ns(self, node: NodeId) -> Nanos:
        """The time there and back; 0 while it is not known."""
        known = self._known.get(node)
        return known.mean_ns if known is not None else 0

    def wait_ns(self, node: NodeId, tries: int) -> Nanos:
        """How long to wait for an answer to request number `tries` (the first one is 1)."""
        known = self._known.get(node)
        wait_ns = self._first_ns
        if known is not None:
            wait_ns = max(known.mean_ns + 4 * known.spread_ns, self._first_ns // FLOOR)
        return min(wait_ns << min(tries - 1, 20), self._max_ns)
