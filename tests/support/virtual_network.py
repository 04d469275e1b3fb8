"""Virtual time and a virtual network, for all tests that run several machines against each other.

`VirtualTime` runs events in the order of their time; events at the same time run in the order of scheduling.
`VirtualNetwork` adds the network between nodes: delay, loss, duplicates, reordering, cuts, and sessions whose end loses
data in flight. It knows nothing about frames: a transmission is a call that happens later, once, twice or never. One
seed determines everything.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from heapq import heappop, heappush
from random import Random

from holdfast.types import MICROSECOND, NEVER, Nanos

Event = Callable[[], None]


class VirtualTime:
    """A clock that moves from event to event."""

    def __init__(self, now: Nanos = 0) -> None:
        self.now = now
        self._events: list[tuple[Nanos, int, Event]] = []
        self._planned = 0

    def at(self, when: Nanos, do: Event) -> None:
        self._planned += 1
        heappush(self._events, (when, self._planned, do))

    @property
    def next_ns(self) -> Nanos:
        """The time of the next event; `NEVER` if there is none."""
        return self._events[0][0] if self._events else NEVER

    def step(self) -> None:
        """Run the next event. One that was scheduled in the past runs now."""
        when, _, do = heappop(self._events)
        self.now = max(self.now, when)
        do()

    def pass_time(self, duration_ns: Nanos, until: Callable[[], bool] | None = None) -> bool:
        """Run all events of `duration_ns`, or until `until` holds after an event; returns whether it holds."""
        end = self.now + duration_ns
        while self.next_ns <= end:
            self.step()
            if until is not None and until():
                return True
        self.now = max(self.now, end)
        return until is not None and until()

    def pass_until(
        self, reached: Callable[[], bool], limit_ns: Nanos, describe: Callable[[], str] = str
    ) -> Nanos:
        """Run until a condition holds, which must happen in time; returns the duration."""
        begin, end = self.now, self.now + limit_ns
        while not reached():
            assert self.next_ns <= end, f"not reached in {limit_ns} ns:\n{describe()}"
            self.step()
        return self.now - begin


class VirtualNetwork(VirtualTime):
    """Paths between nodes, which are given by name. All paths have the same faults, except those that are cut."""

    def __init__(
        self,
        rng: Random,
        now: Nanos = 0,
        *,
        loss: float = 0.0,
        double: float = 0.0,
        delay_us: tuple[int, int] = (50, 150),
        reorder: bool = True,
    ) -> None:
        """Delays are random between two limits. Without `reorder`, a lane keeps its order."""
        super().__init__(now)
        self.rng = rng
        self.loss, self.double, self.reorder = loss, double, reorder
        self.delay_us = delay_us
        self._cut: dict[tuple[str, str], bool] = {}
        self._session: dict[tuple[str, str], int] = {}
        self._lane: dict[Hashable, Nanos] = {}
        """When the last transmission of each lane arrives."""

    # -- sessions and cuts ---------------------------------------------------------------------------------------

    @staticmethod
    def _pair(a: str, b: str) -> tuple[str, str]:
        return (a, b) if a < b else (b, a)

    def is_cut(self, a: str, b: str) -> bool:
        return self._cut.get(self._pair(a, b), False)

    def set_cut(self, a: str, b: str, cut: bool = True) -> bool:
        """Disconnect two nodes, or reconnect them; False if nothing changes."""
        changed = self.is_cut(a, b) != cut
        self._cut[self._pair(a, b)] = cut
        return changed

    @property
    def cut_pairs(self) -> list[tuple[str, str]]:
        return [pair for pair, cut in self._cut.items() if cut]

    @property
    def is_healed(self) -> bool:
        return not any(self._cut.values())

    def end_session(self, a: str, b: str) -> None:
        """Transmissions in flight between two nodes are lost."""
        pair = self._pair(a, b)
        self._session[pair] = self._session.get(pair, 0) + 1

    # -- transmitting --------------------------------------------------------------------------------------------

    def transmit(
        self, sender: str, receiver: str, lane: Hashable, arrive: Event, loss: float | None = None
    ) -> int:
        """Transmit something from one node to another; returns how many times it will arrive."""
        if self.is_cut(sender, receiver):
            return 0
        rng, pair = self.rng, self._pair(sender, receiver)
        session = self._session.get(pair, 0)
        copies = 0 if rng.random() < (self.loss if loss is None else loss) else 1
        if copies and rng.random() < self.double:
            copies = 2
        for _ in range(copies):
            when = self.now + rng.randint(*self.delay_us) * MICROSECOND
            if not self.reorder:
                when = max(when, self._lane.get((sender, receiver, lane), 0))
                self._lane[sender, receiver, lane] = when
            self.at(when, lambda: self._arrive(pair, session, arrive))
        return copies

    def _arrive(self, pair: tuple[str, str], session: int, arrive: Event) -> None:
        if self._session.get(pair, 0) == session:
            arrive()
