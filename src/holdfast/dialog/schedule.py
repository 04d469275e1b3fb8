"""When messages may be transmitted: hours of the day, and a rate that spreads a peak."""

from __future__ import annotations

from typing import Final

from holdfast.types import SECOND, Nanos

MINUTE: Final = 60 * SECOND
DAY: Final = 24 * 60 * MINUTE


def opens_at(hours: tuple[tuple[int, int], ...], wall: int) -> int:
    """The first wall time at or after `wall` at which transmission is allowed."""
    if not hours:
        return wall
    midnight = wall - wall % DAY
    starts = []
    for first, stop in hours:
        if midnight + first * MINUTE <= wall < midnight + stop * MINUTE:
            return wall
        start = midnight + first * MINUTE
        starts.append(start if start > wall else start + DAY)
    return min(starts)


class Pace:
    """At most so many messages per second, with a burst of a tenth of a second."""

    __slots__ = ("_free_at", "_gap_ns")

    def __init__(self, rate_per_s: int) -> None:
        self._gap_ns: Nanos = SECOND // rate_per_s if rate_per_s else 0
        self._free_at: Nanos = 0

    def opens_at(self, now: Nanos) -> Nanos:
        """When the next message may go."""
        return max(now, self._free_at - SECOND // 10) if self._gap_ns else now

    def used(self, now: Nanos, count: int) -> None:
        if self._gap_ns:
            self._free_at = max(self._free_at, now) + count * self._gap_ns
