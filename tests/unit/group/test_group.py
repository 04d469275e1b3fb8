"""Groups as a whole, in virtual time: the order, what is lost on the way, restarts of followers, leader and sources."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.group.harness import FAST, GROUP, World, leader, leading, node_id, ready, settle
from tests.unit.group.talking import epoch_of, started, talk, texts

from holdfast.group.config import source_unit
from holdfast.group.frames import Append, Entry, Nack, Payload, StateChunk, StateRequest, StreamId
from holdfast.group.log.replicated_log import Kind
from holdfast.group.ports import AddReplica, AppFailed, Flush, RemoveReplica, RestartFromSurvivor
from holdfast.links.ports import Received
from holdfast.types import MILLISECOND, SECOND, NodeId
from holdfast.wire.blocks import pack_block

# -- the order ---------------------------------------------------------------------------------------------------


def test_all_replicas_deliver_the_same_in_the_same_order() -> None:
    """The selective-message-loss document: the leader decides one total order that respects every stream's order
    (L1)."""
    world = started(1, voters=3, learners=1, sources=2)
    sent = talk(world, ("n1", "n2", "s1", "s2"))
    settle(world, sent)
    assert {len(host.app.got) for host in world.hosts.values() if host.replica} == {sent}


def test_one_replica_alone_is_a_group() -> None:
    world = started(1, voters=1)
    settle(world, talk(world, ("n1",)))


def test_the_leader_makes_one_entry_for_each_stream_and_turn() -> None:
    """The leader's work is per range, not per message."""
    world = started(1, window_bytes=1_000_000, first_messages=500)
    world.send("n1", texts("a", 500))
    settle(world, 500)
    orders = [fact for fact in world.orders() if fact.entry == "order"]
    assert [(fact.first, fact.last, fact.position) for fact in orders] == [(1, 500, 1)]


def test_large_ranges_are_cut_into_entries_of_bounded_size() -> None:
    world = started(1, window_bytes=1_000_000, entry_bytes=10_000)
    world.send("n1", texts("a", 500, size=100))
    settle(world, 500)
    orders = [fact for fact in world.orders() if fact.entry == "order"]
    assert len(orders) >= 5
    assert max(fact.last - fact.first + 1 for fact in orders) <= 100


def test_time_in_the_order_never_goes_back() -> None:
    world = started(1)
    times: dict[str, list[int]] = {}

    def watch(name: str, effect: Any) -> None:
        if hasattr(effect, "log_ns"):
            times.setdefault(name, []).append(effect.log_ns)

    world.watch = watch
    sent = talk(world, ("n1", "n2"))
    world.restart("n1")
    ready(world)
    sent += talk(world, ("n2", "n3"))
    settle(world, sent)
    assert times["n2"] == sorted(times["n2"])
    assert len(times["n2"]) > 20


# -- what is lost on the way -------------------------------------------------------------------------------------


def test_a_replica_that_lacks_a_message_does_not_acknowledge_its_entry() -> None:
    """docs/design/groups.md, rule 1. Without n2 the leader needs n3, which has the entry but not the message."""
    world = started(1)
    world.drop = lambda sender, target, frame: target == "n3" and isinstance(frame, Payload)
    world.cut("n1", "n2")
    world.send("n1", [b"precious"])
    world.run(100 * MILLISECOND)
    n3 = world.hosts["n3"].status
    assert n3["lag"] == 1, "the entry itself is there"
    assert world.hosts["n1"].status["peers"]["n3"]["match"] == n3["last"]
    assert world.hosts["n1"].messages == [], "so it is not committed"
    world.drop = None
    world.run_until(lambda: world.hosts["n3"].messages == [b"precious"], 5 * SECOND)


