"""A random scenario: faults, crashes, pauses and bad disks within a budget, then a fault-free time.

The plan is an ordinary scenario: print it, shorten it, and run it again from a file.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Final

import msgspec

from holdfast.errors import MisuseError
from holdfast.faults.amounts import MILLION
from holdfast.faults.model import (
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
from holdfast.sim.scenario import (
    Action,
    Ask,
    Break,
    Burst,
    Do,
    Heal,
    Scenario,
    SetApplication,
    SetDisk,
    Step,
)
from holdfast.sim.seeds import chance
from holdfast.types import MILLISECOND, SECOND, Nanos

LEADER: Final = "@leader"
KINDS: Final = ("fault", "down", "paused", "disk", "application", "source", "out")
"""Kinds of simultaneous faults; the budget bounds each."""


class Budget(msgspec.Struct, frozen=True):
    """How many faults may be active at once."""

    faults_max: int = 3
    down_max: int = 1
    """The maximum number of hosts that are down at once. A group needs a majority."""
    paused_max: int = 1
    slow_disks_max: int = 1
    settle_ns: Nanos = 5 * SECOND
    """After a restart no other host goes down for this long: an in-memory replica must get its state back first."""
    pause_ns: Nanos = 700 * MILLISECOND
    """Average interval between faults."""
    spared_subnets: tuple[str, ...] = ()
    """These are never affected: with a healthy path between every pair, everything must continue."""
    spared_hosts: tuple[str, ...] = ()
    """These do not crash."""
    tricks: tuple[str, ...] = ("break", "break", "break", "down", "pause", "disk")
    """The possible faults, weighted by how often they are listed; `TRICKS` has all of them."""
    sources: tuple[str, ...] = ()
    """Hosts that send and have no replica: they may crash at any time."""
    group: str = ""
    """The group whose membership changes."""
    voters: tuple[str, ...] = ()


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


_HALF_BROKEN: Final[tuple[Callable[[Random], What], ...]] = (
    lambda _: Blackout(),
    lambda random: Over(random.choice((200, 300, 576, 1000))),
    lambda random: Loss(random.randint(100, 700) * 1_000),
    lambda random: Slow(random.randint(20, 400) * MILLISECOND, random.randint(0, 50) * MILLISECOND),
    lambda random: Rate(random.randint(20, 200) * 1_000, 32_000),
)
"""Small heartbeats pass and large order frames do not; it sends but does not receive; it is partitioned."""


def plan(
    seed: int,
    hosts: list[str],
    subnets: list[str],
    until_ns: Nanos,
    quiet_ns: Nanos = 10 * SECOND,
    budget: Budget | None = None,
) -> Scenario:
    """A scenario that ends `quiet_ns` before `until_ns` with all faults healed and all hosts running."""
    if quiet_ns >= until_ns:
        raise MisuseError(
            f"there is no time for faults: a run of {until_ns} ns with {quiet_ns} ns without faults"
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
        """Faults that end by themselves: (when, number, kind, which one, how)."""
        self._open: dict[str, list[str]] = {kind: [] for kind in KINDS}
        """The active faults, by kind."""
        self._settled_ns = 0
        self._count = 0

    def make(self) -> Scenario:
        random, pause_ns = self._random, self._budget.pause_ns
        tricks = [TRICKS[name] for name in self._budget.tricks]
        while True:
            self._now += random.randint(pause_ns // 4, pause_ns * 7 // 4)
            if self._now >= self._end_ns:
                break
            self._undo_until(self._now)
            random.choice(tricks)(self)
        self._undo_until(self._end_ns)
        self._now = self._end_ns
        self._step(Heal())
        for host in self._hosts:
            self._step(SetDisk(host))
            self._step(SetApplication(host))
            self._step(Do("resume", host))
            self._step(Do("start", host))
        if self._budget.group:
            # Requested while there was no stable leader, it may not have taken effect.
            for host in self._budget.voters:
                self._steps.append(
                    Step(self._end_ns + SECOND, Ask(self._budget.group, "add", host))
                )
            self._steps.append(Step(self._end_ns + SECOND, Ask(self._budget.group, "refound")))
        return Scenario("nemesis", tuple(sorted(self._steps, key=lambda step: step.at_ns)))

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

    def _later(self, kind: str, what: str, low_ms: int, high_ms: int, action: Action) -> Nanos:
        """A fault starts now and ends after a while; returns when."""
        when = self._now + self._random.randint(low_ms, high_ms) * MILLISECOND
        self._at(when, kind, what, action)
        return when

    def _at(self, when: Nanos, kind: str, what: str, action: Action) -> None:
        self._count += 1
        self._open[kind].append(what)
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

    def _may_go_down(self) -> bool:
        return len(self._open["down"]) < self._budget.down_max and self._now >= self._settled_ns

    def _down(self) -> None:
        if not self._may_go_down():
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

    # -- faults that affect groups -------------------------------------------------------------------------------

    def _leader(self) -> None:
        """A fault of the leader: it dies, pauses, or works only partly."""
        random = self._random
        if random.getrandbits(1):
            self._break_at(Where(ANY, LEADER, ANY), random.choice(_HALF_BROKEN)(random))
        elif random.getrandbits(1):
            if not self._open["paused"]:
                self._step(Do("pause", LEADER))
                self._later("paused", LEADER, 20, 2_500, Do("resume", ANY))
        elif self._may_go_down():
            self._step(Do(random.choice(("crash", "crash-in-turn", "power-off", "stop")), LEADER))
            self._later("down", LEADER, 200, 4_000, Do("start", ANY))

    def _break_at(self, where: Where, what: What) -> None:
        """The same on all subnets: no path is spared, so links cannot route around it."""
        if len(self._open["fault"]) >= self._budget.faults_max or self._budget.spared_subnets:
            return
        way = self._random.choice(("out", "in", "both"))
        if way == "in":
            where = Where(where.subnet, where.listener, where.sender)
        elif way == "both":
            where = msgspec.structs.replace(where, both=True)
        name = f"f{self._count + 1}"
        self._step(Break(Fault(where, what), name))
        self._later("fault", name, 200, 3_000, Heal(name))

    def _split(self) -> None:
        """Some hosts do not hear the others, possibly in one direction only."""
        random, hosts = self._random, self._hosts
        some = sorted(random.sample(hosts, random.randint(1, len(hosts) - 1)))
        others = [host for host in hosts if host not in some]
        where = Where(ANY, ",".join(some), ",".join(others), both=bool(random.getrandbits(2)))
        if len(self._open["fault"]) < self._budget.faults_max and not self._budget.spared_subnets:
            name = f"f{self._count + 1}"
            self._step(Break(Fault(where, Blackout()), name))
            self._later("fault", name, 200, 4_000, Heal(name))

    def _all_down(self) -> None:
        """All hosts at once; they return together or one after the other."""
        if self._open["down"] or self._now < self._settled_ns:
            return
        self._step(Do(self._random.choice(("crash", "power-off", "crash-in-turn", "stop")), ANY))
        for host in self._hosts:
            self._later("down", host, 100, 1_500, Do("start", host))

    def _slow_application(self) -> None:
        host = self._random.choice(self._hosts)
        if not self._open["application"]:
            slow_ns = self._random.randint(1, 60) * MILLISECOND
            self._step(SetApplication(host, slow_ns))
            self._later("application", host, 300, 4_000, SetApplication(host))

    def _full_disk(self) -> None:
        """A node with a full disk stops at its next write; later the disk is emptied and the node restarted."""
        host = self._free_host(self._mortal)
        if host and self._may_go_down():
            self._step(SetDisk(host, full=True))
            room_ns = self._later("disk", host, 300, 2_500, SetDisk(host))
            self._at(room_ns + MILLISECOND, "down", host, Do("start", host))

    def _burst(self) -> None:
        count = self._random.randint(100, 3_000)
        self._step(Burst(self._random.choice(self._hosts), count))

    def _source(self) -> None:
        """A source dies in the middle of a fan-out, and returns."""
        free = [host for host in self._budget.sources if host not in self._open["source"]]
        if free:
            host = self._random.choice(free)
            self._step(Burst(host, self._random.randint(10, 1_000)))
            self._step(Do(self._random.choice(("crash-in-turn", "crash")), host))
            self._later("source", host, 200, 3_000, Do("start", host))

    def _mortal_sources(self) -> list[str]:
        """Sources that can die a little later; none if the fault-free time would have started by then."""
        if self._now + 200 * MILLISECOND >= self._end_ns:
            return []
        return [host for host in self._budget.sources if host not in self._open["source"]]

    def _orphan(self) -> None:
        """A source dies when only one replica has its last messages; that replica may restart and then has them on
        disk."""
        random, voters = self._random, self._budget.voters
        free = self._mortal_sources()
        if not free or len(voters) < 2 or len(self._open["fault"]) >= self._budget.faults_max:
            return
        source, holder = random.choice(free), random.choice(voters)
        others = ",".join(host for host in self._hosts if host not in (source, holder))
        name = f"f{self._count + 1}"
        self._step(Break(Fault(Where(ANY, source, others), Blackout()), name))
        self._step(Burst(source, random.randint(1, 200)))
        healed_ns = self._now + random.randint(200, 1_500) * MILLISECOND
        self._at(healed_ns, "fault", name, Heal(name))
        restarts = (
            random.getrandbits(1) and self._may_go_down() and holder == self._free_host([holder])
        )
        self._now += random.randint(20, 60) * MILLISECOND
        self._step(Do("crash", source))
        self._later("source", source, 300, 3_000, Do("start", source))
        if restarts:
            self._now += random.randint(20, 100) * MILLISECOND
            self._step(Do("crash", holder))
            self._later("down", holder, 50, 500, Do("start", holder))

    def _holes(self) -> None:
        """A source dies after it sent much of which much was lost: no replica has some of it."""
        random = self._random
        free = self._mortal_sources()
        if not free or len(self._open["fault"]) >= self._budget.faults_max:
            return
        source, name = random.choice(free), f"f{self._count + 1}"
        self._step(
            Break(Fault(Where(ANY, source, ANY), Loss(random.randint(3, 8) * 100_000)), name)
        )
        self._later("fault", name, 100, 400, Heal(name))
        self._step(Burst(source, random.randint(20, 300)))
        self._now += random.randint(2, 15) * MILLISECOND
        self._step(Do("crash", source))
        self._later("source", source, 200, 2_000, Do("start", source))

    def _member(self) -> None:
        """A replica is removed from the group and added again after a while, under load."""
        voters = self._budget.voters
        if len(voters) > 1 and not self._open["out"]:
            host = self._random.choice(voters)
            self._step(Ask(self._budget.group, "remove", host))
            self._later("out", host, 100, 3_000, Ask(self._budget.group, "add", host))

    def _hand_over(self) -> None:
        if self._budget.voters:
            self._step(
                Ask(self._budget.group, "hand-over", self._random.choice(self._budget.voters))
            )

    def _free_host(self, hosts: list[str]) -> str:
        """A host without an active fault; empty if there is none."""
        busy = [host for kind in ("down", "paused", "disk", "source") for host in self._open[kind]]
        free = [host for host in hosts if host not in busy]
        return self._random.choice(free) if free else ""


TRICKS: Final[dict[str, Callable[[_Plan], None]]] = {
    "break": _Plan._break,
    "down": _Plan._down,
    "pause": _Plan._pause,
    "disk": _Plan._disk,
    "leader": _Plan._leader,
    "split": _Plan._split,
    "all-down": _Plan._all_down,
    "slow-application": _Plan._slow_application,
    "full-disk": _Plan._full_disk,
    "burst": _Plan._burst,
    "source": _Plan._source,
    "orphan": _Plan._orphan,
    "holes": _Plan._holes,
    "member": _Plan._member,
    "hand-over": _Plan._hand_over,
}
"""All faults of the generator, by name."""
