"""Checks of single nodes: no unit raises, no queue grows without bound, no node spins."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from holdfast.faults.amounts import time_text
from holdfast.group.ports import APPLY_MAX, Apply
from holdfast.sim.checkers.base import Checker

if TYPE_CHECKING:
    from holdfast.machine import Result
    from holdfast.sim.host import Host


class NoFailures(Checker):
    """No unit of any node raises, except those that a test expects to (`replica/*`)."""

    def __init__(self, *expected: str) -> None:
        self._expected = expected

    def turn(self, host: Host, result: Result) -> None:
        for failure in result.failures:
            if not any(fnmatchcase(failure.unit, pattern) for pattern in self._expected):
                host.world.fail(
                    "no unit fails",
                    f"{failure.unit} on {host.name} raised {failure.error!r}",
                    failure.error,
                )


class Bounds(Checker):
    """Queues keep their bounds, even if a node, a disk or an application is slow."""

    def __init__(self, inbox_max: int = 100_000, heap_max: int = 5_000_000) -> None:
        self._inbox_max = inbox_max
        self._heap_max = heap_max

    def turn(self, host: Host, result: Result) -> None:
        world = host.world
        if len(host.inbox) > self._inbox_max:
            self._fail(host, f"{len(host.inbox)} inputs wait (bound {self._inbox_max})")
        if len(world.heap) > self._heap_max:
            self._fail(host, f"{len(world.heap)} events are on their way (bound {self._heap_max})")

    effects = (Apply,)

    def effect(self, host: Host, effect: Apply) -> None:
        worker = host.workers.get(effect.unit)
        if worker is not None and worker.outstanding_bytes > APPLY_MAX:
            waiting = worker.outstanding_bytes
            self._fail(host, f"{effect.unit} gives more to an application that has {waiting} bytes")

    def _fail(self, host: Host, detail: str) -> None:
        host.world.fail("queues are bounded", f"{host.name}: {detail}")


class DeadlinesMove(Checker):
    """After a turn, the next deadline lies in the future; one that stays in the past makes a node spin."""

    def __init__(self, turns_max: int = 100) -> None:
        self._turns_max = turns_max
        self._overdue: dict[str, int] = {}

    def turn(self, host: Host, result: Result) -> None:
        assert host.core is not None
        if host.core.next_deadline() > host.now:
            self._overdue[host.name] = 0
            return
        turns = self._overdue[host.name] = self._overdue.get(host.name, 0) + 1
        if turns > self._turns_max:
            late_ns = host.now - host.core.next_deadline()
            text = f"{host.name} woke {turns} times for a deadline that passed {time_text(late_ns)} ago"
            host.world.fail("nodes do not spin", text)