def test_a_lost_last_message_is_found_without_further_traffic() -> None:
    """The selective-message-loss document, gaps: nothing comes after it, so only the source's own word shows that it is
    missing."""
    world = started(1)
    lost: list[Payload] = []

    def lose_once(sender: str, target: str, frame: Any) -> bool:
        if target == "n3" and isinstance(frame, Payload) and not lost:
            lost.append(frame)
            return True
        return False

    world.drop = lose_once
    world.send("n1", [b"the last one"])
    settle(world, 1, limit_ns=SECOND)
    assert lost
    assert [name for name, _ in world.events("recovered")] == ["n3"]


def test_a_gap_in_the_middle_is_asked_for_and_filled() -> None:
    world = started(1, sources=1)
    count = 0

    def lose_some(sender: str, target: str, frame: Any) -> bool:
        nonlocal count
        count += isinstance(frame, Payload)
        return isinstance(frame, Payload) and count % 7 == 0

    world.drop = lose_some
    settle(world, talk(world, ("s1", "n2"), rounds=40, count=3))
    assert world.events("gap")


def test_what_only_one_replica_got_of_a_source_that_died_is_delivered_by_all() -> None:
    """Rule 7: a number that anybody holds is a gap for the leader. The source died in the middle of its fan-out."""
    world = started(1, sources=1)
    world.drop = lambda sender, target, frame: sender == "s1" and target != "n2"
    world.send("s1", [b"will"])
    world.run(MILLISECOND)
    world.kill("s1")
    settle(world, 1, limit_ns=5 * SECOND)
    assert world.hosts["n1"].messages == [b"will"]


@pytest.mark.parametrize(("got_by", "count"), [(("n1", "n2", "n3"), 2000), (("n2",), 200)])
def test_of_however_many_sources_everything_is_delivered(
    got_by: tuple[str, ...], count: int
) -> None:
    """Also what only one replica got before they died: it tells the leader of all of them, by and by."""
    world = started(1, gone_ns=MILLISECOND, marks=64)
    block = memoryview(pack_block([b"one", b"two"]))
    for k in range(count):
        stream = StreamId(b"%016d" % k, 1, 0)
        for name in got_by:
            frame = Payload("book", stream, 1, 2, world.now, block)
            world.inject(name, Received(NodeId(stream.source), [frame], world.now))
    world.run_until(
        lambda: all(len(host.messages) == 2 * count for host in world.hosts.values()), 10 * SECOND
    )
    settle(world, 2 * count)


def test_sources_that_said_goodbye_are_forgotten() -> None:
    """Else a group whose senders come and go, each under an id of its own, remembers all of them for ever."""
    world = started(1, sources=20)
    sent = talk(world, tuple(f"s{k + 1}" for k in range(20)), rounds=2)
    settle(world, sent)
    for k in range(20):
        world.kill(f"s{k + 1}", left=k != 3)
    world.run(3 * SECOND)
    for name in ("n1", "n2", "n3"):
        replica = world.hosts[name].replica
        assert replica is not None
        core = replica.inspect()
        assert list(core.log.tail.next) == [StreamId(node_id("s4"), 1, 0)], "it may come back"
        assert len(core.streams.streams) == 1
        assert not core.streams.most_bytes()
    world.start("s1")
    world.send("s1", [b"again"])
    settle(world, sent + 1)


def test_a_restarted_source_is_a_new_stream() -> None:
    world = started(1, sources=1)
    world.send("s1", [b"one", b"two"])
    settle(world, 2)
    world.restart("s1")
    world.run(10 * MILLISECOND)
    world.send("s1", [b"three"])
    settle(world, 3)
    assert len({item.stream for item in world.hosts["n2"].app.got}) == 2


def test_a_replica_answers_for_an_earlier_life_of_the_source_on_its_own_node() -> None:
    """The source that is there now knows nothing of it."""
    world = started(1)
    world.restart("n2")
    ready(world)
    stream = StreamId(node_id("n2"), 1, 0)
    block = memoryview(pack_block([b"left over"]))
    world.inject(
        "n2", Received(node_id("n3"), [Payload("book", stream, 2, 1, 0, block)], world.now)
    )
    asked: list[Any] = []

    def watch(sender: str, target: str, frame: Any) -> bool:
        if sender == "n2" and isinstance(frame, Payload):
            asked.append((target, frame.stream, frame.first))
        return False

    world.drop = watch
    world.inject("n2", Received(node_id("n3"), [Nack("book", stream, ((1, 5),))], world.now))
    assert asked == [("n3", stream, 2)]


