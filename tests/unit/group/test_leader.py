"""What a leader commits, and how much its application is handed at once."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.group.harness import World, node_id, settle
from tests.unit.group.talking import started, texts

from holdfast.group.config import GroupConfig
from holdfast.group.consensus.leader import Leader
from holdfast.group.consensus.leadership import Role
from holdfast.group.core import Core
from holdfast.group.frames import AppendResponse, Entry, Payload, StreamId
from holdfast.group.log.entries import Member, View, encode_data
from holdfast.group.log.replicated_log import Kind
from holdfast.group.peer import Peer
from holdfast.group.ports import Applied
from holdfast.machine import Outbox
from holdfast.types import MICROSECOND, MILLISECOND, SECOND, NodeId
from holdfast.wire.blocks import pack_block
from holdfast.wire.frames import MemberInfo


def members(*names: str, voters: int = 3) -> View:
    return View(
        1, tuple(Member(name, node_id(name), 1, at < voters) for at, name in enumerate(names))
    )


def leads(core: Core, term: int) -> None:
    core.group_epoch = 7
    core.new_term(term)
    core.leadership.go(Role.CANDIDATE)
    core.leadership.go(Role.LEADER)


class Bench:
    """A leader n1 of term 2 whose log has two entries of term 1, the first of them the view."""

    def __init__(self) -> None:
        config = GroupConfig("g", ("n1", "n2", "n3"), "n1", learners=("l1", "l2"))
        self.core = Core(config, node_id("n1"), "n1", 1)
        for name in config.replicas[1:]:
            self.core.peers.up(node_id(name), MemberInfo(node_id(name), name, 1, ()))
        view = encode_data(members(*config.replicas))
        self.core.log.append(Entry(1, 1, 1, 0, Kind.VIEW, data=view))
        self.core.log.append(Entry(1, 2, 1, 0, Kind.TERM))
        leads(self.core, 2)
        self.leading = Leader(self.core)
        self.leading.begin(1000, Outbox())
        self.leading.settle(1000, Outbox())

    def has(self, name: str, match: int, **more: Any) -> None:
        frame = AppendResponse(
            "g", **({"term": 2, "match": match, "ok": True, "group_epoch": 7} | more)
        )
        self.leading.appended(Peer(node_id(name), name, 1, 1), frame, 2000, Outbox())
        self.leading.settle(2000, Outbox())


def test_a_majority_of_the_voters_commits() -> None:
    bench = Bench()
    assert bench.core.log.commit == 0
    bench.has("n2", 3)
    assert bench.core.log.commit == 3


def test_learners_do_not_count_in_a_majority() -> None:
    bench = Bench()
    bench.has("l1", 3)
    bench.has("l2", 3)
    assert bench.core.log.commit == 0


def test_entries_of_earlier_terms_are_committed_only_with_one_of_this_term() -> None:
    """Raft 5.4.2: a count alone does not decide what an earlier leader wrote; a later one could still overwrite it."""
    bench = Bench()
    bench.has("n2", 2)
    bench.has("n3", 2)
    assert bench.core.log.commit == 0
    bench.has("n3", 3)
    assert bench.core.log.commit == 3


@pytest.mark.parametrize(
    "more",
    [{"term": 1}, {"term": 3}, {"match": 4}, {"ok": False, "hint": 3}, {"term": 0}],
    ids=str,
)
def test_answers_that_cannot_be_commit_nothing(more: dict[str, Any]) -> None:
    bench = Bench()
    bench.has("n2", more.pop("match", 3), **more)
    bench.has("n3", 4, **more)
    assert bench.core.log.commit == 0


def test_acknowledgements_alone_do_not_make_the_leader_check_all_members() -> None:
    """A large group acknowledges thousands of times a second, and a check takes as long as the group has members."""
    bench = Bench()
    for _ in range(2):
        bench.has("n2", 3)  # commits the view, which all are told
    replication = bench.leading.replication
    checks = replication.checks
    for name in ("n2", "n3", "l1", "l2") * 5:
        bench.has(name, 3)
    assert replication.checks == checks
    bench.has("l1", 1, ok=False, hint=1)
    assert replication.checks == checks + 1, "it lacks entries"
    bench.leading.settle(replication.deadline(), Outbox())
    assert replication.checks == checks + 2, "heartbeats are due"


@pytest.mark.parametrize(
    "peer", [Peer(node_id("n2"), "n2", 2, 2), Peer(NodeId(b"z" * 16), "n2", 1, 1)]
)
def test_another_life_of_a_voter_does_not_count_for_the_one_that_the_view_names(peer: Peer) -> None:
    """Rule 2: it has forgotten what the other acknowledged. Without lives n2's empty log would make a majority."""
    bench = Bench()
    frame = AppendResponse("g", 2, 3, True, group_epoch=7)
    bench.leading.appended(peer, frame, 2000, Outbox())
    bench.leading.settle(2000, Outbox())
    assert bench.core.log.commit == 0


