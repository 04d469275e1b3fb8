"""Durable groups: what was acknowledged is there after any crash, of all at once too (docs/design/groups.md, rule
2)."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from tests.unit.group.disks import LOG, MESSAGES, STATE, VOTE, durable, rows
from tests.unit.group.harness import FAST, World, leader, ready, settle
from tests.unit.group.talking import talk, texts

from holdfast.errors import StoreError
from holdfast.group.frames import Payload, VoteResponse
from holdfast.machine import Erase, Put, Write
from holdfast.stores.memory import MemoryStore
from holdfast.types import MILLISECOND, SECOND


def test_a_durable_group_delivers() -> None:
    world = durable(1, learners=1, sources=1)
    settle(world, talk(world, ("n1", "n2", "s1")))


def test_a_replica_that_restarts_has_what_it_acknowledged_and_needs_no_state() -> None:
    world = durable(1)
    sent = talk(world, ("n1", "n2"))
    settle(world, sent)
    world.restart("n3")
    world.run(20 * MILLISECOND)
    assert world.hosts["n3"].status["memory"] == "whole", "it is no new life"
    sent += talk(world, ("n1",))
    settle(world, sent)
    assert not world.events("state_sent")


def test_what_a_source_sent_in_an_earlier_life_is_had_from_the_replica_on_its_own_node() -> None:
    """n1 orders what it sent, nobody else gets it, and n1 restarts: the others find it there, or nobody can go on.
    (It was not asked, because it is the node of the source, and the source is gone.)"""
    world = durable(1, never_lead=("n2", "n3"))
    sent = talk(world, ("n1", "n2"))
    settle(world, sent)
    world.drop = lambda sender, target, frame: sender == "n1" and isinstance(frame, Payload)
    world.send("n1", [b"before the end"])
    world.run(20 * MILLISECOND)
    world.restart("n1")
    world.drop = None
    settle(world, sent + 1)
    assert world.hosts["n3"].messages[-1] == b"before the end"


def test_all_nodes_may_crash_at_once() -> None:
    """Invariant 3, `durable`: always. In memory this would be the end of everything that was delivered."""
    world = durable(2)
    sent = talk(world, ("n1", "n2", "n3"))
    settle(world, sent)
    for _ in range(3):
        for name in ("n1", "n2", "n3"):
            world.kill(name)
        world.start("n1", "n2", "n3")
        ready(world)
        world.send("n2", [b"on"])
        sent += 1
        settle(world, sent)


def test_nothing_is_acknowledged_before_it_is_on_disk() -> None:
    """n2's disk does not write. Without it n1 needs n3; with n3 cut off nothing is decided."""
    world = durable(1)
    world.cut("n1", "n3")
    world.cut("n2", "n3")
    world.disk_us = (10_000_000, 10_000_000)
    world.send("n1", [b"precious"])
    world.run(100 * MILLISECOND)
    assert world.hosts["n1"].messages == []
    assert world.hosts["n2"].status["last"] > world.hosts["n2"].status["commit"], (
        "it has it, though"
    )


def test_the_leader_counts_itself_only_after_its_own_write() -> None:
    """A group of two whose leader crashes: what it counted for a majority must be on its disk."""
    world = durable(1, voters=1)
    world.disk_us = (50_000, 50_000)
    world.send("n1", [b"x"])
    world.run(40 * MILLISECOND)
    assert world.hosts["n1"].messages == []
    world.run(40 * MILLISECOND)
    assert world.hosts["n1"].messages == [b"x"]


def test_a_vote_is_remembered() -> None:
    """Without it n3 would vote twice in a term, after a crash: two leaders."""
    world = durable(1)
    votes: dict[tuple[str, int], list[str]] = {}

    def watch(sender: str, target: str, frame: Any) -> bool:
        if isinstance(frame, VoteResponse) and frame.kind == 1 and frame.granted:
            votes.setdefault((sender, frame.term), []).append(target)
        return False

    world.drop = watch
    rng = Random(3)
    for _ in range(25):
        world.kill(leader(world) or "n1")
        world.run(rng.randint(20, 300) * MILLISECOND)
        missing = [name for name in world.names if name not in world.hosts]
        for name in ("n2", "n3"):
            if name in world.hosts and rng.random() < 0.5:
                world.kill(name)
                missing.append(name)
        world.start(*missing)
        world.run(rng.randint(1, 400) * MILLISECOND)
    assert len(votes) > 10
    assert all(len(set(targets)) == 1 for targets in votes.values())
    leaders: dict[int, str] = {}
    for name, fact in world.events("leads"):
        assert leaders.setdefault(fact.term, name) == name


def test_a_state_is_written_and_what_lies_below_it_is_erased() -> None:
    """The log is cut only below an own durable state; the disk stays bounded."""
    world = durable(1, snapshot_bytes=20_000)
    sent = most = 0
    for k in range(60):
        world.send("n1", texts(f"{k}", 10, size=200))
        sent += 10
        world.run(10 * MILLISECOND)
        most = max(most, world.disks["n2"].size - sum(len(v) for _, v in rows(world, "n2", STATE)))
    settle(world, sent)
    assert rows(world, "n2", STATE)
    assert most < 60_000, "20 kB between two states, and what came while one was written"
    for name in ("n1", "n2", "n3"):
        world.kill(name)
    world.start("n1", "n2", "n3")
    ready(world)
    world.send("n3", [b"on"])
    settle(world, sent + 1)
    assert {fact.detail.split()[0] for _, fact in world.events("restored")} == {"own"}


