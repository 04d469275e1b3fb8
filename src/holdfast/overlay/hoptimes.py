"""Hop times and recovery time-outs (seed: 'Determining Recovery Timeout').

The local hop time is a weighted average of pings to neighbours, 0.9 old and 0.1 new. It travels on builder messages,
and each node averages what it hears into a global hop time. The time-out of a recovery is three times the largest
recent round trip, in the own realm for a recovery that stays there, anywhere otherwise.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from holdfast.overlay.config import OverlayConfig
from holdfast.types import MICROSECOND, Nanos

FACTOR: Final = 3
RECENT: Final = 32
HOPS_MAX: Final = 64


def averaged(old: Nanos, new: Nanos) -> Nanos:
    # rule: O-timing-2a
    return (9 * old + new) // 10 if old else new


class HopTimes:
    def __init__(self, config: OverlayConfig) -> None:
        self._config = config
        self.local_ns: Nanos = 0
        self.global_ns: Nanos = config.hop_ns
        self._inside: deque[Nanos] = deque(maxlen=RECENT)
        self._all: deque[Nanos] = deque(maxlen=RECENT)

    def pinged(self, old: Nanos, round_trip: Nanos) -> Nanos:
        """A neighbour answered a ping; returns its new hop time."""
        hop = max(round_trip // 2, 1)
        self.local_ns = averaged(self.local_ns, hop)
        return averaged(old, hop)

    def heard(self, hop_us: int) -> None:
        """The local hop time of another node, from a builder message."""
        if 0 < hop_us <= 10_000_000:
            self.global_ns = averaged(self.global_ns, hop_us * MICROSECOND)

    def local_us(self) -> int:
        return max(self.local_ns // MICROSECOND, 0)

    def round_trip(self, inside: bool, took: Nanos) -> None:
        (self._inside if inside else self._all).append(took)

    def timeout(self, inside: bool, nodes: int) -> Nanos:
        """For a recovery that starts now. Before any was measured, by the hop time and the expected hops."""
        # rule: O-timing-2b
        recent = self._inside if inside else self._all
        hops = min(2 * max(nodes, 2).bit_length() + 4, HOPS_MAX)
        longest = max(recent) if recent else 2 * hops * self.global_ns
        return min(max(FACTOR * longest, self._config.wave_ns_min), self._config.wave_ns_max)