# -- restarts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["n2", "l1"])
def test_a_restarted_replica_is_given_a_state_and_catches_up(name: str) -> None:
    world = started(1, learners=1)
    sent = talk(world, ("n1", "n3"))
    world.facts.clear()
    world.restart(name)
    sent += talk(world, ("n1", "n3"))
    ready(world)
    settle(world, sent)
    assert [who for who, _ in world.events("restored")] == [name]


def test_a_replica_that_is_late_for_the_founding_is_given_a_state() -> None:
    world = World(1, voters=3, learners=1, **FAST)
    world.start("n1", "n2", "n3")
    world.run_until(lambda: leading(world), SECOND)
    sent = talk(world, ("n1",))
    world.start("l1")
    ready(world)
    settle(world, sent)


def test_a_large_state_arrives_over_a_lossy_network() -> None:
    world = started(1, loss=0.1, window_bytes=4_000_000)
    for _ in range(20):
        world.send("n1", texts("big", 100, size=1000))
        world.run(5 * MILLISECOND)
    settle(world, 2000)
    world.restart("n3")
    ready(world, limit_ns=60 * SECOND)
    settle(world, 2000)
    (_, fact), *_ = world.events("state_sent")
    assert int(fact.detail.split()[0]) > 40 * 48_000


def test_a_leader_that_restarts_is_replaced_in_a_higher_term() -> None:
    world = started(1)
    sent = talk(world, ("n2", "n3"))
    settle(world, sent)
    before = world.hosts["n2"].status["term"]
    world.restart("n1")
    world.send("n2", [b"meanwhile"])
    ready(world)
    sent += 1 + talk(world, ("n1", "n2", "n3"))
    settle(world, sent)
    assert world.hosts["n2"].status["term"] > before
    assert leader(world) in ("n2", "n3"), "the others did not wait for it"


def test_a_restarted_leader_delivers_what_its_earlier_life_had_decided_alone_with_one() -> None:
    """n3 is cut off from the leader; what n1 and n2 decided is in the order of n1's next life."""
    world = started(1)
    world.cut("n1", "n3")
    world.send("n1", [b"decided by n1 and n2"])
    world.run_until(lambda: world.hosts["n1"].messages != [], SECOND)
    world.kill("n1")
    world.heal("n1", "n3")
    world.start("n1")
    ready(world)
    world.send("n3", [b"later"])
    settle(world, 2)
    assert world.hosts["n3"].messages == [b"decided by n1 and n2", b"later"]


def test_a_conflicting_suffix_is_truncated_and_the_group_agrees() -> None:
    """The leader's last entries reached only n5, and the other three elect one of themselves."""
    world = started(1, voters=5)
    sent = talk(world, ("n1",), rounds=3)
    settle(world, sent)
    for name in ("n2", "n3", "n4"):
        world.cut("n1", name)
        world.cut("n5", name)
    world.send("n5", [b"only n1 and n5 know this order"])
    world.run(50 * MILLISECOND)
    old = world.hosts["n5"].status["last"]
    assert old == world.hosts["n1"].status["last"] > world.hosts["n2"].status["last"]
    world.run_until(lambda: leader(world) in ("n2", "n3", "n4"), 5 * SECOND)
    world.send("n2", [b"another order"])
    world.run(100 * MILLISECOND)
    assert world.hosts["n5"].status["last"] == old
    assert world.hosts["n5"].status["commit"] < old
    world.heal_all()
    settle(world, sent + 2)
    assert world.hosts["n5"].status["term"] == world.hosts["n2"].status["term"]


