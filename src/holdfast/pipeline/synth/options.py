"""What a synthetic domain is like."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Final, Literal

import msgspec

from holdfast.errors import MisuseError

DAY_S: Final = 86_400
HOUR_S: Final = 3_600

VIOLATIONS: Final = {
    "different_message": "agreement",
    "different_order": "agreement",
    "delivered_twice": "once",
    "stream_reordered": "once",
    "position_reused": "one place",
    "hole": "no hole",
    "went_back": "in order",
    "delivered_after_drop": "no delivery after drop",
    "lost_in_failover": "agreement",
    "two_leaders": "one leader per term",
    "facts_lost": "",
}
"""Violations that can be planted, each in a group of its own, with the claim that it breaks.

`facts_lost` breaks none: a replica lost facts, so the audit must answer `not provable`."""

Neighbours = Literal["all", "hypercube", "ring"]


class SynthOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that decides what is generated."""

    nodes: int = 8
    adapters: int = 2
    subnets: int = 2
    realms: int = 2
    days: float = 2.0
    start: str = "2026-10-05"
    """First day, ISO format, UTC. The default is a Monday."""
    seed: int = 1
    neighbours: Neighbours = "all"
    transports: tuple[str, ...] = ("udp", "tcp")
    sample_s: float = 30.0
    """Seconds between samples on a path."""
    load_s: float = 60.0
    """Seconds between load facts of an adapter."""
    faults_per_day: float = 6.0
    """Faults at random times; every other one is announced by rising loss."""
    pairs_per_day: float = 1.0
    """Two unrelated faults at the same time."""
    nightly: int = 1
    """Faults that come back every night."""
    nightly_days: float = 0.0
    """After how many days the nightly faults are repaired; 0: never."""
    noise: float = 1.0
    """Scale of lost facts, brief losses, late files and skewed clocks; 0 turns them off."""
    restarts_per_day: float = 0.05
    """How often each node restarts."""
    groups: int = 1
    replicas: int = 3
    entries_per_s: float = 0.2
    violations: tuple[str, ...] = ()
    """Kinds from `VIOLATIONS` to plant."""
    segment_minutes: float = 60.0
    """How much time one segment covers: small values make many small files."""

    @property
    def start_s(self) -> int:
        """Seconds since 1970 at the first moment."""
        day = date.fromisoformat(self.start)
        return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())

    @property
    def seconds(self) -> float:
        return self.days * DAY_S

    def check(self) -> None:
        """Raise `MisuseError` for options that cannot be met."""
        if self.nodes < 2 or self.nodes > 1_000_000:
            raise _refuse("nodes", self.nodes, "2 to 1 000 000")
        for name in ("adapters", "subnets", "realms"):
            if getattr(self, name) < 1:
                raise _refuse(name, getattr(self, name), "1 or more")
        if self.subnets > self.adapters:
            raise _refuse("subnets", self.subnets, "at most the number of adapters")
        if self.realms > self.nodes:
            raise _refuse("realms", self.realms, "at most the number of nodes")
        for name in ("days", "sample_s", "load_s", "segment_minutes", "entries_per_s"):
            if getattr(self, name) <= 0:
                raise _refuse(name, getattr(self, name), "above 0")
        if self.neighbours not in ("all", "hypercube", "ring"):
            raise _refuse("neighbours", self.neighbours, "all, hypercube or ring")
        unknown = [name for name in self.transports if name not in ("udp", "tcp")]
        if unknown or not self.transports:
            raise _refuse("transports", ", ".join(self.transports) or "empty", "udp, tcp or both")
        self._check_groups()
        try:
            date.fromisoformat(self.start)
        except ValueError:
            raise _refuse("start", self.start, "a day as YYYY-MM-DD") from None

    def _check_groups(self) -> None:
        if self.groups and not 1 <= self.replicas <= self.nodes:
            raise _refuse("replicas", self.replicas, "1 to the number of nodes")
        unknown = [name for name in self.violations if name not in VIOLATIONS]
        if unknown:
            raise _refuse("violations", ", ".join(unknown), ", ".join(VIOLATIONS))
        if self.violations and self.replicas < 2:
            raise _refuse("replicas", self.replicas, "2 or more when violations are planted")


def _refuse(name: str, value: object, allowed: str) -> MisuseError:
    return MisuseError(f"{name} cannot be {value}: {allowed}; nothing was generated")
