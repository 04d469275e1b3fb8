"""The tables of group services under any sequence of operations, with copies, late ones and restarts of nodes."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import msgspec
import pytest

from holdfast.group.services.tables import ServiceTables, with_number
from holdfast.group.services.values import (
    RANGES_MAX,
    Event,
    Op,
    Outcome,
    Served,
    ServiceOp,
    ServiceState,
    is_sound_service,
)
from holdfast.types import SECOND

NODES = tuple(bytes([k]) * 16 for k in range(1, 5))
LOCKS, BARRIERS = ("a", "b"), ("x", "y")


class Model:
    """Draws operations, some of them copies of earlier ones, and checks what must hold after each."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.tables = ServiceTables()
        self.index = 0
        self.lives = dict.fromkeys(NODES, 1)
        self.numbers = dict.fromkeys(NODES, 0)
        self.past: list[Served] = []
        self.tokens: dict[str, int] = {}
        self.granted: dict[tuple[str, int], tuple[bytes, int, int]] = {}
        self.ended: dict[tuple[bytes, int, int], Outcome] = {}

    def draw(self) -> Served:
        rng = self.rng
        if self.past and rng.random() < 0.25:
            return rng.choice(self.past)
        node = rng.choice(NODES)
        if rng.random() < 0.03:
            self.lives[node] += 1
            self.numbers[node] = 0
        if rng.random() < 0.1:
            self.numbers[node] += 1  # a request that the leader refused: no entry has its number
        number = self.numbers[node]
        heard = rng.choice((0, self.open_from(node)))
        kind = rng.choice((Op.ACQUIRE, Op.ACQUIRE, Op.ARRIVE, Op.RELEASE, Op.RENEW, Op.EXPIRE))
        if kind in (Op.ACQUIRE, Op.ARRIVE) and (kind == Op.ACQUIRE or rng.random() < 0.7):
            number = self.numbers[node] = number + 1
        elif number:
            number = rng.randint(1, number)
        name = rng.choice(LOCKS if kind == Op.ACQUIRE else BARRIERS)
        phases = 2 if name == "y" else 1
        op = ServiceOp(kind, number, name, SECOND, 2, phases, rng.randint(1, phases))
        return Served(node, self.lives[node], heard, op)

    def open_from(self, node: bytes) -> int:
        """The lowest number of a request that is not over, as the node says in each request."""
        life = self.tables.lives.get(node)
        current = life is not None and life.incarnation == self.lives[node]
        requests = life.requests if life is not None and current else ()
        return min([number for number, _ in requests], default=self.numbers[node] + 1)

    def step(self) -> None:
        served = self.draw()
        assert is_sound_service(served)
        self.past.append(served)
        self.index += 1
        before = self.tables.copy()
        events = self.tables.apply(self.index, self.index * 1000, served)
        for event in events:
            self.see(event, served)
        self.check()
        again = before.apply(self.index, self.index * 1000, served)
        assert again == events, "the same entry, the same result"
        assert before.state() == self.tables.state()

    def see(self, event: Event, served: Served) -> None:
        party = (event.node, event.incarnation, event.number)
        if event.outcome == Outcome.HELD:
            life = self.tables.lives[event.node]
            pending = dict(life.requests).get(event.number)
            if pending is None:
                return  # granted and dropped by the same entry: the end of a life
            before = self.granted.setdefault((pending.name, event.value), party)
            assert before == party, "a token belongs to one request"
            assert event.value >= self.tokens.get(pending.name, 0), "tokens grow"
            self.tokens[pending.name] = event.value
            assert party not in self.ended, "what is over is not granted"
        elif event.outcome in (Outcome.EXPIRED, Outcome.BROKEN, Outcome.RELEASED):
            self.ended.setdefault(party, event.outcome)

    def check(self) -> None:
        tables = self.tables
        places: dict[tuple[bytes, int, int], int] = {}
        for lock in tables.locks.values():
            for party in (lock.holder, *lock.waiters):
                places[party] = places.get(party, 0) + 1
        for barrier in tables.barriers.values():
            assert 0 < len(barrier.members) <= barrier.parties
            assert len(barrier.arrived) < barrier.parties
            assert all(party in barrier.members for party in barrier.arrived)
            for party in barrier.members:
                places[party] = places.get(party, 0) + 1
        live = {
            (life.node, life.incarnation, number): 1
            for life in tables.lives.values()
            for number, _ in life.requests
        }
        assert places == live, "every request is at one place, and nothing else is"
        for life in tables.lives.values():
            assert not any(
                first <= number <= last for number, _ in life.requests for first, last in life.done
            )
            assert all(b[0] > a[1] + 1 for a, b in pairwise(life.done))


