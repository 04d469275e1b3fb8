"""Each claim of the document 'Selective message loss handling in a cluster of replicated servers', as a test.

The docstrings cite it by the words of the paragraph that makes the claim.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.group.harness import World, node_id, ready, settle
from tests.unit.group.losing import (
    ALL,
    FAST,
    answer,
    brought,
    delivered,
    leader,
    losing,
    lossy,
    numbers,
    only_from_source,
    send,
)

from holdfast.group.frames import Idle, MessageMetadata, Payload, StreamId
from holdfast.group.loss.actions import DROP, IGNORE, RECOVER, SUSPEND, Action
from holdfast.group.loss.loss_info import LossInfo
from holdfast.group.loss.rule import Rule
from holdfast.group.streams.message_metadata import Annotator, distances_at, indicate
from holdfast.group.streams.values import Indication, Note
from holdfast.types import MILLISECOND, SECOND
from holdfast.wire.codec import encode

TABLE_1 = {
    "P": (1, 1, 0, 1, 0, 0, 0, 1, 1, 0),
    "D0": (-1, -1, -1, 1, 2, 1, 1, 1, 2, 3),
}
TABLE_2 = {
    "P": (1, 2, 0, 1, 2, 0, 0, 2, 1, 0),
    "D0": (-1, -1, -1, 1, 2, 3, 1, 1, 2, 3),
    "D1": (-1, 1, 2, 3, 1, 2, 3, 4, 5, 1),
}


def notes(priorities: tuple[int, ...]) -> list[tuple[int, Note]]:
    return [(place, Note(priority)) for place, priority in enumerate(priorities)]


def distances_of(priorities: tuple[int, ...], levels: int, cut: int) -> list[tuple[int, ...]]:
    """What each message says, sent in frames of `cut` messages."""
    annotator = Annotator(levels)
    found: list[tuple[int, ...]] = []
    for start in range(0, len(priorities), cut):
        part = priorities[start : start + cut]
        about = annotator.take(0, len(part), notes(part))
        found += [distances_at(about, place) for place in range(len(part))]
    return found


# -- the two tables ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 2, 3, 7, 10])
def test_table_1_is_what_a_source_with_two_priorities_sends(cut: int) -> None:
    """'Table 1 shows metadata as transmitted from source, where -1 represents that no high priority was previously
    sent.' The same whatever frames the messages travel in."""
    assert distances_of(TABLE_1["P"], 2, cut) == [(d,) for d in TABLE_1["D0"]]


@pytest.mark.parametrize("cut", [1, 2, 3, 7, 10])
def test_table_2_is_what_a_source_with_three_priorities_sends(cut: int) -> None:
    """'Two ordinal distances may be utilized in order to indicate ordinal distance from the last high priority and
    medium priority messages. Table 2 shows metadata as transmitted from source.'"""
    expected = list(zip(TABLE_2["D0"], TABLE_2["D1"], strict=True))
    assert distances_of(TABLE_2["P"], 3, cut) == expected


def gaps(count: int) -> list[tuple[int, int]]:
    """All (X, Y) with something lost between them."""
    return [(x, y) for x in range(count) for y in range(x + 2, count + 1)]


@pytest.mark.parametrize(("before", "after"), gaps(10))
def test_a_lost_message_of_high_priority_is_noticed_in_table_1(before: int, after: int) -> None:
    """'IF (D(Y) == -1) OR (SQN(Y) - D(Y) <= SQN(X)) THEN only messages of low priority have been lost ELSE at least
    one message of high priority has been lost.'"""
    lost = TABLE_1["P"][before : after - 1]
    found = indicate(before, after, (TABLE_1["D0"][after - 1],), 2)
    assert (found.at_least[0] > 0) == (0 in lost)
    assert (found.possible == (1,)) == (0 not in lost)