def test_every_replica_can_be_restarted_one_after_the_other() -> None:
    world = started(1, voters=3)
    sent = 0
    for name in ("n1", "n2", "n3", "n1", "n3", "n2"):
        sent += talk(world, tuple(other for other in world.names if other != name), rounds=3)
        settle(world, sent)
        world.restart(name)
        ready(world)
    settle(world, sent)


def test_entries_of_an_earlier_term_are_refused() -> None:
    world = started(1)
    world.restart("n1")
    ready(world)
    follower = "n3" if leader(world) == "n2" else "n2"
    before = world.hosts[follower].status
    entry = Entry(1, before["last"] + 1, 1, 0, Kind.TERM)
    late = Append("book", 1, before["last"], 1, 0, (entry,), 0, epoch_of(world))
    world.inject(follower, Received(node_id("n1"), [late], world.now))
    world.run(10 * MILLISECOND)
    after = world.hosts[follower].status
    assert (after["term"], after["last"]) == (before["term"], before["last"])
    assert after["ignored"]["old term"] == 1


def test_a_state_that_is_older_than_the_log_is_not_put_in() -> None:
    """What the log has above it was acknowledged."""
    world = started(1)
    settle(world, talk(world, ("n1",)))
    offer = StateChunk("book", 0, world.hosts["n3"].status["last"] + 1, 0, 0, memoryview(b""))
    world.inject("n3", Received(node_id("n1"), [offer], world.now))
    assert world.hosts["n3"].status["state"] == "restoring"
    world.run(100 * MILLISECOND)
    assert world.hosts["n3"].status["state"] == "following"
    assert world.hosts["n3"].status["ignored"] == {"old state": 1}
    assert world.events("restored") == []


# -- what a memory is worth --------------------------------------------------------------------------------------


def test_replicas_without_memory_found_no_second_group() -> None:
    """n1 and n3 have decided things, n2 has just started. n1 restarts and hears n2 first: a majority without state.
    Without lives in the view, or with a founding by a majority, another epoch would begin here."""
    world = started(1)
    sent = talk(world, ("n1",))
    settle(world, sent)
    world.isolate("n3")
    world.kill("n2")
    world.kill("n1")
    world.start("n1", "n2")
    world.run(2 * SECOND)
    assert {world.hosts[name].status["state"] for name in ("n1", "n2")} == {"starting"}
    world.heal_all()
    world.run(2 * SECOND)
    assert {world.hosts[name].status["state"] for name in ("n1", "n2")} == {"starting"}
    assert world.hosts["n3"].status["state"] == "halted"
    assert "state of a majority is lost (n1, n2" in world.hosts["n3"].status["why"]
    assert len(world.events("halted")) == 1, "said once"
    world.check()


def test_an_operator_restarts_the_group_from_the_replica_that_has_its_state() -> None:
    """Rule 2: losing the memory of a majority stops the group until an operator acts."""
    world = started(1)
    settle(world, talk(world, ("n1",)))
    world.isolate("n3")
    world.kill("n2")
    world.kill("n1")
    world.start("n1", "n2")
    world.heal_all()
    world.run(SECOND)
    world.inject("n3", RestartFromSurvivor())
    ready(world)
    world.send("n1", [b"on"])
    settle(world, 51)
    assert leader(world) == "n3"
    assert {member["part"] for member in world.hosts["n1"].status["view"]} == {"voter"}


@pytest.mark.parametrize("away_ms", [5, 20, 60, 100, 140, 300])
def test_a_leader_whose_fellows_all_forgot_says_so_and_can_be_told_to_go_on(away_ms: int) -> None:
    """However short they were away: it must not lead on for ever with changes that nobody can decide."""
    world = started(1)
    settle(world, talk(world, ("n1",)))
    world.kill("n2")
    world.kill("n3")
    world.run(away_ms * MILLISECOND)
    world.start("n2", "n3")
    world.run(5 * SECOND)
    assert world.hosts["n1"].status["state"] == "halted"
    assert "state of a majority is lost (n2, n3" in world.hosts["n1"].status["why"]
    world.inject("n1", RestartFromSurvivor())
    ready(world)
    world.send("n2", [b"on"])
    settle(world, 51)


