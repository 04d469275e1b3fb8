"""How often, how large, how patient: the tunables of heartbeats."""

from __future__ import annotations

import msgspec

from holdfast.types import MILLISECOND, SECOND

RUNGS = (576, 1000, 1280, 1500, 4000, 9000)
"""Packet sizes that are probed, headers included, up to the adapter's MTU."""


class HealthConfig(msgspec.Struct, frozen=True, gc=False):
    """Tunables; the defaults are for a LAN."""

    basic_ns: int = 100 * MILLISECOND
    grace: int = 3
    """A path is dead when nothing was heard for this many of the promised periods."""
    probe_every: int = 2
    """Every how many basics the sizes are probed as well; 0 switches probing off."""
    rungs: tuple[int, ...] = RUNGS
    rows_ns: int = 1 * SECOND
    """How often drifting values (loss, round trip) are published; changes of state go at once."""
    sample_ns: int = 5 * SECOND
    pause_ns_max: int = 10 * SECOND
    """How much of its own lateness a node credits to others."""


LAN = HealthConfig()
WAN = HealthConfig(basic_ns=1000 * MILLISECOND, rows_ns=5 * SECOND, sample_ns=30 * SECOND)