@pytest.mark.parametrize(("before", "after"), gaps(10))
def test_a_lost_message_of_each_priority_is_noticed_in_table_2(before: int, after: int) -> None:
    """'Using the corresponding ordinal distance metadata, it can be determined whether a message of priority p was
    not received by the receiver.'"""
    lost = TABLE_2["P"][before : after - 1]
    distances = (TABLE_2["D0"][after - 1], TABLE_2["D1"][after - 1])
    found = indicate(before, after, distances, 3)
    for priority in (0, 1):
        assert (found.at_least[priority] > 0) == (priority in lost)
    for number, priority in found.known:
        assert TABLE_2["P"][number - 1] == priority


def test_the_number_of_lost_messages_is_the_difference_of_the_identifiers() -> None:
    """'After receiving message #45, next message should be #46. If any other message is received, e.g., #58, message
    loss may be detected. In the above example, twelve (12) messages are lost.'"""
    found: Indication = indicate(45, 58, (), 1)
    assert found.at_least == found.at_most == (12,)


def test_a_frame_without_priorities_says_that_all_are_of_the_lowest() -> None:
    """'At the sender side, a priority is assigned to each message': one that is not told has the lowest."""
    annotator = Annotator(3)
    assert annotator.take(0, 5).priorities == b""
    assert annotator.take(0, 1, [(0, Note(0))]).priorities == b"\0"
    assert annotator.next(0) == MessageMetadata(b"", (1, -1), (0, -1, -1, -1))


# -- what a lost message may cost, and what not ------------------------------------------------------------------


@pytest.mark.parametrize("lost_at", [("n1",), ("n1", "n2", "n3")])
def test_loss_does_not_stop_the_cluster(lost_at: tuple[str, ...]) -> None:
    """'All the servers in the cluster may be forced to suspend themselves due to message loss from which they cannot
    recover. This leads to a failure of the application.' Here the leader decides, and the others follow."""
    world = lossy()
    answer(world, DROP)
    losing(world, range(2, 3), *lost_at)
    send(world, 4)
    delivered(world, [1, 3, 4])
    assert all(not world.hosts[name].status["why"] for name in ALL)


def test_the_order_keeps_the_order_of_every_stream() -> None:
    """'The total order can maintain the partial orders dictated by the message streams.'"""
    world = World(voters=3, sources=2)
    world.start()
    ready(world)
    for k in range(20):
        world.send("s1", [b"a%d" % k])
        world.send("s2", [b"b%d" % k])
    settle(world, 40)
    got = world.hosts["n3"].messages
    assert [m for m in got if m[:1] == b"a"] == [b"a%d" % k for k in range(20)]
    assert [m for m in got if m[:1] == b"b"] == [b"b%d" % k for k in range(20)]


def test_recovery_comes_before_the_question() -> None:
    """'Optionally, message recovery is attempted using any message recovery mechanism. If recovery succeeded, [the
    order is determined], while if not all messages are recovered, [loss information is generated].'"""
    world = lossy()
    answer(world, DROP)
    losing(world, range(2, 3), "n1")
    drop = world.drop
    assert drop is not None
    lost: list[int] = []

    def once(sender: str, target: str, frame: Any) -> bool:
        if drop(sender, target, frame) and not lost:
            lost.append(frame.first)
            return True
        return False

    world.drop = once
    send(world, 3)
    delivered(world, [1, 2, 3])
    assert lost == [2]
    assert not world.hosts["n1"].asked


# -- the information ---------------------------------------------------------------------------------------------


def asked_about(world: World, lost: range, *targets: str, count: int = 5) -> LossInfo:
    """What the leader's application is told when it is asked, in a group that then drops."""
    answer(world, DROP)
    losing(world, lost, *targets)
    send(world, count)
    delivered(world, [n for n in range(1, count + 1) if n not in lost])
    return world.hosts["n1"].asked[0]


def test_status_of_the_cluster_tells_a_leader_that_it_is_alone() -> None:
    """'When the leader is the only active server in the cluster, suspension of the leader would mean that the whole
    cluster would stop functioning, and thereby a different behavior may be determined.'"""
    assert asked_about(lossy(voters=1), range(2, 3), "n1").cluster.alone
    status = asked_about(lossy(), range(2, 3), *ALL).cluster
    assert (status.replicas, status.reachable, status.alone) == (3, 3, False)


