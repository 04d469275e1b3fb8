"""What a leader commits, and how much its application is handed at once."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.group.harness import World, node_id
from tests.unit.group.test_group import started, texts

from holdfast.group.config import GroupConfig
from holdfast.group.core import Core
from holdfast.group.leading import Leading
from holdfast.group.log import Kind
from holdfast.group.peers import Peer
from holdfast.group.ports import Applied
from holdfast.machine import Outbox
from holdfast.types import MILLISECOND, SECOND, NodeId
from holdfast.wire.blocks import pack_block
from holdfast.wire.frames import Appended, Entry, MemberInfo, Payload, StreamId


class Bench:
    """A leader n1 of term 2 whose log has two entries of term 1."""

    def __init__(self) -> None:
        config = GroupConfig("g", ("n1", "n2", "n3"), "n1", learners=("l1", "l2"))
        self.core = Core(config, node_id("n1"), "n1", 2)
        for name in config.replicas[1:]:
            self.core.peers.up(node_id(name), MemberInfo(node_id(name), name, 1, ()))
        for index in (1, 2):
            self.core.log.append(Entry(1, index, 1, 0, Kind.TERM))
        self.leading = Leading(self.core)
        self.leading.begin(2, 1000, Outbox())
        self.leading.settle(1000, Outbox())

    def has(self, name: str, match: int, **more: Any) -> None:
        frame = Appended("g", **({"term": 2, "match": match, "ok": True} | more))
        self.leading.appended(Peer(node_id(name), name, 1), frame, 2000, Outbox())
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


def test_a_voter_that_lost_its_memory_no_longer_counts() -> None:
    bench = Bench()
    bench.leading.appends.progress["n2"].match = 2
    bench.has("n2", 0, term=0, ok=False)
    assert bench.leading.appends.progress["n2"].match == 0
    bench.leading.appends.progress["n3"].match = 2
    bench.leading.peer_up(Peer(node_id("n3"), "n3", 2))
    assert bench.leading.appends.progress["n3"].match == 0


def test_another_node_of_the_same_name_has_not_what_the_first_had() -> None:
    bench = Bench()
    bench.leading.appends.progress["n3"].match = 2
    bench.leading.peer_up(Peer(NodeId(b"z" * 16), "n3", 1))
    assert bench.leading.appends.progress["n3"].match == 0
    bench.leading.appends.progress["n2"].match = 2
    bench.leading.peer_up(Peer(node_id("n2"), "n2", 1))
    assert bench.leading.appends.progress["n2"].match == 2, "a new session of the same life"


def test_a_replica_without_a_state_holds_freeing_back_but_not_twice_in_a_row() -> None:
    """What comes after the state that it is given is kept for it; when it was left behind, the others get a rest."""
    bench = Bench()
    progress = bench.leading.appends.progress["l1"]
    bench.core.log.commit_to(2)
    bench.core.delivery.hand_out(0, Outbox())
    bench.core.log.trim(1)
    bench.has("l1", 0, term=0, ok=False)
    assert (progress.applied, progress.counted, progress.blank) == (1, True, True)
    progress.counted, progress.out_until_ns = False, 3000
    bench.has("l1", 0, term=0, ok=False)
    assert not progress.counted
    progress.out_until_ns = 2000
    bench.has("l1", 0, term=0, ok=False)
    assert progress.counted


def test_log_time_goes_on_where_a_leader_with_another_clock_was() -> None:
    config = GroupConfig("g", ("n1",), "n1")
    core = Core(config, node_id("n1"), "n1", 2)
    core.log.append(Entry(1, 1, 1, 10_000, Kind.TERM))
    leading = Leading(core)
    leading.begin(2, 300, Outbox())
    assert core.log.tail.log_ns == 10_000
    core.streams.take(payload(), 1)
    leading.settle(450, Outbox())
    assert core.log.tail.log_ns == 10_150


def payload() -> Payload:
    return Payload("g", StreamId(b"s" * 16, 1, 0), 1, 1, 0, memoryview(pack_block([b"x"])))


def test_followers_hear_of_a_commit_at_once() -> None:
    """Not with the next heartbeat: that would be the latency of everything."""
    world = started(1, append_period_ns=10 * SECOND)
    world.send("n1", [b"quick"])
    world.run_until(
        lambda: all(host.messages == [b"quick"] for host in world.hosts.values()), 5 * MILLISECOND
    )


def test_what_has_been_said_is_not_said_again() -> None:
    world = started(1, append_period_ns=10 * SECOND)
    world.send("n1", [b"quick"])
    world.run(500 * MILLISECOND)
    before = world.frames_sent
    world.inject("n2", Applied(0, 0))
    assert world.frames_sent == before


def test_the_application_has_bounded_work_outstanding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.group.delivery.APPLY_MAX", 5000)
    world: World = started(1, window_bytes=1_000_000, entry_bytes=1000)
    world.hosts["n2"].frozen = True
    world.send("n1", texts("a", 500, size=100))
    world.run(100 * MILLISECOND)
    assert 5000 <= world.hosts["n2"].status["outstanding"] <= 6500
    world.hosts["n2"].frozen = False
    world.run_until(lambda: len(world.hosts["n2"].messages) == 500, 5 * SECOND)
    world.check()