@pytest.mark.parametrize("seed", range(60))
def test_locks_exclude_and_requests_act_once(seed: int) -> None:
    model = Model(seed)
    for _ in range(120):
        model.step()
    assert model.granted


def test_tables_travel_whole() -> None:
    model = Model(7)
    for _ in range(200):
        model.step()
        data = msgspec.msgpack.encode(model.tables.state())
        state = msgspec.msgpack.decode(data, type=ServiceState)
        assert state.is_sound()
        assert ServiceTables.of(state).state() == model.tables.state()


def test_ranges_of_numbers_are_those_of_the_numbers() -> None:
    rng = Random(1)
    for _ in range(200):
        numbers = [rng.randrange(30) for _ in range(rng.randrange(1, 25))]
        ranges: tuple[tuple[int, int], ...] = ()
        for number in numbers:
            ranges = with_number(ranges, number)
        covered = [n for first, last in ranges for n in range(first, last + 1)]
        assert covered == sorted(set(numbers))
        assert all(b[0] > a[1] + 1 for a, b in pairwise(ranges))


def acquire_and_release(tables: ServiceTables, number: int, heard: int) -> None:
    for op in (ServiceOp(Op.ACQUIRE, number, "a", SECOND), ServiceOp(Op.RELEASE, number, "a")):
        tables.apply(number, number, Served(NODES[0], 1, heard, op))


def test_numbers_of_refused_requests_leave_no_gaps() -> None:
    """A leader refuses a barrier with too many parties without an entry. A node that tries again and again, and uses
    locks in between, must not fill the tables and every snapshot."""
    tables = ServiceTables()
    for number in range(1, 2000, 2):
        acquire_and_release(tables, number, number)
    assert len(tables.lives[NODES[0]].done) == 1
    for number, outcome in ((1998, Outcome.RELEASED), (2000, Outcome.HELD)):
        request = Served(NODES[0], 1, 0, ServiceOp(Op.ACQUIRE, number, "a", SECOND))
        assert tables.apply(5000, 5000, request)[0].outcome == outcome, (
            "only what is over does not act"
        )


def test_gaps_above_a_request_that_is_kept_for_long_are_bounded() -> None:
    tables = ServiceTables()
    held = Served(NODES[0], 1, 1, ServiceOp(Op.ACQUIRE, 2, "kept", SECOND))
    tables.apply(1, 1, held)
    for number in range(4, 4 * RANGES_MAX, 2):
        acquire_and_release(tables, number, 2)
    life = tables.lives[NODES[0]]
    assert len(life.done) == RANGES_MAX
    assert [number for number, _ in life.requests] == [2]
    assert not any(first <= 2 <= last for first, last in life.done)
    late = Served(NODES[0], 1, 2, ServiceOp(Op.ACQUIRE, 5, "a", SECOND))
    assert tables.apply(9000, 9000, late)[0].outcome == Outcome.RELEASED, "a late copy does not act"


def test_a_lock_is_granted_with_a_full_lease() -> None:
    """However long the request waited, and whenever its node last renewed."""
    tables = ServiceTables()
    for node in NODES[:2]:
        tables.apply(1, 1, Served(node, 1, 1, ServiceOp(Op.ACQUIRE, 1, "a", SECOND)))
    tables.apply(2, 9 * SECOND, Served(NODES[0], 1, 1, ServiceOp(Op.RELEASE, 1, "a")))
    ((_, pending),) = tables.lives[NODES[1]].requests
    assert pending.since_ns == 9 * SECOND