def test_number_of_lost_messages() -> None:
    """'Different behavior may be performed when a large number of messages are lost than that is performed when only
    one message is lost.'"""
    assert asked_about(lossy(), range(2, 5), *ALL).count == 3


def test_transport_information() -> None:
    """'The information may include the source of the messages, the message stream, the topic, [...] message rate,
    number of packets received, number of Negative-ACKnowledges (NACKs) sent.'"""
    world = lossy()
    answer(world, DROP)
    losing(world, range(3, 4), *ALL)
    for k in range(1, 6):
        world.send("s1", [b"%d" % k], topic="prices")
        world.run(MILLISECOND)
    delivered(world, [1, 2, 4, 5])
    info = world.hosts["n1"].asked[0].transport
    assert info.source == "s1"
    assert info.stream.source == node_id("s1")
    assert info.topics == ("prices",)
    assert 800 <= info.rate_per_s <= 1200
    assert info.packets >= 3
    assert info.nacks >= 1


@pytest.mark.parametrize("lost_by_all", [False, True])
def test_priorities_are_asked_from_the_cluster_where_distances_do_not_tell_all(
    lost_by_all: bool,
) -> None:
    """'Priority indications may be determined by requesting information from the cluster, thereby the other servers of
    the cluster, which may have received the lost messages, may provide the priority indications.' Of some of them, if
    nobody has all."""
    world = lossy(priorities=2)
    answer(world, DROP)
    losing(world, range(2, 5), "n1")
    drop = world.drop
    assert drop is not None
    world.drop = lambda a, b, frame: (
        drop(a, b, frame) or (lost_by_all and isinstance(frame, Payload) and frame.first == 3)
    )
    for k, priority in enumerate((1, 0, 1, 0, 1), 1):
        world.send("s1", [b"%d" % k + b"." * 600], priority=priority)
    delivered(world, [1, 5])
    distances_alone = indicate(1, 5, (1,), 2)
    assert distances_alone.known == ((4, 0),)
    found = world.hosts["n1"].asked[0].priorities
    assert found.known == (((2, 0), (4, 0)) if lost_by_all else ((2, 0), (3, 1), (4, 0)))
    assert (found.at_least, found.at_most) == (
        ((2, 0), (3, 1)) if lost_by_all else ((2, 1), (2, 1))
    )


def test_content_of_the_next_messages() -> None:
    """'A message may contain "rollback" instructions to undo operations by previous messages. If this is the case, a
    lost message that was rollbacked later on may be dropped.'"""
    world = lossy()

    def think(info: LossInfo) -> Action:
        undone = any(bytes(it.message).startswith(b"rollback") for it in info.next)
        return DROP if undone else RECOVER

    answer(world, think)
    losing(world, range(2, 3), *ALL)
    world.send("s1", [b"buy" + b"." * 600])
    world.send("s1", [b"sell" + b"." * 600])
    world.send("s1", [b"rollback 2"])
    delivered(world, [1, 3])


def test_recovery_information() -> None:
    """'Message recovery information may be, for example, whether or not the messages can be retrieved from storage,
    estimated retrieval time.'"""
    info = asked_about(lossy(), range(2, 3), "n1").recovery
    assert info.possible
    assert {(place.kind, place.name) for place in info.places} == {
        ("source", "s1"), ("replica", "n2"), ("replica", "n3"),
    }  # fmt: skip
    assert info.estimate_ns > 0


def test_stale_messages_are_dropped_by_their_age() -> None:
    """'Messages may become stale after a certain amount of time. In such cases, lost messages that are stale may be
    dropped. [...] the application can use the time age encoded in the first message that is available after the
    loss.'"""
    world = lossy(policy=(Rule("drop", age_min_s=0.5),))
    losing(world, range(2, 4), *ALL)
    send(world, 1)
    send(world, 2, start=2)
    world.run(300 * MILLISECOND)
    send(world, 1, start=4)
    world.run(100 * MILLISECOND)
    assert numbers(world) == [1]
    delivered(world, [1, 4])
    info = world.hosts["n1"].asked[-1]
    assert info.age.youngest_ns >= 500 * MILLISECOND
    assert world.hosts["n1"].asked[0].age.youngest_ns < 400 * MILLISECOND


