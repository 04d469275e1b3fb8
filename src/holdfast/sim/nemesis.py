"""A scenario by chance: faults, crashes, pauses and bad disks within a budget, then a quiet time in which all is well.

The plan is an ordinary scenario: print it, shorten it, run it again as a file.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Final

import msgspec

from holdfast.errors import MisuseError
from holdfast.sim.amounts import MILLION
from holdfast.sim.faults import (
    ANY,
    Blackout,
    Corrupt,
    Duplicate,
    Fault,
    Filter,
    Loss,
    Over,
    Pattern,
    Rate,
    Reorder,
    Slow,
    What,
    Where,
)
from holdfast.sim.scenario import Action, Break, Do, Heal, Scenario, SetDisk, Step
from holdfast.sim.seeds import chance
from holdfast.types import MILLISECOND, SECOND, Nanos


class Budget(msgspec.Struct, frozen=True):
    """How bad it may get at any one time."""

    faults_max: int = 3
    down_max: int = 1
    """Hosts that are down at once. A group lives while a majority does."""
    paused_max: int = 1
    slow_disks_max: int = 1
    settle_ns: Nanos = 5 * SECOND
    """After a restart no other host goes down for this long: a replica in memory must get its state back first."""
    pause_ns: Nanos = 700 * MILLISECOND
    """Between one thing and the next, on average."""
    spared_subnets: tuple[str, ...] = ()
    """Nothing happens to these: with a sound path between every pair, everything must go on."""
    spared_hosts: tuple[str, ...] = ()
    """These do not crash."""


_FAULTS: Final[tuple[Callable[[Random], What], ...]] = (
    lambda _: Blackout(),
    lambda random: Loss(random.randint(1, 400) * 1_000),
    lambda random: Over(random.choice((300, 576, 1000, 1280, 1400))),
    lambda random: Filter(random.choice(("udp", "tcp"))),
    lambda random: Pattern(random.choice((b"\x55" * 4, b"\xaa" * 4, b"\x00" * 8))),
    lambda random: Corrupt(random.randint(1, 50) * 1_000),
    lambda random: Duplicate(random.randint(1, 200) * 1_000),
    lambda random: Reorder(random.randint(1, 200) * 1_000, random.randint(1, 20) * MILLISECOND),
    lambda random: Slow(random.randint(1, 50) * MILLISECOND, random.randint(0, 20) * MILLISECOND),
    lambda random: Rate(random.randint(50, 1_000) * 1_000, 64_000),
)


def plan(
    seed: int,
    hosts: list[str],
    subnets: list[str],
    until_ns: Nanos,
    quiet_ns: Nanos = 10 * SECOND,
    budget: Budget | None = None,
) -> Scenario:
    """A scenario that ends `quiet_ns` before `until_ns` with everything healed and everybody running."""
    if quiet_ns >= until_ns:
        raise MisuseError(
            f"no time for anything to go wrong: a run of {until_ns} ns with {quiet_ns} ns of quiet"
        )
    return _Plan(seed, hosts, subnets, until_ns - quiet_ns, budget or Budget()).make()


class _Plan:
    def __init__(
        self, seed: int, hosts: list[str], subnets: list[str], end_ns: Nanos, budget: Budget
    ) -> None:
        self._random = chance(seed, "nemesis")
        self._hosts = hosts
        self._subnets = [name for name in subnets if name not in budget.spared_subnets]
        self._mortal = [name for name in hosts if name not in budget.spared_hosts]
        self._end_ns = end_ns
        self._budget = budget
        self._now = 0
        self._steps: list[Step] = []
        self._undo: list[tuple[Nanos, int, str, str, Action]] = []
        """What ends by itself: (when, number, kind of thing, which one, how)."""
        self._open: dict[str, list[str]] = {"fault": [], "down": [], "paused": [], "disk": []}
        """What is wrong at the moment, by kind."""
        self._settled_ns = 0
        self._count = 0

    def make(self) -> Scenario:
        random, pause_ns = self._random, self._budget.pause_ns
        tricks = (self._break, self._break, self._break, self._down, self._pause, self._disk)
        while True:
            self._now += random.randint(pause_ns // 4, pause_ns * 7 // 4)
            if self._now >= self._end_ns:
                break
            self._undo_until(self._now)
            random.choice(tricks)()
        self._undo_until(self._end_ns)
        self._now = self._end_ns
        self._step(Heal())
        for host in self._hosts:
            self._step(SetDisk(host))
            self._step(Do("resume", host))
            self._step(Do("start", host))
        return Scenario("nemesis", tuple(self._steps))

    def _step(self, action: Action) -> None:
        self._steps.append(Step(self._now, action))

    def _undo_until(self, when: Nanos) -> None:
        later = self._now
        while self._undo and self._undo[0][0] <= when:
            self._now, _, kind, what, action = heappop(self._undo)
            self._open[kind].remove(what)
            if kind == "down":
                self._settled_ns = self._now + self._budget.settle_ns
            self._step(action)
        self._now = later

    def _later(self, kind: str, what: str, low_ms: int, high_ms: int, action: Action) -> None:
        """Something is wrong from now on and ends after a while."""
        self._count += 1
        self._open[kind].append(what)
        when = self._now + self._random.randint(low_ms, high_ms) * MILLISECOND
        heappush(self._undo, (when, self._count, kind, what, action))

    def _break(self) -> None:
        if len(self._open["fault"]) >= self._budget.faults_max or not self._subnets:
            return
        random = self._random
        name = f"f{self._count + 1}"
        fault = Fault(
            self._where(),
            random.choice(_FAULTS)(random),
            share_ppm=random.choice((MILLION, MILLION, MILLION, MILLION // 2)),
        )
        if random.getrandbits(2) == 0:
            on_ns, off_ns = (random.randint(1, 20) * 50 * MILLISECOND for _ in range(2))
            fault = msgspec.structs.replace(fault, on_ns=on_ns, off_ns=off_ns)
        self._step(Break(fault, name))
        self._later("fault", name, 300, 5_000, Heal(name))

    def _where(self) -> Where:
        random = self._random
        sender, listener = random.sample(self._hosts, 2)
        if random.getrandbits(2) == 0:
            listener = ANY
        return Where(random.choice(self._subnets), sender, listener, both=not random.getrandbits(1))

    def _down(self) -> None:
        if len(self._open["down"]) >= self._budget.down_max or self._now < self._settled_ns:
            return
        host = self._free_host(self._mortal)
        if host:
            verb = self._random.choice(("crash", "crash-in-turn", "power-off", "stop"))
            self._step(Do(verb, host))
            self._later("down", host, 500, 4_000, Do("start", host))

    def _pause(self) -> None:
        host = self._free_host(self._hosts)
        if host and len(self._open["paused"]) < self._budget.paused_max:
            self._step(Do("pause", host))
            self._later("paused", host, 20, 1_500, Do("resume", host))

    def _disk(self) -> None:
        host = self._free_host(self._hosts)
        if host and len(self._open["disk"]) < self._budget.slow_disks_max:
            slow_ns = self._random.randint(1, 200) * MILLISECOND
            self._step(SetDisk(host, slow_ns=slow_ns))
            self._later("disk", host, 500, 5_000, SetDisk(host))

    def _free_host(self, hosts: list[str]) -> str:
        """A host that nothing is wrong with at the moment; empty when there is none."""
        busy = self._open["down"] + self._open["paused"] + self._open["disk"]
        free = [host for host in hosts if host not in busy]
        return self._random.choice(free) if free else ""
