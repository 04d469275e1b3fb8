"""Messages that are lost: what is asked, what is answered, and what follows from it on every replica."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.group.harness import World, node_id, ready, settle
from tests.unit.group.losing import (
    ALL,
    FAST,
    answer,
    brought,
    delivered,
    ignoring,
    leader,
    losing,
    lossy,
    numbers,
    only_from_source,
    send,
)

from holdfast.group.frames import LossQuery, Nack, Payload, StreamId, VoteRequest
from holdfast.group.log.entries import Skipped
from holdfast.group.loss.actions import DROP, IGNORE, RECOVER, SUSPEND, Action
from holdfast.group.loss.loss_info import LossInfo
from holdfast.group.loss.rule import Rule
from holdfast.group.ports import EndIgnoring
from holdfast.group.streams.values import Gap, Hole
from holdfast.links.ports import Received
from holdfast.machine.contract import Outbox
from holdfast.types import MILLISECOND, SECOND

# -- dropping ----------------------------------------------------------------------------------------------------


def test_messages_that_no_replica_has_are_dropped_when_the_application_decides_so() -> None:
    world = lossy()
    answer(world, DROP)
    losing(world, range(2, 4), *ALL)
    send(world, 5)
    delivered(world, [1, 4, 5])
    assert [info.lost for info in world.hosts["n1"].asked] == [((2, 3),)]
    assert not world.hosts["n2"].asked


def test_what_the_order_has_passed_is_asked_about_no_more() -> None:
    """A leader may still have it for missing since it followed: it would ask again in every turn."""
    world = lossy()
    send(world, 5)
    delivered(world, [1, 2, 3, 4, 5])
    replica = world.hosts["n1"].replica
    assert replica is not None
    hole = Hole(2, 3, world.now, world.now, 1, "their source no longer has them")
    recovery = replica.inspect().recovery
    recovery.gaps[world.hosts["s1"].source.stream] = Gap(world.now, [hole])
    asked: list[LossQuery] = []
    world.drop = lambda _, __, frame: (
        isinstance(frame, LossQuery) and bool(asked.append(frame) or True)
    )
    world.run(20 * MILLISECOND)
    assert (asked, recovery.gaps) == ([], {})


def test_a_gap_of_a_stream_that_is_forgotten_is_none() -> None:
    """Nobody needs what is lost of an earlier life of a source, and there may be many of them."""
    world = lossy()
    leads = world.hosts[leader(world)]
    assert leads.replica is not None
    core = leads.replica.inspect()
    core.streams._streams_max = len(core.streams.streams) + 4
    for life in range(1, 5):
        core.streams.know(StreamId(b"u" * 16, life, 0), 3, 1)
    first = StreamId(b"u" * 16, 1, 0)
    world.run_until(lambda: first in core.recovery.gaps, SECOND)
    core.streams.know(StreamId(b"u" * 16, 5, 0), 3, 1)
    assert first not in core.streams.streams
    core.recovery.forget()
    leads.replica._leader.order.skip(first, 1, 3, Skipped("dropped", 0, 0))
    assert first not in core.streams.changed
    world.run(SECOND)


def test_a_backup_does_not_deliver_what_was_dropped_even_if_it_has_it() -> None:
    world = lossy()
    answer(world, DROP)
    losing(world, range(2, 3), "n1")
    send(world, 3)
    delivered(world, [1, 3])
    assert world.hosts["n1"].asked[0].recovery.places


def test_every_replica_is_told_the_same_in_the_same_place() -> None:
    world = lossy()
    answer(world, DROP)
    losing(world, range(2, 3), "n1")
    send(world, 3)
    delivered(world, [1, 3])
    told = [world.hosts[name].told for name in ALL]
    assert told[0] == told[1] == told[2]
    assert [decision.kind for decision in told[0]] == ["decision", "skip"]
    assert told[0][1].text == "dropped"


def test_what_was_skipped_counts_as_received_and_is_freed_everywhere() -> None:
    world = lossy()
    answer(world, DROP)
    losing(world, range(2, 4), *ALL)
    send(world, 5)
    delivered(world, [1, 4, 5])
    world.run(3 * SECOND)
    assert world.hosts["s1"].source.status()["freed"] == 5
    assert all(world.hosts[name].status["streams"] and world.hosts[name].replica for name in ALL)
    for name in ALL:
        held = [stream["held"] for stream in world.hosts[name].status["streams"].values()]
        assert sum(held) == 0


def test_what_comes_while_the_question_is_open_is_not_lost() -> None:
    world = lossy()
    losing(world, range(2, 3), *ALL)

    def late(_: LossInfo) -> Action:
        world.drop = None
        return RECOVER

    answer(world, late)
    send(world, 3)
    delivered(world, [1, 2, 3])


def test_an_answer_about_what_came_in_the_same_turn_decides_nothing() -> None:
    world = lossy()
    lost: list[Payload] = []

    def drop(_sender: str, target: str, frame: Any) -> bool:
        second = isinstance(frame, Payload) and frame.first == 2
        if second:
            lost.append(frame)
        return second and target in ALL

    def late(_: LossInfo) -> Action:
        world.drop = None
        replica = world.hosts[leader(world)].replica
        assert replica is not None
        came = Received(node_id("s1"), [lost[0]], world.now)
        replica._inputs[Received](world.now, came, Outbox())
        return DROP.and_ignore(by=("stream",), count=5)

    world.drop = drop
    answer(world, late)
    send(world, 3)
    delivered(world, [1, 2, 3])
    assert world.events("asks")
    assert not world.events("decides")
    assert not ignoring(world)


# -- the table ---------------------------------------------------------------------------------------------------


def test_without_a_table_messages_that_a_replica_has_are_recovered_and_others_dropped() -> None:
    world = lossy()
    losing(world, range(2, 3), "n1", source="s1")
    drop = world.drop
    assert drop is not None
    world.drop = lambda a, b, frame: a == "s1" and drop(a, b, frame)
    send(world, 3)
    delivered(world, [1, 2, 3])
    losing(world, range(5, 6), *ALL)
    send(world, 3, start=4)
    world.run(20 * MILLISECOND)
    world.kill("s1")
    world.drop = None
    delivered(world, [1, 2, 3, 4, 6])


def test_the_default_never_drops_what_a_living_source_still_has() -> None:
    world = lossy()
    losing(world, range(2, 3), *ALL)
    send(world, 3)
    world.run(5 * SECOND)
    assert numbers(world) == [1]
    assert world.hosts["n1"].status["questions"] > 2
    world.drop = None
    delivered(world, [1, 2, 3])
    assert not world.hosts["n1"].status["decisions"]


def test_a_rule_that_decides_at_once_does_not_wait_for_the_source() -> None:
    rules = (Rule("drop", priority=1, at_once=True),)
    world = lossy(priorities=2, policy=rules, transport="datagram")
    nacks: list[Any] = []
    losing(world, range(2, 3), *ALL)
    inner = world.drop
    assert inner is not None

    def watch(sender: str, target: str, frame: Any) -> bool:
        if isinstance(frame, Nack) and sender == "n1":
            nacks.append(frame)
        return inner(sender, target, frame)

    world.drop = watch
    begin = world.now
    send(world, 3)
    delivered(world, [1, 3], 10 * MILLISECOND)
    assert world.now - begin < 10 * MILLISECOND
    assert not nacks
    losing(world, range(5, 6), "n1")
    send(world, 1, start=4)
    world.send("s1", [b"urgent" * 100], priority=0)
    send(world, 1, start=6)
    world.run(30 * MILLISECOND)
    assert numbers(world) == [1, 3, 4]
    world.drop = None
    delivered(world, [1, 3, 4, 5, 6])


def test_the_table_decides_when_the_application_takes_too_long() -> None:
    world = lossy(policy=(Rule("drop"),), answer_ns=100 * MILLISECOND)
    losing(world, range(2, 3), *ALL)
    world.hosts["n1"].frozen = True
    send(world, 3)
    world.run(300 * MILLISECOND)
    world.hosts["n1"].frozen = False
    delivered(world, [1, 3])
    assert world.hosts["n1"].status["decisions"][0]["by"] == "rule 1"


# -- recovering --------------------------------------------------------------------------------------------------


def test_a_leader_recovers_from_a_replica_what_a_dead_source_cannot_bring_back() -> None:
    world = lossy()
    answer(world, RECOVER)
    losing(world, range(2, 4), "n1")
    drop = world.drop
    assert drop is not None
    world.drop = lambda a, b, frame: a == "s1" and drop(a, b, frame)
    send(world, 5)
    world.run(2 * MILLISECOND)
    world.kill("s1")
    delivered(world, [1, 2, 3, 4, 5])
    assert brought(world, "n1") == {"source": 0, "replica": 2, "log": 0}


def test_dropped_messages_came_from_no_replica_and_recovered_ones_from_those_asked() -> None:
    world = lossy()
    answer(world, DROP)
    losing(world, range(2, 4), *ALL)
    send(world, 5)
    delivered(world, [1, 4, 5])
    assert brought(world, "n1") == {"source": 0, "replica": 0, "log": 0}
    losing(world, range(6, 8), *ALL)
    drop, tries = world.drop, []
    assert drop is not None
    world.drop = lambda a, b, frame: (
        drop(a, b, frame) and tries.count(b) < 2 and not tries.append(b)
    )
    send(world, 3, start=6)
    delivered(world, [1, 4, 5, 6, 7, 8])
    assert brought(world, "n1") == {"source": 2, "replica": 0, "log": 0}


def test_a_source_that_dies_in_the_middle_of_a_fan_out_leaves_a_gap_that_the_leader_finds() -> None:
    """Only a backup has the last messages: the leader learns it from its marks."""
    world = lossy()
    losing(world, range(3, 6), "n1", "n2")
    drop = world.drop
    assert drop is not None
    world.drop = lambda a, b, frame: a == "s1" and drop(a, b, frame)
    send(world, 5)
    world.run(MILLISECOND)
    world.kill("s1")
    delivered(world, [1, 2, 3, 4, 5])


def test_the_second_question_says_what_was_recovered_and_why_the_rest_was_not() -> None:
    world = lossy()
    answers = [RECOVER, DROP]
    answer(world, lambda _: answers.pop(0))
    losing(world, range(2, 5), *ALL)
    drop = world.drop
    assert drop is not None

    def some(sender: str, target: str, frame: Any) -> bool:
        if sender == "s1" and isinstance(frame, Payload) and frame.first == 3:
            return target == "n1"
        return drop(sender, target, frame) and not (sender == "n2" and frame.first == 3)

    world.drop = some
    send(world, 6)
    world.run(2 * MILLISECOND)
    world.kill("s1")
    delivered(world, [1, 3, 5, 6])
    first, second = world.hosts["n1"].asked
    assert (first.attempt, first.lost) == (1, ((2, 4),))
    assert (second.attempt, second.lost) == (2, ((2, 2), (4, 4)))
    assert second.recovery.recovered == ((3, 3),)
    assert "no reachable node" in second.recovery.reasons[0]


def test_the_second_question_shows_what_was_recovered_however_far_behind_it_lies() -> None:
    world = lossy(priorities=2)
    answers = [RECOVER.within(0.05), DROP]
    answer(world, lambda _: answers.pop(0))
    losing(world, range(2, 3), *ALL)
    drop = world.drop
    assert drop is not None

    def some(sender: str, target: str, frame: Any) -> bool:
        late = isinstance(frame, Payload) and frame.first == 20
        return drop(sender, target, frame) or (
            late and target in ALL and not world.hosts["n1"].asked
        )

    world.drop = some
    world.pause("n1")  # So that it notices both at the same moment.
    send(world, 19)
    world.send("s1", [b"rollback 2" + b"." * 600], priority=0, topic="undo")
    send(world, 1, start=21)
    world.run(5 * MILLISECOND)
    world.resume("n1")
    delivered(world, [1, *range(3, 22)])
    first, second = world.hosts["n1"].asked
    assert (first.lost, first.recovery.messages) == (((2, 2), (20, 20)), ())
    assert second.recovery.recovered == ((20, 20),)
    assert 20 not in [message.number for message in second.next]
    [message] = second.recovery.messages
    assert (message.number, message.priority, message.topic) == (20, 0, "undo")
    assert message.message.startswith(b"rollback 2")


def test_recover_else_drop_drops_only_what_did_not_come_back() -> None:
    world = lossy()
    answer(world, RECOVER.otherwise(DROP))
    losing(world, range(2, 3), *ALL)
    send(world, 3)
    world.run(2 * MILLISECOND)
    world.kill("s1")
    delivered(world, [1, 3])
    assert len(world.hosts["n1"].asked) == 1


def test_recovery_ends_at_its_time_limit() -> None:
    world = lossy()
    answer(world, RECOVER.otherwise(DROP).within(0.3))
    losing(world, range(2, 3), *ALL)
    send(world, 3)
    world.run(200 * MILLISECOND)
    assert numbers(world) == [1]
    delivered(world, [1, 3], 300 * MILLISECOND)


# -- ignoring ----------------------------------------------------------------------------------------------------


def test_a_stream_is_ignored_until_it_says_that_it_is_in_step_again() -> None:
    world = lossy()
    answer(world, IGNORE(("stream",), resync=True))
    losing(world, range(2, 3), *ALL)
    send(world, 5)
    delivered(world, [1])
    world.run(200 * MILLISECOND)
    world.drop = None
    send(world, 2, start=6)
    world.run(100 * MILLISECOND)
    world.send("s1", [b"here I am"], resync=True)
    send(world, 1, start=9)
    delivered(world, [1, 8, 9])
    assert not ignoring(world)


def test_a_count_is_used_up_and_then_messages_are_delivered_again() -> None:
    world = lossy()
    answer(world, IGNORE(("stream",), count=3))
    losing(world, range(2, 3), *ALL)
    send(world, 8)
    delivered(world, [1, 6, 7, 8])
    assert [d.kind for d in world.hosts["n2"].told] == [
        "decision",
        "ignore",
        "skip",
        "skip",
        "resume",
    ]


def test_a_time_is_log_time_and_ends_by_an_entry() -> None:
    world = lossy()
    answer(world, IGNORE(("source",), seconds=0.2))
    losing(world, range(2, 3), *ALL)
    send(world, 4)
    delivered(world, [1])
    world.run(100 * MILLISECOND)
    assert ignoring(world)
    world.run(200 * MILLISECOND)
    assert not ignoring(world)
    world.drop = None
    send(world, 2, start=5)
    delivered(world, [1, 5, 6])


def test_only_the_topic_that_lost_messages_is_ignored() -> None:
    world = lossy()
    answer(world, IGNORE(("topic",)))
    losing(world, range(2, 3), *ALL)
    send(world, 3, topic="rain")
    send(world, 2, start=4, topic="sun")
    send(world, 2, start=6, topic="rain")
    send(world, 1, start=8)
    delivered(world, [1, 4, 5, 8])


def test_only_the_priority_that_lost_messages_is_ignored() -> None:
    world = lossy(priorities=3)
    answer(world, DROP.and_ignore(("priority",)))
    losing(world, range(2, 3), *ALL)
    send(world, 3, priority=2)
    send(world, 2, start=4, priority=1)
    send(world, 1, start=6, priority=2)
    delivered(world, [1, 4, 5])


def test_what_is_lost_of_an_ignored_stream_is_not_asked_about() -> None:
    world = lossy()
    answer(world, IGNORE(("stream",), count=5))
    losing(world, range(2, 3), *ALL)
    send(world, 3)
    world.run(200 * MILLISECOND)
    losing(world, range(5, 6), *ALL)
    send(world, 6, start=4)
    delivered(world, [1, 8, 9])
    assert len(world.hosts["n1"].asked) == 1


def test_what_is_recovered_is_delivered_while_later_messages_are_ignored() -> None:
    """RECOVER with IGNORE is valid: the criterion is about the others."""
    world = lossy(priorities=2)

    def both(_: LossInfo) -> Action:
        world.drop = None
        return RECOVER.and_ignore(("topic",))

    answer(world, both)
    losing(world, range(2, 3), *ALL)
    send(world, 1, topic="rain")
    send(world, 1, start=2)
    send(world, 2, start=3, topic="rain")
    delivered(world, [1, 2])


def that_ignores() -> World:
    """Number 2 was lost, and what comes after it is ignored for good."""
    world = lossy()
    answer(world, IGNORE())
    losing(world, range(2, 3), *ALL)
    send(world, 3)
    delivered(world, [1])
    world.run(100 * MILLISECOND)
    return world


def test_an_operator_ends_what_is_ignored() -> None:
    world = that_ignores()
    row = world.hosts["n1"].status["ignoring"][0]
    world.inject("n1", EndIgnoring(row["id"]))
    world.drop = None
    send(world, 1, start=4)
    delivered(world, [1, 4])


def test_a_replica_that_follows_passes_on_to_the_leader_what_is_to_be_ignored_no_more() -> None:
    world = that_ignores()
    row = world.hosts["n2"].status["ignoring"][0]
    world.inject("n2", EndIgnoring(row["id"] + 1000))
    world.run(100 * MILLISECOND)
    assert world.hosts["n2"].status["ignoring"] == [row], "no criterion has that id"
    world.inject("n2", EndIgnoring(row["id"]))
    world.run(100 * MILLISECOND)
    assert [world.hosts[name].status["ignoring"] for name in ALL] == [[], [], []]
    world.drop = None
    send(world, 1, start=4)
    delivered(world, [1, 4])


def test_a_restarted_replica_learns_from_the_state_what_is_ignored() -> None:
    world = lossy()
    answer(world, IGNORE())
    losing(world, range(2, 3), *ALL)
    send(world, 3)
    delivered(world, [1])
    world.run(2 * SECOND)
    world.restart("n3")
    ready(world)
    assert world.hosts["n3"].status["ignoring"] == world.hosts["n1"].status["ignoring"]


# -- the lone leader, and suspension -----------------------------------------------------------------------------


def test_a_leader_that_is_alone_is_told_so_and_may_not_suspend_itself() -> None:
    world = lossy(voters=1)
    asked: list[LossInfo] = []

    def think(info: LossInfo) -> Action:
        asked.append(info)
        return SUSPEND if info.attempt < 3 else DROP

    answer(world, think)
    losing(world, range(2, 3), "n1")
    send(world, 3)
    delivered(world, [1, 3])
    assert all(info.cluster.alone for info in asked)
    assert not asked[0].refused
    assert "0 other voters" in asked[1].refused


def test_a_leader_does_not_suspend_itself_where_no_other_replica_may_lead() -> None:
    """Else the order of all streams would stand still each time, until it is seen that nobody takes over."""
    world = lossy(sources=2, never_lead=("n2", "n3"))
    answer(world, SUSPEND)
    losing(world, range(2, 3), "n1")
    send(world, 3)
    for number in range(1, 101):
        send(world, 1, "s2", start=number)
        world.run(10 * MILLISECOND)
        of_s2 = [
            item
            for item in world.hosts["n1"].app.got
            if item.stream == f"{node_id('s2').hex()}/1/0"
        ]
        assert len(of_s2) == number
    assert "may lead" in world.hosts["n1"].asked[-1].refused
    answer(world, DROP)
    world.run_until(lambda: len(world.hosts["n3"].app.got) == 102, 5 * SECOND)
    world.check()


@pytest.mark.parametrize("says", ["suspend", "recover else suspend"])
def test_a_table_that_says_suspend_goes_on_with_its_next_rule_when_that_is_refused(
    says: str,
) -> None:
    """Else nothing that comes after it in the stream is ever delivered."""
    world = lossy(voters=2, policy=(Rule(says, within_s=0.1), Rule("drop")))
    losing(world, range(2, 3), "n1", "n2")
    send(world, 3)
    delivered(world, [1, 3])


def test_a_leader_that_suspends_itself_is_followed_by_one_that_holds_the_lost_messages() -> None:
    """L8: nothing has to be recovered, n3 has it all and goes on. n2 gets it from n3 only afterwards."""
    world = lossy()
    answer(world, SUSPEND)
    losing(world, range(2, 4), "n1", "n2")
    only_from_source(world)
    lost = world.drop
    assert lost is not None
    world.drop = lambda a, b, frame: (
        lost(a, b, frame)
        or (
            (a, b) == ("n3", "n2")
            and isinstance(frame, Payload)
            and world.hosts["n1"].status["state"] == "leading"
        )
    )
    send(world, 5)
    delivered(world, [1, 2, 3, 4, 5])
    assert leader(world) == "n3"
    assert world.hosts["n1"].status["state"] == "following"
    assert [info.lost for info in world.hosts["n1"].asked] == [((2, 3),)]
    assert not world.hosts["n3"].asked


def test_a_leader_that_lacks_it_too_asks_its_own_application_again() -> None:
    """L8: if none holds the lost messages, the new leader asks."""
    world = lossy()
    said: list[str] = []

    def think(name: str) -> Callable[[LossInfo], Action]:
        def answer_of(_: LossInfo) -> Action:
            said.append(name)
            return SUSPEND if len(said) == 1 else DROP

        return answer_of

    for name in ALL:
        world.hosts[name].on_loss = think(name)
    losing(world, range(2, 3), *ALL)
    send(world, 3)
    delivered(world, [1, 3])
    assert said[0] == "n1"
    assert said[-1] != "n1"
    assert leader(world) != "n1"


def test_recover_else_suspend_lets_another_lead_when_recovery_fails() -> None:
    world = lossy()
    answer(world, RECOVER.otherwise(SUSPEND).within(0.1))
    losing(world, range(2, 3), "n1")
    send(world, 3)
    world.run_until(lambda: leader(world) in ("n2", "n3"), 5 * SECOND)
    world.drop = None
    delivered(world, [1, 2, 3])


def test_a_new_leader_resumes_what_is_ignored_and_counts_on_from_the_log() -> None:
    world = lossy()
    answer(world, IGNORE(("stream",), count=5))
    losing(world, range(2, 3), *ALL)
    send(world, 5)
    world.run(300 * MILLISECOND)
    assert world.hosts["n2"].status["ignoring"][0]["left"] == 2
    world.drop = None
    world.kill("n1")
    world.run_until(lambda: leader(world) in ("n2", "n3"), 5 * SECOND)
    send(world, 5, start=6)
    delivered(world, [1, 8, 9, 10])


def test_a_question_dies_with_the_term_and_the_new_leader_asks_it_again() -> None:
    world = lossy()
    for name in ALL:
        world.hosts[name].on_loss = lambda _: DROP
    losing(world, range(2, 3), *ALL)
    world.hosts["n1"].frozen = True
    send(world, 3)
    world.run(100 * MILLISECOND)
    assert world.hosts["n1"].status["questions"] == 1
    world.kill("n1")
    delivered(world, [1, 3])


def test_a_backup_that_cannot_get_a_message_of_the_order_takes_a_state_and_goes_on() -> None:
    """L7: it is suspended, restored, and takes part again, without stopping the group."""
    world = lossy(lack_ns=200 * MILLISECOND)
    losing(world, range(2, 3), "n3")
    send(world, 5)
    world.run_until(lambda: numbers(world, "n2") == [1, 2, 3, 4, 5], SECOND)
    delivered(world, [1, 2, 3, 4, 5], 20 * SECOND)
    assert any(name == "n3" for name, _ in world.events("restored"))


# -- streams that end, requests ----------------------------------------------------------------------------------


def test_a_stream_of_an_earlier_life_is_closed_when_all_of_it_is_ordered() -> None:
    world = lossy()
    answer(world, DROP)
    losing(world, range(3, 4), *ALL)
    send(world, 4)
    world.run(2 * MILLISECOND)
    world.restart("s1")
    world.drop = None
    send(world, 2)
    delivered(world, [1, 2, 4, 1, 2])
    world.run(SECOND)
    kinds = [fact.entry for fact in world.orders()]
    assert kinds.count("open") == 2
    assert kinds.count("close") == 1
    old = f"{node_id('s1').hex()}/1/0"
    tail = world.hosts["n2"].replica.inspect().log.tail  # type: ignore[union-attr]
    assert all(f"{s.source.hex()}/{s.incarnation}/{s.stream}" != old for s in tail.next)


def test_a_request_that_is_sent_again_after_a_restart_is_delivered_once() -> None:
    world = lossy()
    world.send("s1", [b"pay"], request=b"r1")
    world.send("s1", [b"pay"], request=b"r1")
    settle(world, 1)
    world.restart("s1")
    world.send("s1", [b"pay"], request=b"r1")
    world.send("s1", [b"other"], request=b"r2")
    settle(world, 2)
    assert [item.message for item in world.hosts["n2"].app.got] == [b"pay", b"other"]


def test_a_request_is_remembered_by_a_replica_that_was_given_a_state() -> None:
    world = lossy()
    world.send("s1", [b"pay"], request=b"r1")
    settle(world, 1)
    world.run(2 * SECOND)
    world.restart("n1")
    ready(world)
    world.send("s1", [b"pay"], request=b"r1")
    world.send("s1", [b"other"])
    settle(world, 2)
    assert [item.message for item in world.hosts["n1"].app.got] == [b"pay", b"other"]


# -- what is said ------------------------------------------------------------------------------------------------


def test_the_information_has_real_values() -> None:
    world = lossy(priorities=3)
    answer(world, DROP)
    losing(world, range(13, 15), "n1")
    for k in range(1, 13):
        world.send("s1", [b"%d" % k + b"." * 600], topic="rain")
        world.run(2 * MILLISECOND)
    world.send("s1", [b"13" + b"." * 600], priority=0)
    world.run(2 * MILLISECOND)
    world.send("s1", [b"14" + b"." * 600])
    world.run(2 * MILLISECOND)
    world.send("s1", [b"15" + b"." * 600], priority=1, topic="sun")
    delivered(world, [*range(1, 13), 15])
    info = world.hosts["n1"].asked[0]
    assert (info.lost, info.count) == (((13, 14),), 2)
    assert (info.cluster.replicas, info.cluster.reachable, info.cluster.alone) == (3, 3, False)
    assert info.transport.source == "s1"
    assert info.transport.source_reachable
    assert set(info.transport.topics) <= {"rain", "sun"}
    assert 400 <= info.transport.rate_per_s <= 600
    assert info.transport.packets == 13
    assert info.transport.nacks == 3
    assert info.priorities.exact
    assert info.priorities.known == ((13, 0), (14, 2))
    assert [(m.number, m.priority, m.topic) for m in info.next] == [(15, 1, "sun")]
    assert bytes(info.next[0].message).startswith(b"15")
    kinds = sorted((place.kind, place.name, place.numbers) for place in info.recovery.places)
    assert kinds == [("replica", "n2", 2), ("replica", "n3", 2), ("source", "s1", 2)]
    assert info.recovery.estimate_ns > 0
    assert 0 <= info.age.youngest_ns < info.age.oldest_ns
    waited = info.age.youngest_ns
    assert 2 * MILLISECOND <= info.age.oldest_ns - waited <= 4 * MILLISECOND


def test_tail_loss_is_found_and_its_priorities_are_known() -> None:
    world = lossy(priorities=2)
    answer(world, DROP)
    losing(world, range(3, 5), *ALL)
    send(world, 2)
    world.send("s1", [b"3" * 600], priority=0)
    world.send("s1", [b"4" * 600])
    world.run(300 * MILLISECOND)
    info = world.hosts["n1"].asked[0]
    assert info.lost == ((3, 4),)
    assert info.priorities.known == ((3, 0), (4, 1))
    assert not info.next
    assert info.age.oldest_ns > 0


@pytest.mark.parametrize("seed", range(6))
def test_under_loss_of_datagrams_everything_is_delivered_once_with_the_default(seed: int) -> None:
    world = World(seed, voters=3, sources=2, transport="datagram", datagram_loss=0.05, **FAST)
    world.start()
    ready(world)
    for k in range(100):
        for name in ("s1", "s2", "n1"):
            world.send(name, [b"%d" % k + b"." * 300])
        world.run(world.rng.randint(0, 2) * MILLISECOND)
    settle(world, 300)
    assert world.events("gap")
    assert not world.skipped()


@pytest.mark.parametrize("seed", range(6))
def test_under_loss_of_datagrams_only_what_may_be_dropped_is(seed: int) -> None:
    rules = (Rule("drop", priority=1, at_once=True),)
    world = World(
        seed, voters=3, sources=2, transport="datagram", datagram_loss=0.05, priorities=2, policy=rules, **FAST
    )  # fmt: skip
    world.start()
    ready(world)
    for k in range(150):
        for name in ("s1", "s2"):
            world.send(name, [b"%d" % k + b"." * 300], priority=0 if k % 3 == 0 else 1)
        world.run(world.rng.randint(0, 2) * MILLISECOND)
    settle(world, 100)
    world.run(SECOND)
    world.check()
    got = list(world.hosts["n2"].app.got)
    for name in ("s1", "s2"):
        stream = f"{node_id(name).hex()}/1/0"
        urgent = [item.number for item in got if item.stream == stream and item.number % 3 == 1]
        assert urgent == list(range(1, 151, 3))
    assert world.skipped()
    assert all(number % 3 != 1 for _, number in world.skipped())


# -- durable groups ----------------------------------------------------------------------------------------------


def test_a_durable_group_keeps_criteria_skipped_messages_and_requests() -> None:
    """Everybody restarts at once: entries, messages and what is said about them come from the disks."""
    world = lossy(durability="durable")
    answer(world, IGNORE(("topic",)))
    losing(world, range(2, 3), *ALL)
    send(world, 3, topic="rain")
    world.send("s1", [b"pay" + b"." * 600], request=b"r1")
    delivered(world, [1, 4])
    world.run(500 * MILLISECOND)
    for name in ALL:
        world.kill(name)
    world.start(*ALL)
    world.run_until(lambda: bool(leader(world)), 10 * SECOND)
    world.drop = None
    assert [row["what"] for row in world.hosts["n2"].status["ignoring"]] == [
        "topic rain permanently"
    ]
    send(world, 1, start=5, topic="rain")
    world.send("s1", [b"pay" + b"." * 600], request=b"r1")
    send(world, 1, start=7)
    delivered(world, [1, 4, 7], 10 * SECOND)


def test_what_a_message_says_of_others_survives_with_it() -> None:
    """Message 3 is on disk, behind a gap, when the replicas restart: its distances still tell what 2 was."""
    world = lossy(durability="durable", priorities=2, recover_ns=30 * SECOND, gone_ns=60 * SECOND)
    losing(world, range(2, 3), *ALL)
    send(world, 1)
    world.send("s1", [b"2" * 600], priority=0)
    send(world, 1, start=3)
    world.run(50 * MILLISECOND)
    world.kill("s1")
    for name in ALL:
        world.kill(name)
    world.start(*ALL)
    answer(world, DROP)
    delivered(world, [1, 3], 10 * SECOND)
    name = leader(world)
    assert world.hosts[name].asked[-1].priorities.known == ((2, 0),)


def test_a_leader_that_hands_over_does_not_spin_over_an_open_question() -> None:
    """What is due while it orders nothing must not wake it at every moment."""
    from holdfast.group.ports import HandOver

    world = lossy()
    answer(world, RECOVER.within(0.01))
    losing(world, range(2, 3), *ALL)
    send(world, 3)
    world.run(20 * MILLISECOND)
    drop = world.drop
    assert drop is not None
    world.drop = lambda a, b, frame: isinstance(frame, VoteRequest) or drop(a, b, frame)
    world.inject("n1", HandOver(()))
    before = world.turns_run
    world.run(100 * MILLISECOND)
    assert world.turns_run - before < 1000