def test_ages_come_from_the_message_after_the_gap() -> None:
    """'Message number X may include the time difference from when messages X-1, X-10, X-100, and X-1000 were
    created.'"""
    world = lossy()
    answer(world, DROP)
    losing(world, range(11, 21), *ALL)
    drop = world.drop
    assert drop is not None
    # Or the source would say sooner what its last number is.
    world.drop = lambda a, b, frame: isinstance(frame, Idle) or drop(a, b, frame)
    for k in range(1, 22):
        world.send("s1", [b"%d" % k])
        world.run(10 * MILLISECOND)
    delivered(world, [*range(1, 11), 21])
    age = next(info for info in world.hosts["n1"].asked if info.lost == ((11, 20),)).age
    assert 85 * MILLISECOND <= age.oldest_ns - age.youngest_ns <= 95 * MILLISECOND


def test_a_loss_is_detected_by_the_identifiers_and_counted() -> None:
    """'After receiving message #45; next message should be #46. If any other message is received, e.g., #58, message
    loss may be detected. [...] twelve (12) messages are lost.'"""
    info = asked_about(lossy(), range(46, 58), *ALL, count=58)
    assert (info.lost, info.count) == (((46, 57),), 12)


def test_status_of_the_cluster_says_how_many_servers_there_are_now() -> None:
    """'Status of the cluster may be an indication of how many servers compose the cluster.'"""
    world = lossy(voters=5)
    world.kill("n4")
    world.kill("n5")
    status = asked_about(world, range(2, 3), *ALL).cluster
    assert (status.replicas, status.reachable, status.alone) == (5, 3, False)
    assert status.names == ("n2", "n3")


def test_one_that_is_alone_behaves_differently() -> None:
    """'When the leader is the only active server in the cluster, [...] a different behavior may be determined.'"""
    rules = (Rule("drop", alone=True), Rule("suspend", alone=False))
    world = lossy(policy=rules, mode="availability")
    losing(world, range(2, 3), "n1")
    only_from_source(world)
    send(world, 3)
    delivered(world, [1, 2, 3])
    assert leader(world) != "n1"
    last = leader(world)
    for name in ALL:
        if name != last:
            world.kill(name)
    losing(world, range(5, 6), last)
    send(world, 3, start=4)
    delivered(world, [1, 2, 3, 4, 6])
    assert leader(world) == last


def test_priorities_are_told_by_the_metadata_alone() -> None:
    """'Using the metadata of messages before and after gap of missing messages [...] it may be determined whether any
    of the lost messages are of the predetermined priority', 'in order to avoid overhead of issuing a query to the
    cluster.'"""
    for lost_priority in (0, 1):
        world = lossy(priorities=2)
        answer(world, DROP)
        losing(world, range(2, 3), *ALL)
        for number, priority in enumerate((0, lost_priority, 1), 1):
            world.send("s1", [b"%d" % number + b"." * 600], priority=priority)
        delivered(world, [1, 3])
        assert world.hosts["n1"].asked[0].priorities.known == ((2, lost_priority),)


def test_the_additional_information_is_small() -> None:
    """'The additional information is relatively small and consists of a distance that may be encoded using an
    integer.'"""
    annotator = Annotator(3)
    annotator.take(0, 5000, notes((0, 1)))
    about = annotator.take(10 * SECOND, 1)
    assert about.distances == (5000, 4999)
    stream = StreamId(node_id("s1"), 1, 0)
    plain = len(encode(Payload("book", stream, 1, 1, 0, memoryview(b""))))
    assert len(encode(Payload("book", stream, 1, 1, 0, memoryview(b""), about))) - plain < 64