def test_one_payload_block_and_one_batch_of_entries_make_one_row_each() -> None:
    world = durable(1, window_bytes=1_000_000, payload_bytes=60_000)
    world.send("n1", [b"the stream begins"])
    settle(world, 1)
    before = len(rows(world, "n2", LOG)), len(rows(world, "n2", MESSAGES))
    world.send("n1", texts("a", 500, size=100))
    settle(world, 501)
    assert len(rows(world, "n2", LOG)) - before[0] == 1
    assert len(rows(world, "n2", MESSAGES)) - before[1] == 1


def test_a_log_that_was_cut_off_stays_cut_off() -> None:
    """n1's last entries reached nobody; it follows another leader, and crashes."""
    world = durable(1)
    settle(world, talk(world, ("n1",)))
    world.isolate("n1")
    world.send("n1", [b"nobody hears this"])
    world.run(600 * MILLISECOND)
    world.send("n2", [b"instead"])
    world.run(100 * MILLISECOND)
    world.heal_all()
    settle(world, 52)
    world.restart("n1")
    settle(world, 52)
    ready(world)
    assert world.hosts["n1"].messages == world.hosts["n2"].messages


def test_a_replica_that_was_given_a_state_has_it() -> None:
    world = durable(1)
    world.isolate("n3")
    sent = 0
    for k in range(300):
        if world.hosts["n1"].source.held < 50_000:
            world.send("n1", texts(f"{k}", 20, size=200))
            sent += 20
        world.run(MILLISECOND)
    world.heal_all()
    settle(world, sent)
    ready(world, 20 * SECOND)
    assert "n3" in [name for name, _ in world.events("restored")]
    world.facts.clear()
    world.restart("n3")
    world.send("n1", [b"on"])
    settle(world, sent + 1)
    assert [fact.detail.split()[0] for name, fact in world.events("restored") if name == "n3"] == [
        "own"
    ]
    assert not world.events("state_sent")


@pytest.mark.parametrize("table", [VOTE, MESSAGES])
def test_a_damaged_store_stops_the_start_and_says_so(table: str) -> None:
    world = durable(1)
    settle(world, talk(world, ("n1",)))
    world.kill("n3")
    disk = world.disks["n3"]
    for key in list(disk.rows[table]):
        disk.rows[table][key] = disk.rows[table][key][:-3]
    with pytest.raises(StoreError, match="damaged"):
        world.start("n3")


@pytest.mark.parametrize("table", [LOG, MESSAGES])
@pytest.mark.parametrize("part", ["key", "value"])
def test_a_row_of_the_wrong_length_stops_the_start_and_says_so(table: str, part: str) -> None:
    world = durable(1)
    settle(world, talk(world, ("n1",)))
    world.kill("n3")
    found = rows(world, "n3", table)
    assert found
    cut = [(key[:-3], value) if part == "key" else (key, value[:3]) for key, value in found]
    erase: list[Write] = [Erase(table, b"", b"\xff" * 50)]
    MemoryStore(world.disks["n3"]).commit(erase + [Put(table, *row) for row in cut])
    with pytest.raises(StoreError, match=r"damaged.* empty store"):
        world.start("n3")


@pytest.mark.parametrize("seed", range(12))
def test_replicas_agree_despite_any_crash_and_any_loss(seed: int) -> None:
    """Crashes of anybody at any moment, several at once, cuts, losses, small states: one order, and nothing lost."""
    rng = Random(f"durable/{seed}")
    world = World(
        seed, voters=rng.choice((3, 3, 5)), loss=rng.choice((0.0, 0.1)), reorder=rng.random() < 0.5,
        durability="durable", snapshot_bytes=rng.choice((5_000, 1 << 20)), **FAST,
    )  # fmt: skip
    world.start()
    ready(world)
    for step in range(40):
        for name in list(world.hosts):
            if rng.random() < 0.5 and world.hosts[name].source.held < 30_000:
                world.send(name, texts(f"{name}/{step}", rng.randint(1, 8)))
        chance = rng.random()
        if chance < 0.25:
            for name in rng.sample(world.names, rng.randint(1, len(world.names))):
                if name in world.hosts:
                    world.kill(name)
        elif chance < 0.35:
            world.cut(*rng.sample(world.names, 2))
        elif chance < 0.45:
            world.heal_all()
        world.run(rng.randint(1, 60) * MILLISECOND)
        back = [name for name in world.names if name not in world.hosts and rng.random() < 0.4]
        if back:
            world.start(*back)
    world.heal_all()
    missing = [name for name in world.names if name not in world.hosts]
    if missing:
        world.start(*missing)
    ready(world, 30 * SECOND)
    world.run(3 * SECOND)
    most = max(len(host.app.got) for host in [*world.hosts.values(), *world.past])
    settle(world, most)
    assert len({tuple(host.messages) for host in world.hosts.values()}) == 1
    assert most > 50
