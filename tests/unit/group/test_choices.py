"""What is chosen about lost messages means what it says, also where the network is slow or little is known."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from tests.unit.group.harness import World, ready
from tests.unit.group.losing import (
    ALL,
    answer,
    delivered,
    ignoring,
    leader,
    losing,
    lossy,
    numbers,
    only_from_source,
    send,
)

from holdfast.errors import ConfigError
from holdfast.group.frames import Payload
from holdfast.group.log.replicated_log import is_sound
from holdfast.group.loss.actions import DROP, IGNORE, RECOVER, SUSPEND, Action, Ignore
from holdfast.group.loss.rule import Rule
from holdfast.group.ports import HandOver
from holdfast.group.streams.values import Indication
from holdfast.types import MILLISECOND, SECOND


def far(one_way_ms: int, **settings: Any) -> World:
    """Three replicas and a source, far from each other."""
    slow = {"election_ns": SECOND, "append_period_ns": 300 * MILLISECOND, "stall_ns": 3 * SECOND}
    delay_us = (one_way_ms * 1000, one_way_ms * 1000 + 1000)
    world = World(voters=3, sources=1, payload_bytes=1000, delay_us=delay_us, **(slow | settings))
    world.start()
    ready(world, 60 * SECOND)
    return world


def without(world: World, *lost: int, target: str = "n1") -> None:
    """These never come from the source itself."""
    world.drop = lambda sender, to, frame: (
        isinstance(frame, Payload) and frame.first in lost and (sender, to) == ("s1", target)
    )


def happened(world: World, event: str) -> list[str]:
    return [fact.detail for _, fact in world.events(event)]


# -- nothing is given up too soon ----------------------------------------------------------------------------------


@pytest.mark.parametrize("one_way_ms", [15, 60, 200])
def test_what_a_replica_far_away_has_is_not_dropped(one_way_ms: int) -> None:
    world = far(one_way_ms)
    without(world, 2)
    send(world, 3)
    world.run((one_way_ms + 5) * MILLISECOND)
    world.kill("s1", left=True)
    delivered(world, [1, 2, 3], 10 * SECOND)
    assert [place.name for place in world.hosts["n1"].asked[0].recovery.places] != []


def test_a_replica_that_answers_late_is_asked_while_recovery_lasts() -> None:
    world = far(30, seek_ns=5 * MILLISECOND)
    without(world, 2)
    send(world, 3)
    world.run(35 * MILLISECOND)
    world.kill("s1", left=True)
    delivered(world, [1, 2, 3], 10 * SECOND)
    assert world.hosts["n1"].asked[0].recovery.places == (), "nobody had answered yet"


def test_a_source_that_is_far_away_is_not_given_up_before_it_can_answer() -> None:
    world = far(40, transport="datagram")
    answer(world, DROP)
    lost: list[int] = []

    def drop(sender: str, to: str, frame: Any) -> bool:
        is_new = isinstance(frame, Payload) and frame.first % 5 == 2 and frame.first not in lost
        if is_new and (sender, to) == ("s1", "n1"):
            lost.append(frame.first)
            return True
        return False

    world.drop = drop
    for number in range(1, 21):
        send(world, 1, start=number)
        world.run(200 * MILLISECOND)
    delivered(world, list(range(1, 21)))
    assert lost == [2, 7, 12, 17]
    assert not world.hosts["n1"].asked


def test_what_was_dropped_is_not_called_recovered() -> None:
    world = lossy()
    answer(world, RECOVER.otherwise(DROP))
    losing(world, range(2, 3), *ALL)
    send(world, 3)
    delivered(world, [1, 3])
    assert not happened(world, "recovered")


# -- recovering and ignoring ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_table", [False, True])
def test_recover_else_ignore_ignores_nothing_when_it_recovers(by_table: bool) -> None:
    rule = Rule("recover else ignore", ignore_by=("source",), ignore_s=10, within_s=0.5)
    world = lossy(policy=(rule,) if by_table else ())
    answer(world, None if by_table else rule.meant())
    without(world, 2)
    send(world, 5)
    delivered(world, [1, 2, 3, 4, 5])
    assert not ignoring(world)


@pytest.mark.parametrize("by_table", [False, True])
def test_recover_else_ignore_ignores_once_recovery_has_failed(by_table: bool) -> None:
    rule = Rule("recover else ignore", ignore_by=("stream",), ignore_count=2, within_s=0.05)
    world = lossy(policy=(rule,) if by_table else ())
    answer(world, None if by_table else rule.meant())
    losing(world, range(2, 3), *ALL)
    send(world, 5)
    delivered(world, [1, 5])


def test_what_is_recovered_is_not_ignored_and_nothing_is_ignored_twice() -> None:
    world = lossy(recover_ns=20 * MILLISECOND)
    answer(world, RECOVER.and_ignore(("stream",), count=2))
    losing(world, range(2, 4), *ALL)
    send(world, 6)
    world.run(SECOND)
    assert len(world.hosts["n1"].asked) > 3
    assert len(happened(world, "ignores")) == 1
    world.drop = None
    delivered(world, [1, 2, 3, 6])


def test_one_that_suspends_itself_can_have_others_ignored() -> None:
    world = lossy()
    answer(world, SUSPEND.and_ignore(("topic",), count=1))
    losing(world, range(2, 3), "n1")
    only_from_source(world)
    send(world, 4, topic="rain")
    delivered(world, [1, 2, 4])
    assert leader(world) != "n1"


# -- like the lost ones, for certain -------------------------------------------------------------------------------


def test_where_the_topic_is_not_known_nothing_is_ignored() -> None:
    world = lossy()
    answer(world, IGNORE(("source", "topic")))
    losing(world, range(2, 3), *ALL)
    send(world, 2, topic="rain")
    send(world, 2, start=3)
    delivered(world, [1, 3, 4])
    assert "topic" in happened(world, "ignores nothing")[0]


def test_the_priority_that_is_ignored_is_one_that_was_lost() -> None:
    world = lossy(priorities=3)
    answer(world, IGNORE(("priority",)))
    losing(world, range(2, 4), *ALL)
    send(world, 1, priority=2)
    send(world, 2, start=2, priority=0)
    send(world, 2, start=4, priority=1)
    send(world, 2, start=6, priority=2)
    delivered(world, [1, 4, 5, 6, 7])
    assert ignoring(world) == ["priority 0 permanently"]


def test_while_nothing_is_known_the_most_urgent_is_what_it_may_be() -> None:
    assert Indication(3, (), (0, 0, 0), (1, 1, 1)).highest == 0
    assert Indication(3, (), (0, 0, 1), (1, 0, 1)).highest == 2, "this one is certain"


def test_only_the_source_that_was_out_of_step_ends_what_is_ignored() -> None:
    world = lossy(sources=2)
    answer(world, IGNORE(("topic",), resync=True))
    losing(world, range(2, 3), *ALL)
    send(world, 3, topic="rain")
    world.run(SECOND)
    world.drop = None
    world.send("s2", [b"in step, as ever"], topic="rain", resync=True)
    world.run(100 * MILLISECOND)
    assert ignoring(world)
    world.send("s1", [b"here is all of it"], resync=True)
    world.run(100 * MILLISECOND)
    assert not ignoring(world)


@pytest.mark.parametrize("first", ["s1", "s2"])
def test_a_resync_that_another_criterion_ignores_ends_what_it_is_for(first: str) -> None:
    world = lossy(sources=2)
    says = {"s1": IGNORE(("stream",), resync=True), "s2": IGNORE(("topic",))}
    for source in (first, "s2" if first == "s1" else "s1"):
        answer(world, says[source])
        losing(world, range(2, 3), *ALL, source=source)
        send(world, 3, source=source, topic="rain")
        world.run(SECOND)
    world.drop = None
    assert len(ignoring(world)) == 2
    world.send("s1", [b"here I am"], topic="rain", resync=True)
    world.run(100 * MILLISECOND)
    assert ignoring(world) == ["topic rain permanently"]
    world.send("s1", [b"the sun shines"], topic="sun")
    world.run(100 * MILLISECOND)
    assert [bytes(text) for text in world.hosts["n2"].messages][-1] == b"the sun shines"
    world.check()


# -- what is told --------------------------------------------------------------------------------------------------


def test_the_age_is_that_of_the_message_not_of_an_older_hole() -> None:
    old = Rule("drop", priority=1, age_min_s=5, at_once=True)
    world = lossy(priorities=2, recover_ns=100 * SECOND, policy=(old, Rule("recover")))
    losing(world, range(2, 3), *ALL)
    send(world, 3, priority=0)
    world.run(6 * SECOND)
    losing(world, range(2, 6), *ALL)
    send(world, 3, start=4, priority=1)
    world.run(100 * MILLISECOND)
    assert not happened(world, "decides")


def test_after_a_restart_of_a_durable_replica_nothing_is_older_than_it_is() -> None:
    world = lossy(durability="durable", policy=(Rule("drop", age_min_s=5),))
    world.run(10 * SECOND)
    send(world, 3)
    delivered(world, [1, 2, 3])
    world.restart("n1")
    ready(world)
    world.inject(leader(world), HandOver(("n1",)))
    world.run(SECOND)
    assert leader(world) == "n1"
    without(world, 5)
    send(world, 3, start=4)
    delivered(world, [1, 2, 3, 4, 5, 6])


def test_what_comes_after_a_second_hole_is_told() -> None:
    world = lossy()
    answer(world, DROP)
    losing(world, range(2, 20), *ALL)
    send(world, 20)
    delivered(world, [1, 20])
    assert [message.number for message in world.hosts["n1"].asked[0].next] == [20]


def test_every_replica_shows_what_was_decided_and_what_was_lost() -> None:
    """Whoever leads next, too: it stands in the order."""
    world = lossy()
    answer(world, IGNORE(("stream",), count=1))
    losing(world, range(2, 4), *ALL)
    send(world, 5)
    delivered(world, [1, 5])
    for name in ALL:
        status = world.hosts[name].status
        (decision,) = status["decisions"]
        assert (decision["first"], decision["lost"], decision["leader"]) == (2, 2, "n1")
        assert decision["action"] == "drop and ignore by stream for 1 messages"
        assert (status["losses"]["dropped"], status["losses"]["ignored"]) == (2, 1)


def test_the_leader_shows_how_far_each_application_is() -> None:
    world = lossy()
    world.hosts["n3"].slowness = 10_000
    send(world, 20)
    world.run(300 * MILLISECOND)
    peers = world.hosts["n1"].status["peers"]
    assert peers["n3"]["match"] == peers["n2"]["match"]
    assert peers["n3"]["applied"] < peers["n2"]["applied"]


# -- answers that cannot be carried out ------------------------------------------------------------------------------


def test_an_answer_that_is_no_action_is_left_to_the_table() -> None:
    world = lossy(policy=(Rule("drop"),))
    answer(world, lambda _: IGNORE)  # type: ignore[arg-type,return-value]  # the brackets are forgotten
    losing(world, range(2, 3), *ALL)
    send(world, 3)
    delivered(world, [1, 3])
    assert "is not an action" in happened(world, "no answer")[0]


@pytest.mark.parametrize("voters", [2, 3])
def test_in_an_availability_group_one_other_is_enough_to_lead(voters: int) -> None:
    world = lossy(voters=voters, mode="availability")
    if voters == 3:
        world.kill("n3")
        world.run(SECOND)
    answer(world, lambda info: SUSPEND if info.attempt == 1 else Action("recover"))
    losing(world, range(2, 3), "n1")
    only_from_source(world)
    send(world, 3)
    world.run(2 * SECOND)
    assert numbers(world, "n1") == numbers(world, "n2") == [1, 2, 3]
    assert leader(world) == "n2"


# -- what an application may answer ---------------------------------------------------------------------------------


def anything(rng: Random) -> object:
    """An answer, good or bad."""
    number = rng.choice((0, 1, 2, 1 << 40, -1, 1 << 63, 1 << 70, 2.5, True, float("nan"), "5"))
    by = rng.choice((("stream",), ("source", "topic"), ("priority",), (), ("colour",), "stream"))
    ignore: Any = None
    if rng.random() < 0.7:
        ends = {
            "for_ns": number,
            "count": rng.choice((number, 0, 3)),
            "resync": rng.choice((True, 0)),
        }
        name = rng.choice(tuple(ends))
        ignore = Ignore(by, **{name: ends[name]})  # type: ignore[arg-type]
    if rng.random() < 0.1:
        return rng.choice((None, "drop", 7, ignore, Exception("no")))
    return Action(
        rng.choice(("drop", "recover", "suspend", "leave")),  # type: ignore[arg-type]
        rng.choice(("ask", "drop", "suspend", "recover")),  # type: ignore[arg-type]
        rng.choice((0, 0, 20 * MILLISECOND, number)),  # type: ignore[arg-type]
        ignore,
        rng.choice((None, ignore, "stream")),
    )


@pytest.mark.parametrize("seed", range(12))
def test_whatever_an_application_answers_followers_take_what_the_leader_appends(seed: int) -> None:
    """An entry that a follower holds for unsound is never decided, nor is anything behind it."""
    rng = Random(f"answers/{seed}")
    world = lossy(seed=seed, priorities=2, policy=(Rule("drop", attempt_min=2), Rule("recover")))
    refused = taken = 0

    def on_loss(_: Any) -> Any:
        nonlocal refused, taken
        try:
            said = anything(rng)
        except ConfigError:
            refused += 1
            raise
        taken += 1
        return said

    answer(world, on_loss)
    losing(world, range(2, 80, 3), *ALL)
    for start in range(1, 80, 8):
        send(world, 8, start=start, priority=rng.choice((0, 1)), topic=rng.choice(("", "t")))
        world.run(100 * MILLISECOND)
    world.run(3 * SECOND)
    for name in ALL:
        core = world.hosts[name].replica.inspect()  # type: ignore[union-attr]
        assert core.pending.broken == 0
        assert all(is_sound(entry) for entry in core.log.entries(core.log.ground.index + 1, 9999))
    status = [world.hosts[name].status for name in ALL]
    assert len({(one["commit"], one["last"]) for one in status}) == 1
    assert status[0]["commit"] == status[0]["last"]
    assert refused
    assert taken
    world.check()
