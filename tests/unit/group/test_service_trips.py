"""What locks and barriers wait for: round trips of the network, and no timer.

Every hop takes the same time here, so the time of a request counts its hops. A request of the leader is answered after
one round trip to a majority. A request of another node takes one more, to the leader and back.
"""

from __future__ import annotations

from typing import Literal

import pytest
from tests.unit.group.serving import Served

from holdfast.group.log.stability import IDLE_REPORT_NS
from holdfast.group.services.values import Outcome
from holdfast.stability import PROTOCOLS, StabilityConfig
from holdfast.types import MICROSECOND, MILLISECOND, SECOND

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


def counted(world: Served) -> dict[str, int]:
    """Frames between nodes from here on, by type."""
    counts: dict[str, int] = {}

    def count(_from: str, _to: str, frame: object) -> bool:
        counts[type(frame).__name__] = counts.get(type(frame).__name__, 0) + 1
        return False

    world.drop = count
    return counts


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
    counts = counted(world)
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


def test_arrivals_that_wait_travel_with_the_last_one() -> None:
    """Nothing waits for the commit of an arrival at a barrier that is not full. One entry frame and one
    acknowledgement for each replica are enough for all parties, and the last one does not take longer."""
    world = world_of(4)
    names = [name for name in world.names if name.startswith("n")]
    counts = counted(world)
    for _ in range(5):
        numbers: dict[str, int] = {}
        for name in names:
            numbers[name] = world.arrive(name, 4)
            world.run(200 * MICROSECOND)
        begun = world.now
        for name, number in numbers.items():
            world.wait(name, number, Outcome.PASSED)
        assert (world.now - begun) / HOP <= 4 + SLACK / HOP
    assert counts["Append"] == 5 * 3
    assert counts["AppendResponse"] <= 5 * 3
    assert counts["ServiceRequest"] == counts["ServiceReply"] == 5 * 3


def test_a_request_that_queues_travels_with_the_release_before_it() -> None:
    world = world_of(4)
    leader, other = world.leader(), elsewhere(world)
    first = world.lock(leader)
    token = world.token(leader, first)
    world.run(world.config.free_period_ns + 2 * HOP)
    counts = counted(world)
    second = world.lock(other)
    world.run(2 * HOP)
    assert "Append" not in counts
    world.release(leader, first, token)
    assert hops_until(world, other, second, Outcome.HELD) <= 3 + SLACK / HOP
    assert counts["Append"] == 3


def test_a_request_that_waits_is_committed_soon_although_nothing_follows() -> None:
    """A new leader must know it: the wait is bounded, from the first request that waits on."""
    world = world_of(4)
    leader = world.leader()
    commit = world.hosts[leader].status["commit"]
    begun = world.now
    for name in ("n1", "n2", "n3"):
        world.arrive(name, 4)
        world.run(world.config.free_period_ns // 3)
    world.run_until(lambda: world.hosts[leader].status["commit"] >= commit + 3, SECOND)
    assert world.now - begun <= world.config.free_period_ns + 4 * HOP


def test_a_request_takes_one_turn_at_a_replica_that_does_not_lead() -> None:
    """No messages are held, so no source waits for stability: reports to the detector wait for turns that happen
    anyway, and rounds are rare. With a report each millisecond, every second request took a turn more."""
    world = world_of(4)
    leader = world.leader()
    others = [name for name in ("n1", "n2", "n3", "n4") if name != leader]
    replica = world.hosts[leader].replica
    assert replica is not None
    stability = replica.inspect().stability
    assert stability is not None
    rounds, turns = stability.detector.status(world.now).rounds, turns_of(world, others)
    begun = world.now
    for _ in range(50):
        number = world.lock(leader)
        token = world.token(leader, number)
        world.release(leader, number, token)
        world.wait(leader, number, Outcome.RELEASED)
    assert turns_of(world, others) - turns <= 1.25 * 100 * len(others)
    periods = (world.now - begun) // IDLE_REPORT_NS
    assert stability.detector.status(world.now).rounds - rounds <= periods + 1


def test_a_result_that_counts_on_an_acknowledgement_is_not_refused() -> None:
    """A replica acknowledges in every turn and reports to its own detector rarely. It reports before it takes a result,
    or it would refuse what it has itself acknowledged, and free later."""
    world = world_of(4)
    leader = world.leader()
    for turn in range(40):
        number = world.lock(leader)
        world.release(leader, number, world.token(leader, number))
        world.wait(leader, number, Outcome.RELEASED)
        world.run(turn % 7 * MILLISECOND)
    for name in ("n1", "n2", "n3", "n4"):
        refused = world.hosts[name].status["stability"]["refused"]
        assert "above report" not in refused, (name, refused)


@pytest.mark.parametrize("durability", ["memory", "durable"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_entries_of_services_are_freed_although_no_message_follows(
    protocol: str, durability: Literal["memory", "durable"]
) -> None:
    """Reports are rare without messages, but they come: also from a member that begins no rounds, and after a write."""
    world = Served(
        voters=3, sources=0, stability=StabilityConfig(protocol=protocol), durability=durability
    )
    world.begin().run(SECOND)
    for _ in range(3):
        number = world.lock("n1")
        world.release("n1", number, world.token("n1", number))
        world.wait("n1", number, Outcome.RELEASED)
    logs = [world.hosts[name] for name in ("n1", "n2", "n3")]
    assert any(host.status["log"] for host in logs)
    world.run(500 * MILLISECOND)
    assert [host.status["log"] for host in logs] == [0, 0, 0]


def turns_of(world: Served, names: list[str]) -> int:
    return sum(world.hosts[name].turns.number for name in names)