@pytest.mark.parametrize("now", [300, 10_000, 90_000_000])
def test_log_time_goes_on_where_a_leader_with_another_clock_was(now: int) -> None:
    """Whether its machine was started before ours or after it: what is to end in ten seconds ends then."""
    config = GroupConfig("g", ("n1",), "n1")
    core = Core(config, node_id("n1"), "n1", 1)
    view = encode_data(members("n1"))
    core.log.append(Entry(1, 1, 1, 10_000, Kind.VIEW, data=view))
    leads(core, 2)
    leading = Leader(core)
    leading.begin(now, Outbox())
    assert core.log.tail.log_ns == 10_000
    core.streams.take(payload(), 1)
    leading.settle(now + 150, Outbox())
    assert core.log.tail.log_ns == 10_150


def test_log_time_does_not_go_back_when_a_leader_without_a_state_takes_one() -> None:
    """The log goes on from there, and the state may be ahead of what this leader has stamped."""
    core = Core(GroupConfig("g", ("n1",), "n1"), node_id("n1"), "n1", 1)
    core.log.append(Entry(1, 1, 1, 10_000, Kind.VIEW, data=encode_data(members("n1"))))
    leads(core, 2)
    leading = Leader(core)
    leading.begin(500, Outbox())
    ahead = core.log.tail.copy()
    ahead.index, ahead.log_ns = 7, 20_000
    core.log.restart(ahead)
    leading.order.append(Kind.TERM, None, 0, 0, b"", 650, Outbox())
    assert (core.log.tail.index, core.log.tail.log_ns) == (8, 20_000)


def payload() -> Payload:
    return Payload("g", StreamId(b"s" * 16, 1, 0), 1, 1, 0, memoryview(pack_block([b"x"])))


def test_followers_hear_of_a_commit_at_once() -> None:
    """Not with the next heartbeat: that would be the latency of everything."""
    world = started(1, append_period_ns=10 * SECOND, election_ns=60 * SECOND)
    world.send("n1", [b"quick"])
    world.run_until(
        lambda: all(host.messages == [b"quick"] for host in world.hosts.values()), 5 * MILLISECOND
    )


def test_what_has_been_said_is_not_said_again() -> None:
    world = started(1, append_period_ns=10 * SECOND, election_ns=60 * SECOND)
    world.send("n1", [b"quick"])
    world.run(500 * MILLISECOND)
    before = world.frames_sent
    world.inject("n2", Applied(0, 0))
    assert world.frames_sent == before


def test_the_application_has_bounded_work_outstanding() -> None:
    world: World = started(1, window_bytes=1_000_000, entry_bytes=1000, apply_bytes=5000)
    world.hosts["n2"].frozen = True
    world.send("n1", texts("a", 500, size=100))
    world.run(100 * MILLISECOND)
    assert 5000 <= world.hosts["n2"].status["outstanding"] <= 6500
    world.hosts["n2"].frozen = False
    world.run_until(lambda: len(world.hosts["n2"].messages) == 500, 5 * SECOND)
    world.check()


def test_each_replica_answers_a_message_once_and_that_it_is_decided_not_at_once() -> None:
    """One frame that decides nothing costs the leader a turn, for each replica and each message."""
    world = started(voters=4)
    frames: list[tuple[str, str, Any]] = []

    def watch(sender: str, to: str, frame: Any) -> bool:
        frames.append((sender, to, frame))
        return False

    world.send("n1", texts("n1", 1))  # the first one opens the stream, which is an entry of its own
    world.run_until(lambda: all(host.messages for host in world.hosts.values()), SECOND)
    world.drop = watch
    world.send("n1", texts("n1", 1))
    world.run_until(lambda: all(len(h.messages) == 2 for h in world.hosts.values()), SECOND)
    answers = [sender for sender, _, frame in frames if isinstance(frame, AppendResponse)]
    assert sorted(answers) == ["n2", "n3", "n4"]
    world.run(world.config.append_period_ns)
    answers = [sender for sender, _, frame in frames if isinstance(frame, AppendResponse)]
    assert all(answers.count(name) > 1 for name in ("n2", "n3", "n4")), "signs of life are answered"


def test_a_leader_that_tells_what_is_free_very_often_does_not_wake_for_nothing() -> None:
    """The world would fail if it did."""
    world = started(1, free_period_ns=100 * MICROSECOND)
    for _ in range(20):
        world.send("n1", texts("a", 5))
        world.run(MILLISECOND)
    settle(world, 100)
