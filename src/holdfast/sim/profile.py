"""How a simulated machine behaves when nothing is wrong with it."""

from __future__ import annotations

import msgspec

from holdfast.types import MICROSECOND, MILLISECOND, Nanos


class HostProfile(msgspec.Struct, frozen=True):
    """Lateness, batches, buffers and clocks. Chance fills in the rest."""

    turn_jitter_ns: Nanos = 20 * MICROSECOND
    """A turn runs up to so much after its first input, so several arrivals land in it."""
    hiccup_ppm: int = 1_000
    """This share of the turns comes late by up to `hiccup_ns`: another process had the processor."""
    hiccup_ns: Nanos = 2 * MILLISECOND
    batch_max: int = 256
    """At most so many inputs in a turn; often fewer when more wait."""
    packets_max: int = 8_192
    """Datagrams that wait for the process; more are lost, as from a full socket buffer."""
    apply_ns: Nanos = 50 * MICROSECOND
    disk_lag_ns: Nanos = 400 * MICROSECOND
    disk_jitter_ns: Nanos = 400 * MICROSECOND
    wall_skew_ns: Nanos = 50 * MILLISECOND
    """The time of day is wrong by up to this, either way."""
