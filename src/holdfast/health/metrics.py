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
_NO_TRANSIT: Final = -(1 << 80)


class LossRate:
    """Loss is smoothed twice. The short one follows; the long one remembers, or a lossy path would be taken for a
    clean one whenever it is lucky for a while, and then its next losses for a fault."""

    __slots__ = ("_long", "_short", "arrivals")

    def __init__(self) -> None:
        self._short = 0
        self._long = _LOSS_START_PPM * _SMOOTH_LONG
        self.arrivals = 0
        """Packets that arrived one after the other and are not reckoned in yet: whoever hears one only counts."""

    @property
    def ppm(self) -> int:
        self._reckon()
        return self._short // _SMOOTH

    @property
    def long_ppm(self) -> int:
        self._reckon()
        return self._long // _SMOOTH_LONG

    @property
    def judged_ppm(self) -> int:
        """The loss that verdicts reckon with: rather too high than too low."""
        self._reckon()
        return max(self._short // _SMOOTH, self._long // _SMOOTH_LONG, LOSS_FLOOR_PPM)

    def seen(self, lost: int) -> None:
        """One packet arrived after `lost` others had not."""
        self._reckon()
        for _ in range(min(lost, GAP_MAX)):
            self._short += 1_000_000 - self._short // _SMOOTH
            self._long += 1_000_000 - self._long // _SMOOTH_LONG
        self.arrivals = 1

    def _reckon(self) -> None:
        arrivals, self.arrivals = self.arrivals, 0
        short, long = self._short, self._long
        while arrivals and (short >= _SMOOTH or long >= _SMOOTH_LONG):
            short -= short // _SMOOTH
            long -= long // _SMOOTH_LONG
            arrivals -= 1
        self._short, self._long = short, long


class RoundTrip:
    """The time to the peer and back without its stay there, and how much the way here varies."""

    __slots__ = ("_transit", "jitter_us", "rtt_us")

    def __init__(self) -> None:
        self.rtt_us = 0
        self.jitter_us = 0
        self._transit: Nanos = _NO_TRANSIT

    def arrived(
        self, at: Nanos, sent_ns: Nanos, echo_ns: Nanos = 0, echo_age_ns: Nanos = 0
    ) -> None:
        """Something arrived that was sent at a time of the peer's clock, and that answers (unless 0) something of ours.

        Clocks differ by an unknown amount, but it stays the same: for jitter only differences are used (RFC 3550).
        """
        transit = at - sent_ns
        change = abs(transit - self._transit)
        if (
            change < SECOND
        ):  # more is a clock that was set, a process that stood still, or the first one
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