@pytest.mark.parametrize("after_us", [0, 2000, *range(4000, 6000, 100)])
def test_a_leader_that_lost_both_fellows_one_by_one_can_be_told_to_go_on(after_us: int) -> None:
    """n3 dies just when n2 is being let in again: that is not decided, and takes n3 or n2's other life."""
    world = started(1)
    settle(world, talk(world, ("n1",)))
    world.kill("n2")
    world.run(500 * MILLISECOND)
    world.start("n2")
    world.run(after_us * 1000)
    world.kill("n3")
    world.run(SECOND)
    world.start("n3")
    world.run(5 * SECOND)
    if world.hosts["n1"].status["state"] == "halted":
        world.inject("n1", RestartFromSurvivor())
        world.run(2 * SECOND)
        if world.hosts["n2"].status["state"] == "suspended":
            world.restart("n2")  # It followed the other history.
    ready(world)
    world.send("n2", [b"on"])
    settle(world, 51)


def test_a_replica_that_has_its_state_admits_the_others_in_an_availability_group() -> None:
    """Nobody is on another side of a cut: the lives of the two others have ended."""
    world = started(1, mode="availability")
    settle(world, talk(world, ("n1",)))
    world.kill("n2")
    world.kill("n3")
    world.run(50 * MILLISECOND)
    world.start("n2", "n3")
    ready(world)
    world.send("n2", [b"on"])
    settle(world, 51)
    assert {member["part"] for member in world.hosts["n1"].status["view"]} == {"voter"}


def test_no_group_is_created_while_a_replica_has_the_state_of_one() -> None:
    """All voters restart, and a learner remembers: it can be told to go on with what it has."""
    world = started(1, learners=1)
    settle(world, talk(world, ("n1",)))
    for name in ("n1", "n2", "n3"):
        world.kill(name)
    world.start("n1", "n2", "n3")
    world.run(2 * SECOND)
    assert world.hosts["l1"].status["state"] == "halted"
    assert {world.hosts[name].status["state"] for name in ("n1", "n2", "n3")} == {"starting"}
    assert "l1 has its state" in world.hosts["n1"].status["why"]
    world.inject("l1", RestartFromSurvivor())
    ready(world)
    world.send("n2", [b"on"])
    settle(world, 51)


def test_voters_that_were_removed_found_no_group_of_their_own() -> None:
    """The group has moved from n1, n2, n3, which the configuration names, to l1, l2, l3."""
    world = started(1, learners=3)
    settle(world, talk(world, ("n1",)))
    for name in ("l1", "l2", "l3"):
        world.inject(leader(world), AddReplica(name, True))
        world.run(SECOND)
    for name in ("n3", "n2", "n1"):
        world.inject(leader(world), RemoveReplica(name))
        world.run(SECOND)
    assert leader(world).startswith("l")
    for name in ("n1", "n2", "n3"):
        world.kill(name)
    world.start("n1", "n2", "n3")
    world.run(5 * SECOND)
    assert {world.hosts[name].status["state"] for name in ("n1", "n2", "n3")} == {"removed"}
    assert leader(world).startswith("l")


def test_a_replica_of_a_group_that_is_well_does_not_go_on_alone() -> None:
    """Two groups of one name would be the end of its order. Who knows that the others are gone for good can say so."""
    world = started(1)
    settle(world, talk(world, ("n1",)))
    world.inject("n2", RestartFromSurvivor())
    world.inject("n1", RestartFromSurvivor(force=True))
    world.run(SECOND)
    assert leader(world) == "n1"
    assert not world.events("refounded")
    world.kill("n1")
    world.kill("n3")
    world.run(SECOND)
    world.inject("n2", RestartFromSurvivor())
    world.run(SECOND)
    assert leader(world) == ""
    world.inject("n2", RestartFromSurvivor(force=True))
    world.run(SECOND)
    assert leader(world) == "n2"


