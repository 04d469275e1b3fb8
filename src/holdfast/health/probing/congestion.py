"""Whether a path drops packets because more is sent than it carries.

Two kinds of bottleneck are distinguished from loss by chance. A queue makes packets wait before it drops some: packets
are missing where others came late. A policer has no queue: it drops the end of a burst, and what comes alone passes.
The heartbeat is the last packet of its round. So rounds come without their heartbeat, but no heartbeat comes without
the datagrams before it; loss by chance does both.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from holdfast.health.probing.lane import ROUNDS_MAX
from holdfast.health.probing.liveness import Liveness
from holdfast.health.probing.metrics import (
    BUCKET_NS,
    BUCKETS,
    CROWD_MISSES,
    CROWD_NS,
    Crowd,
    Throughput,
)
from holdfast.health.probing.signature import PAST
from holdfast.types import MILLISECOND, Nanos

HEARTBEAT_LATE_NS: Final = 100 * MILLISECOND
"""How long a heartbeat may come after the probes of its round."""
CARRIED_NS: Final = 150 * MILLISECOND
WINDOW_NS: Final = BUCKETS * BUCKET_NS
KBPS_MIN: Final = 8
"""What a path is said to carry at least, if nothing came through for a moment."""
HEARD_NS: Final = 1000 * MILLISECOND
"""For how long something that arrived shows that a path is not dead, though no heartbeat is heard: 1500 bytes need
0.75 s at 16 kbit/s."""
OUTLIVED_MIN: Final = 3
OUTLIVED_ROUNDS_MIN: Final = 2
"""Heartbeats that must be missing, and rounds of which a probe must come, before probes without heartbeats say
something: on a very lossy path one comes by chance."""
PROBED_KBPS: Final = 200
"""About what probes alone bring, of a path that is not narrow: what arrives in one moment may be much less."""
LINE_FACTOR: Final = 16
"""Pairs that show so many times more than arrives show the speed of the line: what drops packets has no queue."""
ENDS_MIN: Final = 8
"""Rounds without heartbeat that show a policer."""


class Congestion:
    """The bottleneck of one path, as its listener sees it."""

    __slots__ = (
        *("_bytes", "_contrary", "_crowd", "_ends", "_heard_round", "_last_round"),
        *("_carried", "_carried_kbps", "_looked_at", "_policed", "_probed", "_rate", "_rounds"),
        *("_datagram_at", "_unannounced", "by_data"),
    )

    def __init__(self, now: Nanos) -> None:
        self._crowd = Crowd()
        self._rate = Throughput()
        self._rounds: dict[int, tuple[Nanos, bool]] = {}
        """Rounds of which a datagram came, when, and whether it had to wait; until their heartbeat comes."""
        self._last_round = self._heard_round = -1
        self._datagram_at: Nanos = PAST
        """When a probe of the flow that carries datagrams came last."""
        self._unannounced = 0
        """Rounds of which a probe came, since a heartbeat did."""
        self._ends: deque[Nanos] = deque(maxlen=4 * ENDS_MIN)
        """When rounds had come without their heartbeat, and without waiting."""
        self._contrary: deque[Nanos] = deque(maxlen=4 * ENDS_MIN)
        """When heartbeats had come without a datagram of their round."""
        self._policed = False
        self._carried = (now, 0, 0)
        self._carried_kbps = 0
        """When the link last said how many bytes have arrived, how many, how many bytes of probes there were by then;
        and the rate since the report before that."""
        self._probed = 0
        """Bytes of probes so far."""
        self.by_data = True
        """Most of what arrives is not probes, or that is not known yet."""
        self._bytes = 0
        self._looked_at = now
        """Bytes of probes since the last look, and when that was."""

    @property
    def rate_kbps(self) -> int:
        """What pairs of packets show of the bottleneck."""
        return self._rate.rate_kbps

    @property
    def limit_kbps(self) -> int:
        """What the path carries, while it is a limit that was run into; 0: none."""
        return self._crowd.limit_kbps

    def full(self, now: Nanos) -> bool:
        """Whether packets are dropped because more is sent than the path carries, now or a moment ago."""
        misses = self._crowd.misses
        return self._crowd.limit_kbps > 0 or (bool(misses) and now - misses[-1] < CROWD_NS)

    def outlives(self, now: Nanos, live: Liveness) -> bool:
        """Whether probes of the flow that carries datagrams arrive although its heartbeats do not: they are sent first
        and fill a queue that is short. On a lossy path, probes would be missing where heartbeats arrive, too."""
        if live.stream or live.misses(now) < OUTLIVED_MIN or self._is_contrary(now):
            return False
        return (
            self._unannounced >= OUTLIVED_ROUNDS_MIN
            and now - self._datagram_at < HEARD_NS
            and self._datagram_at > live.heard_at + live.promise_ns
        )

    def lately(self, now: Nanos) -> bool:
        """Whether a full queue has dropped packets a moment ago."""
        return self._crowd.lately(now)

    # -- what arrives --------------------------------------------------------------------------------------------

    def arrived(self, size: int) -> None:
        """A probe of any kind."""
        self._bytes += size
        self._probed += size

    def datagram(self, pair: int, size: int, at: Nanos, live: Liveness | None) -> None:
        """A probe of the flow that carries datagrams, whose heartbeats are `live`."""
        self._rate.arrived(pair, size, at)
        self._datagram_at = at
        if pair in (self._last_round, self._heard_round):
            return
        self._last_round = pair
        self._unannounced += 1
        if len(self._rounds) >= ROUNDS_MAX:
            del self._rounds[next(iter(self._rounds))]
        self._rounds[pair] = (at, live is not None and live.trip.delay.waited(at, pair))

    def heartbeat(self, pair: int) -> None:
        """The heartbeat of a round, on the same flow."""
        self._heard_round = pair  # datagrams may be overtaken by it
        self._unannounced = 0
        self._rounds.pop(pair, None)

    def carried(self, now: Nanos, size: int) -> None:
        """The link says how many bytes have arrived so far, of data and of everything else."""
        at, before, probed = self._carried
        if now - at >= CARRIED_NS or size < before:
            kbps = (size - before) * 8 * 1_000_000 // max(now - at, 1)
            known = 0 <= now - at < WINDOW_NS and size >= before
            self._carried_kbps = kbps if known else 0
            if size != before or not known:  # nothing that arrives says nothing of what would
                self.by_data = not known or size - before > 2 * (self._probed - probed)
            self._carried = (now, size, self._probed)

    # -- judging -------------------------------------------------------------------------------------------------

    def wants_burst(self, now: Nanos) -> bool:
        """Whether many probes at once should be sent, because nothing has shown the limit for a while: they would not
        pass it. True once."""
        return self._crowd.wants_burst(now)

    def look(
        self, now: Nanos, live: Liveness | None, missed: bool, calmly: bool, burst: bool = False
    ) -> bool:
        """Judge what came since the last look; True when the verdict has changed. `missed`: probes are missing, of
        rounds that waited; `calmly`: datagrams of rounds that did not wait. `burst`: many probes that were sent at
        once came without waiting."""
        if burst:
            self._crowd.burst_passed(now)
        if self._rounds:
            missed = self._without_heartbeat(now) or missed
        if live is not None and live.trip.delay.crowded:
            # One came that had waited, and the next ones are missing.
            missed = missed or (live.alive and live.overdue(now))
        lossy = live is not None and live.window.lossy
        losing = live is not None and (lossy or live.window.suspected)
        if calmly:
            self._contrary.append(now)
            self._crowd.missed_calmly()
        elif missed and not (losing and self._is_contrary(now)):
            # On a lossy path packets are missing of any round, also of those that had to wait for another reason.
            self._crowd.missed(now)
        if self._ends and not lossy and self._is_policer(now, ENDS_MIN):
            self._policed = True
            for _ in range(CROWD_MISSES):
                self._crowd.missed(now)
        return self._decide(now)

    def _decide(self, now: Nanos) -> bool:
        crowd, rate = self._crowd, self._rate
        rate_kbps = rate.rate_kbps if crowd.limit_kbps else rate.recent(now)
        arrived_kbps = self._arrived_kbps(now)
        if self._carried_kbps and rate_kbps > LINE_FACTOR * max(arrived_kbps, PROBED_KBPS):
            self._policed = self._policed or (not crowd.limit_kbps and crowd.lately(now))
        # A policer lets packets pass at the speed of the line: pairs say nothing of it.
        changed = crowd.look(now, 0 if self._policed else rate_kbps, arrived_kbps)
        if changed:
            rate.narrowed(crowd.limit_kbps or rate.recent(now))
            self._policed = self._policed and crowd.limit_kbps > 0
        return changed

    def holds_loss(self, now: Nanos) -> bool:
        """Whether what is missing may be the work of a policer, so that loss is not claimed yet."""
        return bool(self._ends) and self._is_policer(now, 2)

    def _without_heartbeat(self, now: Nanos) -> bool:
        """Take rounds whose heartbeat has not come; True if some of them had waited in a queue."""
        late = [pair for pair, (at, _) in self._rounds.items() if now - at >= HEARTBEAT_LATE_NS]
        queued = False
        for pair in late:
            _, waited = self._rounds.pop(pair)
            if waited:
                queued = True
            else:
                self._ends.append(now)
        return queued

    def _is_policer(self, now: Nanos, least: int) -> bool:
        ends = sum(now - at < WINDOW_NS for at in self._ends)
        if ends < least:
            return False
        return not self._is_contrary(now)

    def _is_contrary(self, now: Nanos) -> bool:
        """Whether datagrams of rounds that had not waited were missing lately."""
        return any(now - at < WINDOW_NS for at in self._contrary)

    def _arrived_kbps(self, now: Nanos) -> int:
        """What came through since the last look: of probes, or of everything, if the link was asked."""
        size, self._bytes = self._bytes, 0
        since_ns, self._looked_at = now - self._looked_at, now
        probes_kbps = size * 8 * 1_000_000 // max(since_ns, BUCKET_NS)
        return max(KBPS_MIN + probes_kbps, self._carried_kbps)
