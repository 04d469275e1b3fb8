"""Simulated nodes that use locks and barriers of a group, and data that the lock protects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.errors import StaleToken
from holdfast.group.services.fence import Fence
from holdfast.group.services.ports import AskBarrier, AskLock, GiveUp, ServiceNotice
from holdfast.group.services.values import Outcome
from holdfast.sim.seeds import chance
from holdfast.types import MILLISECOND, SECOND, Nanos

if TYPE_CHECKING:
    from holdfast.sim.host import Host

LOCKS: Final = ("till", "safe")
BARRIER: Final = "gate"
LEASES_NS: Final = (500 * MILLISECOND, SECOND, 2 * SECOND)
WORK_NS: Final = 300 * MILLISECOND
"""How long a lock is held on average. Some holders forget to release it for much longer."""


class Write(msgspec.Struct, frozen=True):
    """A write by a lock holder, as seen by the protected data."""

    at_ns: Nanos
    host: str
    boots: int
    number: int
    token: int


class Protected:
    """The data that the locks protect: it accepts writes by token."""

    def __init__(self) -> None:
        self._fences = {name: Fence() for name in LOCKS}
        self.writes: dict[str, list[Write]] = {name: [] for name in LOCKS}
        self.refused = 0

    def write(self, lock: str, write: Write) -> None:
        try:
            self._fences[lock].admit(write.token)
        except StaleToken:
            self.refused += 1
        else:
            self.writes[lock].append(write)


class Asked(msgspec.Struct):
    """A pending request of a visitor."""

    name: str
    at_ns: Nanos
    is_lock: bool
    token: int = 0
    phase: int = 1
    is_given_up: bool = False


class Visitor:
    """Asks for a lock or arrives at a barrier, again and again, from one host."""

    def __init__(
        self, host: Host, group: str, parties: int, protected: Protected, until_ns: Nanos
    ) -> None:
        self.host = host
        self._unit = f"services/{group}"
        self._parties = parties
        self._protected = protected
        self._until_ns = until_ns
        self._random = chance(host.world.seed, "visitor", host.name, group)
        self._number = 0
        self._boots = 0
        self.asked: dict[int, Asked] = {}
        """Pending requests of the last process that asked."""
        self.grants = self.passed = self.broken = self.expired = 0

    def waiting(self) -> dict[int, Asked]:
        """Pending requests of the current process. Those of an earlier one ended with it."""
        return self.asked if self.host.boots == self._boots else {}

    def begin(self) -> None:
        self._later(self._visit, 200 * MILLISECOND)

    def _later(self, do: object, usual_ns: Nanos) -> None:
        world = self.host.world
        when = world.now + self._random.randint(usual_ns // 2, usual_ns * 3 // 2)
        world.at(when, do)  # type: ignore[arg-type]  # callbacks of worlds take one argument

    def _visit(self, _: None) -> None:
        """Make a request, if there is a process without a pending one."""
        host = self.host
        if host.world.now >= self._until_ns:
            return
        self._later(self._visit, 100 * MILLISECOND)
        if host.boots != self._boots:
            self._boots, self.asked = host.boots, {}
        if not host.alive or self.asked:
            return
        lease_ns = self._random.choice(LEASES_NS)
        self._number += 1
        if self._random.randrange(5):
            name = self._random.choice(LOCKS)
            item: object = AskLock(self._number, name, lease_ns)
            self.asked[self._number] = Asked(name, host.world.now, True)
        else:
            item = AskBarrier(self._number, BARRIER, self._parties, lease_ns, 2, 1)
            self.asked[self._number] = Asked(BARRIER, host.world.now, False)
        host.give(self._unit, item)
        if self._random.randrange(8) == 0:
            self._later(self._leave(self._number), 500 * MILLISECOND)

    def take(self, notice: ServiceNotice) -> None:
        """Process the outcome of a request."""
        asked = self.asked.get(notice.number)
        if asked is None or notice.unit != self._unit or self.host.boots != self._boots:
            return
        if notice.outcome == Outcome.HELD:
            self.grants += 1
            asked.token = notice.value
            self._use(notice.number)
        elif notice.outcome == Outcome.PASSED and notice.phase < 2:
            self.passed += 1
            self._later(self._next_phase(notice.number), 20 * MILLISECOND)
        elif notice.outcome != Outcome.RENEWED:
            self.passed += notice.outcome == Outcome.PASSED
            self.broken += notice.outcome == Outcome.BROKEN
            self.expired += notice.outcome == Outcome.EXPIRED
            del self.asked[notice.number]

    def _use(self, number: int) -> None:
        forgets = self._random.randrange(12) == 0
        for k in range(self._random.randint(1, 4)):
            self._later(self._write(number, self._boots), (k + 1) * WORK_NS // 4)
        self._later(self._leave(number), (8 if forgets else 1) * WORK_NS)

    def _write(self, number: int, boots: int) -> object:
        def write(_: None) -> None:
            host, asked = self.host, self.asked.get(number)
            if asked is not None and asked.token and host.boots == boots and host.state == "up":
                lock = Write(host.world.now, host.name, boots, number, asked.token)
                self._protected.write(asked.name, lock)

        return write

    def _next_phase(self, number: int) -> object:
        def arrive(_: None) -> None:
            asked = self.asked.get(number)
            if asked is not None and not asked.is_given_up:
                asked.phase, asked.at_ns = 2, self.host.world.now
                item = AskBarrier(number, BARRIER, self._parties, LEASES_NS[1], 2, 2)
                self.host.give(self._unit, item)

        return arrive

    def _leave(self, number: int) -> object:
        def leave(_: None) -> None:
            asked = self.asked.get(number)
            if asked is not None and not asked.is_given_up:
                asked.is_given_up, asked.at_ns = True, self.host.world.now
                self.host.give(self._unit, GiveUp(number, asked.token))

        return leave