def test_a_removed_replica_stays_out_when_another_continues_alone() -> None:
    world = started(1, learners=1)
    settle(world, talk(world, ("n1",)))
    world.inject("n1", RemoveReplica("l1"))
    world.run(SECOND)
    world.kill("n1")
    world.kill("n3")
    world.run(SECOND)
    world.inject("n2", RestartFromSurvivor(force=True))
    world.restart("l1")
    world.run(5 * SECOND)
    assert leader(world) == "n2"
    assert world.hosts["l1"].status["state"] == "removed"


def test_a_replica_says_whom_it_waits_for() -> None:
    world = World(1)
    world.start("n1", "n3")
    world.run(SECOND)
    assert world.hosts["n1"].status["state"] == "starting"
    assert "n2 is unreachable" in world.hosts["n1"].status["why"]
    assert "n2 is unreachable" in world.hosts["n3"].status["why"]
    world.start("n2")
    ready(world)
    assert world.hosts["n1"].status["why"] == ""


def test_a_memory_that_is_not_whole_yet_decides_nothing() -> None:
    """n2 acknowledged an entry, restarted, and was given an older state by n3. When n1 restarts too, n2 and n3 together
    do not know what n1 and n2 had decided: nobody may lead on their word."""
    world = started(1)

    def n1_gives_nothing(to: str) -> Callable[[str, str, Any], bool]:
        def is_withheld(sender: str, target: str, frame: Any) -> bool:
            entries = isinstance(frame, Append) and bool(frame.entries)
            given = sender == "n1" and target in to and entries
            return given or (isinstance(frame, StateRequest) and target == "n1")

        return is_withheld

    world.drop = n1_gives_nothing("n3")
    world.send("n1", [b"decided by n1 and n2"])
    world.run_until(lambda: world.hosts["n2"].messages != [], SECOND)
    world.drop = n1_gives_nothing("n2 n3")
    world.restart("n2")
    world.run_until(lambda: world.hosts["n2"].status["memory"] == "learning", 10 * SECOND)
    assert world.hosts["n2"].messages == [], "n3's state is older"
    world.kill("n1")
    world.drop = None
    world.start("n1")
    world.run(3 * SECOND)
    world.send("n3", [b"must not take the place of the other"])
    world.run(SECOND)
    assert leader(world) == ""
    world.check()


def test_a_group_that_lost_all_memory_begins_again_where_the_sources_are() -> None:
    world = started(1, sources=1)
    world.send("s1", [b"before"])
    settle(world, 1)
    world.run(2 * SECOND)
    for name in ("n1", "n2", "n3"):
        world.kill(name)
    world.past.clear()
    world.start("n1", "n2", "n3")
    ready(world)
    world.send("s1", [b"after"])
    world.run_until(
        lambda: all(world.hosts[name].messages == [b"after"] for name in ("n1", "n2", "n3")),
        5 * SECOND,
    )


def test_a_replica_left_over_from_an_earlier_life_of_the_group_suspends_itself() -> None:
    world = started(1, learners=1)
    world.send("n1", [b"old history"])
    settle(world, 1)
    for name in ("n1", "n2", "n3"):
        world.kill(name)
    world.past.clear()
    world.isolate("l1")
    world.start("n1", "n2", "n3")
    world.run_until(lambda: leading(world), 5 * SECOND)
    world.heal_all()
    world.send("n2", [b"new history"])
    world.run(SECOND)
    assert world.hosts["l1"].messages == [b"old history"]
    assert world.hosts["l1"].status["state"] == "suspended"
    assert "another epoch" in world.hosts["l1"].status["why"]
    world.restart("l1")
    world.run_until(lambda: world.hosts["l1"].messages == [b"new history"], 5 * SECOND)


# -- what is decided ---------------------------------------------------------------------------------------------


def flushed(world: World, name: str, number: int) -> bool:
    """Whether the source on a node knows what becomes of its messages up to a number."""
    return world.hosts[name].settled >= number


