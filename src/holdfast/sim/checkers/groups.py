"""Feeds the books of every group in a run: after each turn with what the replica of that host is now."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from holdfast.group.ports import Apply, RestoreState
from holdfast.sim.amounts import time_text
from holdfast.sim.checkers.agreement import Agreement
from holdfast.sim.checkers.base import Checker
from holdfast.sim.checkers.buffers import Buffers
from holdfast.sim.checkers.calm import unrest
from holdfast.sim.checkers.memory import Memory
from holdfast.sim.checkers.sight import (
    Sight,
    SourceSight,
    Violation,
    look_at_replica,
    look_at_source,
    replicas_of,
    sources_of,
)
from holdfast.types import MILLISECOND, NEVER, Nanos

if TYPE_CHECKING:
    from holdfast.machine import Result
    from holdfast.sim.checkers.delivery import DeliveryOrder
    from holdfast.sim.host import Host
    from holdfast.sim.world import World

BOUNDS_EVERY: Final = 16
"""Turns between two looks at the bounds of a host: they are many, and what grows goes on growing."""
CALM_EVERY_NS: Final = 50 * MILLISECOND


class GroupPromise:
    """What a group has promised, and so what is checked of it."""

    def __init__(self, voters: tuple[str, ...], members: tuple[str, ...], durable: bool) -> None:
        self.voters = voters
        self.members = members
        """Everybody who must be in the view at the end."""
        self.durable = durable


class _Books:
    def __init__(self, promise: GroupPromise) -> None:
        self.promise = promise
        self.memory = Memory(promise.voters, promise.durable)
        self.agreement = Agreement()
        self.buffers = Buffers()


class GroupChecks(Checker):
    """Invariants 1 to 5, 8 and 9 of all groups of a world."""

    effects = (Apply, RestoreState)

    def __init__(
        self,
        promises: dict[str, GroupPromise],
        order: DeliveryOrder,
        watch: Callable[[Sight], None] = lambda _: None,
    ) -> None:
        """`watch` is shown every sight as well."""
        self._order = order
        self._watch = watch
        self._groups = {name: _Books(promise) for name, promise in promises.items()}
        self._turns: dict[str, int] = {}
        self.calm_ns: Nanos = NEVER
        """When everything had come to rest; `NEVER` if it has not."""
        self.lives_lost = 0

    def agreement(self, group: str) -> Agreement:
        return self._groups[group].agreement

    def lost_memory(self, group: str) -> bool:
        return self._groups[group].memory.life > 1

    # -- what happens --------------------------------------------------------------------------------------------

    def turn(self, host: Host, result: Result) -> None:
        turns = self._turns[host.name] = self._turns.get(host.name, 0) + 1
        for replica in replicas_of(host):
            sight = look_at_replica(host, replica)
            self._guard(host, partial(self._see, sight, turns))
        for source in sources_of(host):
            seen = look_at_source(host, source)
            self._guard(host, partial(self._see_source, seen, turns))

    def _see(self, sight: Sight, turns: int) -> None:
        books = self._groups[sight.group]
        self._watch(sight)
        books.memory.see(sight)
        books.buffers.see(sight)
        if turns % BOUNDS_EVERY == 0:
            books.buffers.bounds(sight)
        if sight.life not in books.memory.survivors:
            books.agreement.see(sight)

    def _see_source(self, sight: SourceSight, turns: int) -> None:
        buffers = self._groups[sight.group].buffers
        buffers.see_source(sight)
        if turns % BOUNDS_EVERY == 0:
            buffers.source_bounds(sight)

    def effect(self, host: Host, effect: Apply | RestoreState) -> None:
        books = self._groups[effect.unit.partition("/")[2]]
        life = (host.name, host.boots)
        if isinstance(effect, RestoreState):
            books.memory.restored(life)
            books.buffers.restored(life)
        elif life not in books.memory.survivors:
            self._guard(host, partial(books.agreement.delivers, host.name, effect))

    def ended(self, host: Host) -> None:
        for name, books in self._groups.items():
            books.buffers.ended(host.name)
            if books.memory.ended(host.name, host.boots):
                self.lives_lost += 1
                books.agreement = Agreement()
                self._order.new_life(f"replica/{name}", books.memory.survivors)

    def _guard(self, host: Host, step: Callable[[], None]) -> None:
        try:
            step()
        except Violation as violation:
            host.world.fail(violation.invariant, violation.detail)

    def is_halted(self, group: str, world: World) -> bool:
        """It has lost its memory, and waits for an operator: some replica says so."""
        if not self.lost_memory(group):
            return False
        return not any(sight.leading for sight in self._sights(group, world))

    # -- the end -------------------------------------------------------------------------------------------------

    def watch_calm(self, world: World) -> None:
        """From now on look again and again whether everything has come to rest."""
        self.calm_ns = NEVER if self._unrest(world) else min(self.calm_ns, world.now)
        world.at(world.now + CALM_EVERY_NS, lambda _: self.watch_calm(world))

    def finish(self, world: World) -> None:
        for detail in self._unrest(world):
            world.fail("groups come to rest", f"{detail} (at {time_text(world.now)})")

    def _unrest(self, world: World) -> list[str]:
        troubles = []
        for name, books in self._groups.items():
            sights = self._sights(name, world)
            if self.is_halted(name, world):
                if not any(sight.why for sight in sights):
                    troubles.append(f"{name}: its memory is lost, and no replica says so")
                continue
            trouble = unrest(sights, self._sources(name, world), books.promise.members)
            if trouble:
                troubles.append(f"{name}: {trouble}")
        return troubles

    @staticmethod
    def _sights(group: str, world: World) -> list[Sight]:
        hosts = [host for host in world.hosts.values() if host.alive]
        sights = [look_at_replica(host, machine) for host in hosts for machine in replicas_of(host)]
        return [sight for sight in sights if sight.group == group]

    @staticmethod
    def _sources(group: str, world: World) -> list[SourceSight]:
        hosts = [host for host in world.hosts.values() if host.alive]
        sights = [look_at_source(host, machine) for host in hosts for machine in sources_of(host)]
        return [sight for sight in sights if sight.group == group]
