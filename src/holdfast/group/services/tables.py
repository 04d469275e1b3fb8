"""The tables of the group services: what the log results in. The same entries give the same tables on every replica.

Locks are granted in the order of requests. The token of a lock is the index of the entry that granted it, so a later
holder has a higher one. A barrier has generations, identified by the entry of the first arrival, which fixes the number
of parties. A request is identified by its node, incarnation and number, and acts once: copies of it change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Final

import msgspec

from holdfast.group.services.values import (
    LIVES_MAX,
    NAMES_MAX,
    RANGES_MAX,
    REQUESTS_MAX,
    RESULTS_MAX,
    WAITERS_MAX,
    BarrierState,
    Event,
    LifeState,
    LockState,
    Op,
    Outcome,
    Party,
    Pending,
    Result,
    Served,
    ServiceOp,
    ServiceState,
)
from holdfast.types import Nanos

replace: Final = msgspec.structs.replace


def with_number(done: tuple[tuple[int, int], ...], number: int) -> tuple[tuple[int, int], ...]:
    """Ranges of numbers, with one more."""
    first = last = number
    kept: list[tuple[int, int]] = []
    for low, high in done:
        if high < number - 1 or low > number + 1:
            kept.append((low, high))
        else:
            first, last = min(first, low), max(last, high)
    return tuple(sorted([*kept, (first, last)]))


def with_all_below(done: tuple[tuple[int, int], ...], heard: int) -> tuple[tuple[int, int], ...]:
    """Ranges of numbers, with all numbers below `heard`: the node has none of those requests any more. Those that a
    leader refused have no entry and would leave gaps permanently."""
    if heard <= 0 or (done and done[0][0] == 0 and done[0][1] >= heard - 1):
        return done
    last = heard - 1
    above: list[tuple[int, int]] = []
    for first, high in done:
        if first <= last + 1:
            last = max(last, high)
        else:
            above.append((first, high))
    return ((0, last), *above)


def with_few_ranges(
    done: tuple[tuple[int, int], ...], pending: Iterable[int]
) -> tuple[tuple[int, int], ...]:
    """At most `RANGES_MAX` ranges: the oldest gap without a pending request is closed. A node that keeps one request
    for long leaves gaps above it."""
    if len(done) <= RANGES_MAX:
        return done
    numbers = tuple(pending)
    for at, (low, high) in enumerate(pairwise(done)):
        if not any(low[1] < number < high[0] for number in numbers):
            return (*done[:at], (low[0], high[1]), *done[at + 2 :])
    raise AssertionError("there are more gaps than pending requests")


class ServiceTables:
    """Locks, barriers, and the nodes that use them. Changes only with the entries that it processes."""

    __slots__ = ("_events", "_index", "_log_ns", "_ops", "_tokens", "barriers", "lives", "locks")

    def __init__(self) -> None:
        self.lives: dict[bytes, LifeState] = {}
        """By node, oldest first: the latest incarnation that used services."""
        self.locks: dict[str, LockState] = {}
        """The locks that are held."""
        self.barriers: dict[str, BarrierState] = {}
        """The barriers that are waited at."""
        self._index = 0
        self._log_ns: Nanos = 0
        self._events: list[Event] = []
        self._tokens: Mapping[str, int] | None = None
        self._ops: dict[int, Callable[[LifeState, ServiceOp], None]] = {
            Op.ACQUIRE: self._acquire,
            Op.RELEASE: self._release,
            Op.RENEW: self._renew,
            Op.ARRIVE: self._arrive,
            Op.EXPIRE: self._expire,
        }

    def copy(self) -> ServiceTables:
        other = ServiceTables()
        other.lives = dict(self.lives)
        other.locks = dict(self.locks)
        other.barriers = dict(self.barriers)
        return other

    @property
    def tokens(self) -> Mapping[str, int]:
        """The tokens of the locks that are held, by name. Not changed afterwards: the next entry makes another."""
        if self._tokens is None:
            self._tokens = {name: lock.token for name, lock in self.locks.items()}
        return self._tokens

    def state(self) -> ServiceState:
        return ServiceState(
            tuple(self.lives.values()), tuple(self.locks.values()), tuple(self.barriers.values())
        )

    @staticmethod
    def of(state: ServiceState) -> ServiceTables:
        made = ServiceTables()
        made.lives = {life.node: life for life in state.lives}
        made.locks = {lock.name: lock for lock in state.locks}
        made.barriers = {barrier.name: barrier for barrier in state.barriers}
        return made

    # -- one entry -----------------------------------------------------------------------------------------------

    def apply(self, index: int, log_ns: Nanos, served: Served) -> list[Event]:
        """Process one entry; returns what it means for requests."""
        self._index, self._log_ns, self._events, self._tokens = index, log_ns, [], None
        life = self._life(served)
        if life is not None:
            self._ops[served.op.op](life, served.op)
        events, self._events = self._events, []
        return events

    def _life(self, served: Served) -> LifeState | None:
        """The life that an entry is about, alive at this log time; None if it is over or there is no room."""
        life = self.lives.get(served.node)
        if life is not None and life.incarnation > served.incarnation:
            return None
        if life is None and not self._make_room():
            self._tell(
                (served.node, served.incarnation, served.op.number), Outcome.REFUSED, why="too many nodes use services"
            )  # fmt: skip
            return None
        if life is not None and life.incarnation < served.incarnation:
            # rule: S-13c
            self._end(life)
            life = None
        if life is None:
            life = LifeState(served.node, served.incarnation)
        renewed_ns = self._log_ns if served.op.op != Op.EXPIRE else life.renewed_ns
        results = tuple(item for item in life.results[-RESULTS_MAX:] if item[0] >= served.heard)
        done = with_all_below(life.done, served.heard)
        life = replace(life, renewed_ns=renewed_ns, done=done, results=results)
        self.lives[served.node] = life
        return life

    def _make_room(self) -> bool:
        """The oldest idle node is forgotten if there are too many."""
        if len(self.lives) < LIVES_MAX:
            return True
        idle = next((node for node, life in self.lives.items() if not life.requests), None)
        if idle is not None:
            del self.lives[idle]
        return idle is not None

    def _end(self, life: LifeState) -> None:
        """A later incarnation of the node has been seen: this one holds nothing and waits for nothing."""
        for number, pending in life.requests:
            self._drop((life.node, life.incarnation, number), pending)

    def _tell(
        self, party: Party, outcome: Outcome, value: int = 0, phase: int = 0, why: str = ""
    ) -> None:
        self._events.append(Event(*party, outcome, value, phase, why))

    # -- requests ------------------------------------------------------------------------------------------------

    def _add(self, party: Party, pending: Pending) -> None:
        life = self.lives[party[0]]
        self.lives[party[0]] = replace(life, requests=(*life.requests, (party[2], pending)))

    def _finish(self, party: Party, result: Result | None = None) -> None:
        """A request is over."""
        life = self.lives.get(party[0])
        if life is None or life.incarnation != party[1]:
            return
        number = party[2]
        requests = tuple(item for item in life.requests if item[0] != number)
        results = life.results if result is None else (*life.results, (number, result))
        done = with_few_ranges(with_number(life.done, number), (n for n, _ in requests))
        self.lives[life.node] = replace(life, requests=requests, results=results, done=done)

    def _refuse(self, party: Party, why: str) -> None:
        self._finish(party, Result(Outcome.REFUSED, why=why))
        self._tell(party, Outcome.REFUSED, why=why)

    def _why_not(self, life: LifeState, is_new: bool) -> str:
        """Why a further request cannot be accepted; empty if it can. `is_new`: it needs a lock or barrier more."""
        if len(life.requests) >= REQUESTS_MAX:
            return f"the node has {REQUESTS_MAX} requests already"
        if is_new and len(self.locks) + len(self.barriers) >= NAMES_MAX:
            return f"there are {NAMES_MAX} locks and barriers already"
        return ""

    def _drop(self, party: Party, pending: Pending) -> None:
        """A request is given up: a lock passes to the next, a barrier breaks."""
        if pending.is_lock:
            self._let_go(party, pending.name)
        else:
            # rule: S-14e
            self._break(party, pending.name)

    # -- locks ---------------------------------------------------------------------------------------------------

    def _acquire(self, life: LifeState, op: ServiceOp) -> None:
        party = (life.node, life.incarnation, op.number)
        known = self.outcome(life.node, life.incarnation, op)
        if known is not None:
            self._events.append(known)
            return
        lock = self.locks.get(op.name)
        why = self._why_not(life, lock is None)
        if not why and lock is not None and len(lock.waiters) >= WAITERS_MAX:
            why = f"{WAITERS_MAX} requests wait for {op.name} already"
        if why:
            self._refuse(party, why)
            return
        self._add(party, Pending(op.name, True, op.lease_ns, self._log_ns))
        if lock is None:
            self.locks[op.name] = LockState(op.name, party, self._index)
            self._tell(party, Outcome.HELD, self._index)
        else:
            self.locks[op.name] = replace(lock, waiters=(*lock.waiters, party))
            self._tell(party, Outcome.QUEUED, len(lock.waiters) + 1)

    def _let_go(self, party: Party, name: str) -> None:
        """Release a lock, or stop waiting for it. The first that waits gets it, with a full lease."""
        lock = self.locks[name]
        if lock.holder != party:
            waiters = tuple(waiter for waiter in lock.waiters if waiter != party)
            self.locks[name] = replace(lock, waiters=waiters)
            return
        if not lock.waiters:
            del self.locks[name]
            return
        holder = lock.waiters[0]
        self.locks[name] = LockState(name, holder, self._index, lock.waiters[1:])
        life = self.lives[holder[0]]
        requests = tuple(
            (number, replace(pending, since_ns=self._log_ns) if number == holder[2] else pending)
            for number, pending in life.requests
        )
        self.lives[holder[0]] = replace(life, requests=requests)
        self._tell(holder, Outcome.HELD, self._index)

    def _release(self, life: LifeState, op: ServiceOp) -> None:
        party = (life.node, life.incarnation, op.number)
        pending = dict(life.requests).get(op.number)
        if pending is None:
            ended = dict(life.results).get(op.number)
            if ended is not None:
                self._tell(party, Outcome(ended.outcome), ended.value, ended.phase, ended.why)
                return
            # rule: S-13e
            self._finish(party)  # its request must not act if it comes late
            self._tell(party, Outcome.RELEASED)
            return
        lock = self.locks.get(pending.name) if pending.is_lock else None
        # rule: S-12e
        if op.token and lock is not None and (lock.holder != party or lock.token != op.token):
            why = f"token {op.token} of lock {pending.name} is stale"
            self._tell(party, Outcome.REFUSED, why=why)
            return
        self._finish(party)
        self._drop(party, pending)
        self._tell(party, Outcome.RELEASED)

    def _expire(self, life: LifeState, op: ServiceOp) -> None:
        party = (life.node, life.incarnation, op.number)
        pending = dict(life.requests).get(op.number)
        if pending is None:
            return
        seconds = pending.lease_ns / 1e9
        why = f"its lease of {seconds:g} s has run out"
        self._finish(party, Result(Outcome.EXPIRED, why=why))
        self._tell(party, Outcome.EXPIRED, why=why)
        self._drop(party, pending)

    def _renew(self, life: LifeState, op: ServiceOp) -> None:
        """The answer names all that the node holds and waits for: it may have missed something."""
        self._tell((life.node, life.incarnation, op.number), Outcome.RENEWED)
        for number, _ in life.requests:
            self._events.append(self._now(life, number))

    # -- barriers ------------------------------------------------------------------------------------------------

    def _arrive(self, life: LifeState, op: ServiceOp) -> None:
        party = (life.node, life.incarnation, op.number)
        known = self.outcome(life.node, life.incarnation, op)
        if known is not None:
            self._events.append(known)
            return
        barrier = self.barriers.get(op.name)
        if barrier is not None and party in barrier.members:
            if op.phase != barrier.phase:
                self._tell(party, Outcome.REFUSED, why=f"phase {op.phase} has not begun")
                return
        else:
            why = self._why_not(life, barrier is None) or _why_not_join(barrier, party, op)
            if why:
                self._refuse(party, why)
                return
            self._add(party, Pending(op.name, False, op.lease_ns, self._log_ns))
            barrier = barrier or BarrierState(op.name, self._index, op.parties, op.phases, 1)
            barrier = replace(barrier, members=(*barrier.members, party))
        barrier = replace(barrier, arrived=(*barrier.arrived, party))
        self.barriers[op.name] = barrier
        if len(barrier.arrived) < barrier.parties:
            self._tell(party, Outcome.WAITING, len(barrier.arrived), barrier.phase)
        else:
            self._pass(barrier)

    def _pass(self, barrier: BarrierState) -> None:
        """All have arrived. Nothing breaks this phase any more."""
        is_last = barrier.phase == barrier.phases
        if is_last:
            del self.barriers[barrier.name]
        else:
            self.barriers[barrier.name] = replace(barrier, phase=barrier.phase + 1, arrived=())
        for party in barrier.members:
            # rule: S-14d
            if is_last:
                self._finish(party, Result(Outcome.PASSED, barrier.generation, barrier.phase))
            self._tell(party, Outcome.PASSED, barrier.generation, barrier.phase)

    def _break(self, party: Party, name: str) -> None:
        """A party is gone: the generation ends for all."""
        barrier = self.barriers.pop(name)
        why = f"a party of barrier {name} is gone"
        for other in barrier.members:
            if other != party:
                self._finish(other, Result(Outcome.BROKEN, barrier.generation, barrier.phase, why))
                self._tell(other, Outcome.BROKEN, barrier.generation, barrier.phase, why)

    # -- what has become of a request ----------------------------------------------------------------------------

    def outcome(self, node: bytes, incarnation: int, op: ServiceOp) -> Event | None:
        """What is known of a request; None if it has not acted yet."""
        life = self.lives.get(node)
        party = (node, incarnation, op.number)
        if life is None or life.incarnation < incarnation:
            return None
        if life.incarnation > incarnation:
            return Event(*party, Outcome.EXPIRED, why="a later incarnation of the node has begun")
        ended = dict(life.results).get(op.number)
        if ended is not None:
            return Event(*party, Outcome(ended.outcome), ended.value, ended.phase, ended.why)
        pending = dict(life.requests).get(op.number)
        if pending is None:
            is_over = any(first <= op.number <= last for first, last in life.done)
            return Event(*party, Outcome.RELEASED) if is_over else None
        if op.op == Op.RELEASE:
            return None
        if op.op == Op.ARRIVE and not pending.is_lock:
            barrier = self.barriers[pending.name]
            if op.phase < barrier.phase:
                return Event(*party, Outcome.PASSED, barrier.generation, op.phase)
            if party not in barrier.arrived:
                return None
        return self._now(life, op.number)

    def _now(self, life: LifeState, number: int) -> Event:
        """What a pending request holds or waits for."""
        party = (life.node, life.incarnation, number)
        pending = dict(life.requests)[number]
        if not pending.is_lock:
            barrier = self.barriers[pending.name]
            if party in barrier.arrived:
                return Event(*party, Outcome.WAITING, len(barrier.arrived), barrier.phase)
            return Event(*party, Outcome.PASSED, barrier.generation, barrier.phase - 1)
        lock = self.locks[pending.name]
        if lock.holder == party:
            return Event(*party, Outcome.HELD, lock.token)
        return Event(*party, Outcome.QUEUED, lock.waiters.index(party) + 1)


def _why_not_join(barrier: BarrierState | None, party: Party, op: ServiceOp) -> str:
    """Why a request cannot take part in a generation; empty if it can. The first arrival fixes what it is about."""
    if op.phase != 1:
        return f"it takes no part in a generation of barrier {op.name}"
    if barrier is None:
        return ""
    # rule: S-14a
    if (barrier.parties, barrier.phases) != (op.parties, op.phases):
        return (
            f"barrier {op.name} waits for {barrier.parties} parties in {barrier.phases} phases, "
            f"not for {op.parties} in {op.phases}"
        )
    # rule: S-14b
    if any(member[:2] == party[:2] for member in barrier.members):
        return f"this node takes part in barrier {op.name} already"
    if len(barrier.members) >= barrier.parties:
        return f"all parties of barrier {op.name} are known, and this node is not one of them"
    return ""
