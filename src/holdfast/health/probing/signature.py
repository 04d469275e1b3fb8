"""What is sent to one listener on one path, and when: the four signatures, and how they become stable.

For each lane the sender keeps what this listener receives (the per-listener list) and a state:

    initial   all values are sent until the listener has acknowledged what it receives
    stable    the best value that passes with every diagnostic, a lower one in turn, failed ones periodically
    focused   the listener suspects a fault: everything is sent separately and quickly until it is settled

`diag_active` is what passes, `diag_retry` what does not; `basic_active` and `basic_retry` likewise for whole flows.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import lcm
from typing import Final

from holdfast.health.config import Signatures
from holdfast.health.frames import Settled
from holdfast.health.probing.attributes import FIRST_PATTERN, MIXED, NEUTRAL, Plan, bytes_on_wire
from holdfast.health.probing.values import LanePlan
from holdfast.types import MILLISECOND, NEVER, SECOND, FlowId, Nanos

PAST: Final = -NEVER
"""Before any time, even of a clock that was set back."""

INITIAL: Final = "initial"
STABLE: Final = "stable"
FOCUSED: Final = "focused"

BEGIN: Final = "begin"
"""A flow is available, or was replaced."""
DOUBT: Final = "doubt"
"""The listener misses something, or receives something that had failed."""
SETTLED: Final = "settled"
"""It has reported what passes, and has no suspicion left."""
SPENT: Final = "spent"
"""Everything was sent often enough."""

TRANSITIONS: Final = {
    (INITIAL, BEGIN): INITIAL,
    (INITIAL, DOUBT): INITIAL,
    (INITIAL, SETTLED): STABLE,
    (INITIAL, SPENT): STABLE,
    (STABLE, BEGIN): INITIAL,
    (STABLE, DOUBT): FOCUSED,
    (STABLE, SETTLED): STABLE,
    (STABLE, SPENT): STABLE,
    (FOCUSED, BEGIN): INITIAL,
    (FOCUSED, DOUBT): FOCUSED,
    (FOCUSED, SETTLED): STABLE,
    (FOCUSED, SPENT): STABLE,
}
ROUNDS: Final = 40
"""The maximum number of rounds of a focus; a listener with a remaining suspicion asks again."""
ALT_EVERY: Final = 5
CHEAP_SIZE: Final = 1500
FRAG_TURNS: Final = 4
"""One in so many fragmented probes is the largest, the others are the smallest."""
CAST_TURNS: Final = 8
"""One in so many multicast probes with jumbo frames is the largest, another one any size; the rest has 1500 bytes."""
STREAM_RETRY_NS: Final = 200 * MILLISECOND
"""A stream needs time to retransmit: more rounds would only wait behind it."""
FOCUS_BYTES: Final = 300_000
CAST_BYTES: Final = 60_000
CAST_BYTES_JUMBO: Final = 120_000
"""What one lane may send in a second while a suspicion is settled; multicast goes to all listeners."""


class LaneSender:
    """One lane towards one listener."""

    __slots__ = (
        "_retried",
        "_turn",
        "alive",
        "bad",
        "doubts",
        "flows",
        "holes",
        "known",
        "name",
        "next_at",
        "patterns",
        "period_ns",
        "plan",
        "retry_at",
        "rounds",
        "size",
        "state",
    )

    def __init__(self, plan: LanePlan, patterns: tuple[str, ...], now: Nanos) -> None:
        self.name = plan.name
        self.plan = plan
        self.patterns = patterns[: plan.fills - FIRST_PATTERN]
        self.flows: dict[int, FlowId] = {}
        """The flow that carries it, or one per size."""
        self.known: dict[int, bool] = {}
        """Sizes that have had a flow."""
        self.state = INITIAL
        self.alive = True
        self.size = 0
        self.holes: tuple[int, ...] = ()
        self.bad: tuple[str, ...] = ()
        self.rounds = 0
        self.doubts = 0
        """How often the listener had a suspicion."""
        self.next_at = now
        self.retry_at: Nanos = NEVER
        self.period_ns: Nanos = 0
        self._turn = 0
        self._retried = False
        """The last choice was from `diag_retry`."""

    def event(self, event: str) -> None:
        self.state = TRANSITIONS[self.state, event]
        if event in (BEGIN, DOUBT):
            self.rounds = 0
            self.doubts += event == DOUBT

    def adopt(self, plan: LanePlan, patterns: tuple[str, ...]) -> None:
        """Another plan: its new values must be measured."""
        self.plan = plan
        self.patterns = patterns[: plan.fills - FIRST_PATTERN]
        self.event(BEGIN)

    def take(self, settled: Settled, now: Nanos, retry_ns: Nanos) -> None:
        """The per-listener list: what this listener receives."""
        self.size = settled.size
        self.holes = settled.holes
        self.bad = settled.bad_patterns
        self.alive = settled.alive
        if settled.done:
            self.event(SETTLED)
        failing = self.holes or self.bad or any(not self._passes(size) for size in self.plan.sizes)
        self.retry_at = min(self.retry_at, now + retry_ns) if failing else NEVER

    # -- what is in the signatures -------------------------------------------------------------------------------

    def _passes(self, size: int) -> bool:
        return not self.size or (size <= self.size and size not in self.holes)

    def passing(self) -> list[int]:
        """The numbers of the sizes that pass, smallest first."""
        return [n for n, size in enumerate(self.plan.sizes) if self._passes(size)]

    def active(self) -> list[int]:
        """`diag_active`: the best value with all patterns, and what is below it."""
        passing = self.passing()
        if not passing:
            return []
        best = self.plan.index(passing[-1], MIXED)
        return [best, *(self.plan.index(n, NEUTRAL) for n in passing[:-1])]

    def retry(self) -> list[int]:
        """`diag_retry`: what does not pass, and for a bad pattern also the neutral packet with which it is compared."""
        failed = [n for n, size in enumerate(self.plan.sizes) if not self._passes(size)]
        indexes = [self.plan.index(n, NEUTRAL) for n in failed]
        passing = self.passing()
        if self.bad and passing:
            # Large datagrams are expensive: the smallest fragmented one shows as well whether the pattern passes.
            best = passing[0] if self.name == "frag" else passing[-1]
            fills = [FIRST_PATTERN + n for n, name in enumerate(self.patterns) if name in self.bad]
            indexes += [self.plan.index(best, fill) for fill in (NEUTRAL, *fills)]
        return indexes

    def good_patterns(self) -> tuple[str, ...]:
        """The patterns of a mixed packet: a pattern that is known not to pass would only hide the others."""
        return tuple(name for name in self.patterns if name not in self.bad)

    def round_cost(self, mtu: int) -> int:
        """Average size of one diagnostic of the stable signature."""
        passing = self.passing() or [0]
        sizes = [bytes_on_wire(self.name, self.plan.sizes[n], mtu) for n in passing]
        if self.name == "frag" and len(sizes) > 1:
            return (sizes[-1] + (FRAG_TURNS - 1) * sizes[0]) // FRAG_TURNS
        usual = self._usual_cast(passing) if self.plan.sizes[-1] > CHEAP_SIZE else None
        if usual is not None:
            return (sizes[-1] + (CAST_TURNS - 1) * self.plan.sizes[usual]) // CAST_TURNS
        if self.name != "udp" or len(sizes) == 1:
            return sizes[-1]
        return sizes[-1] + sum(sizes[:-1]) // (len(sizes) - 1)

    # -- what is due ---------------------------------------------------------------------------------------------

    def focus_ns(self, signatures: Signatures) -> Nanos:
        """The pause between two rounds of a suspicion. Large packets are sent more slowly: what is on its way when the
        suspicion is settled is wasted, and other lanes need the budget."""
        most = FOCUS_BYTES
        if self.name == "multicast":
            most = CAST_BYTES_JUMBO if self.plan.sizes[-1] > CHEAP_SIZE else CAST_BYTES
        retry_ns = max(signatures.diag_active.retry_ns, sum(self.plan.sizes) * SECOND // most)
        return max(retry_ns, STREAM_RETRY_NS) if self.name == "tcp" else retry_ns

    def choose(self, now: Nanos, signatures: Signatures) -> list[int]:
        """The combinations that are due, most important first."""
        self._retried = False
        if not self.flows or now < self.next_at:
            return self._retries(now, signatures)
        if self.state == STABLE:
            self.next_at = now + self.period_ns - MILLISECOND
            if self.name == "multicast":
                # One packet serves all listeners: their rounds are in step, whenever each of them joined.
                turn, since_ns = divmod(now, self.period_ns)
                self.next_at = now - since_ns + self.period_ns
                self._turn = turn - 1
            return self._retries(now, signatures) or self._stable()
        focus_ns = self.focus_ns(signatures)
        self.next_at = now + focus_ns - MILLISECOND
        apart = self._apart()
        if self.name != "multicast":
            return apart
        # A heartbeat has no room to announce all of them beside those of datagrams: sizes and patterns take turns, by
        # the clock, so that one packet serves all listeners.
        sizes = len(self.plan.sizes)
        return apart[:sizes] if now // focus_ns % 2 == 0 else self._compared(apart[sizes:])

    def _compared(self, patterns: list[int]) -> list[int]:
        """These patterns, with the neutral packet of the same size."""
        if not patterns:
            return []
        return [self.plan.index(patterns[0] // self.plan.fills, NEUTRAL), *patterns]

    def postpone(self, until: Nanos) -> None:
        """The choice exceeded the budget: it is due again then."""
        self.next_at = until
        if self._retried:
            self.retry_at = min(self.retry_at, until)

    def sent(self) -> None:
        """A round was sent."""
        if self.state != STABLE:
            self.rounds += 1
            if self.rounds >= ROUNDS:
                self.event(SPENT)

    def _retries(self, now: Nanos, signatures: Signatures) -> list[int]:
        if not self.flows or now < self.retry_at or self.state != STABLE:
            return []
        self.retry_at = now + signatures.diag_retry.period_ns - MILLISECOND
        self._retried = True
        self._turn += 1
        failed = self.retry()
        sizes = [index for index in failed if index % self.plan.fills == NEUTRAL]
        if len(sizes) <= 2 or self.bad:
            return failed
        # The next better value every time, the others in turn.
        return [sizes[0], sizes[1 + self._turn % (len(sizes) - 1)]]

    def _stable(self) -> list[int]:
        passing = self.passing()
        if not passing:
            return []
        self._turn += 1
        turn = self._turn
        best = self.plan.index(passing[-1], MIXED)
        lower = passing[:-1]
        if not lower:
            return [best]
        if self.name == "frag":
            # A filter of fragments stops the smallest as well; the larger ones cost many times as much.
            return [best if turn % FRAG_TURNS == 0 else self.plan.index(passing[0], MIXED)]
        usual = self._usual_cast(passing) if self.plan.sizes[-1] > CHEAP_SIZE else None
        if usual is not None:
            # A filter of multicast stops these as well, and they are six times as frequent for the same cost.
            if turn % (CAST_TURNS // 2) != 0:
                return [self.plan.index(usual, MIXED)]
            if turn % CAST_TURNS != 0:
                return [best]
        good = [n for n, name in enumerate(self.patterns) if name not in self.bad]
        if self.name != "udp":
            turn //= 4 if usual is None else CAST_TURNS
        number = lower[turn % len(lower)]
        fill = NEUTRAL
        if good:
            # Another pattern each time, so that each size is combined with each pattern over time.
            fill = FIRST_PATTERN + good[(turn + turn // lcm(len(lower), len(good))) % len(good)]
        other = self.plan.index(number, fill)
        return [best, other] if self.name == "udp" else [other if self._turn % 4 == 0 else best]

    def _usual_cast(self, passing: list[int]) -> int | None:
        """The size of most multicast probes on an adapter with jumbo frames; None if all have the largest."""
        if self.name != "multicast" or not passing or self.plan.sizes[passing[-1]] <= CHEAP_SIZE:
            return None
        return max((n for n in passing if self.plan.sizes[n] <= CHEAP_SIZE), default=None)

    def _apart(self) -> list[int]:
        """Every size alone, and every pattern alone at a size that passes: alternately a cheap one and the best,
        because a pattern may fail in large packets only."""
        indexes = [self.plan.index(n, NEUTRAL) for n in range(len(self.plan.sizes))]
        passing = self.passing()
        if passing:
            cheap = [n for n in passing if self.plan.sizes[n] <= CHEAP_SIZE] or passing[:1]
            number = passing[-1] if self.doubts and self.doubts % 2 == 0 else cheap[-1]
            fills = range(FIRST_PATTERN, FIRST_PATTERN + len(self.patterns))
            indexes += [self.plan.index(number, fill) for fill in fills]
        return indexes

    @property
    def turn(self) -> int:
        return self._turn


BASIC_BYTES: Final = {"udp": 130, "alt": 130, "tcp": 170}
"""Size of a basic heartbeat on the wire, and of its acknowledgement on a stream."""


class Pulse:
    """The basic heartbeats of one flow."""

    __slots__ = (
        *("alive", "cost", "every", "flow", "hurried_until", "lane", "n", "next_at", "period_ns"),
    )

    def __init__(self, flow: FlowId, lane: str, now: Nanos) -> None:
        self.flow = flow
        self.lane = lane
        self.n = now // (10 * MILLISECOND)
        """From the clock, so that it also increases when this unit is rebuilt."""
        self.alive = True
        self.every = {"alt": ALT_EVERY, "tcp": 2}.get(lane, 1)
        """An alternate port needs only enough heartbeats to show that it is alive, and a stream must be silent for
        longer than a few of them anyway."""
        self.next_at = now
        self.period_ns: Nanos = 0
        self.hurried_until: Nanos = PAST
        """Until then more are sent than announced: the listener must settle how many are lost."""
        self.cost = BASIC_BYTES[lane]


def lanes_of(plan: Plan, now: Nanos) -> dict[str, LaneSender]:
    return {name: LaneSender(lane, plan.patterns, now) for name, lane in plan.lanes.items()}


def basics_per_second(pulses: Iterable[Pulse]) -> int:
    """Bytes per second of the basic heartbeats of a path."""
    return sum(pulse.cost * SECOND // pulse.period_ns for pulse in pulses)
