"""What locks and barriers wait for: round trips of the network, and no timer.

Every hop takes the same time here, so the time of a request counts its hops. A request of the leader is answered after
one round trip to a majority. A request of another node takes one more, to the leader and back.
"""

from __future__ import annotations

import pytest
from tests.unit.group.serving import Served

from holdfast.group.services.values import Outcome
from holdfast.types import MICROSECOND, SECOND

HOP_US = 500
HOP = HOP_US * MICROSECOND
SLACK = 20 * MICROSECOND
"""Turns within a node take a microsecond each. A timer would take 300 or more."""


def world_of(voters: int) -> Served:
    world = Served(voters=voters, sources=1, delay_us=(HOP_US, HOP_US)).begin()
    world.run(SECOND)
    return world


def elsewhere(world: Served) -> str:
    return next(name for name in world.names if name.startswith("n") and name != world.leader())


def hops_until(world: Served, name: str, number: int, outcome: Outcome) -> float:
    begun = world.now
    world.wait(name, number, outcome)
    return (world.now - begun) / HOP


@pytest.mark.parametrize("voters", [3, 4])
def test_a_lock_takes_one_round_trip_at_the_leader_and_two_elsewhere(voters: int) -> None:
    world = world_of(voters)
    most = SLACK / HOP
    for _ in range(5):
        for name, hops in ((world.leader(), 2), (elsewhere(world), 4), ("s1", 4)):
            number = world.lock(name)
            assert hops_until(world, name, number, Outcome.HELD) <= hops + most, name
            token = world.token(name, number)
            world.release(name, number, token)
            assert hops_until(world, name, number, Outcome.RELEASED) <= hops + most, name


def test_a_barrier_takes_two_round_trips_after_the_last_arrival() -> None:
    """One more hop than a lock of the leader each way: the arrivals and the answers of the other nodes."""
    world = world_of(4)
    most = SLACK / HOP
    names = [name for name in world.names if name.startswith("n")]
    for _ in range(5):
        numbers = {name: world.arrive(name, 4) for name in names}
        begun = world.now
        for name, number in numbers.items():
            world.wait(name, number, Outcome.PASSED)
        assert (world.now - begun) / HOP <= 4 + most
