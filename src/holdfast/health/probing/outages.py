"""Whether what is lost on a flow is lost in outages: moments in which nothing passes.

Loss by chance hits each packet alone, so losses come in as many runs as chance makes of them (Wald and Wolfowitz): of
`lost` and `heard` packets, `lost * heard / (lost + heard)` runs are expected. A path that is interrupted several times
a second has few long runs of losses, and few long runs of arrivals between them. It is flapping, not lossy. Losses in
bursts of a few packets are loss: an outage lasts for `OUTAGE_NS_MIN` at least.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from holdfast.types import MILLISECOND, SECOND, Nanos

OUTAGE_NS_MIN: Final = 100 * MILLISECOND
"""From the first packet that is missing to the last one."""
OUTAGE_NS_MAX: Final = 2 * SECOND
"""A longer silence is a death of the path, which is counted by itself."""
OUTAGES: Final = 3
"""After so many within a minute, a path flaps: as many as of any other error."""
WINDOW_NS: Final = 60 * SECOND
RUNS_MAX: Final = 64
DEVIATIONS: Final = 5
"""How many standard deviations fewer runs there must be than chance makes."""
HOLD_DEVIATIONS: Final = 2
"""The same, while that cannot be said yet, but loss is not claimed either."""
RUNS_MIN: Final = 5
"""Where fewer runs are expected, or there are fewer outages, it cannot be said: any number of runs will do."""
SHARE: Final = (3, 4)
"""The share of the losses that must belong to outages."""
QUIET_PERIODS: Final = 2
QUIET_NS: Final = 2 * SECOND
"""It is over when no outage has come for so many of their periods, and this time."""


class Run:
    """Consecutive packets that were lost."""

    __slots__ = ("before", "began_at", "is_outage", "last", "lasted_ns", "lost")

    def __init__(self, first: int, last: int, ended_at: Nanos, interval_ns: Nanos) -> None:
        self.last = last
        self.lost = last - first + 1
        self.before = 0
        """Packets that arrived since the run before this one."""
        self.lasted_ns = self.lost * interval_ns
        self.began_at = ended_at - self.lasted_ns
        self.is_outage = (self.lost - 1) * interval_ns >= OUTAGE_NS_MIN


class Outages:
    """The runs of losses of one flow in the last minute."""

    __slots__ = ("_over_at", "_runs", "every_ns", "lasting_ns")

    def __init__(self) -> None:
        self._runs: deque[Run] = deque(maxlen=RUNS_MAX)
        self._over_at: Nanos = 0
        self.lasting_ns: Nanos = 0
        """How long an outage lasts, while they come again and again; 0: they do not."""
        self.every_ns: Nanos = 0
        """The time from the beginning of one to that of the next."""

    def missed(self, first: int, last: int, ended_at: Nanos, interval_ns: Nanos) -> None:
        """Packets with these numbers were lost, of which one is sent in each interval; the next came at `ended_at`."""
        run = Run(first, last, ended_at, interval_ns)
        runs = self._runs
        if run.lasted_ns > OUTAGE_NS_MAX:
            runs.clear()
            return
        while runs and ended_at - runs[0].began_at > WINDOW_NS:
            runs.popleft()
        if runs:
            run.before = max(0, first - runs[-1].last - 1)
        runs.append(run)
        if (
            run.is_outage
            and self._outages() >= OUTAGES
            and self._mostly()
            and self._are_few(0, DEVIATIONS)
        ):
            self._state(ended_at)

    def end(self, now: Nanos) -> bool:
        """Time passes; True if no outage has come for so long that they are over."""
        if now < self._over_at:
            return False
        self.lasting_ns = self.every_ns = 0
        return True

    def may_show(self, heard_since: int) -> bool:
        """Whether the losses so far look like outages, though it is too early to say so. `heard_since`: packets that
        arrived after the last of them."""
        if self.lasting_ns or not self._mostly():
            return False
        lost, heard = self._counts(heard_since)
        early = self._outages() < OUTAGES or lost * heard < RUNS_MIN * (lost + heard)
        return early or self._are_few(heard_since, HOLD_DEVIATIONS)

    def _outages(self) -> int:
        return sum(run.is_outage for run in self._runs)

    def _mostly(self) -> bool:
        """Whether most of the losses belong to outages."""
        lost = sum(run.lost for run in self._runs)
        within = sum(run.lost for run in self._runs if run.is_outage)
        return within > 0 and within * SHARE[1] >= lost * SHARE[0]

    def _counts(self, heard_since: int) -> tuple[int, int]:
        """Packets that were lost, and that arrived since the first of these."""
        runs = self._runs
        heard = heard_since + sum(run.before for run in runs) - runs[0].before
        return sum(run.lost for run in runs), heard

    def _are_few(self, heard_since: int, deviations: int) -> bool:
        """Whether there are fewer runs than chance makes, by so many standard deviations."""
        lost, heard = self._counts(heard_since)
        seen, expected = (
            lost + heard,
            lost * heard,
        )  # divided by `seen`, that many runs are expected
        fewer = expected - len(self._runs) * seen
        # Their deviation is about expected / seen / sqrt(seen).
        return fewer > 0 and seen * fewer**2 >= (deviations * expected) ** 2

    def _state(self, now: Nanos) -> None:
        outages = [run for run in self._runs if run.is_outage]
        self.lasting_ns = sum(run.lasted_ns for run in outages) // len(outages)
        self.every_ns = (outages[-1].began_at - outages[0].began_at) // (len(outages) - 1)
        self._over_at = now + QUIET_PERIODS * self.every_ns + QUIET_NS
