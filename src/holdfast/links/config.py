"""The timing of links."""

from __future__ import annotations

from typing import Final

from holdfast.subsystem import LinkTiming, NodeConfig
from holdfast.types import MILLISECOND, SECOND, Nanos

GRID_NS: Final = 100 * MILLISECOND
"""Regular, non-urgent work happens at multiples of this, together with heartbeats."""


def aligned(now: Nanos, step: Nanos) -> Nanos:
    """The next time on a common grid, so that one wake-up serves several purposes."""
    return (now // step + 1) * step


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


def timing_of(config: NodeConfig) -> LinkTiming:
    """The timeouts of the preset."""
    return LAN if config.preset == "lan" else WAN
