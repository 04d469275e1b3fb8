"""Whether one flow is alive, from basic heartbeats alone and compared with what their sender announced.

Each basic heartbeat announces the latest time of the next one. Silence is compared with that announcement (or with a
longer announced or observed period), never with an assumed period; longer if heartbeats are often lost; and only for
the time in which this node was awake.
"""

from __future__ import annotations

from typing import Final

from holdfast.health.frames import Heartbeat
from holdfast.health.probing.evidence import patience
from holdfast.health.probing.lag import stated_ns
from holdfast.health.probing.metrics import GAP_MAX, LossRate, LossWindow, RoundTrip
from holdfast.types import MILLISECOND, NEVER, SECOND, Nanos

PROMISE_MAX: Final = 1 << 42
GRACE_MAX: Final = 100
RETRY_NS: Final = 200 * MILLISECOND
RETRY_NS_MAX: Final = 1600 * MILLISECOND
STALL_NS_MAX: Final = 3 * SECOND
"""When a stream retransmits what was lost, and how long that is tolerated."""


class Liveness:
    """What the basic heartbeats of one flow show."""

    __slots__ = (
        "_excused_to",
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
        "window",
    )

    def __init__(self, now: Nanos, promise_ns: Nanos, grace: int = 3, stream: bool = False) -> None:
        self.stream = stream
        self.alive = False
        """Until the first basic heartbeat arrives."""
        self.since = now
        self.heard_at = now
        self.promise_ns = promise_ns
        self.announced_ns = 0
        """The period that the sender announced permanently: the announcement of a longer one may have been lost."""
        self.grace = grace
        self.last_n = 0
        self.peer_sent_ns = 0
        self.heard = 0
        self.missed = 0
        """How many more were expected than received."""
        self.loss = LossRate()
        self.window = LossWindow()
        self.trip = RoundTrip()
        self._interval_ns = 0
        self._late_ns = promise_ns
        self._patient_from = now
        self._excused_to: Nanos | None = None
        """Until when this node itself did not run."""
        self._unheard = True
        """This flow has not been reported as alive or dead yet."""

    def basic(self, frame: Heartbeat, at: Nanos, lag_ns: Nanos = 0) -> bool:
        """A basic heartbeat arrived, and the flow is alive. False if it is just the expected next one. `lag_ns`: how
        late this node ran lately."""
        if frame.lag:
            lag_ns += stated_ns(frame.lag)
        if (
            frame.n != self.last_n + 1
            or frame.next_ns != self.promise_ns
            or frame.grace != self.grace
            or not self.alive
        ):
            self._unusual(frame, at, lag_ns)
            return True
        # The expected next one: the common case.
        if at - self.heard_at > self._late_ns or self._interval_ns > self._late_ns:
            self._follow(at - self.heard_at)
        self.heard_at = at
        if at > self._patient_from:
            self._patient_from = at
        self.heard += 1
        self.loss.arrivals += 1
        self.window.heard += 1
        self.last_n = frame.n
        self.peer_sent_ns = frame.sent_ns
        self.trip.arrived(at, frame.sent_ns, frame.echo_ns, frame.echo_age_ns, lag_ns)
        return False

    def _unusual(self, frame: Heartbeat, at: Nanos, lag_ns: Nanos) -> None:
        """The first one, or some are missing, or it announces another period."""
        before, self.heard_at = self.heard_at, at
        self._patient_from = max(self._patient_from, at)
        self._promised(frame)
        revived = not self.alive
        self.heard += 1
        if frame.n <= self.last_n:
            if self.window.late(frame.n):
                self.missed -= 1  # it was overtaken and counted as missing
        else:
            gap = frame.n - self.last_n if self.last_n else 1
            lost = gap - 1 if gap <= GAP_MAX and not self._excused(before) else 0
            self.missed += lost
            interval_ns = (at - before) // gap
            if revived:
                self.window.revived()
                if lost:  # it was interrupted for a moment, though long enough to look dead
                    self.window.outages.missed(self.last_n + 1, frame.n - 1, at, interval_ns)
            elif lost:
                excess_ns = self.trip.delay.excess_ns
                self.window.missing(self.last_n + 1, frame.n - 1, at, excess_ns, interval_ns)
            self.window.heard += 1
            self.loss.seen(0 if revived else lost)  # a flow that was dead lost nothing by chance
            if gap == 1 and not revived:
                self._follow(at - before)
            self.last_n = frame.n
            self.peer_sent_ns = frame.sent_ns
            self.trip.arrived(at, frame.sent_ns, frame.echo_ns, frame.echo_age_ns, lag_ns)
        if revived:
            self.alive = True
            self._unheard = False
            self.since = at

    def _follow(self, interval_ns: Nanos) -> None:
        """If a sender does not keep its announced times, the observed period is used."""
        interval_ns = min(max(interval_ns, 0), 4 * self.promise_ns)
        self._interval_ns += (interval_ns - self._interval_ns) // 4

    def _promised(self, frame: Heartbeat) -> None:
        self.promise_ns = min(max(frame.next_ns, 1), PROMISE_MAX)
        self._late_ns = self.promise_ns + self.promise_ns // 8
        if frame.grace:
            self.grace = min(max(frame.grace, 1), GRACE_MAX)

    def period_ns(self) -> Nanos:
        """The reference for silence: the announced time, or longer if a longer one was announced or observed."""
        return max(self.promise_ns, self.announced_ns, self._interval_ns)

    def patience_ns(self, evidence: int, loss_ppm: int, alone: bool) -> Nanos:
        """How long silence may last. `alone`: datagrams of the path arrive, so only the stream would be faulty."""
        periods = patience(loss_ppm, evidence, self.grace)
        wait_ns = periods * self.period_ns()
        if self.stream and alone:
            # A stream retransmits with increasing delays, and everything waits behind the lost segment.
            stalls = sum(min(RETRY_NS << n, RETRY_NS_MAX) for n in range(min(periods - 2, 10)))
            wait_ns = max(wait_ns, self.period_ns() + min(stalls, STALL_NS_MAX))
        return wait_ns

    def silent(self, now: Nanos, evidence: int, loss_ppm: int = 0, alone: bool = True) -> bool:
        """Whether the flow has just become dead. `evidence` is the threshold of a verdict in this domain, `loss_ppm`
        the loss of the path if that is known to be higher."""
        silence_ns = now - self._patient_from
        if silence_ns <= self.grace * self.promise_ns or not (self.alive or self._unheard):
            return False
        loss_ppm = max(loss_ppm, self.loss.judged_ppm)
        if silence_ns > self.patience_ns(evidence, loss_ppm, alone):
            self.die(now)
            return True
        return False

    def die(self, now: Nanos) -> None:
        """The flow counts as dead from now on, until it is heard."""
        self.alive = self._unheard = False
        self.since = now
        self._interval_ns = 0

    @property
    def judged_dead(self) -> bool:
        """Whether it is known to be dead; a flow that is new and was not heard yet is not."""
        return not (self.alive or self._unheard)

    def misses(self, now: Nanos) -> int:
        """How many heartbeats should have arrived since the last one. What a TCP connection loses it repeats ever more
        slowly, and everything waits behind it: there only the repetitions count."""
        silence_ns = now - self._patient_from
        if not self.stream:
            return max(0, silence_ns // self.period_ns())
        count, repeated_ns = 0, self.period_ns()
        while repeated_ns < silence_ns and count < GRACE_MAX:
            repeated_ns += min(RETRY_NS << count, RETRY_NS_MAX)
            count += 1
        return count

    def quiet_at(self) -> Nanos:
        """From when on its silence may mean that it is dead; `NEVER` if it is reported dead."""
        if not (self.alive or self._unheard):
            return NEVER
        return self._patient_from + self.grace * self.promise_ns + 1

    def overdue(self, now: Nanos) -> bool:
        """Whether its last promise was broken."""
        return now - self._patient_from > 5 * self.period_ns() // 4

    @property
    def fell_at(self) -> Nanos:
        """From when on it should have been heard, if it is dead."""
        return self.heard_at if self._unheard else self.heard_at + self.promise_ns

    def excuse(self, now: Nanos, pause_ns: Nanos) -> None:
        """This node was late itself: what it did not receive in that time does not count."""
        self._patient_from = min(now, self._patient_from + pause_ns)
        self._excused_to = now

    def _excused(self, since: Nanos) -> bool:
        """Whether this node did not run at some time since then: its kernel may have had no room for what arrived."""
        return self._excused_to is not None and since <= self._excused_to

    def clock_set_back(self, now: Nanos) -> None:
        """Our clock went backwards: the waiting time starts again."""
        self._patient_from = min(self._patient_from, now)
        self.heard_at = min(self.heard_at, now)