def test_content_of_a_plurality_of_messages() -> None:
    """'Step may extract content from a plurality of messages and not a single message.'"""
    info = asked_about(lossy(), range(2, 3), *ALL, count=5)
    assert [(item.number, item.message[:2]) for item in info.next] == [
        (3, b"3."), (4, b"4."), (5, b"5."),
    ]  # fmt: skip


def test_recovery_information_has_storage_and_the_time_that_it_takes() -> None:
    """'Whether or not the messages can be retrieved from storage, estimated retrieval time.'"""
    world = lossy(message_log_bytes=1 << 20, gone_ns=60 * SECOND)
    answer(world, RECOVER)
    losing(world, range(2, 3), "n1")
    drop = world.drop
    assert drop is not None
    since = world.now
    world.drop = lambda a, b, f: drop(a, b, f) and world.now < since + 60 * MILLISECOND
    send(world, 3)
    delivered(world, [1, 2, 3])
    losing(world, range(5, 6), "n1", "n2")
    send(world, 3, start=4)
    world.run(3 * MILLISECOND)
    world.kill("s1")
    world.restart("n3")
    answer(world, RECOVER)
    world.drop = None
    delivered(world, [1, 2, 3, 4, 5, 6], 10 * SECOND)
    info = world.hosts["n1"].asked[-1].recovery
    assert [(place.kind, place.name, place.numbers) for place in info.places] == [("log", "n3", 1)]
    assert 50 * MILLISECOND <= info.estimate_ns <= 120 * MILLISECOND


# -- the answers -------------------------------------------------------------------------------------------------


def test_drop_removes_messages_from_the_order_also_where_they_were_received() -> None:
    """'Transport layer B may provide application B with messages, but not the lost messages, even if they were received
    by messaging layer B.'"""
    world = lossy()
    answer(world, DROP)
    losing(world, range(2, 3), "n1")
    send(world, 3)
    delivered(world, [1, 3])


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        (("source",), [1]),
        (("stream",), [1]),
        (("topic",), [1, 4]),
        (("priority",), [1, 5]),
        (("topic", "priority"), [1, 4, 5]),
    ],
)
def test_ignore_by_source_stream_topic_and_priority(by: Any, expected: list[int]) -> None:
    """'The responsive action may determine certain types of messages to be dropped in the future, such as messages from
    the same source as the lost messages, messages pertaining to the same topic thereof, messages having the same
    priority.'"""
    world = lossy(priorities=2)
    answer(world, IGNORE(by))
    losing(world, range(2, 3), *ALL)
    for number, (topic, priority) in enumerate(
        (("a", 1), ("a", 1), ("a", 1), ("b", 1), ("a", 0), ("a", 1)), 1
    ):
        world.send("s1", [b"%d" % number + b"." * 600], topic=topic, priority=priority)
    delivered(world, expected)
    world.run(100 * MILLISECOND)
    assert numbers(world) == expected


@pytest.mark.parametrize(
    ("action", "ends"),
    [(IGNORE(), False), (IGNORE(seconds=0.1), True), (IGNORE(count=1), True)],
)
def test_ignoring_is_permanent_or_for_a_time_or_for_a_number(action: Action, ends: bool) -> None:
    """'Ignoring messages can be permanent, for a predetermined time duration, for a predetermined number of
    messages.'"""
    world = lossy()
    answer(world, action)
    losing(world, range(2, 3), *ALL)
    send(world, 3)
    world.run(300 * MILLISECOND)
    assert bool(world.hosts["n3"].status["ignoring"]) is not ends
    send(world, 1, start=4)
    delivered(world, [1, 4] if ends else [1])


def test_messages_are_ignored_until_cluster_and_source_are_in_step_again() -> None:
    """'Messages may be dropped until a sync operation is performed so as to get the cluster and the source back in
    sync.'"""
    world = lossy()
    answer(world, IGNORE(("source",), resync=True))
    losing(world, range(2, 3), *ALL)
    send(world, 3)
    world.run(200 * MILLISECOND)
    world.send("s1", [b"the whole state"], resync=True)
    delivered(world, [1, 4])


