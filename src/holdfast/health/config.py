"""The tunables of heartbeats, per subnet and signature.

Four signatures are sent on every path: `basic_active` while it is alive, `basic_retry` while it is dead, `diag_active`
for what passes, and `diag_retry` for what does not. Each has its own tunables, which a client may change at run time
(`Tune`).
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from holdfast.types import MILLISECOND, SECOND, Nanos

RUNGS: Final = (576, 1000, 1280, 1500, 4000, 9000)
"""Probed packet sizes, including IP headers; those up to the MTU of the adapter without fragmentation."""
BASIC_SIZE: Final = 128
"""What passes where not even the smallest size does: basic heartbeats, which have at most this size."""
FRAG_RUNGS: Final = (2000, 4000, 9000)
"""Datagrams above the MTU, which IP fragments."""
PATTERNS: Final = ("00", "ff", "55", "aa")
KINDS: Final = ("udp", "frag", "tcp", "multicast")
PATTERNS_MAX: Final = 8
RUNGS_MAX: Final = 12
PERIOD_MIN: Final = 10 * MILLISECOND
PERIOD_MAX: Final = 3600 * SECOND

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
    """How many heartbeats must be missing before that counts; more on a path with loss."""
    retry_ns: Nanos = 25 * MILLISECOND
    """The period while a suspected fault is being confirmed."""


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


class Budget(msgspec.Struct, frozen=True, gc=False):
    """The bandwidth budgets of heartbeats, in bytes per second, and the budget of false alarms."""

    path: int = 64_000
    adapter: int = 2_000_000
    domain: int = 20_000_000
    """Everything that this node sends; its share of the budget of the domain."""
    burst_ms: int = 4_000
    """How long the budget may accumulate for bursts that confirm a suspected fault."""
    alarms_per_1000_days: int = 10
    """False alarms of the whole domain; thresholds are derived from it."""


class HealthConfig(msgspec.Struct, frozen=True, gc=False):
    """The configuration of health; the defaults are for a LAN."""

    signatures: Signatures = Signatures()
    subnets: tuple[tuple[str, Signatures], ...] = ()
    """Subnets with their own signatures."""
    kinds: tuple[str, ...] = KINDS
    """What is probed where there are flows for it; empty disables diagnostics."""
    rungs: tuple[int, ...] = RUNGS
    frag_rungs: tuple[int, ...] = FRAG_RUNGS
    patterns: tuple[str, ...] = PATTERNS
    budget: Budget = Budget()
    rows_ns: Nanos = 1 * SECOND
    """Interval for publishing slowly changing values (loss, round trip); state changes are published at once."""
    sample_ns: Nanos = 5 * SECOND
    confirm_ns: Nanos = 200 * MILLISECOND
    """How long a listener waits for the confirmation of the sender before it publishes a new value anyway."""

    @property
    def basic_ns(self) -> Nanos:
        return self.signatures.basic_active.period_ns

    def of(self, subnet: str) -> Signatures:
        """The signatures of a subnet."""
        return dict(self.subnets).get(subnet, self.signatures)


LAN: Final = HealthConfig()
WAN: Final = HealthConfig(
    signatures=Signatures(
        basic_active=Tunables(1 * SECOND, 3, 250 * MILLISECOND),
        basic_retry=Tunables(2 * SECOND, 1, 250 * MILLISECOND),
        diag_active=Tunables(2 * SECOND, 1, 250 * MILLISECOND),
        diag_retry=Tunables(10 * SECOND, 1, 250 * MILLISECOND),
    ),
    rows_ns=5 * SECOND,
    sample_ns=30 * SECOND,
    confirm_ns=2 * SECOND,
)


def tuned(signatures: Signatures, tune: Tune) -> Signatures:
    """The signatures after a change; values out of bounds are clamped."""
    if tune.signature not in SIGNATURES:
        return signatures
    old: Tunables = getattr(signatures, tune.signature)
    new = Tunables(
        _bounded(tune.period_ns or old.period_ns),
        min(max(tune.grace or old.grace, 1), 100),
        _bounded(tune.retry_ns or old.retry_ns),
    )
    return msgspec.structs.replace(signatures, **{tune.signature: new})


def _bounded(period_ns: Nanos) -> Nanos:
    return min(max(period_ns, PERIOD_MIN), PERIOD_MAX)
