"""Types and constants used everywhere: identities, units of time, traffic classes."""

from __future__ import annotations

from typing import Final, NewType

NodeId = NewType("NodeId", bytes)
"""A durable id of 16 bytes, created when a node first starts. Sorts as a big-endian number."""

FlowId = NewType("FlowId", int)
"""One 5-tuple of one node: a TCP connection, or a UDP socket with one remote address. Meaningful on this node only."""

Nanos = int
"""Points in time and durations in integer nanoseconds. Points in time are monotonic with an unspecified origin."""

MICROSECOND: Final = 1_000
MILLISECOND: Final = 1_000_000
SECOND: Final = 1_000_000_000
NEVER: Final = (1 << 63) - 1
"""A deadline that never passes."""

# Traffic classes in order of priority. Each has its own bounded queue.
SYNC: Final = 0
"""Order, votes, membership, path reports: small and urgent."""
DATA: Final = 1
"""Application data."""
BULK: Final = 2
"""State transfer and other large, non-urgent data."""
CLASSES: Final = (SYNC, DATA, BULK)


def short(node: bytes) -> str:
    """The first eight hex digits of a node id, for display."""
    return node[:4].hex()
