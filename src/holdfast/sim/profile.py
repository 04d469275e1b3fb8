"""The behaviour of a simulated machine without faults."""

from __future__ import annotations

import msgspec

from holdfast.types import MICROSECOND, MILLISECOND, Nanos


class HostProfile(msgspec.Struct, frozen=True):
    """Delays, batches, buffers and clocks, as upper bounds of random values."""

    turn_jitter_ns: Nanos = 20 * MICROSECOND
    """A turn runs up to this long after its first input, so several arrivals are combined."""
    hiccup_ppm: int = 1_000
    """This share of the turns is late by up to `hiccup_ns`, as if another process had the CPU."""
    hiccup_ns: Nanos = 2 * MILLISECOND
    batch_max: int = 256
    """At most this many inputs per turn; often fewer if more wait."""
    packets_max: int = 8_192
    """Datagrams that wait for the process; further ones are lost, as with a full socket buffer."""
    apply_ns: Nanos = 50 * MICROSECOND
    disk_lag_ns: Nanos = 400 * MICROSECOND
    disk_jitter_ns: Nanos = 400 * MICROSECOND
    wall_skew_ns: Nanos = 50 * MILLISECOND
    """Maximum error of the wall clock, in either direction."""