def flush(world: World, name: str, number: int) -> None:
    world._feed(world.hosts[name], source_unit(GROUP), Flush(number))


@pytest.mark.parametrize("settings", [{}, {"durability": "durable"}, {"delivery": "fast"}])
@pytest.mark.parametrize("name", ["n1", "n2", "s1"])
def test_a_source_learns_that_its_messages_are_decided(name: str, settings: dict[str, Any]) -> None:
    """Although nothing can be let go of, because one of the replicas is gone."""
    world = started(1, sources=1, **settings)
    world.kill("n3")
    for k in range(5):
        world.send(name, [b"%d" % k])
    flush(world, name, 5)
    world.run_until(lambda: flushed(world, name, 5), SECOND)
    assert {len(world.hosts[other].messages) for other in ("n1", "n2")} == {5}
    assert world.hosts[name].source.held > 0


@pytest.mark.parametrize("settings", [{}, {"delivery": "fast"}])
def test_a_source_is_not_told_that_what_is_not_decided_is(settings: dict[str, Any]) -> None:
    """n1 has its message, and in `fast` groups has applied it; nobody else has. When the others are back it is."""
    world = started(1, **settings)
    settle(world, talk(world, ("n1",), rounds=2))
    world.isolate("n1")
    number = world.hosts["n1"].source._last + 1
    world.send("n1", [b"not decided"])
    flush(world, "n1", number)
    world.run(2 * SECOND)
    assert not flushed(world, "n1", number)
    world.heal_all()
    world.run_until(lambda: flushed(world, "n1", number), 5 * SECOND)


# -- the application ---------------------------------------------------------------------------------------------


def test_a_message_that_every_application_fails_at_halts_the_group_and_is_named() -> None:
    """The leader too: that it is suspended itself is not what an operator has to know."""
    world = started(1)
    for name in ("n1", "n2", "n3"):
        world.hosts[name].fails_at = 2
    world.send("n1", [b"one", b"two", b"three"])
    world.run(2 * SECOND)
    halted = {n: host.status for n, host in world.hosts.items() if host.status["state"] == "halted"}
    assert [status["leader"] == name for name, status in halted.items()] == [True]
    assert re.search(r"entry \d+ fails on n\d, n\d", next(iter(halted.values()))["why"])


def test_an_application_that_cannot_take_a_state_is_given_another_one() -> None:
    world = started(1, rejoin_ns=50 * MILLISECOND)
    world.hosts["n3"].fails_at = 2
    world.hosts["n3"].fails_to_restore = 2
    world.send("n1", [b"one", b"two", b"three"])
    world.run(20 * MILLISECOND)
    assert world.hosts["n3"].status["state"] == "suspended"
    world.hosts["n3"].fails_at = 0
    world.run_until(lambda: world.hosts["n3"].messages == [b"one", b"two", b"three"], 5 * SECOND)
    assert world.hosts["n3"].fails_to_restore == 0


def test_an_application_that_raises_suspends_its_replica_and_no_other() -> None:
    """Rule 9; and L7: it comes back by itself, with the state of one that did not fail."""
    world = started(1)
    world.hosts["n2"].fails_at = 7
    sent = talk(world, ("n1", "n3"))
    world.run_until(
        lambda: len(world.hosts["n3"].messages) == sent == len(world.hosts["n1"].messages),
        5 * SECOND,
    )
    world.run(200 * MILLISECOND)
    assert world.hosts["n2"].status["state"] == "suspended"
    assert "deliberate" in world.hosts["n2"].status["why"]
    assert len(world.hosts["n2"].messages) < 7
    suspended = [m["name"] for m in world.hosts["n1"].status["view"] if m["suspended"]]
    assert suspended == ["n2"], "by an entry; it is not removed"
    world.run(500 * MILLISECOND)
    assert all(host.source.held == 0 for host in world.hosts.values()), "it holds nobody back"
    settle(world, sent)
    ready(world)
    assert [name for name, _ in world.events("restored")] == ["n2"]


