"""Large groups: three voters and many learners. What a member and a message cost does not grow with their number."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.group.harness import World

from holdfast.group.frames import Freed, JoinRequest
from holdfast.group.log.entries import Member, View
from holdfast.group.ports import AddReplica, RemoveReplica
from holdfast.telemetry.facts import OrderFact
from holdfast.types import MILLISECOND, SECOND

MESSAGES = 100


def run_until(world: World, reached: Callable[[], bool], limit_ns: int) -> None:
    """Looks every few milliseconds only: with hundreds of members there are thousands of events in one."""
    end = world.now + limit_ns
    while not reached():
        assert world.now < end, f"not reached in {limit_ns} ns"
        world.run(5 * MILLISECOND)


def check_large(members: int, protocol: str) -> None:
    world = World(voters=3, learners=members - 3)
    counts: dict[str, int] = {}

    def count(_from: str, _to: str, frame: object) -> bool:
        counts[type(frame).__name__] = counts.get(type(frame).__name__, 0) + 1
        return False

    world.drop = count
    world.start()
    run_until(world, lambda: world.hosts["n1"].members == members, 10 * SECOND)
    views = [f for _, f in world.facts if isinstance(f, OrderFact) and f.entry == "view"]
    assert len(views) <= 3 + members // 20, "learners are admitted together"
    assert counts[JoinRequest.__name__] <= 60 * members, "not all ask all, again and again"
    world.run(300 * MILLISECOND)
    counts.clear()
    before = world.frames_sent
    for _ in range(5):
        world.send("n1", [bytes(100)] * (MESSAGES // 5))
        world.run(20 * MILLISECOND)
    run_until(
        world,
        lambda: all(len(host.app.got) == MESSAGES for host in world.hosts.values()),
        10 * SECOND,
    )
    run_until(world, lambda: not any(host.held for host in world.hosts.values()), 20 * SECOND)
    each = (world.frames_sent - before) / members / MESSAGES
    assert each <= 3 if protocol == "coord" else each <= 12, counts
    assert counts.get(Freed.__name__, 0) <= 3 * members, "announced to the sources, not to all"
    assert world.hosts["n1"].status["stability"]["protocol"] == protocol
    world.check()


def test_fifty_members_cost_little_each() -> None:
    check_large(50, "coord")


def test_a_leader_without_work_does_not_list_the_voters_once_for_every_member(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It looks at every member several times a second. With a list of all members for each of them, an idle leader of
    300 members used a tenth of a core."""
    world = World(voters=3, learners=47)
    world.start()
    run_until(world, lambda: world.hosts["n1"].members == 50, 10 * SECOND)
    world.run(300 * MILLISECOND)
    listed = 0
    voters = View.voters.fget  # type: ignore[attr-defined]

    def count(view: View) -> tuple[Member, ...]:
        nonlocal listed
        listed += 1
        found: tuple[Member, ...] = voters(view)
        return found

    monkeypatch.setattr(View, "voters", property(count))
    world.run(SECOND)
    assert 0 < listed < 1000, "some per look, and none per member"


@pytest.mark.campaign
@pytest.mark.parametrize(("members", "protocol"), [(100, "coord"), (300, "cube")])
def test_hundreds_of_members_cost_little_each(members: int, protocol: str) -> None:
    check_large(members, protocol)


def test_a_learner_that_appears_later_is_admitted_at_once() -> None:
    """It asks the voters, and need not wait for its turn."""
    world = World(voters=3, learners=20)
    world.start(*[name for name in world.names if name != "l20"])
    world.run_until(lambda: world.hosts["n1"].members == 22, 10 * SECOND)
    world.start("l20")
    begun = world.now
    world.run_until(lambda: world.hosts["n1"].members == 23, SECOND)
    assert world.now - begun < 200 * MILLISECOND


def test_a_replica_that_knows_no_voter_finds_the_group_by_asking_in_turn() -> None:
    """All voters of its configuration were replaced. It asks the others, a few at a time."""
    world = World(voters=1, learners=20)
    world.start(*[name for name in world.names if name != "l20"])
    world.run_until(lambda: world.hosts["n1"].members == 20, 10 * SECOND)
    world.inject("n1", AddReplica("l19", voter=True))
    world.run_until(
        lambda: any(
            m["part"] == "voter" and m["name"] == "l19" for m in world.hosts["n1"].status["view"]
        ),
        10 * SECOND,
    )
    world.inject("n1", RemoveReplica("n1"))
    world.run_until(lambda: world.hosts["l19"].members == 19, 10 * SECOND)
    world.kill("n1")
    world.start("l20")
    world.run_until(lambda: world.hosts["l20"].status["memory"] == "whole", 10 * SECOND)
