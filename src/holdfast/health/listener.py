"""Judging one flow from what arrives on it.

Two questions are asked of each flow towards this node. Is it alive: silence is held against the last promise that
was received, never against what we think the period is. Which sizes pass: each probe is paired with a basic that was
sent with it; a basic that arrives without its probe is evidence against that size, weighed by the loss that the
basics themselves suffer. The weights are logarithms of likelihood ratios, so they add up (a sequential test), and
misses of all larger sizes count together: a limit hits everything above it.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from holdfast.types import Nanos
from holdfast.wire.frames import Basic, Probe

# ln(0.98 / loss) in thousandths: what one missing probe says, for the loss that small packets suffer.
_MISS: Final = (
    (1_000, 6_888),
    (10_000, 4_585),
    (50_000, 2_976),
    (100_000, 2_282),
    (200_000, 1_589),
    (400_000, 896),
    (1_000_000, 300),
)
_HIT: Final = 3_900
"""What one probe that arrived says for its size."""
VERDICT: Final = 16_000
"""Evidence for a verdict: odds of about nine million to one."""
BASIC_SIZE: Final = 128
"""What passes where not even the smallest size does: the basics, which are this large at most."""
RUNGS_MAX: Final = 32
LOSS_FLOOR_PPM: Final = 5_000
_SMOOTH: Final = 16


class Rung:
    """What is known of one size."""

    __slots__ = ("evidence", "heard", "misses", "passes", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.passes: bool | None = None
        self.evidence = 0
        """Against this size, in thousandths of the natural logarithm of the odds."""
        self.misses = 0
        self.heard = 0


class Listener:
    """What arrives on one flow, and what it means."""

    __slots__ = (
        "_due",
        "_loss_sum",
        "_pairs",
        "alive",
        "expected",
        "heard",
        "heard_at",
        "last_n",
        "peer_sent_ns",
        "promise_ns",
        "rtt_us",
        "rungs",
        "since",
    )

    def __init__(self, now: Nanos, promise_ns: Nanos) -> None:
        self.rungs: list[Rung] = []
        self.alive = False
        """Until the first basic is heard."""
        self.since = now
        self.heard_at = now
        self.promise_ns = promise_ns
        self.last_n = 0
        self.peer_sent_ns = 0
        self.rtt_us = 0
        self.heard = 0
        self.expected = 0
        self._loss_sum = 0
        self._pairs: dict[int, int] = {}
        self._due: deque[int] = deque()

    @property
    def loss_ppm(self) -> int:
        return self._loss_sum // _SMOOTH

    @property
    def size(self) -> int:
        """The largest size that passes, with all below it; 0 while nothing is known."""
        best = 0
        for rung in self.rungs:
            if rung.passes is False:
                return best or BASIC_SIZE
            if rung.passes:
                best = rung.size
        return best

    @property
    def size_max(self) -> int:
        return self.rungs[-1].size if self.rungs else 0

    def basic(self, frame: Basic, at: Nanos) -> bool:
        """A basic arrived. True when the path was dead until now."""
        revived = not self.alive
        self.heard_at = at
        self.promise_ns = min(max(frame.next_ns, 1), 1 << 40)
        if frame.n > self.last_n:
            gap = frame.n - self.last_n if self.last_n else 1
            lost = min(gap - 1, 64)
            self.expected += lost + 1
            for _ in range(lost):
                self._loss_sum += 1_000_000 - self._loss_sum // _SMOOTH
            self._loss_sum -= self._loss_sum // _SMOOTH
            self.last_n = frame.n
        self.heard += 1
        self.peer_sent_ns = frame.sent_ns
        if frame.echo_ns:
            rtt = at - frame.echo_ns - frame.echo_age_ns
            if 0 <= rtt < 1 << 40:
                sample = rtt // 1000
                self.rtt_us = (7 * self.rtt_us + sample) // 8 if self.rtt_us else sample
        if revived:
            self.alive = True
            self.since = at
            self.forget_pairs()
        return revived

    def probe(self, frame: Probe) -> None:
        """A probe arrived: its size passes, at least this once."""
        for index, rung in enumerate(self.rungs):
            if rung.size == frame.size:
                self._pairs[frame.pair] = self._pairs.get(frame.pair, 0) | 1 << index
                return

    def pair_sent(self, pair: int, sizes: tuple[int, ...]) -> bool:
        """A basic arrived that had probes of `sizes` with it; judge the pair before, whose probes had time enough."""
        if sizes != tuple(rung.size for rung in self.rungs):
            known = {rung.size: rung for rung in self.rungs}
            self.rungs = [known.get(size) or Rung(size) for size in sizes[:RUNGS_MAX]]
            self.forget_pairs()
        self._due.append(pair)
        if len(self._due) < 2:
            return False
        return self._judge(self._due.popleft())

    def forget_pairs(self) -> None:
        self._due.clear()
        self._pairs.clear()

    def silence(self, now: Nanos, grace: int) -> bool:
        """Whether the flow has become dead: no basic for `grace` of the promised periods."""
        if self.alive and now - self.heard_at > grace * self.promise_ns:
            self.alive = False
            self.since = now
            self.forget_pairs()
            return True
        return False

    def excuse(self, pause_ns: Nanos) -> None:
        """This node was late itself: what it did not hear in that time says nothing."""
        self.heard_at += pause_ns

    def _judge(self, pair: int) -> bool:
        """Weigh which sizes of one pair arrived; True when a verdict changed."""
        bits = self._pairs.pop(pair, 0)
        for stale in [p for p in self._pairs if p < pair]:
            del self._pairs[stale]
        miss = _miss_weight(max(self.loss_ppm, LOSS_FLOOR_PPM))
        for index, rung in enumerate(self.rungs):
            if bits >> index & 1:
                rung.heard += 1
                rung.misses = 0
                rung.evidence = max(0, rung.evidence - _HIT)
            else:
                rung.misses += 1
                rung.evidence = min(VERDICT, rung.evidence + miss)
        return self._settle()

    def _settle(self) -> bool:
        before = self.size
        together = 0
        for rung in reversed(self.rungs):
            together += rung.evidence
            if rung.passes is not False and together >= VERDICT and rung.misses >= 2:
                rung.passes = False
                rung.evidence = VERDICT
            elif rung.passes is not True and rung.heard and rung.evidence == 0:
                rung.passes = True
        return self.size != before


def _miss_weight(loss_ppm: int) -> int:
    for limit, weight in _MISS:
        if loss_ppm <= limit:
            return weight
    return _MISS[-1][1]
