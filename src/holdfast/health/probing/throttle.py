"""Bandwidth budgets of measuring, and their adaptation.

Bytes on the wire are taken from three token buckets: of the path, of the adapter, of the node. A bucket fills at its
budget and holds a few seconds of it, so a suspicion is settled quickly within the budget. Basic heartbeats are always
sent, and charged. Diagnostics are spread so that a healthy path stays below its budget, and adapted to demand:
subscribers, queued traffic, and known busy windows. Slower diagnostics raise no alarm: a listener compares a probe with
the heartbeat that announced it, never with the clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from holdfast.health.classify import ETHERNET, JUMBO
from holdfast.health.config import Budget
from holdfast.health.probing.values import BusyWindow, Interest, QueueDepth
from holdfast.types import SECOND, Nanos

NORMAL: Final = 1000
SLOWEST: Final = 100
FASTEST: Final = 2000
DEEP_BYTES: Final = 1 << 20
"""A send queue of this depth reduces diagnostics to a quarter."""
WINDOWS_MAX: Final = 1000
DEMANDS_MAX: Final = 10_000
SHARES: Final = {"udp": 50, "alt": 8, "frag": 16, "tcp": 16, "multicast": 10}
"""How the budget of a path is divided if it does not suffice for all: most goes to the flow that carries data."""
SLOWER: Final = {"udp": 1, "alt": 5, "frag": 3, "tcp": 2, "multicast": 2}
"""Lanes with longer periods: a fault of the path shows first on the flow that carries data."""
_FILL_PERCENT: Final = 95
"""A bucket fills at this share of its budget: unaccounted traffic (retransmissions and acknowledgements of streams,
reports) is part of the budget, too. A lower share left a limit of 9000-byte streams undetected for 15 s."""
_STEADY_PERCENT: Final = 55
"""What a quiet path may use of its budget; the rest is for doubts."""


NARROW_SHARE: Final = 10
"""Diagnostics take one part in so many of a path that carries little."""
PATH_BYTES_MIN: Final = 2_000


Demand = Interest | QueueDepth | BusyWindow


class Bucket:
    """Bytes that may be sent now."""

    __slots__ = ("_at", "_rest", "cap", "floor", "rate", "tokens", "whole")

    def __init__(self, now: Nanos, rate: int, cap: int) -> None:
        self.rate = rate
        self.cap = self.whole = cap
        """What it holds now, and when no limit of the path is known."""
        self.floor = -cap // 4
        """The maximum debt from traffic that is sent in any case."""
        self.tokens = cap
        self._at = now
        self._rest = 0

    def fill(self, now: Nanos) -> None:
        passed = now - self._at
        self._at = now
        if passed <= 0:
            return
        made = min(passed, 60 * SECOND) * self.rate + self._rest
        self.tokens = min(self.cap, self.tokens + made // SECOND)
        self._rest = made % SECOND


Buckets = tuple[Bucket, Bucket, Bucket]
"""Of a path, of its adapter, of the node."""


class Throttle:
    """The budgets of one node."""

    def __init__(
        self, budget: Budget, advised: Callable[[Nanos, str], int] = lambda _now, _adapter: NORMAL
    ) -> None:
        """`advised` gives the share of diagnostics, in thousandths, that an adapter should send by advice."""
        self.budget = budget
        self._advised = advised
        self._domain: Bucket | None = None
        self._adapters: dict[str, Bucket] = {}
        self._interest: dict[str, int] = {}
        self._depth: dict[str, int] = {}
        self.hushed_until: Nanos = 0
        """No diagnostics before this, because of a stress run."""
        self._windows: list[BusyWindow] = []

    def bucket(self, now: Nanos, budget: int) -> Bucket:
        rate = budget * _FILL_PERCENT // 100
        return Bucket(now, rate, budget * self.budget.burst_ms // 1000)

    def path_bucket(self, now: Nanos, mtu: int = ETHERNET) -> Bucket:
        """Larger packets need larger bursts to settle a suspicion, at the same rate in the long run."""
        plain = self.bucket(now, self.budget.path)
        return Bucket(now, plain.rate, plain.cap * max(ETHERNET, min(mtu, JUMBO)) // ETHERNET)

    def limit(self, bucket: Bucket, rate_kbps: int) -> int:
        """A path carries only so much (0: no limit is known): diagnostics take a tenth of it. Returns that."""
        budget = self.budget.path
        if rate_kbps:
            budget = min(budget, max(rate_kbps * 125 // NARROW_SHARE, PATH_BYTES_MIN))
        bucket.rate = budget * _FILL_PERCENT // 100
        bucket.cap = bucket.whole if not rate_kbps else budget
        bucket.floor = -bucket.cap // 4
        bucket.tokens = min(bucket.tokens, bucket.cap)
        return budget

    # -- what is left --------------------------------------------------------------------------------------------

    def buckets(self, now: Nanos, path: Bucket, adapter: str) -> Buckets:
        """The buckets that are charged for what is sent on a path."""
        if self._domain is None:
            self._domain = self.bucket(now, self.budget.domain)
        own = self._adapters.get(adapter)
        if own is None:
            own = self._adapters[adapter] = self.bucket(now, self.budget.adapter)
        return path, own, self._domain

    @staticmethod
    def take(now: Nanos, buckets: Buckets, size: int) -> bool:
        """Charge a round of probes; False if it must wait. A round larger than a bucket is sent when that is full."""
        for bucket in buckets:
            bucket.fill(now)
            if bucket.tokens < min(size, bucket.cap):
                return False
        for bucket in buckets:
            bucket.tokens -= size
        return True

    @staticmethod
    def wait_ns(buckets: Buckets, size: int) -> Nanos:
        """How long it takes until this much can be paid for, if nothing else is."""
        return max((min(size, b.cap) - b.tokens) * SECOND // b.rate for b in buckets)

    @staticmethod
    def pay(buckets: Buckets, size: int) -> None:
        """Charge what is sent in any case: a heartbeat, or a multicast probe requested by another path."""
        for bucket in buckets:
            bucket.tokens = max(bucket.tokens - size, bucket.floor)

    # -- how often -----------------------------------------------------------------------------------------------

    def spread(
        self, rounds: dict[str, int], period_ns: Nanos, basics_per_s: int, path_budget: int = 0
    ) -> dict[str, Nanos]:
        """The period of each lane, given what one round of it costs: the wish, or longer where the budget ends. What
        one lane does not need of its share is there for the others. `path_budget`: of a path that carries little."""
        room = max((path_budget or self.budget.path) * _STEADY_PERCENT // 100 - basics_per_s, 1)
        wish = {lane: period_ns * SLOWER[lane] for lane in rounds}
        periods: dict[str, Nanos] = {}
        left = dict(rounds)
        while left:
            shares = sum(SHARES[lane] for lane in left)
            modest = [
                lane
                for lane, cost in left.items()
                if cost * SECOND * shares <= wish[lane] * room * SHARES[lane]
            ]
            if not modest:
                for lane, cost in left.items():
                    share = max(room * SHARES[lane] // shares, 1)
                    periods[lane] = wish[lane] * max(-(-cost * SECOND // (wish[lane] * share)), 1)
                break
            for lane in modest:
                periods[lane] = wish[lane]
                room = max(room - left.pop(lane) * SECOND // wish[lane], 1)
        return periods

    def speed(self, now: Nanos, subnet: str, adapter: str) -> int:
        """The rate of diagnostics in thousandths of the normal one."""
        speed = NORMAL
        if self._interest.get(subnet) or self._interest.get(""):
            speed = FASTEST
        depth = self._depth.get(adapter, 0)
        if depth:
            speed = speed * NORMAL // (NORMAL + 3 * NORMAL * min(depth, DEEP_BYTES) // DEEP_BYTES)
        for window in self._windows:
            if window.subnet in ("", subnet) and window.begin_ns <= now < window.end_ns:
                speed = speed * window.permille // NORMAL
        speed = speed * self._advised(now, adapter) // NORMAL
        return min(max(speed, SLOWEST), FASTEST)

    def demand(self, now: Nanos, item: Demand) -> None:
        if isinstance(item, Interest):
            self._put(self._interest, item.subnet, item.watchers)
        elif isinstance(item, QueueDepth):
            self._put(self._depth, item.adapter, item.waiting)
        else:
            windows = [w for w in self._windows if w.end_ns > now]
            permille = min(max(item.permille, 0), FASTEST)
            windows.append(msgspec.structs.replace(item, permille=permille))
            self._windows = windows[-WINDOWS_MAX:]

    @staticmethod
    def _put(table: dict[str, int], key: str, value: int) -> None:
        if value <= 0:
            table.pop(key, None)
        elif key in table or len(table) < DEMANDS_MAX:
            table[key] = value