def test_recover_and_alternatively_suspend() -> None:
    """'A sequence of alternative actions, such as first try to recover the message and if unsuccessful suspend the
    server.' 'A different server may become a leader of the cluster. [...] the leader that was suspended from the
    cluster may attempt to rejoin the cluster as a backup server.'"""
    world = lossy()
    answer(world, RECOVER.otherwise(SUSPEND).within(0.05))
    losing(world, range(2, 3), "n1")
    send(world, 3)
    world.run_until(lambda: leader(world) in ("n2", "n3"), 5 * SECOND)
    world.drop = None
    delivered(world, [1, 2, 3])
    assert world.hosts["n1"].status["state"] == "following"


def test_recover_and_alternatively_ignore() -> None:
    """'As another example, the sequence may be: first try to recover and if unsuccessful ignore the message.'"""
    world = lossy()
    answer(world, RECOVER.otherwise(IGNORE(("stream",), count=1)).within(0.05))
    losing(world, range(2, 3), *ALL)
    send(world, 4)
    delivered(world, [1, 4])
    world.drop = lambda sender, to, frame: (
        (sender, to) == ("s1", "n1") and isinstance(frame, Payload) and frame.first == 6
    )
    send(world, 3, start=5)
    delivered(world, [1, 4, 5, 6, 7])


def test_drop_and_additionally_ignore() -> None:
    """'The method describes two sequences of responsive actions (e.g., recover and alternatively suspend; and drop and
    additionally ignore).'"""
    world = lossy()
    answer(world, DROP.and_ignore(("stream",), count=1))
    losing(world, range(2, 3), *ALL)
    send(world, 4)
    delivered(world, [1, 4])


def test_after_a_failed_recovery_the_application_is_asked_with_what_came_of_it() -> None:
    """'In response to failure to recover the application may determine the alternative responsive action. [...] the
    application may take into account messages that were recovered [...] the reason for which the recovery has
    failed.'"""
    world = lossy()
    answer(world, lambda info: RECOVER.within(0.05) if info.attempt == 1 else DROP)
    losing(world, range(2, 4), *ALL)
    drop = world.drop
    assert drop is not None
    world.drop = lambda a, b, frame: (
        drop(a, b, frame) and not (frame.first == 3 and b == "n1" and bool(world.hosts["n1"].asked))
    )
    send(world, 4)
    world.run_until(lambda: len(world.hosts["n1"].asked) == 2, SECOND)
    world.drop = lambda a, b, frame: drop(a, b, frame) and frame.first == 2
    delivered(world, [1, 3, 4])
    second = world.hosts["n1"].asked[1]
    assert second.recovery.recovered == ((3, 3),)
    assert second.lost == ((2, 2),)
    assert second.recovery.reasons


def test_a_suspended_leader_is_followed_by_a_server_that_received_the_lost_messages() -> None:
    """'The responsive action may be to suspend the leader from the cluster and allow a different server that received
    the lost messages, to become the leader and process the lost messages.'"""
    world = lossy()
    answer(world, SUSPEND)
    losing(world, range(2, 3), "n1", "n2")
    only_from_source(world)
    send(world, 3)
    delivered(world, [1, 2, 3])
    assert leader(world) == "n3"


def test_different_sources_are_treated_differently() -> None:
    """'The disclosed subject matter allows combination of relatively unreliable sources of messages, without
    necessitating message recovery with each message lost from the unreliable sources.'"""
    rules = (Rule("drop", source="s2", at_once=True),)
    world = World(voters=3, sources=2, payload_bytes=1000, policy=rules, **FAST)
    world.start()
    ready(world)
    for source in ("s1", "s2"):
        losing(world, range(2, 3), *ALL, source=source)
        send(world, 3, source)
        world.run(100 * MILLISECOND)
    world.drop = None
    settle(world, 5)
    streams: dict[str, list[int]] = {}
    for item in world.hosts["n2"].app.got:
        streams.setdefault(item.stream[:32], []).append(item.number)
    assert streams[node_id("s1").hex()] == [1, 2, 3]
    assert streams[node_id("s2").hex()] == [1, 3]


