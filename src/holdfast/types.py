"""Names used everywhere: identities, units of time, the classes that traffic is divided into."""

from __future__ import annotations

from typing import Final, NewType

NodeId = NewType("NodeId", bytes)
"""16 bytes, durable: made once when a node first starts. Sorts like the number it is."""

FlowId = NewType("FlowId", int)
"""One 5-tuple of one node: a TCP connection, or a UDP socket with one remote address. Local meaning only."""

Nanos = int
"""Points in time and durations are integer nanoseconds. Points are monotonic, with an unspecified zero."""

MICROSECOND: Final = 1_000
MILLISECOND: Final = 1_000_000
SECOND: Final = 1_000_000_000
NEVER: Final = (1 << 63) - 1
"""A deadline that does not come."""

# Classes of traffic, in the order in which they are served. Each has a bounded queue of its own.
SYNC: Final = 0
"""Order, votes, membership, reports on paths: small, and everything waits for it."""
DATA: Final = 1
"""What applications send."""
BULK: Final = 2
"""State transfer and other large things that nobody waits for at this moment."""
CLASSES: Final = (SYNC, DATA, BULK)


def short(node: bytes) -> str:
    """The first eight hex digits of a node id, for people."""
    return node[:4].hex()
