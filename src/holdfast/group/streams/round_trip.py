"""The response time of each node to retransmission requests, and the resulting timeouts.

Requests and retransmissions use channels, which lose nothing while a session lasts: what has not arrived is most likely
on its way. Asking again too soon duplicates everything, and makes a leader treat delayed messages as lost.
"""

from __future__ import annotations

from typing import Final

from holdfast.group.streams.values import RoundTripEstimate
from holdfast.types import Nanos, NodeId

NODES_MAX: Final = 1024
FLOOR: Final = 4
"""However fast a node was, it gets at least this share of the default timeout."""


class RoundTrips:
    """Smoothed as in TCP (RFC 6298), with integers."""

    __slots__ = ("_first_ns", "_known", "_max_ns")

    def __init__(self, first_ns: Nanos, max_ns: Nanos) -> None:
        self._first_ns = first_ns
        self._max_ns = max_ns
        self._known: dict[NodeId, RoundTripEstimate] = {}

    def took(self, node: NodeId, ns: Nanos) -> None:
        """A requested message arrived from a node, this long after the first request."""
        ns = min(ns, self._max_ns)
        known = self._known.get(node)
        if known is None:
            if len(self._known) >= NODES_MAX:
                del self._known[next(iter(self._known))]
            self._known[node] = RoundTripEstimate(ns, ns // 2)
            return
        known.spread_ns += (abs(ns - known.mean_ns) - known.spread_ns) // 4
        known.mean_ns += (ns - known.mean_ns) // 8

    def mean_ns(self, node: NodeId) -> Nanos:
        """The round trip; 0 while unknown."""
        known = self._known.get(node)
        return known.mean_ns if known is not None else 0

    def wait_ns(self, node: NodeId, tries: int) -> Nanos:
        """How long to wait for an answer to request number `tries` (the first one is 1)."""
        known = self._known.get(node)
        wait_ns = self._first_ns
        if known is not None:
            wait_ns = max(known.mean_ns + 4 * known.spread_ns, self._first_ns // FLOOR)
        return min(wait_ns << min(tries - 1, 20), self._max_ns)