def test_a_failed_replica_that_cannot_be_suspended_holds_no_other_back() -> None:
    """One of two: the other alone would be no majority. It had been given all that there was, and the source has no
    room, so nothing comes any more that would take it further."""
    world = started(1, voters=2, rejoin_ns=100 * SECOND)
    settle(world, talk(world, ("n1",), rounds=200, count=20))
    host, source = world.hosts["n2"], world.hosts["n1"].source
    host.frozen = True
    talk(world, ("n1",), rounds=200, count=20)
    world.run(SECOND)
    assert source.held > 32_000, "it waits for n2"
    world.inject("n2", AppFailed(host.status["applied"] + 1, "deliberate"))
    world.run(SECOND)
    assert host.status["state"] == "suspended"
    assert [member["suspended"] for member in host.status["view"]] == [False, False]
    assert source.held == 0


def test_a_leader_whose_application_raises_hands_over() -> None:
    world = started(1)
    world.hosts["n1"].fails_at = 7
    sent = talk(world, ("n1", "n3"))
    world.run_until(lambda: leader(world) in ("n2", "n3"), SECOND)
    settle(world, sent)
    assert [name for name, _ in world.events("restored")] == ["n1"]


def test_a_message_that_a_majority_cannot_take_halts_the_group_and_is_named() -> None:
    """Rule 9: without it the next leader and the next would take it, fail, and rejoin, for ever."""
    world = started(1)
    for name in ("n1", "n2"):
        world.hosts[name].fails_at = 7
    talk(world, ("n1", "n3"), rounds=3)
    world.run(SECOND)
    halted = [host.status for host in world.hosts.values() if host.status["state"] == "halted"]
    assert len(halted) == 1
    assert "fails on n1, n2: the application failed at entry" in halted[0]["why"]
    before = world.hosts["n3"].status["last"]
    world.send("n3", [b"not ordered any more"])
    world.run(SECOND)
    assert world.hosts["n3"].status["last"] == before
    world.drop = lambda sender, target, frame: isinstance(frame, Payload) and frame.count == 1
    world.send("n3", [b"a gap"])
    world.send("n3", [b"after", b"it"])
    world.run(200 * MILLISECOND)
    turns = world.turns_run
    world.run(SECOND)
    assert world.turns_run - turns < 1000, "nor does it wake for questions that it does not ask"


def test_a_suspended_replica_gives_no_state() -> None:
    world = started(1, rejoin_ns=100 * SECOND)
    world.hosts["n1"].fails_at = 7
    sent = talk(world, ("n1", "n3"))
    world.run(SECOND)
    assert world.hosts["n1"].status["state"] == "suspended"
    world.restart("n2")
    world.run_until(lambda: len(world.hosts["n2"].messages) == sent, 10 * SECOND)
    assert [name for name, _ in world.events("state_sent")] == ["n3"]


def test_status_says_what_people_ask() -> None:
    world = started(1)
    settle(world, talk(world, ("n1",)))
    status = world.hosts["n1"].status
    assert (status["leader"], status["state"], status["position"], status["lag"]) == (
        "n1",
        "leading",
        50,
        0,
    )
    assert list(status["peers"]) == ["n2", "n3"]
    label = f"{node_id('n1').hex()}/1/0"
    assert status["streams"][label] == {"held": 0, "next": 51, "lag": 0}
    assert status["digest"] == world.hosts["n2"].status["digest"] != 0
    source = world.hosts["n1"].source.status()
    assert (source["last"], source["freed"], source["held"]) == (50, 50, 0)


def test_an_entry_of_another_history_is_not_believed() -> None:
    world = started(1)
    forged = Append("book", 9, 0, 0, 0, (Entry(9, 1, 1, 0, 2),), 0, 99)
    world.inject("n3", Received(node_id("n2"), [forged], world.now))
    assert world.hosts["n3"].status["term"] == 2
    assert world.hosts["n3"].status["ignored"] == {"another epoch": 1}
    assert world.hosts["n3"].status["state"] == "following", "its own leader is well"
