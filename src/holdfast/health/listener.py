"""Judging one flow from what arrives on it.

Two questions are asked of each flow towards this node. Is it alive: silence is held against the last promise that
was received, never against what we think the period is, and for longer where basics are often lost. Which sizes
pass: each probe is paired with a basic that was sent with it; a basic that arrives without its probe is evidence
against that size, weighed by the loss that the basics themselves suffer. The weights are logarithms of likelihood
ratios, so they add up (a sequential test). Two things are tested of each size: that nothing of it or above passes
(then the misses of all these sizes count together, and one arrival speaks against it), and that it alone does not.
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
_SMOOTH_LONG: Final = 256
_LOSS_START_PPM: Final = 10_000
"""Loss is smoothed twice. The short one follows; the long one remembers, or a lossy path would be taken for a clean
one whenever it is lucky for a while, and then its next losses for a limit."""
# How many basics in a row must be missing before a flow is dead, for the loss that basics suffer: about once in a
# million basics it is wrong.
_PATIENCE: Final = (
    (10_000, 3),
    (30_000, 4),
    (60_000, 5),
    (100_000, 6),
    (200_000, 9),
    (400_000, 15),
    (1_000_000, 20),
)
GAP_MAX: Final = 64
"""A larger gap in the numbers of basics says that the sender began anew, not that so many were lost."""
PAIRS_MAX: Final = 64


class Rung:
    """What is known of one size."""

    __slots__ = ("alone", "heard", "limit", "misses", "passes", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.passes: bool | None = None
        self.limit = 0
        """Evidence that nothing of this size or above passes, in thousandths of the logarithm of the odds."""
        self.alone = 0
        """Evidence that this size does not pass, whatever the others do."""
        self.misses = 0
        self.heard = 0


class Listener:
    """What arrives on one flow, and what it means."""

    __slots__ = (
        "_due",
        "_last_pair",
        "_loss_long",
        "_loss_sum",
        "_pairs",
        "_patient_from",
        "_unheard",
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
        self._loss_long = _LOSS_START_PPM * _SMOOTH_LONG
        self._patient_from = now
        self._unheard = True
        """Nothing was said of this flow yet, neither that it is alive nor that it is dead."""
        self._last_pair = -1
        self._pairs: dict[int, int] = {}
        self._due: deque[int] = deque()

    @property
    def loss_ppm(self) -> int:
        return self._loss_sum // _SMOOTH

    @property
    def loss_judged_ppm(self) -> int:
        """The loss that verdicts reckon with: rather too high than too low."""
        return max(self._loss_sum // _SMOOTH, self._loss_long // _SMOOTH_LONG, LOSS_FLOOR_PPM)

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
        self.heard_at = self._patient_from = at
        self.promise_ns = min(max(frame.next_ns, 1), 1 << 40)
        if frame.n > self.last_n:
            gap = frame.n - self.last_n if self.last_n else 1
            lost = gap - 1 if gap <= GAP_MAX else 0
            self.expected += lost + 1
            self._lose(0 if revived else lost)  # a flow that was dead lost nothing by chance
            self._loss_sum -= self._loss_sum // _SMOOTH
            self._loss_long -= self._loss_long // _SMOOTH_LONG
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
            self._unheard = False
            self.since = at
            self.forget_pairs()
        return revived

    def _lose(self, count: int) -> None:
        for _ in range(count):
            self._loss_sum += 1_000_000 - self._loss_sum // _SMOOTH
            self._loss_long += 1_000_000 - self._loss_long // _SMOOTH_LONG

    def probe(self, frame: Probe) -> None:
        """A probe arrived: its size passes, at least this once."""
        for index, rung in enumerate(self.rungs):
            if rung.size == frame.size:
                if frame.pair not in self._pairs and len(self._pairs) >= PAIRS_MAX:
                    del self._pairs[next(iter(self._pairs))]
                self._pairs[frame.pair] = self._pairs.get(frame.pair, 0) | 1 << index
                return

    def pair_sent(self, pair: int, sizes: tuple[int, ...]) -> bool:
        """A basic arrived that had probes of `sizes` with it; judge the pair before, whose probes had time enough."""
        if pair <= self._last_pair:
            return False  # overtaken: what was sent with it may have been judged already
        self._last_pair = pair
        sizes = sizes[:RUNGS_MAX]
        if sizes != tuple(rung.size for rung in self.rungs):
            known = {rung.size: rung for rung in self.rungs}
            self.rungs = [known.get(size) or Rung(size) for size in sizes]
            self.forget_pairs()
        self._due.append(pair)
        if len(self._due) < 2:
            return False
        return self._judge(self._due.popleft())

    def forget_pairs(self) -> None:
        self._due.clear()
        self._pairs.clear()

    def silence(self, now: Nanos, grace: int) -> bool:
        """Whether the flow has become dead: no basic for `grace` of the promised periods, or more where many are
        lost anyway."""
        if not self.alive and not self._unheard:
            return False
        periods = max(grace, _look_up(_PATIENCE, self.loss_judged_ppm))
        if now - self._patient_from > periods * self.promise_ns:
            self.alive = self._unheard = False
            self.since = now
            self.forget_pairs()
            return True
        return False

    def excuse(self, now: Nanos, pause_ns: Nanos) -> None:
        """This node was late itself: what it did not hear in that time says nothing."""
        self._patient_from = min(now, self._patient_from + pause_ns)

    def _judge(self, pair: int) -> bool:
        """Weigh which sizes of one pair arrived; True when a verdict changed."""
        bits = self._pairs.pop(pair, 0)
        for stale in [p for p in self._pairs if p < pair]:
            del self._pairs[stale]
        miss = _look_up(_MISS, self.loss_judged_ppm)
        together = 0
        above_passed = False
        for index in range(len(self.rungs) - 1, -1, -1):
            rung = self.rungs[index]
            if bits >> index & 1:
                above_passed = True
                rung.heard += 1
                rung.misses = 0
                rung.alone = max(0, rung.alone - _HIT)
            else:
                together += miss
                rung.misses += 1
                rung.alone = min(VERDICT, rung.alone + miss)
            if above_passed:
                rung.limit = max(0, rung.limit - _HIT)
            else:
                rung.limit = min(VERDICT, rung.limit + together)
        return self._settle()

    def _settle(self) -> bool:
        before = self.size
        for rung in self.rungs:
            against = max(rung.limit, rung.alone) >= VERDICT and rung.misses >= 2
            if against and rung.passes is not False:
                rung.passes = False
                rung.alone = VERDICT
            elif rung.passes is not True and rung.heard and rung.alone == 0:
                rung.passes = True
                rung.limit = 0
        return self.size != before


def _look_up(steps: tuple[tuple[int, int], ...], loss_ppm: int) -> int:
    """The value of the first step that reaches up to this loss."""
    for limit, value in steps:
        if loss_ppm <= limit:
            return value
    return steps[-1][1]
