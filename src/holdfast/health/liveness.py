"""Whether one flow is alive: from basic heartbeats alone, and against what their sender promised.

Each basic promises the latest time of its successor. Silence is held against that promise (or against a longer period
that was announced, or that is observed), never against what we think the period is; for longer where basics are
often lost; and only for as long as this node was itself awake to listen.
"""

from __future__ import annotations

from typing import Final

from holdfast.health.evidence import patience
from holdfast.health.metrics import GAP_MAX, LossRate, RoundTrip
from holdfast.types import MILLISECOND, NEVER, SECOND, Nanos
from holdfast.wire.frames import Basic

PROMISE_MAX: Final = 1 << 42
GRACE_MAX: Final = 100
RETRY_NS: Final = 200 * MILLISECOND
RETRY_NS_MAX: Final = 1600 * MILLISECOND
STALL_NS_MAX: Final = 3 * SECOND
"""When a stream sends again what was lost, and how long that is waited for."""


class Liveness:
    """What the basics on one flow say."""

    __slots__ = (
        "_interval_ns",
        "_late_ns",
        "_patient_from",
        "_unheard",
        "alive",
        "announced_ns",
        "grace",
        "heard",
        "heard_at",
        "last_n",
        "loss",
        "missed",
        "peer_sent_ns",
        "promise_ns",
        "since",
        "stream",
        "trip",
    )

    def __init__(self, now: Nanos, promise_ns: Nanos, grace: int = 3, stream: bool = False) -> None:
        self.stream = stream
        self.alive = False
        """Until the first basic is heard."""
        self.since = now
        self.heard_at = now
        self.promise_ns = promise_ns
        self.announced_ns = 0
        """The period that the sender announced for good: a promise of a longer one may have been lost."""
        self.grace = grace
        self.last_n = 0
        self.peer_sent_ns = 0
        self.heard = 0
        self.missed = 0
        """How many more were expected than heard."""
        self.loss = LossRate()
        self.trip = RoundTrip()
        self._interval_ns = 0
        self._late_ns = promise_ns
        self._patient_from = now
        self._unheard = True
        """Nothing was said of this flow yet, neither that it is alive nor that it is dead."""

    def basic(self, frame: Basic, at: Nanos) -> bool:
        """A basic arrived, and the flow is alive. False when it is just the next one, as it was promised."""
        if (
            frame.n != self.last_n + 1
            or frame.next_ns != self.promise_ns
            or frame.grace != self.grace
            or not self.alive
        ):
            self._unusual(frame, at)
            return True
        # The next one, as it was promised: this is what happens all the time.
        if at - self.heard_at > self._late_ns or self._interval_ns > self._late_ns:
            self._follow(at - self.heard_at)
        self.heard_at = at
        if at > self._patient_from:
            self._patient_from = at
        self.heard += 1
        self.loss.arrivals += 1
        self.last_n = frame.n
        self.peer_sent_ns = frame.sent_ns
        self.trip.arrived(at, frame.sent_ns, frame.echo_ns, frame.echo_age_ns)
        return False

    def _unusual(self, frame: Basic, at: Nanos) -> None:
        """The first one, or some are missing, or it promises something else."""
        before, self.heard_at = self.heard_at, at
        self._patient_from = max(self._patient_from, at)
        self._promised(frame)
        revived = not self.alive
        self.heard += 1
        if frame.n <= self.last_n:
            self.missed -= 1  # it was overtaken and counted as missing, or it is a copy
        else:
            gap = frame.n - self.last_n if self.last_n else 1
            lost = gap - 1 if gap <= GAP_MAX else 0
            self.missed += lost
            self.loss.seen(0 if revived else lost)  # a flow that was dead lost nothing by chance
            if gap == 1 and not revived:
                self._follow(at - before)
            self.last_n = frame.n
            self.peer_sent_ns = frame.sent_ns
            self.trip.arrived(at, frame.sent_ns, frame.echo_ns, frame.echo_age_ns)
        if revived:
            self.alive = True
            self._unheard = False
            self.since = at

    def _follow(self, interval_ns: Nanos) -> None:
        """A sender that does not keep its promises is followed by what is observed."""
        interval_ns = min(max(interval_ns, 0), 4 * self.promise_ns)
        self._interval_ns += (interval_ns - self._interval_ns) // 4

    def _promised(self, frame: Basic) -> None:
        self.promise_ns = min(max(frame.next_ns, 1), PROMISE_MAX)
        self._late_ns = self.promise_ns + self.promise_ns // 8
        if frame.grace:
            self.grace = min(max(frame.grace, 1), GRACE_MAX)

    def period_ns(self) -> Nanos:
        """What silence is held against: the promise, or more if more was announced or is what really happens."""
        return max(self.promise_ns, self.announced_ns, self._interval_ns)

    def patience_ns(self, evidence: int, loss_ppm: int, alone: bool) -> Nanos:
        """How long silence may last. `alone`: datagrams of the path are heard, so only the stream would be at fault."""
        periods = patience(loss_ppm, evidence, self.grace)
        wait_ns = periods * self.period_ns()
        if self.stream and alone:
            # What a stream loses it sends again, ever more slowly, and everything waits behind it.
            stalls = sum(min(RETRY_NS << n, RETRY_NS_MAX) for n in range(min(periods - 2, 10)))
            wait_ns = max(wait_ns, self.period_ns() + min(stalls, STALL_NS_MAX))
        return wait_ns

    def silent(self, now: Nanos, evidence: int, loss_ppm: int = 0, alone: bool = True) -> bool:
        """Whether the flow has become dead just now. `evidence` is what a verdict needs in this domain, `loss_ppm`
        the loss of the path where that is known to be higher."""
        silence_ns = now - self._patient_from
        if silence_ns <= self.grace * self.promise_ns or not (self.alive or self._unheard):
            return False
        loss_ppm = max(loss_ppm, self.loss.judged_ppm)
        if silence_ns > self.patience_ns(evidence, loss_ppm, alone):
            self.alive = self._unheard = False
            self.since = now
            self._interval_ns = 0
            return True
        return False

    def quiet_at(self) -> Nanos:
        """From when on it has been silent for so long that it may be dead; `NEVER` when it is said to be dead."""
        if not (self.alive or self._unheard):
            return NEVER
        return self._patient_from + self.grace * self.promise_ns + 1

    def punctual(self, now: Nanos) -> bool:
        """Whether its last promise was kept, or may still be."""
        return now - self._patient_from <= 3 * self.promise_ns // 2

    @property
    def fell_at(self) -> Nanos:
        """From when on it should have been heard, if it is dead."""
        return self.heard_at if self._unheard else self.heard_at + self.promise_ns

    def excuse(self, now: Nanos, pause_ns: Nanos) -> None:
        """This node was late itself: what it did not hear in that time says nothing."""
        self._patient_from = min(now, self._patient_from + pause_ns)

    def clock_set_back(self, now: Nanos) -> None:
        """Our clock went backwards: patience begins anew."""
        self._patient_from = min(self._patient_from, now)
        self.heard_at = min(self.heard_at, now)
