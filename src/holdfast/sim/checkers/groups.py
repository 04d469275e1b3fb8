"""Feeds the checkers of every group in a run: after each turn with the state of the replica of that host."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from holdfast.faults.amounts import time_text
from holdfast.group.ports import Apply, RestoreState
from holdfast.machine import RangeSet
from holdfast.sim.checkers.agreement import Agreement
from holdfast.sim.checkers.base import Checker
from holdfast.sim.checkers.buffers import Buffers
from holdfast.sim.checkers.calm import Rest, unrest
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
from holdfast.sim.checkers.undone import Undone
from holdfast.telemetry.facts import GroupFact, OrderFact
from holdfast.types import MILLISECOND, Nanos

if TYPE_CHECKING:
    from holdfast.machine import Result
    from holdfast.sim.host import Host
    from holdfast.sim.world import World

BOUNDS_EVERY: Final = 16
"""Turns between two bound checks of a host: turns are many, and what grows continues to grow."""
REST: Final = "groups recover after the last fault"
"""The invariant that holds some time after the last fault."""
CALM_EVERY_NS: Final = 50 * MILLISECOND


class GroupPromise:
    """The guarantees of a group, and so what is checked."""

    def __init__(
        self, members: tuple[str, ...], durable: bool = False, safe: bool = True, lone: bool = False
    ) -> None:
        self.members = members
        """All members that must be in the view at the end."""
        self.durable = durable
        self.safe = safe
        """Only committed entries are delivered. Otherwise (`fast`) replicas may differ until they are."""
        self.lone = lone
        """A side without a majority continues (`availability`): sides differ until they meet again."""

    @property
    def is_loose(self) -> bool:
        """Replicas may differ temporarily."""
        return self.lone or not self.safe


class _Books:
    def __init__(self, promise: GroupPromise) -> None:
        self.promise = promise
        self.memory = Memory(promise.durable)
        self.agreements: dict[int, Agreement] = {}
        """One per group epoch."""
        self.buffers = Buffers()
        self.undone = Undone()
        self.skips: dict[str, RangeSet] = {}
        """By stream: what any leader has ordered to be skipped."""

    def agreement(self, group_epoch: int) -> Agreement:
        return self.agreements.setdefault(group_epoch, Agreement())


class GroupChecks(Checker):
    """The group invariants of a world."""

    effects = (Apply, RestoreState)

    def __init__(
        self,
        promises: dict[str, GroupPromise],
        watch: Callable[[Sight], None] = lambda _: None,
    ) -> None:
        """`watch` receives every sight as well."""
        self._watch = watch
        self._groups = {name: _Books(promise) for name, promise in promises.items()}
        self._turns: dict[str, int] = {}
        self._group_epochs: dict[tuple[str, str], int] = {}
        """The group epoch in which the replica of a unit on a host was last seen."""
        self._rest = Rest()

    @property
    def calm_ns(self) -> Nanos:
        """When everything had recovered; `NEVER` if it has not."""
        return self._rest.since_ns

    def skipped(self, group: str, node: bytes, incarnation: int) -> int:
        """How many messages of a source the group has skipped. If sides decide separately, what one of them skipped
        counts, whichever has won."""
        books = self._groups[group]
        if books.promise.lone:
            prefix = f"{node.hex()}/{incarnation}/"
            return sum(s.total() for label, s in books.skips.items() if label.startswith(prefix))
        skipped = books.agreement(books.memory.group_epoch).skipped()
        return sum(
            n for s, n in skipped.items() if (s.source, s.incarnation) == (node, incarnation)
        )

    def gave_up(self, group: str) -> bool:
        """A side of a partition has lost, and some replica has reported a rollback."""
        books = self._groups[group]
        return books.promise.lone and books.undone.reported > 0

    def agreement(self, group: str) -> Agreement:
        """The committed log in the current group epoch."""
        books = self._groups[group]
        return books.agreement(books.memory.group_epoch)

    def current_group_epoch(self, group: str) -> int:
        return self._groups[group].memory.group_epoch

    def promise(self, group: str) -> GroupPromise:
        return self._groups[group].promise

    def lost_memory(self, group: str) -> bool:
        return self._groups[group].memory.losses > 0

    def group_epoch(self, host: Host, unit: str) -> int:
        """Which order a replica delivers: replicas of one epoch deliver the same."""
        return self._group_epochs.get((host.name, unit), 0)

    # -- events --------------------------------------------------------------------------------------------------

    def turn(self, host: Host, result: Result) -> None:
        turns = self._turns[host.name] = self._turns.get(host.name, 0) + 1
        gave_up, awaits = self._read_facts(result)
        for replica in replicas_of(host):
            sight = look_at_replica(host, replica)
            if sight.group in awaits:
                self._see_awaiting(sight)
            self._guard(host, partial(self._see, sight, turns, sight.group in gave_up))
        for source in sources_of(host):
            seen = look_at_source(host, source)
            self._guard(host, partial(self._see_source, seen, turns))

    def _read_facts(self, result: Result) -> tuple[list[str], list[str]]:
        """The groups of which a replica rolls back, or waits for its log to reach a snapshot."""
        gave_up, awaits = [], []
        for fact in result.facts:
            if isinstance(fact, GroupFact) and fact.event == "rolled_back":
                gave_up.append(fact.group)
            elif isinstance(fact, GroupFact) and fact.event == "awaits":
                awaits.append(fact.group)
            elif isinstance(fact, OrderFact) and fact.entry == "skip":
                skips = self._groups[fact.group].skips.setdefault(fact.stream, RangeSet())
                skips.add(fact.first, fact.last + 1)
        return gave_up, awaits

    def _see_awaiting(self, sight: Sight) -> None:
        """It has no state, and its log may start where its received snapshot is committed."""
        books = self._groups[sight.group]
        books.buffers.restored(sight.life, sight.log.ground.index)
        books.memory.see(sight)
        books.memory.gave_up(*sight.life)

    def _see(self, sight: Sight, turns: int, gave_up: bool) -> None:
        books = self._groups[sight.group]
        self._watch(sight)
        self._group_epochs[(sight.host, f"replica/{sight.group}")] = sight.group_epoch
        books.memory.see(sight)
        if turns % BOUNDS_EVERY == 0:
            books.buffers.bounds(sight)
        if books.promise.is_loose:
            books.undone.see(sight, gave_up)
            if gave_up:
                books.memory.gave_up(*sight.life)
        if books.promise.lone:
            if sight.leading:
                books.agreement(sight.group_epoch).see_leader(sight)
            return
        if sight.group_epoch == books.memory.group_epoch:
            books.buffers.see(sight)
        if sight.group_epoch:
            books.agreement(sight.group_epoch).see(sight)

    def _see_source(self, sight: SourceSight, turns: int) -> None:
        buffers = self._groups[sight.group].buffers
        buffers.see_source(sight)
        if turns % BOUNDS_EVERY == 0:
            buffers.source_bounds(sight)

    def effect(self, host: Host, effect: Apply | RestoreState) -> None:
        books = self._groups[effect.unit.partition("/")[2]]
        life = (host.name, host.boots)
        if isinstance(effect, RestoreState):
            books.buffers.restored(life, effect.index)
            books.undone.restored(life)
            books.memory.restored(*life)
        elif books.promise.is_loose:
            self._guard(host, partial(books.undone.delivers, life, effect))
        else:
            agreement = books.agreement(self.group_epoch(host, effect.unit))
            self._guard(host, partial(agreement.delivers, host.name, effect))

    def ended(self, host: Host) -> None:
        for books in self._groups.values():
            books.buffers.ended(host.name)
            books.memory.ended(host.name, host.boots)

    def _guard(self, host: Host, step: Callable[[], None]) -> None:
        try:
            step()
        except Violation as violation:
            host.world.fail(violation.invariant, violation.detail)

    def is_halted(self, group: str, world: World) -> bool:
        """The group has lost its state and waits for an operator: some replica reports it."""
        if not self._groups[group].memory.lost:
            return False
        return not any(sight.leading for sight in self._sights(group, world))

    def best_survivor(self, group: str, world: World) -> str:
        """The host whose replica has the most, if the group has lost its state; empty otherwise, or if no replica has
        any."""
        memory = self._groups[group].memory
        if not memory.lost:
            return ""
        sights = [
            s
            for s in self._sights(group, world)
            if s.group_epoch == memory.group_epoch and not memory.is_stateless(*s.life)
        ]
        best = max(sights, key=lambda s: (s.log.tail.term, s.log.last), default=None)
        return best.host if best is not None else ""

    def leftovers(self, group: str, world: World) -> list[str]:
        """Hosts whose replicas belong to an earlier epoch of the group."""
        group_epoch = self._groups[group].memory.group_epoch
        sights = self._sights(group, world)
        return [sight.host for sight in sights if sight.group_epoch not in (0, group_epoch)]

    # -- the end -------------------------------------------------------------------------------------------------

    def watch_calm(self, world: World) -> None:
        """From now on, check repeatedly whether everything has recovered."""
        self._rest.look(not self._unrest(world), world.now)
        world.at(world.now + CALM_EVERY_NS, lambda _: self.watch_calm(world))

    def finish(self, world: World) -> None:
        troubles = self._unrest(world)
        if self._rest.look(not troubles, world.now):
            return
        for detail in troubles:
            world.fail(REST, f"{detail} (at {time_text(world.now)})")

    def _unrest(self, world: World) -> list[str]:
        troubles = []
        for name, books in self._groups.items():
            sights = self._sights(name, world)
            if self.is_halted(name, world):
                if not any(sight.why for sight in sights):
                    troubles.append(f"{name}: its state is lost, and no replica reports it")
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
