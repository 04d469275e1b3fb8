"""Large groups: sources send to voters, and learners get messages from other replicas (rule 11 of stability)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.group.harness import GROUP, World, node_id, ready, settle
from tests.unit.group.talking import texts

from holdfast.group.config import GroupConfig
from holdfast.group.frames import AppendResponse, FeedRequest, Nack, Payload
from holdfast.group.log.entries import Member, View
from holdfast.group.membership.relay_tree import FAN_OUT, feeds_of, relays
from holdfast.group.streams.relay import EXPIRES_NS, FEEDS_MAX
from holdfast.links.ports import Received
from holdfast.types import MILLISECOND, SECOND, NodeId

Count = dict[tuple[str, str, str], int]


def view_of(voters: int, learners: int, suspended: tuple[str, ...] = ()) -> View:
    names = [f"n{k + 1}" for k in range(voters)] + [f"l{k + 1}" for k in range(learners)]
    members = [
        Member(name, node_id(name), 1, name[0] == "n", False, name in suspended, name[0] == "n")
        for name in names
    ]
    return View(1, tuple(members))


def large(learners: int = 20, **settings: Any) -> tuple[World, Count]:
    """Three voters and some learners, with relay, and what they send to each other: (from, to, frame)."""
    world = World(1, 3, learners, 1, relay_from=4, **settings)
    counts: Count = {}

    def count(sender: str, target: str, frame: object) -> bool:
        key = (sender, target, type(frame).__name__)
        counts[key] = counts.get(key, 0) + 1
        return False

    world.drop = count
    world.start()
    ready(world)
    world.run_until(lambda: world.hosts["n1"].members == 3 + learners, 10 * SECOND)
    world.run(2 * SECOND)
    counts.clear()
    return world, counts


def feeds(world: World) -> dict[str, str]:
    """The feed of each learner."""
    return {
        name: str(host.status["relay"]["from"])
        for name, host in world.hosts.items()
        if host.replica is not None and name[0] == "l"
    }


# -- the tree --------------------------------------------------------------------------------------------------------


def test_where_every_voter_is_suspended_a_learner_has_no_feed() -> None:
    assert feeds_of(view_of(2, 20, ("n1", "n2")), "l20", "n1") == []


@pytest.mark.parametrize(("voters", "learners"), [(1, 40), (3, 100), (9, 291)])
def test_every_learner_is_below_the_voters_and_no_replica_has_many_children(
    voters: int, learners: int
) -> None:
    view = view_of(voters, learners)
    first = {f"l{k + 1}": feeds_of(view, f"l{k + 1}", "n1")[0] for k in range(learners)}
    children = [list(first.values()).count(name) for name in dict.fromkeys(first.values())]
    assert max(children) <= FAN_OUT
    if voters > 1:
        assert "n1" not in first.values(), "the leader passes nothing on"
    depths = []
    for name in first:
        depth, at = 0, name
        while at in first:
            depth, at = depth + 1, first[at]
            assert depth < 10, "a cycle"
        depths.append(depth)
    assert max(depths) <= 3


def test_a_learner_has_other_replicas_to_turn_to_and_suspended_ones_are_not_among_them() -> None:
    view = view_of(3, 100, suspended=("n2", "l1"))
    for k in range(100):
        found = feeds_of(view, f"l{k + 1}", "n1")
        assert len(found) >= 2
        assert not {"n2", "l1"} & set(found)
        assert len(set(found)) == len(found)
        assert found[-1] == "n1", "the leader last"


def test_voters_and_strangers_have_no_feed() -> None:
    assert feeds_of(view_of(3, 10), "n2", "n1") == []
    assert feeds_of(view_of(3, 10), "x", "n1") == []


@pytest.mark.parametrize(
    ("voters", "learners", "mode", "expected"),
    [(3, 1, "majority", True), (4, 0, "majority", False), (3, 1, "availability", False), (2, 1, "majority", False)],
)  # fmt: skip
def test_relay_is_for_large_majority_groups_with_learners(
    voters: int, learners: int, mode: Any, expected: bool
) -> None:
    config = GroupConfig("g", ("n1",), relay_from=4, mode=mode)
    assert relays(config, view_of(voters, learners)) is expected
    assert not relays(config, None)


# -- messages --------------------------------------------------------------------------------------------------------


def test_a_source_sends_to_the_voters_only_and_all_deliver() -> None:
    world, counts = large(40)
    for k in range(10):
        world.send("s1", texts(f"{k}", 5))
        world.run(5 * MILLISECOND)
    settle(world, 50)
    receivers = [to for sender, to, kind in counts if sender == "s1" and kind == "Payload"]
    assert sorted(receivers) == ["n1", "n2", "n3"]
    passed = sum(count for (_, _, kind), count in counts.items() if kind == "Payload")
    assert passed == 43 * counts[("s1", "n1", "Payload")], "every replica gets a message once"
    assert sum(count for (_, _, kind), count in counts.items() if kind == "Nack") == 0
    assert (
        max(int(host.status["relay"]["to"]) for host in world.hosts.values() if host.replica) <= 8
    )


def test_equal_views_are_not_compared_in_every_turn() -> None:
    """When entries are freed, the committed view is another object with the same members. Comparing them takes as long
    as the group is large, in every turn of every replica."""
    world, _ = large(10)
    world.send("s1", texts("k", 5))
    settle(world, 5)
    world.run(SECOND)
    replica = world.hosts["l1"].replica
    assert replica is not None
    assert replica._relay._known[0] is replica.inspect().log.committed_view


def test_messages_of_a_learner_reach_all_once() -> None:
    world, counts = large(20)
    world.send("l7", texts("l7", 20))
    settle(world, 20)
    payloads = {key: count for key, count in counts.items() if key[2] == "Payload"}
    assert all(to != "l7" for _, to, _ in payloads), "they do not come back to their source"
    assert sum(payloads.values()) == 22


def test_learners_report_less_often_than_voters() -> None:
    """They commit nothing. At full load the leader would be busy with their acknowledgements."""
    world, counts = large(20)
    for k in range(50):
        world.send("s1", texts(f"{k}", 2))
        world.run(2 * MILLISECOND)
    settle(world, 100)
    kind = AppendResponse.__name__
    voters = counts[("n2", "n1", kind)]
    learners = [counts.get((f"l{k + 1}", "n1", kind), 0) for k in range(20)]
    assert max(learners) < voters // 4, (voters, learners)
    assert min(learners) > 0


def test_when_a_feed_is_lost_its_learners_take_another() -> None:
    world, _ = large(20)
    before = feeds(world)
    lost = "n2"
    assert lost in before.values()
    world.kill(lost)
    for k in range(20):
        world.send("s1", texts(f"{k}", 5))
        world.run(5 * MILLISECOND)
    world.run_until(
        lambda: all(len(host.app.got) == 100 for host in world.hosts.values() if host.replica),
        10 * SECOND,
    )
    after = feeds(world)
    assert lost not in after.values()
    assert {name for name in after if after[name] != before[name]} == {
        name for name in before if before[name] == lost
    }
    world.check()


def test_a_feed_that_brings_nothing_is_given_up() -> None:
    """The path from the feed to l1 carries no messages, although the session lives. Requests find them elsewhere, and
    then l1 changes its feed."""
    world, _ = large(4)
    bad = feeds(world)["l1"]
    world.drop = lambda sender, to, frame: (
        sender == bad and to == "l1" and isinstance(frame, Payload)
    )
    for k in range(150):
        world.send("s1", texts(f"{k}", 1))
        world.run(20 * MILLISECOND)
    assert feeds(world)["l1"] not in ("", bad)
    settle(world, 150)


def test_missing_messages_are_requested_from_the_feed_and_its_neighbours_before_the_leader() -> (
    None
):
    world, _ = large(20)
    feed = feeds(world)["l1"]
    asked: list[str] = []

    def drop(_sender: str, to: str, frame: object) -> bool:
        if isinstance(frame, Nack) and _sender == "l1":
            asked.append(to)
        return to == "l1" and isinstance(frame, Payload) and len(asked) < 4

    world.drop = drop
    world.send("s1", texts("s1", 3))
    settle(world, 3)
    assert asked[:2] == [feed, feed]
    assert "n1" not in asked[:3]


# -- hostile input ---------------------------------------------------------------------------------------------------


def ask(world: World, node: NodeId, wanted: bool = True, name: str = "n2") -> None:
    world.inject(name, Received(node, [FeedRequest(GROUP, wanted)], world.now))


def test_strangers_get_no_feed_and_the_number_of_feeds_is_bounded() -> None:
    world, _ = large(4, joiners=0)
    before = world.hosts["n2"].status["relay"]["to"]
    ask(world, NodeId(b"z" * 16))
    ask(world, node_id("s1"))
    assert world.hosts["n2"].status["relay"]["to"] == before
    assert world.hosts["n2"].status["ignored"]["stranger"] >= 2
    assert FEEDS_MAX > FAN_OUT


def test_a_feed_that_is_not_requested_again_ends() -> None:
    world, counts = large(4)
    ask(world, node_id("n3"))
    before = int(world.hosts["n2"].status["relay"]["to"])
    world.run(EXPIRES_NS + 2 * SECOND)
    assert int(world.hosts["n2"].status["relay"]["to"]) == before - 1
    ask(world, node_id("n3"))
    ask(world, node_id("n3"), wanted=False)
    counts.clear()
    world.send("s1", texts("s1", 5))
    settle(world, 5)
    assert ("n2", "n3", "Payload") not in counts
