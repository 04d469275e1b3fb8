"""A world whose nodes ask for locks and barriers, for tests of the group services."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.unit.group.harness import GROUP, World

from holdfast.group.config import services_unit
from holdfast.group.services.client import ServiceClient
from holdfast.group.services.ports import AskBarrier, AskLock, GiveUp, ServiceNotice
from holdfast.group.services.values import Outcome
from holdfast.links.ports import PeerUp
from holdfast.types import SECOND

LEASE = SECOND


class Served(World):
    """Numbers of requests are counted per node, over all its lives."""

    def __init__(self, seed: int = 1, voters: int = 3, **more: Any) -> None:
        super().__init__(seed, voters, **more)
        self._numbers: dict[str, int] = {}

    def begin(self) -> Served:
        self.start()
        self.run_until(lambda: self.leader() != "", 3 * SECOND)
        return self

    def leader(self) -> str:
        """The replica that leads in the highest term."""
        found = [
            (host.status["term"], name)
            for name, host in self.hosts.items()
            if host.replica is not None and host.status["state"] == "leading"
        ]
        return max(found)[1] if found else ""

    def rebuild_services(self, name: str) -> None:
        """The unit of a node failed: another takes its place, without its state, and hears of all peers again."""
        host, unit = self.hosts[name], services_unit(GROUP)
        host.turns.drop(unit)
        host.services = ServiceClient(
            config=self.config, node=host.id, name=name, incarnation=host.incarnation, rng=Random(7)
        )
        host.turns.add(unit, host.services)
        for other in self.hosts.values():
            if other is not host:
                self.ask(name, PeerUp(other.id, other.member))

    def number(self, name: str) -> int:
        self._numbers[name] = self._numbers.get(name, 0) + 1
        return self._numbers[name]

    def lock(self, name: str, lock: str = "till", lease_ns: int = LEASE) -> int:
        number = self.number(name)
        self.ask(name, AskLock(number, lock, lease_ns))
        return number

    def release(self, name: str, number: int, token: int = 0) -> None:
        self.ask(name, GiveUp(number, token))

    def arrive(
        self, name: str, parties: int, barrier: str = "gate", *, phases: int = 1, phase: int = 1,
        number: int = 0, lease_ns: int = LEASE,
    ) -> int:  # fmt: skip
        number = number or self.number(name)
        self.ask(name, AskBarrier(number, barrier, parties, lease_ns, phases, phase))
        return number

    def notices(self, name: str, number: int, outcome: Outcome) -> list[ServiceNotice]:
        return [
            notice
            for notice in self.hosts[name].notices
            if notice.number == number and notice.outcome == outcome
        ]

    def has(self, name: str, number: int, outcome: Outcome) -> bool:
        return bool(self.notices(name, number, outcome))

    def wait(self, name: str, number: int, outcome: Outcome, limit_ns: int = 5 * SECOND) -> Any:
        """Run until a request has this outcome; its notice."""
        self.run_until(lambda: self.has(name, number, outcome), limit_ns)
        return self.notices(name, number, outcome)[-1]

    def token(self, name: str, number: int) -> int:
        """Run until the node holds the lock; its token."""
        return int(self.wait(name, number, Outcome.HELD).value)
