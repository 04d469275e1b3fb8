"""Counts what each adapter carries, and makes a fact of it once per interval. The driver feeds it; no IO here."""

from __future__ import annotations

from typing import Final

from holdfast.telemetry.facts import LoadFact
from holdfast.types import SECOND, Nanos

INTERVAL_NS: Final = 60 * SECOND
ADAPTERS_MAX: Final = 256
"""Adapters that are counted; further ones are ignored. A node has a handful."""


class AdapterLoad:
    """The counters of one adapter. The driver adds to them per batch of packets."""

    __slots__ = (
        "drops",
        "queued",
        "received",
        "received_packets",
        "sent",
        "sent_packets",
        "speed_bps",
        "subnet",
    )

    def __init__(self, subnet: str, speed_bps: int) -> None:
        self.subnet = subnet
        self.speed_bps = speed_bps
        self.reset()

    def reset(self) -> None:
        self.sent = self.received = self.sent_packets = self.received_packets = 0
        self.queued = self.drops = 0


class LoadMeter:
    """Adds up bytes and packets per adapter between two facts."""

    def __init__(self, now: Nanos, interval_ns: Nanos = INTERVAL_NS) -> None:
        self.deadline: Nanos = now + interval_ns
        self._interval_ns = interval_ns
        self._since = now
        self._loads: dict[str, AdapterLoad] = {}
        self._dropped: dict[tuple[str, str], int] = {}
        """Drops of each transport at the last fact."""
        self._others = AdapterLoad("", 0)
        """Takes what no counted adapter carried; it makes no fact."""

    def adapter(self, name: str, subnet: str, speed_bps: int = 0) -> None:
        """Start to count an adapter."""
        if name not in self._loads and len(self._loads) < ADAPTERS_MAX:
            self._loads[name] = AdapterLoad(subnet, speed_bps)

    def of(self, adapter: str) -> AdapterLoad:
        """The counters of an adapter."""
        return self._loads.get(adapter, self._others)

    def sent(self, adapter: str, size: int, packets: int = 1) -> None:
        load = self.of(adapter)
        load.sent += size
        load.sent_packets += packets

    def received(self, adapter: str, size: int, packets: int = 1) -> None:
        load = self.of(adapter)
        load.received += size
        load.received_packets += packets

    def queued(self, adapter: str, size: int, drops: int = 0) -> None:
        """The send queue of an adapter now, and packets that it refused."""
        load = self.of(adapter)
        load.queued = max(load.queued, size)
        load.drops += drops

    def refused(self, adapter: str, transport: str, total: int) -> None:
        """The packets that a transport of an adapter has refused since its start."""
        key = (adapter, transport)
        self.of(adapter).drops += max(0, total - self._dropped.get(key, 0))
        self._dropped[key] = total

    def facts(self, now: Nanos) -> list[LoadFact]:
        """The facts of the interval that ends now; call it when `deadline` has come."""
        interval_ms = max(1, (now - self._since) // 1_000_000)
        found = [
            LoadFact(
                now, name, c.subnet, interval_ms, c.sent, c.received, c.sent_packets, c.received_packets,
                c.queued, c.drops, c.speed_bps,
            )
            for name, c in self._loads.items()
        ]  # fmt: skip
        for load in (*self._loads.values(), self._others):
            load.reset()
        self._since = now
        self.deadline = now + self._interval_ns
        return found