@pytest.mark.parametrize("place", ["source", "replica", "log"])
def test_a_leader_recovers_from_source_servers_and_log(place: str) -> None:
    """'Recovery module may recover messages from a message log, from another server of the cluster, or the like.' 'If
    recovery succeeds, there is no longer a message loss.'"""
    world = lossy(message_log_bytes=1 << 20, gone_ns=60 * SECOND)
    losing(world, range(2, 3), "n1", "n2", *(("n3",) if place == "source" else ()))
    if place != "source":
        only_from_source(world)
    else:
        drop = world.drop
        assert drop is not None
        world.drop = lambda a, b, f: drop(a, b, f) and not world.hosts["n1"].asked
    answer(world, RECOVER)
    send(world, 3)
    world.run(MILLISECOND)
    if place != "source":
        world.kill("s1")
    if place == "log":
        world.restart("n3")
        answer(world, RECOVER)
    delivered(world, [1, 2, 3], 10 * SECOND)
    assert brought(world, "n1") == {"source": 0, "replica": 0, "log": 0} | {place: 1}
    assert world.hosts["n1"].asked
    assert not world.skipped()


def test_recover_and_additionally_ignore() -> None:
    """'An IGNORE responsive action may be determined together with an additional responsive action such as RECOVER or
    DROP.'"""
    world = lossy()

    def think(_: LossInfo) -> Action:
        world.drop = None
        return RECOVER.and_ignore(("stream",), count=2)

    answer(world, think)
    losing(world, range(2, 3), *ALL)
    send(world, 5)
    delivered(world, [1, 2, 5])


def test_the_backups_register_what_is_ignored_and_go_on_with_it_when_the_leader_is_gone() -> None:
    """'The IGNORE responsive action determination may be provided to that cluster, hence providing an explicit
    notification.' 'The backup server may register types of messages to be ignored.'"""
    world = lossy()
    answer(world, IGNORE(("topic",)))
    losing(world, range(2, 3), *ALL)
    send(world, 3, topic="rain")
    delivered(world, [1])
    world.run(100 * MILLISECOND)
    for name in ("n2", "n3"):
        assert "ignore" in [decision.kind for decision in world.hosts[name].told]
        assert [row["what"] for row in world.hosts[name].status["ignoring"]] == [
            "topic rain permanently"
        ]
    world.drop = None
    world.kill("n1")
    send(world, 1, start=4, topic="rain")
    send(world, 1, start=5, topic="sun")
    delivered(world, [1, 5])


@pytest.mark.parametrize(("by", "expected"), [("source", [1]), ("stream", [1, 1, 2])])
def test_a_source_is_ignored_with_all_its_streams_and_a_stream_alone(
    by: Any, expected: list[int]
) -> None:
    """'A single source may provide cluster with any number of message streams': one in each of its lives. 'Different
    message streams and sources may be handled differently.'"""
    world = lossy()
    answer(world, IGNORE((by,)))
    losing(world, range(2, 3), *ALL)
    send(world, 3)
    delivered(world, [1])
    world.run(100 * MILLISECOND)
    world.drop = None
    world.restart("s1")
    send(world, 2)
    delivered(world, expected)
    world.run(200 * MILLISECOND)
    assert numbers(world) == expected


def test_after_a_failed_recovery_the_content_of_what_was_recovered_counts() -> None:
    """'The application may take into account messages that were recovered, their content, priorities or the like.'"""
    world = lossy(priorities=2)

    def think(info: LossInfo) -> Action:
        undone = any(item.message.startswith(b"rollback") for item in info.recovery.messages)
        return DROP if undone else RECOVER.within(0.05)

    answer(world, think)
    losing(world, range(2, 4), *ALL)
    drop = world.drop
    assert drop is not None
    world.drop = lambda a, b, frame: (
        drop(a, b, frame) and not (frame.first == 3 and bool(world.hosts["n1"].asked))
    )
    send(world, 2)
    world.send("s1", [b"rollback 2" + b"." * 600], priority=0)
    send(world, 1, start=4)
    delivered(world, [1, 3, 4])
    second = world.hosts["n1"].asked[1].recovery
    assert [(item.number, item.priority) for item in second.messages] == [(3, 0)]


