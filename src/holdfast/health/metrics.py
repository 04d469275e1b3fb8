"""What a path is like, in figures: loss, round trip, jitter, an estimate of what it carries."""

from __future__ import annotations

from typing import Final

from holdfast.types import MICROSECOND, SECOND, Nanos

LOSS_FLOOR_PPM: Final = 5_000
_SMOOTH: Final = 16
_SMOOTH_LONG: Final = 256
_LOSS_START_PPM: Final = 10_000
GAP_MAX: Final = 64
"""A larger gap in the numbers of basics says that the sender began anew, not that so many were lost."""
GAP_NS_MIN: Final = 20 * MICROSECOND
"""Packets that are read closer to each other than this say nothing of the path, only of who reads them."""
_SAMPLE_MAX: Final = 1 << 40
_FLAT_MAX: Final = 16


class LossRate:
    """Loss is smoothed twice. The short one follows; the long one remembers, or a lossy path would be taken for a
    clean one whenever it is lucky for a while, and then its next losses for a fault."""

    __slots__ = ("_long", "_short")

    def __init__(self) -> None:
        self._short = 0
        self._long = _LOSS_START_PPM * _SMOOTH_LONG

    @property
    def ppm(self) -> int:
        return self._short // _SMOOTH

    @property
    def long_ppm(self) -> int:
        return self._long // _SMOOTH_LONG

    @property
    def judged_ppm(self) -> int:
        """The loss that verdicts reckon with: rather too high than too low."""
        return max(self._short // _SMOOTH, self._long // _SMOOTH_LONG, LOSS_FLOOR_PPM)

    def seen(self, lost: int) -> None:
        """One packet arrived after `lost` others had not."""
        for _ in range(min(lost, GAP_MAX)):
            self._short += 1_000_000 - self._short // _SMOOTH
            self._long += 1_000_000 - self._long // _SMOOTH_LONG
        self.arrived()

    def arrived(self) -> None:
        """One packet arrived after the one before it."""
        self._short -= self._short // _SMOOTH
        self._long -= self._long // _SMOOTH_LONG


class RoundTrip:
    """The time to the peer and back without its stay there, and how much the way here varies."""

    __slots__ = ("_transit", "jitter_us", "rtt_us")

    def __init__(self) -> None:
        self.rtt_us = 0
        self.jitter_us = 0
        self._transit: Nanos | None = None

    def arrived(
        self, at: Nanos, sent_ns: Nanos, echo_ns: Nanos = 0, echo_age_ns: Nanos = 0
    ) -> None:
        """Something arrived that was sent at a time of the peer's clock, and that answers (unless 0) something of ours.

        Clocks differ by an unknown amount, but it stays the same: for jitter only differences are used (RFC 3550).
        """
        transit = at - sent_ns
        if self._transit is not None:
            change = abs(transit - self._transit)
            if change < SECOND:  # more is a clock that was set, or a process that stood still
                self.jitter_us += (change // 1000 - self.jitter_us) // 16
        self._transit = transit
        if echo_ns:
            rtt = at - echo_ns - echo_age_ns
            if 0 <= rtt < _SAMPLE_MAX:
                sample = rtt // 1000
                self.rtt_us = (7 * self.rtt_us + sample) // 8 if self.rtt_us else sample


class Throughput:
    """Two packets that left together arrive apart by the time that the narrowest place needs for the second."""

    __slots__ = ("_at", "_flat", "_pair", "rate_kbps")

    def __init__(self) -> None:
        self.rate_kbps = 0
        self._pair = -1
        self._at: Nanos = 0
        self._flat = 0

    def arrived(self, pair: int, size: int, at: Nanos) -> None:
        if pair == self._pair:
            self._sample(size, at - self._at)
        self._pair, self._at = pair, at

    def _sample(self, size: int, gap_ns: Nanos) -> None:
        if gap_ns < GAP_NS_MIN:
            # Read together: the path is faster than can be seen from here.
            self._flat += 1
            if self._flat >= _FLAT_MAX:
                self.rate_kbps = 0
            return
        self._flat = 0
        sample = min(size * 8_000_000 // gap_ns, 1 << 40)
        self.rate_kbps = (7 * self.rate_kbps + sample) // 8 if self.rate_kbps else sample
