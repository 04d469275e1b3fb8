"""How often, how large, how patient: the tunables of heartbeats."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from holdfast.types import MILLISECOND, SECOND, Nanos

RUNGS = (576, 1000, 1280, 1500, 4000, 9000)
"""Packet sizes that are probed, headers included, up to the adapter's MTU."""


SignatureName = Literal["basic_active", "basic_retry", "diag_active", "diag_retry"]
SIGNATURES: Final[tuple[SignatureName, ...]] = (
    "basic_active",
    "basic_retry",
    "diag_active",
    "diag_retry",
)


class Tunables(msgspec.Struct, frozen=True, gc=False):
    """The tunables of one signature."""

    period_ns: Nanos
    grace: int = 1
    """How many of its heartbeats must be missing before that means anything; more where many are lost anyway."""
    retry_ns: Nanos = 25 * MILLISECOND
    """How soon it is repeated while there is a doubt that has to be settled."""


class Signatures(msgspec.Struct, frozen=True, gc=False):
    """The four signatures of one subnet."""

    basic_active: Tunables = Tunables(100 * MILLISECOND, 3)
    basic_retry: Tunables = Tunables(200 * MILLISECOND)
    diag_active: Tunables = Tunables(200 * MILLISECOND)
    diag_retry: Tunables = Tunables(1 * SECOND)


class Tune(msgspec.Struct, frozen=True, gc=False):
    """Input: change the tunables of a signature, on one subnet or (empty) on all. 0 leaves a value as it is."""

    subnet: str
    signature: SignatureName
    period_ns: Nanos = 0
    grace: int = 0
    retry_ns: Nanos = 0


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
