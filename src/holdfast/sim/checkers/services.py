"""Mutual exclusion of locks and correctness of barriers, under all faults.

- A token belongs to one request, and protected data is written in the order of tokens.
- No two nodes may use a lock at the same time, by their own clocks, which all run at the same speed here.
- Only its parties pass a phase of a barrier, after all of them have arrived, and no phase is both passed and broken.
- After the last fault every request is answered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.group.services.client import ServiceClient
from holdfast.group.services.ports import ServiceNotice
from holdfast.group.services.values import Outcome
from holdfast.sim.checkers.base import Checker
from holdfast.sim.checkers.groups import GroupChecks
from holdfast.sim.visitors import LOCKS, Protected, Visitor
from holdfast.types import SECOND

if TYPE_CHECKING:
    from holdfast.sim.host import Host
    from holdfast.sim.world import World

ANSWER_NS = 4 * SECOND
"""In the fault-free time at the end, every request is answered within this time, unless it waits for others."""
Grantee = tuple[str, int, int]


class ServiceChecks(Checker):
    """The services of one group."""

    effects = (ServiceNotice,)

    def __init__(
        self,
        group: str,
        visitors: dict[str, Visitor],
        protected: Protected,
        parties: int,
        checks: GroupChecks,
    ) -> None:
        self._group = group
        self._unit = f"services/{group}"
        self._visitors = visitors
        self._protected = protected
        self._parties = parties
        self._checks = checks
        self._tokens: dict[tuple[str, int], Grantee] = {}
        self._passed: dict[tuple[int, int], dict[Grantee, None]] = {}
        """By (generation, phase)."""
        self._broken: dict[tuple[int, int], dict[Grantee, None]] = {}

    def effect(self, host: Host, effect: ServiceNotice) -> None:
        if effect.unit != self._unit or self._checks.lost_memory(self._group):
            return
        asked = self._visitors[host.name].asked.get(effect.number)
        grantee = (host.name, host.boots, effect.number)
        if effect.outcome == Outcome.HELD and asked is not None:
            self._held(host, asked.name, effect.value, grantee)
        elif effect.outcome in (Outcome.PASSED, Outcome.BROKEN):
            self._barrier(host, effect, grantee)

    def _held(self, host: Host, lock: str, token: int, grantee: Grantee) -> None:
        before = self._tokens.setdefault((lock, token), grantee)
        if before != grantee:
            host.world.fail(
                "a token belongs to one request", f"{lock} {token}: {before}, {grantee}"
            )
        higher = [t for name, t in self._tokens if name == lock and t > token]
        users = self._users(lock, host.world)
        if len(users) > 1:
            text = f"{lock} is held by {' and '.join(users)}; granted to {host.name} with {token}"
            host.world.fail("one node uses a lock at a time", text)
        if higher and host.name in users:
            text = f"{lock}: {host.name} may use token {token}, but {max(higher)} was granted"
            host.world.fail("a later holder has a higher token", text)

    def _users(self, lock: str, world: World) -> list[str]:
        users = []
        for other in world.hosts.values():
            core = other.core if other.alive else None
            client = core.turns.machine(self._unit) if core is not None else None  # type: ignore[attr-defined]  # a node
            if isinstance(client, ServiceClient) and client.holds(lock, other.now):
                users.append(other.name)
        return users

    def _barrier(self, host: Host, notice: ServiceNotice, grantee: Grantee) -> None:
        key = (notice.value, notice.phase)
        is_passed = notice.outcome == Outcome.PASSED
        (self._passed if is_passed else self._broken).setdefault(key, {})[grantee] = None
        passed, broken = self._passed.get(key, {}), self._broken.get(key, {})
        if passed and broken:
            text = f"generation {key[0]}, phase {key[1]}: {list(passed)} passed, {list(broken)} did not"
            host.world.fail("a phase is passed by all or by none", text)
        if len(passed) > self._parties:
            host.world.fail("a barrier is passed by its parties", f"{list(passed)}")

    def finish(self, world: World) -> None:
        for lock in LOCKS:
            writes = self._protected.writes[lock]
            by_token: dict[int, Grantee] = {}
            for write in writes if not self._checks.lost_memory(self._group) else ():
                grantee = (write.host, write.boots, write.number)
                if by_token.setdefault(write.token, grantee) != grantee:
                    world.fail("mutual exclusion by fencing token", f"{lock}: {write}, {by_token}")
        if self._checks.is_halted(self._group, world):
            return
        for name, visitor in self._visitors.items():
            for number, asked in visitor.waiting().items():
                waits_ns = world.now - asked.at_ns
                alone = not asked.is_lock and not asked.is_given_up
                if waits_ns > ANSWER_NS and not alone and not asked.token and visitor.host.alive:
                    text = f"{name}: request {number} for {asked.name} has no answer after {waits_ns / SECOND:.1f} s"
                    world.fail("requests are answered", text)
