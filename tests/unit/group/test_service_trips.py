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


@pytest.mark.parametrize(("asker", "requests"), [("leader", 0), ("other", 2)])
def test_a_request_sends_one_entry_and_one_acknowledgement_to_each_replica(
    asker: str, requests: int
) -> None:
    """The commit index of a request waits for the next entries: no application waits for it. When no entry follows,
    it is sent after `free_period_ns`."""
    world = world_of(4)
    name = world.leader() if asker == "leader" else elsewhere(world)
    counts: dict[str, int] = {}

    def count(_from: str, _to: str, frame: object) -> bool:
        counts[type(frame).__name__] = counts.get(type(frame).__name__, 0) + 1
        return False

    world.drop = count
    for _ in range(5):
        number = world.lock(name)
        token = world.token(name, number)
        world.release(name, number, token)
        world.wait(name, number, Outcome.RELEASED)
    assert counts.get("Append", 0) == 10 * 3
    assert counts.get("AppendResponse", 0) <= 10 * 3
    served = counts.get("ServiceRequest", 0) + counts.get("ServiceReply", 0)
    assert served == 10 * requests
    world.run(world.config.free_period_ns + 2 * HOP)
    commits = {world.hosts[one].status["commit"] for one in ("n1", "n2", "n3", "n4")}
    assert len(commits) == 1, "all replicas know soon that everything is committed"
