"""What measuring may cost, and when it should cost less.

Bytes on the wire are taken from three buckets: of the path, of the adapter, of all that this node sends. A bucket fills
at its budget and holds a few seconds of it, so a doubt is settled quickly and the budget is kept all the same.
Basics are always sent, and paid for. Diagnostics are spread so that a quiet path stays below its budget, and slowed
down or sped up by demand: who asks, how much traffic waits, and which hours are known to be busy. Slower diagnostics
alarm nobody: a listener holds a probe against the basic that announced it, and never against the time.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.health.config import Budget
from holdfast.types import SECOND, Nanos

NORMAL: Final = 1000
SLOWEST: Final = 100
FASTEST: Final = 2000
DEEP_BYTES: Final = 1 << 20
"""A send queue as deep as this slows diagnostics down to a quarter."""
WINDOWS_MAX: Final = 1000
DEMANDS_MAX: Final = 10_000
SHARES: Final = {"udp": 50, "alt": 8, "frag": 16, "tcp": 16, "multicast": 10}
"""How the budget of a path is divided where it does not do for all: most goes to the flow that carries data."""
SLOWER: Final = {"udp": 1, "alt": 5, "frag": 2, "tcp": 2, "multicast": 2}
"""Lanes that wait for more than one period: a fault of the path shows on the flow that carries data first."""
_FILL_PERCENT: Final = 95
"""A bucket fills at this share of its budget: what is not reckoned with (repetitions and acknowledgements of streams,
what is said of a doubt) is part of the budget, too. Less left a limit of 9000-byte streams unseen for 15 s."""
_STEADY_PERCENT: Final = 55
"""What a quiet path may use of its budget; the rest is for doubts."""


class Hush(msgspec.Struct, frozen=True, gc=False):
    """Input: no diagnostics until then. Somebody else measures, on the same connections."""

    until_ns: Nanos


class Interest(msgspec.Struct, frozen=True, gc=False):
    """Input: clients watch the paths of a subnet (empty: of all), or do so no longer."""

    subnet: str
    watchers: int


class QueueDepth(msgspec.Struct, frozen=True, gc=False):
    """Input: so many bytes wait to be sent on an adapter."""

    adapter: str
    waiting: int


class BusyWindow(msgspec.Struct, frozen=True, gc=False):
    """Input: in this time diagnostics of a subnet (empty: of all) run at this share of their rate."""

    subnet: str
    begin_ns: Nanos
    end_ns: Nanos
    permille: int


Demand = Interest | QueueDepth | BusyWindow


class Bucket:
    """Bytes that may be sent now."""

    __slots__ = ("_at", "_rest", "cap", "floor", "rate", "tokens")

    def __init__(self, now: Nanos, rate: int, cap: int) -> None:
        self.rate = rate
        self.cap = cap
        self.floor = -cap // 4
        """What was sent in any case is not held against more than this of what comes."""
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

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self._domain: Bucket | None = None
        self._adapters: dict[str, Bucket] = {}
        self._interest: dict[str, int] = {}
        self._depth: dict[str, int] = {}
        self.hushed_until: Nanos = 0
        """No diagnostics before this: somebody else measures."""
        self._windows: list[BusyWindow] = []

    def bucket(self, now: Nanos, budget: int) -> Bucket:
        rate = budget * _FILL_PERCENT // 100
        return Bucket(now, rate, budget * self.budget.burst_ms // 1000)

    def path_bucket(self, now: Nanos) -> Bucket:
        return self.bucket(now, self.budget.path)

    # -- what is left --------------------------------------------------------------------------------------------

    def buckets(self, now: Nanos, path: Bucket, adapter: str) -> Buckets:
        """All that what is sent on a path is taken from."""
        if self._domain is None:
            self._domain = self.bucket(now, self.budget.domain)
        own = self._adapters.get(adapter)
        if own is None:
            own = self._adapters[adapter] = self.bucket(now, self.budget.adapter)
        return path, own, self._domain

    @staticmethod
    def take(now: Nanos, buckets: Buckets, size: int) -> bool:
        """Pay for a round of probes; False when it must wait. What is more than a bucket holds goes when it is full."""
        for bucket in buckets:
            bucket.fill(now)
            if bucket.tokens < min(size, bucket.cap):
                return False
        for bucket in buckets:
            bucket.tokens -= size
        return True

    @staticmethod
    def wait_ns(buckets: Buckets, size: int) -> Nanos:
        """How long it takes until so much can be paid for, if nothing else is."""
        return max((min(size, b.cap) - b.tokens) * SECOND // b.rate for b in buckets)

    @staticmethod
    def pay(buckets: Buckets, size: int) -> None:
        """Pay for what is sent in any case: a basic, or a multicast that another path asked for."""
        for bucket in buckets:
            bucket.tokens = max(bucket.tokens - size, bucket.floor)

    # -- how often -----------------------------------------------------------------------------------------------

    def spread(
        self, rounds: dict[str, int], period_ns: Nanos, basics_per_s: int
    ) -> dict[str, Nanos]:
        """The period of each lane, given what one round of it costs: the wish, or longer where the budget ends. What
        one lane does not need of its share is there for the others."""
        room = max(self.budget.path * _STEADY_PERCENT // 100 - basics_per_s, 1)
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
        """How fast diagnostics run, in thousandths of their normal rate."""
        speed = NORMAL
        if self._interest.get(subnet) or self._interest.get(""):
            speed = FASTEST
        depth = self._depth.get(adapter, 0)
        if depth:
            speed = speed * NORMAL // (NORMAL + 3 * NORMAL * min(depth, DEEP_BYTES) // DEEP_BYTES)
        for window in self._windows:
            if window.subnet in ("", subnet) and window.begin_ns <= now < window.end_ns:
                speed = speed * window.permille // NORMAL
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
