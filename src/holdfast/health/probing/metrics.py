"""Figures of a path: loss, round trip, jitter, throughput estimate."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Final

from holdfast.health.probing.outages import Outages
from holdfast.health.verdict import DELAY_US_MIN, LOSSY_PPM
from holdfast.types import MICROSECOND, MILLISECOND, NEVER, SECOND, Nanos

LOSS_FLOOR_PPM: Final = 5_000
_SMOOTH: Final = 16
_SMOOTH_LONG: Final = 256
_LOSS_START_PPM: Final = 10_000
GAP_MAX: Final = 64
"""A larger gap in the heartbeat numbers means that the sender restarted, not that so many were lost."""
GAP_NS_MIN: Final = 20 * MICROSECOND
"""Packets read closer together than this show only the speed of the reader."""
_SAMPLE_MAX: Final = 1 << 40
_FLAT_MAX: Final = 16
BUCKET_NS: Final = 500 * MILLISECOND
BUCKETS: Final = 10
"""Loss is estimated over the last five seconds."""
OVERTAKEN_NS: Final = 100 * MILLISECOND
OVERTAKEN_NS_MAX: Final = 1000 * MILLISECOND
"""How long a heartbeat that others have overtaken may take, on a path without delay and at most."""
LOSS_TESTS: Final = ((2_708, 337), (1_099, 42))
"""Two tests against 2 %, the limit of what is no error: of 30 %, which is quick, and of 6 %, which is sensitive. Each
with the evidence of a loss and of an arrival, in thousandths of a logarithm of a likelihood ratio, as in `evidence`."""
LOSS_EVIDENCE: Final = 9_000
LOSS_SUSPECTED: Final = 1_000
"""One loss, not long ago: more packets are asked for, to settle soon whether it was chance."""
CLEAN_RUN: Final = 10_000_000
CLEAN_NS: Final = 2000 * MILLISECOND
"""A run of arrivals ends a loss when its length times the rate (in millionths) reaches this."""
RATE_PPM_MIN: Final = 50_000
LONG_MAX: Final = 600
LUCK: Final = 30
BY_LUCK: Final = 2
"""So many losses are not counted in the first estimates: the counting began with one and ended with one."""
SEEN_MIN: Final = 20
SEEN_BUCKETS: Final = 3
"""An estimate needs so many packets, or that time where fewer are sent."""
DRIFT: Final = 5_000
DELAY_PACKETS: Final = 8
DELAY_NS_MIN: Final = DELAY_US_MIN * 1000
LOWS_NS: Final = 5 * SECOND
CROWDED_NS: Final = 20 * MILLISECOND
LATE_NS_MAX: Final = 60 * SECOND
CROWD_NS: Final = 3 * SECOND
CROWD_MISSES: Final = 3
CROWD_OVER_NS: Final = 30 * SECOND
BURST_NS: Final = 4 * SECOND
BURST_ANSWER_NS: Final = 2 * SECOND
BURST_KBIT: Final = 2_240
"""A limit that nothing has shown for so long is tried with a burst of probes; how long such a burst counts; and twenty
times its size: further ones take a twentieth of the path at most."""
BURSTS_END_NS: Final = 60 * SECOND
"""If the limit shows again within that time after a burst had passed, bursts say nothing of it."""
_NO_TRANSIT: Final = -(1 << 80)


class LossRate:
    """Loss is smoothed twice. The short average follows quickly; the long one prevents a lossy path from counting as
    clean after a lucky period."""

    __slots__ = ("_long", "_short", "arrivals")

    def __init__(self) -> None:
        self._short = 0
        self._long = _LOSS_START_PPM * _SMOOTH_LONG
        self.arrivals = 0
        """Consecutive arrivals that are not accounted for yet: each arrival is only counted."""

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
        """The loss used for verdicts, conservatively high."""
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
    """The round trip without the time at the peer, and the variation of the one-way delay."""

    __slots__ = ("_transit", "delay", "jitter_us", "rtt_us")

    def __init__(self) -> None:
        self.delay = Delay()
        self.rtt_us = 0
        self.jitter_us = 0
        self._transit: Nanos = _NO_TRANSIT

    def arrived(
        self,
        at: Nanos,
        sent_ns: Nanos,
        echo_ns: Nanos = 0,
        echo_age_ns: Nanos = 0,
        lag_ns: Nanos = 0,
    ) -> None:
        """A packet arrived that was sent at a time of the clock of the peer and, unless 0, answers one of ours.
        `lag_ns`: how late both nodes ran lately.

        Clocks differ by an unknown constant, so jitter uses differences only (RFC 3550).
        """
        transit = at - sent_ns
        change = abs(transit - self._transit)
        if (
            change < SECOND
        ):  # more than that is a clock that was set, a paused process, or the first one
            self.jitter_us += (change // 1000 - self.jitter_us) // 16
        self._transit = transit
        self.delay.arrived(at, transit, lag_ns)
        if echo_ns:
            rtt = at - echo_ns - echo_age_ns
            if 0 <= rtt < _SAMPLE_MAX:
                sample = rtt // 1000
                self.rtt_us = (7 * self.rtt_us + sample) // 8 if self.rtt_us else sample


class Throughput:
    """Two packets sent together arrive apart by the time that the bottleneck needs for the second."""

    __slots__ = ("_at", "_flat", "_pair", "_recent_at", "_recent_kbps", "rate_kbps")

    def __init__(self) -> None:
        self.rate_kbps = 0
        self._recent_kbps = 0
        self._recent_at: Nanos = 0
        """What the last pair showed alone, and when."""
        self._pair = -1
        self._at: Nanos = 0
        self._flat = 0

    def arrived(self, pair: int, size: int, at: Nanos) -> None:
        if pair == self._pair:
            self._recent_at = at
            self._sample(size, at - self._at)
        self._pair, self._at = pair, at

    def recent(self, now: Nanos) -> int:
        """What the last pair showed: a bottleneck that is new. 0 if no pair came for a while."""
        return self._recent_kbps if now - self._recent_at < CROWD_NS // 2 else 0

    def narrowed(self, rate_kbps: int) -> None:
        """The path has become so narrow: what was measured before does not count."""
        self.rate_kbps = rate_kbps

    def _sample(self, size: int, gap_ns: Nanos) -> None:
        if gap_ns < GAP_NS_MIN:
            # Read together: the path is faster than can be measured here.
            self._flat += 1
            if self._flat >= _FLAT_MAX:
                self.rate_kbps = self._recent_kbps = 0
            return
        self._flat = 0
        sample = self._recent_kbps = min(size * 8_000_000 // gap_ns, 1 << 40)
        self.rate_kbps = (7 * self.rate_kbps + sample) // 8 if self.rate_kbps else sample


class LossWindow:
    """The loss of a flow over the last seconds, and whether it is significant.

    A heartbeat that is missing may have been overtaken: it counts as lost only when it has not come a while later. Loss
    is significant when a sequential test against 2 % says so: one lost packet in forty says nothing. It is over
    after a run of arrivals that would be very unlikely at its rate: 33 at 30 %, 200 at 5 %.
    """

    __slots__ = (
        *(
            "_buckets",
            "_calm",
            "_clean",
            "_evidence",
            "_heard_sum",
            "_long_lost",
            "_long_seen",
            "_lost",
            "_luck",
            "_onset",
            "_opened",
        ),
        *("_lost_sum", "_next_at", "_pending", "_since", "_uncounted"),
        *("heard", "lossy", "outages", "suspected"),
    )

    def __init__(self) -> None:
        self.heard = 0
        """Heartbeats that arrived since the last bucket was closed; the caller counts them."""
        self.lossy = False
        self.suspected = False
        """Loss may become significant, but is not yet."""
        self._lost = 0
        self._evidence = [0] * len(LOSS_TESTS)
        self._onset = 0
        """Buckets since the evidence was last zero: that is when the loss began, if there is one."""
        self._clean = 0
        """Arrivals since the last loss, counted while the flow is lossy."""
        self._calm = 0
        """Buckets since the last loss, counted in the same way."""
        self._long_lost = self._long_seen = 0
        """Heartbeats that were lost, and that were sent, since the loss began; of the last few hundred."""
        self._next_at: Nanos = 0
        self._opened = True
        """What is counted next begins a bucket."""
        self._luck = 0
        self._pending: dict[int, tuple[Nanos, Nanos, Nanos]] = {}
        """Numbers that are missing: when each counts as lost, when the next one came, and how often one is sent."""
        self._since = self._uncounted = 0
        """Heartbeats that arrived since some were missing last, and those of this moment that came before."""
        self.outages = Outages()
        self._buckets: deque[tuple[int, int]] = deque()
        self._heard_sum = self._lost_sum = 0

    def missing(
        self, first: int, last: int, at: Nanos, excess_ns: Nanos = 0, interval_ns: Nanos = 0
    ) -> None:
        """These numbers were skipped: lost, or overtaken. `excess_ns`: how late packets came lately; `interval_ns`: how
        often one was sent."""
        until = at + min(OVERTAKEN_NS + 2 * excess_ns, OVERTAKEN_NS_MAX)
        self._since, self._uncounted = 0, self.heard
        for number in range(first, last + 1):
            if len(self._pending) >= GAP_MAX:
                del self._pending[next(iter(self._pending))]
                self._lost += 1
            self._pending[number] = until, at, interval_ns

    @property
    def counts_at(self) -> Nanos:
        """When the first that is missing counts as lost; never while none is, or while the flow is lossy anyway."""
        if self.lossy:
            return NEVER
        return min((until for until, _, _ in self._pending.values()), default=NEVER)

    def late(self, number: int) -> bool:
        """One that was overtaken arrived; False when it is a copy."""
        if self._pending.pop(number, None) is None:
            return False
        self.heard += 1
        return True

    def sampled(self, heard: int, lost: int) -> None:
        """Small probes of this flow. They are sent with heartbeats that came, and often while a suspicion is settled.
        Heartbeats must be missing, too: a size of which nothing passes is no loss."""
        if self._lost_sum or self._lost:
            self.heard += heard
            self._lost += lost

    def revived(self) -> None:
        """The flow was dead: what was missing then was not lost by chance. But if it lost much before that, it may have
        looked dead for that reason, and must show that it does so no more."""
        self._pending.clear()
        if self.lossy:
            return
        self._buckets.clear()
        self.heard = self._lost = self._heard_sum = self._lost_sum = 0
        self._evidence = [0] * len(LOSS_TESTS)
        self.lossy = self.suspected = False

    def roll(self, now: Nanos, excused: bool, held: bool = False) -> None:
        """Time passes. `excused`: packets are dropped because a queue is full, which is no loss of the line. `held`:
        that may show in a moment."""
        if self._pending:
            self._take_lost(now, excused)
        if self.outages.lasting_ns and self.outages.end(now):
            self._end()  # what was lost was lost in outages
        closes = now >= self._next_at
        if not closes and (self.lossy or not (self._lost or self.suspected)):
            return  # in a bucket it is judged only to find out soon that there is loss
        if closes:
            self._next_at = now + BUCKET_NS
        heard, lost = self.heard, 0 if excused else self._lost
        self._since += heard - self._uncounted
        self.heard = self._lost = self._uncounted = 0
        for test, (loss, arrival) in enumerate(LOSS_TESTS):
            evidence = self._evidence[test] + lost * loss - heard * arrival
            self._evidence[test] = min(max(0, evidence), 2 * LOSS_EVIDENCE)
        self._count(heard, lost)
        if not max(self._evidence):
            self._onset = 0
        elif self._opened or not self._onset:
            self._onset += 1
        self._opened = closes
        if self.lossy:
            self._follow(heard, lost)
        elif self._onset and not held and self._is_significant():
            self.lossy, self._clean, self._calm = True, 0, 0
            while len(self._buckets) > self._onset:  # before that there was no loss
                self._drop()
            # What made it significant was bad luck in part.
            seen = self._lost_sum + self._heard_sum
            self._long_lost, self._long_seen = self._lost_sum, seen + LUCK
            self._luck = BY_LUCK
        self.suspected = (
            bool(self._onset) and not self.lossy and max(self._evidence) >= LOSS_SUSPECTED
        )

    def _take_lost(self, now: Nanos, excused: bool) -> None:
        """Count what has not come in time. Numbers without a gap were lost one after the other."""
        gone = [number for number, (until, _, _) in self._pending.items() if now >= until]
        first = 0
        for place, number in enumerate(gone):
            _, at, interval_ns = self._pending.pop(number)
            self._lost += 1
            if place + 1 < len(gone) and gone[place + 1] == number + 1:
                continue
            if not excused:
                self.outages.missed(gone[first], number, at, interval_ns)
            first = place + 1

    @property
    def interrupted(self) -> bool:
        """Whether what is missing is lost in outages, or may turn out to be."""
        return self.outages.lasting_ns > 0 or self.outages.may_show(self._since)

    def _is_significant(self) -> bool:
        """Whether there is loss, and enough was seen of it to say how much."""
        seen = sum(heard + lost for heard, lost in islice(reversed(self._buckets), self._onset))
        enough = seen >= SEEN_MIN or self._onset > SEEN_BUCKETS
        if not enough or max(self._evidence) < LOSS_EVIDENCE or self.ppm < LOSSY_PPM:
            return False
        return not self.outages.may_show(self._since)

    def _follow(self, heard: int, lost: int) -> None:
        """Estimate the rate while it lasts, from more than the window: an estimate that is too high by chance would end
        it too early."""
        if lost:
            self._long_lost += lost
            self._long_seen += lost + heard + self._clean
            self._clean = self._calm = 0
        else:
            self._clean += heard
            self._calm += 1
        if self._long_seen > LONG_MAX:
            self._long_lost, self._long_seen = self._long_lost // 2, self._long_seen // 2
        # Losses come in bursts: a run of arrivals says little if it is short.
        self.lossy = self._run() < CLEAN_RUN or self._calm * BUCKET_NS < CLEAN_NS
        if not self.lossy:
            self._end()

    def _end(self) -> None:
        """The next loss is another one."""
        self.lossy = False
        self._evidence, self._onset = [0] * len(LOSS_TESTS), 0

    def _run(self) -> int:
        """How unlikely the arrivals since the last loss are at the estimated rate, as compared with `CLEAN_RUN`."""
        rate_ppm = self._long_lost * 1_000_000 // max(self._long_seen, 1)
        return self._clean * max(rate_ppm, RATE_PPM_MIN)

    @property
    def unsettled(self) -> bool:
        """Whether more heartbeats would settle something soon: that there is loss, how much, or that it is over."""
        if not self.lossy:
            return self.suspected
        return len(self._buckets) < BUCKETS or self._run() >= CLEAN_RUN // 4

    def _count(self, heard: int, lost: int) -> None:
        if self._opened or not self._buckets:
            self._buckets.append((heard, lost))
        else:
            known = self._buckets[-1]
            self._buckets[-1] = (known[0] + heard, known[1] + lost)
        self._heard_sum += heard
        self._lost_sum += lost
        if len(self._buckets) > BUCKETS:
            self._drop()
            self._luck = 0

    def _drop(self) -> None:
        heard, lost = self._buckets.popleft()
        self._heard_sum -= heard
        self._lost_sum -= lost

    @property
    def ppm(self) -> int:
        """The share that was lost in the window."""
        seen = self._lost_sum + self._heard_sum
        return self._lost_sum * 1_000_000 // seen if seen else 0

    @property
    def stated_ppm(self) -> int:
        """What is published: from `LOSSY_PPM` on only if it is significant. At first it is less than what was lost: the
        counting begins and ends with a loss, and it ends when many were lost, by chance in part."""
        if not self.lossy:
            return min(self.ppm, LOSSY_PPM - 1)
        lost = max(0, self._lost_sum - self._luck)
        seen = self._lost_sum + self._heard_sum - self._luck
        return max(lost * 1_000_000 // max(seen, 1), LOSSY_PPM)

    @property
    def window_ms(self) -> int:
        return len(self._buckets) * BUCKET_NS // 1_000_000


class Delay:
    """How much later than usual packets arrive, in one direction.

    Clocks of two nodes differ by an unknown amount that drifts slowly. So what is usual may grow by 200 millionths of
    the time that passes, and no faster: a delay of 300 ms counts as one for 25 minutes before it becomes usual.
    As much as the two nodes ran late is not counted: it is a delay of theirs, not of the path.
    """

    __slots__ = (
        *(
            "_above",
            "_at",
            "_base",
            "_below",
            "_excess",
            "_lag_ns",
            "_low",
            "_low_before",
            "_low_from",
            "_lowest",
        ),
        *("crowded", "delay_us"),
    )

    def __init__(self) -> None:
        self.delay_us = 0
        """Beyond what is usual; 0 while it is not clearly more."""
        self.crowded = False
        """The last packet waited in a queue: it came later than others did a moment ago."""
        self._base: Nanos | None = None
        self._at: Nanos = 0
        self._above = self._below = 0
        self._excess: deque[Nanos] = deque(maxlen=DELAY_PACKETS)
        self._lag_ns: Nanos = 0
        self._low: Nanos = 0
        self._low_before: Nanos = 0
        self._lowest: Nanos = 0
        self._low_from: Nanos = 0
        """The shortest transit of this and of the last few seconds, and when this one began."""

    @property
    def excess_ns(self) -> Nanos:
        """The most that one of the last packets came later than usual."""
        return max(self._excess, default=0) + self._lag_ns

    def waited(self, at: Nanos, sent_ms: int) -> bool:
        """Whether a packet that arrived now had to wait. `sent_ms`: when it was sent, the last 32 bits of that."""
        if self._base is None:
            return False
        late_ns = ((at - self._lowest) // MILLISECOND - sent_ms & 0xFFFF_FFFF) * MILLISECOND
        return CROWDED_NS <= late_ns - self._lag_ns < LATE_NS_MAX

    def arrived(self, at: Nanos, transit: Nanos, lag_ns: Nanos = 0) -> None:
        base = self._base
        if base is None or abs(transit - base) > 60 * SECOND:
            base, self._at = transit, at
            self._low = self._low_before = self._lowest = transit
            self._low_from = at
        excess = transit - base
        if excess < 0:
            base, excess = transit, 0
        else:
            base += min(excess, max(0, at - self._at) // DRIFT)
        self._base, self._at = base, at
        if at - self._low_from >= LOWS_NS:
            self._low_before, self._low, self._low_from = self._low, transit, at
            self._lowest = min(self._low_before, transit)
        elif transit < self._low:
            self._low = transit
            if transit < self._lowest:
                self._lowest = transit
        self.crowded = transit - lag_ns - self._lowest >= CROWDED_NS
        self._lag_ns = lag_ns
        late = excess
        if lag_ns:
            excess = max(0, excess - lag_ns)
        self._excess.append(excess)
        if late >= DELAY_NS_MIN > excess:
            self._above = 0  # it says nothing: a node was late, and perhaps the path as well
        elif excess >= DELAY_NS_MIN:
            self._above, self._below = self._above + 1, 0
            if self._above >= DELAY_PACKETS:
                self.delay_us = min(self._excess) // 1000
        else:
            self._above, self._below = 0, self._below + 1
            if self._below >= DELAY_PACKETS:
                self.delay_us = 0


class Crowd:
    """Whether a path drops packets because more is sent than it carries: they are missing where others had to wait."""

    __slots__ = (
        *("_asked_at", "_by_pairs", "_fooled_until", "_measured_at", "_passed_at", "_rate_kbps"),
        *("_wait_ns", "limit_kbps", "misses"),
    )

    def __init__(self) -> None:
        self.limit_kbps = 0
        """What the path carries, while it is a limit that was run into; 0: none."""
        self._by_pairs = False
        self._rate_kbps = 0
        self._measured_at: Nanos = 0
        """The last rate of pairs, and when it was new."""
        self._wait_ns = BURST_NS
        self._asked_at: Nanos | None = None
        self._passed_at: Nanos | None = None
        self._fooled_until: Nanos = 0
        """When a burst was asked for, when one has passed, and until when none is asked for: the last one passed, and
        the limit showed again."""
        self.misses: deque[Nanos] = deque(maxlen=CROWD_MISSES)

    def missed(self, now: Nanos) -> None:
        """Packets of a burst are missing, and one that came through had waited."""
        self.misses.append(now)

    def missed_calmly(self) -> None:
        """Packets are missing of a burst that waited nowhere. A full queue drops only where packets wait, so something
        else drops them; that other packets were late then has another reason, such as a busy machine."""
        if not self.limit_kbps:
            self.misses.clear()

    def lately(self, now: Nanos) -> bool:
        return bool(self.misses) and now - self.misses[-1] < CROWD_NS

    def wants_burst(self, now: Nanos) -> bool:
        """Whether to try the limit now. True once, then again after a time that depends on the limit."""
        if not self.limit_kbps or not self.misses or now < self._fooled_until:
            return False
        since = max(self.misses[-1], self._measured_at, self._asked_at or 0)
        if now - since < self._wait_ns:
            return False
        wait_ns = BURST_KBIT * SECOND // self.limit_kbps
        self._asked_at, self._wait_ns = now, min(max(BURST_NS, wait_ns), CROWD_OVER_NS)
        return True

    def burst_passed(self, now: Nanos) -> None:
        """Many probes came without waiting: there is no limit, if they were asked for."""
        if (
            self.limit_kbps
            and self._asked_at is not None
            and now - self._asked_at < BURST_ANSWER_NS
        ):
            self._passed_at = now

    def look(self, now: Nanos, rate_kbps: int, arrived_kbps: int = 0) -> bool:
        """Judge with the rate that pairs of packets show or, if no pair comes through, with what arrives at all. True
        when the verdict has changed."""
        before = self.limit_kbps
        if rate_kbps != self._rate_kbps:
            self._rate_kbps, self._measured_at = rate_kbps, now
        if not before:
            full = len(self.misses) == CROWD_MISSES and now - self.misses[0] < CROWD_NS
            if full:
                self.limit_kbps = rate_kbps or arrived_kbps
                self._wait_ns, self._asked_at = BURST_NS, None
                if self._passed_at is not None and now - self._passed_at < BURSTS_END_NS:
                    self._fooled_until = now + BURSTS_END_NS
                self._passed_at = None
                self._by_pairs = bool(rate_kbps)
        elif rate_kbps > 4 * before or self._passed_at is not None or self._is_over(now, rate_kbps):
            self.limit_kbps = 0
            self.misses.clear()
        return self.limit_kbps != before

    def _is_over(self, now: Nanos, rate_kbps: int) -> bool:
        """Pairs are too fast to be measured now; or nothing has shown the limit for a while, neither a pair nor a miss:
        it must not last because fewer probes are sent."""
        if self._by_pairs and not rate_kbps:
            return True
        return now - max(self.misses[-1], self._measured_at) >= CROWD_OVER_NS