def test_losses_that_follow_are_handled_after_a_drop() -> None:
    """'After the DROP responsive action is performed, new messages may be obtained and new message losses may be
    handled.'"""
    world = lossy()
    answer(world, DROP)
    for first in (1, 4, 7):
        losing(world, range(first + 1, first + 2), *ALL)
        send(world, 3, start=first)
        delivered(world, [n for n in range(1, first + 3) if n % 3 != 2])
    assert [info.lost for info in world.hosts["n1"].asked] == [((2, 2),), ((5, 5),), ((8, 8),)]


# -- the backups -------------------------------------------------------------------------------------------------


def test_applications_of_backups_are_told_what_the_leader_decided() -> None:
    """'The backup server may report the message loss event to the application being executed in the backup server.
    Additionally or alternatively, the application may be informed about the responsive action that was received from
    the leader.'"""
    world = lossy()
    answer(world, DROP)
    losing(world, range(2, 3), *ALL)
    send(world, 3)
    delivered(world, [1, 3])
    told = world.hosts["n2"].told
    assert [(decision.kind, decision.first, decision.last) for decision in told] == [
        ("decision", 2, 2), ("skip", 2, 2),
    ]  # fmt: skip
    assert told[0].text == "drop (application, n1)"


def test_a_backup_that_lacks_an_ordered_message_recovers_it_or_suspends_itself_and_rejoins() -> (
    None
):
    """'The backup server may first attempt to recover such lost message, and only in the event it cannot recover the
    message, suspend itself [and] rejoin the cluster later on.'"""
    world = lossy(lack_ns=200 * MILLISECOND)
    losing(world, range(2, 3), "n3")
    only_from_source(world)
    send(world, 3)
    delivered(world, [1, 2, 3])
    assert not world.events("restored")
    losing(world, range(5, 6), "n3")
    send(world, 3, start=4)
    delivered(world, [1, 2, 3, 4, 5, 6], 5 * SECOND)
    assert any(name == "n3" for name, _ in world.events("restored"))


def test_messages_are_recovered_from_a_persistent_log() -> None:
    """'Message log may be utilized to store messages received by cluster and recover messages by one or more servers of
    cluster that did not receive the messages.'"""
    world = lossy(message_log_bytes=1 << 20, gone_ns=60 * SECOND)
    losing(world, range(2, 3), "n1", "n2")
    send(world, 3)
    world.run(MILLISECOND)
    world.kill("s1")
    world.restart("n3")
    world.drop = None
    delivered(world, [1, 2, 3], 10 * SECOND)


def test_some_servers_never_lead() -> None:
    """'A portion of the servers of cluster is not capable of acting as leaders and can only perform a role of backup
    servers.'"""
    world = lossy(never_lead=("n3",))
    answer(world, SUSPEND)
    losing(world, range(2, 3), "n1", "n2")
    only_from_source(world)
    send(world, 3)
    world.run_until(lambda: leader(world) == "n2", 5 * SECOND)
    answer(world, RECOVER)
    delivered(world, [1, 2, 3])
    assert leader(world) in ("n1", "n2")


def test_a_destination_gets_the_output_whichever_server_sends_it() -> None:
    """'If a first server cannot provide the processed data to a destination, a different server may provide the same
    output as the first server to the destination.'"""
    world = World(voters=3, sources=2)
    world.start()
    for host in world.hosts.values():
        host.says = lambda message: [("node:s2", b"re: " + message)]
    ready(world)
    world.send("s1", [b"1"])
    settle(world, 1)
    world.kill(leader(world))
    world.send("s1", [b"2"])
    settle(world, 2)
    world.run(2 * SECOND)
    assert [output.payload for output in world.hosts["s2"].outputs] == [b"re: 1", b"re: 2"]
