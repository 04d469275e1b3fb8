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
from holdfast.machine import Outbox
from holdfast.types import MILLISECOND, SECOND
from holdfast.wire.frames import Appended, Entry, MemberInfo


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
