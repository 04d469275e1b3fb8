"""`fast` delivery and `availability`: what they give up, and how it is made good (docs/design/groups.md, rule 11)."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from tests.unit.group.harness import GROUP, World, leader, node_id, ready, settle
from tests.unit.group.talking import started, talk, texts

from holdfast.group import source_unit
from holdfast.group.frames import Append, AppendResponse, Freed, Payload, StateChunk, StateRequest
from holdfast.group.log.pending_entries import PendingEntries
from holdfast.group.log.replicated_log import Cursor, Log
from holdfast.group.ports import HandOver, RemoveReplica, Restored
from holdfast.group.streams.stream_buffer import Streams
from holdfast.group.transfer.checkpoint import VERSION, Checkpoint, CursorState
from holdfast.group.transfer.snapshot import Snapshot
from holdfast.links.ports import Received
from holdfast.machine import Outbox
from holdfast.telemetry.facts import DeliveryFact, GroupFact, MessageFact
from holdfast.types import MILLISECOND, SECOND
from holdfast.wire.codec import decode_frame

# -- fast --------------------------------------------------------------------------------------------------------


def test_fast_delivery_does_not_wait_for_any_replica() -> None:
    world = started(1, delivery="fast")
    world.drop = lambda sender, target, frame: isinstance(frame, AppendResponse)
    world.send("n1", [b"at once"])
    world.run(5 * MILLISECOND)
    assert world.hosts["n1"].messages == [b"at once"]
    assert world.hosts["n1"].status["commit"] < world.hosts["n1"].status["last"]
    safe = started(1)
    safe.drop = world.drop
    safe.send("n1", [b"not yet"])
    safe.run(5 * MILLISECOND)
    assert safe.hosts["n1"].messages == []


def undecided(**settings: Any) -> World:
    """n1 has delivered what nobody else ever heard of; the others go on without it."""
    world = started(1, delivery="fast", **settings)
    sent = talk(world, ("n1", "n2"))
    settle(world, sent)
    world.isolate("n1")
    world.send("n1", [b"delivered by n1 alone"])
    world.run(20 * MILLISECOND)
    assert world.hosts["n1"].messages[-1] == b"delivered by n1 alone"
    world.run(600 * MILLISECOND)
    world.send("n2", [b"instead"])
    world.run(50 * MILLISECOND)
    assert world.hosts["n3"].messages[-1] == b"instead"
    return world


@pytest.mark.parametrize("durability", ["memory", "durable"])
def test_a_replica_whose_log_is_cut_below_what_it_delivered_begins_again_from_a_state(
    durability: str,
) -> None:
    """Rule 11. Without it n1 would go on with a state that has a message at a place where the others have another."""
    world = undecided(durability=durability)
    world.heal_all()
    world.run_until(
        lambda: all(len(host.messages) == 102 for host in world.hosts.values()), 5 * SECOND
    )
    world.run(SECOND)
    assert world.hosts["n1"].messages[100:] == [b"instead", b"delivered by n1 alone"]
    assert "n1" in [name for name, _ in world.events("restored")]
    assert {tuple(host.messages) for host in world.hosts.values()} == {
        tuple(world.hosts["n2"].messages)
    }


def test_truncated_entries_that_were_delivered_are_rolled_back_even_if_nothing_else_is_missing() -> (
    None
):
    """As above, with a leader that still has everything: no state would be needed for the log, only for this."""
    world = started(1, delivery="fast", voters=5)
    for name in ("n2", "n3", "n4"):
        world.cut("n1", name)
        world.cut("n5", name)
    world.send("n1", [b"delivered by n1 and n5"])
    world.run(700 * MILLISECOND)
    world.send("n2", [b"instead"])
    world.run(50 * MILLISECOND)
    world.heal_all()
    world.run_until(
        lambda: all(len(host.messages) == 2 for host in world.hosts.values()), 5 * SECOND
    )
    assert sorted({name for name, _ in world.events("rolled_back")}) == ["n1", "n5"]
    assert {tuple(host.messages) for host in world.hosts.values()} == {
        (b"instead", b"delivered by n1 and n5")
    }


def test_a_rollback_is_recorded_with_the_group_epoch_and_the_entries_that_are_void() -> None:
    """So that the audit of the pipeline does not take a rolled-back delivery for a violation."""
    world = started(1, delivery="fast", voters=5)
    for name in ("n2", "n3", "n4"):
        world.cut("n1", name)
        world.cut("n5", name)
    world.send("n1", [b"delivered by n1 and n5"])
    world.run(700 * MILLISECOND)
    world.send("n2", [b"instead"])
    world.run(50 * MILLISECOND)
    world.heal_all()
    world.run_until(
        lambda: all(len(host.messages) == 2 for host in world.hosts.values()), 5 * SECOND
    )
    delivered = [(n, f) for n, f in world.facts if isinstance(f, DeliveryFact)]
    epochs = {fact.epoch for _, fact in delivered}
    assert len(epochs) == 1
    assert 0 not in epochs
    undone = [
        (n, f) for n, f in world.facts if isinstance(f, GroupFact) and f.event == "rolled_back"
    ]
    for name, fact in undone:
        void = [
            d
            for n, d in delivered
            if n == name and d.index >= fact.rollback_index and d.now_ns < fact.now_ns
        ]
        assert void
        assert fact.epoch in epochs
    others = {
        f.rollback_index
        for _, f in world.facts
        if isinstance(f, GroupFact) and f.event != "rolled_back"
    }
    assert others == {-1}


def test_single_messages_are_recorded_only_on_request() -> None:
    """T1: deliveries are recorded per range. With `trace` each message has a fact, the same on every replica."""

    def messages(**changes: Any) -> list[tuple[str, MessageFact]]:
        world = started(1, **changes)
        world.send("n1", [b"one", b"three"])
        world.send("n2", [b"two"])
        world.run(500 * MILLISECOND)
        return [(name, fact) for name, fact in world.facts if isinstance(fact, MessageFact)]

    assert messages() == []
    traced = messages(trace=True)
    by_replica: dict[str, list[MessageFact]] = {}
    for name, fact in traced:
        by_replica.setdefault(name, []).append(msgspec.structs.replace(fact, now_ns=0))
    first, *others = by_replica.values()
    assert len(others) == 2
    assert all(other == first for other in others)
    assert sorted(fact.size for fact in first) == [3, 3, 5]
    assert [fact.position for fact in first] == list(
        range(first[0].position, first[0].position + 3)
    )
    assert len({fact.digest for fact in first}) == 3


def test_what_a_fast_replica_had_delivered_in_vain_is_reported() -> None:
    world = undecided()
    world.drop = lambda sender, target, frame: sender == "n1" and getattr(frame, "count", 0) == 1
    world.heal_all()
    world.run_until(lambda: bool(world.events("lost")), 5 * SECOND)
    (name, fact), *_ = world.events("lost")
    assert name == "n1"
    assert "51 to 51" in fact.detail


def test_no_replica_is_given_a_state_that_is_not_committed() -> None:
    """n1's application is ahead of the decision when n3, restarted, asks it for a state."""
    world = started(1, delivery="fast")
    settle(world, talk(world, ("n1",)))
    world.restart("n3")
    world.run_until(lambda: bool(world.events("state_sent")) or bool(world.events("view")), SECOND)
    ready(world)
    world.drop = lambda sender, target, frame: isinstance(frame, AppendResponse) and frame.match > 0
    world.send("n1", [b"ahead"])
    world.run(5 * MILLISECOND)
    taken = world.hosts["n1"].status
    assert taken["position"] == 51
    assert taken["commit"] < taken["last"]
    world.facts.clear()
    world.kill("n3")
    world.start("n3")
    world.run(100 * MILLISECOND)
    assert not world.events("state_sent")


def test_an_application_does_not_run_ahead_while_a_member_awaits_a_state() -> None:
    """n1 has applied what is not decided, n2 is gone, and n3 awaits a state: only decided ones are given, nothing is
    decided without n3, and n3 cannot begin without a state. So n1 has to wait for decisions while n3 is out."""
    world = started(1, delivery="fast", rejoin_ns=200 * MILLISECOND)
    sent = talk(world, ("n1",))
    settle(world, sent)
    world.hosts["n3"].fails_at = sent + 1
    world.send("n1", [b"n3 cannot take this"])
    world.run_until(lambda: world.hosts["n3"].status["state"] == "suspended", SECOND)
    world.run(50 * MILLISECOND)
    world.hosts["n3"].fails_at = 0
    world.kill("n2")
    world.drop = lambda _s, target, frame: target == "n3" and isinstance(frame, Append)
    world.send("n1", [b"more"])
    world.run(50 * MILLISECOND)
    assert world.hosts["n1"].messages[-1] == b"n3 cannot take this"
    world.drop = None
    settle(world, sent + 2)


def state_with_a_gap(**settings: Any) -> World:
    """n1 leads, and its log begins with a state it was given; the log of n3, which was away, ends before."""
    world = started(1, delivery="fast", rejoin_ns=200 * MILLISECOND, **settings)
    sent = talk(world, ("n1",))
    settle(world, sent)
    away = world.names[-1]
    world.drop = lambda sender, target, _f: away in (sender, target)
    world.hosts["n1"].fails_at = sent + 1
    world.send("n2", [b"n1 cannot take this"])
    world.run_until(lambda: leader(world) not in ("", "n1"), SECOND)
    world.hosts["n1"].fails_at = 0
    world.run_until(lambda: "n1" in [name for name, _ in world.events("restored")], 2 * SECOND)
    world.run(50 * MILLISECOND)
    world.inject(leader(world), HandOver(("n1",)))
    world.run_until(lambda: leader(world) == "n1", SECOND)
    world.run(20 * MILLISECOND)
    assert all(not member["suspended"] for member in world.hosts["n1"].status["view"])
    return world


def is_order(frame: Any) -> bool:
    return isinstance(frame, Payload) or (isinstance(frame, Append) and bool(frame.entries))


def run_ahead(world: World) -> None:
    """n1 applies what nobody else has heard of, while the last one is still away."""
    away = world.names[-1]
    world.drop = lambda sender, target, frame: (
        away in (sender, target) or (sender == "n1" and is_order(frame))
    )
    world.send("n1", [b"ahead"])
    world.run(5 * MILLISECOND)
    status = world.hosts["n1"].status
    assert status["commit"] < status["applied"]


def all_have(world: World, count: int) -> None:
    """Everybody has the same messages, so many, in the end."""
    world.run_until(
        lambda: {len(host.messages) for host in world.hosts.values()} == {count}, 10 * SECOND
    )
    assert len({tuple(host.messages) for host in world.hosts.values()}) == 1


@pytest.mark.parametrize("durability", ["memory", "durable"])
@pytest.mark.parametrize("mode", ["majority", "availability"])
def test_a_state_that_is_not_decided_is_given_to_one_that_is_needed_to_decide(
    mode: str, durability: str
) -> None:
    """n1 has the only state, and has applied what is not decided. n3 is needed to decide it, and its log cannot go on
    without a state. Nobody is suspended that n1 knows of, so nothing kept it from running ahead."""
    world = state_with_a_gap(mode=mode, durability=durability)
    run_ahead(world)
    world.kill("n2")
    world.drop = None
    world.facts.clear()
    world.run_until(lambda: world.hosts["n3"].messages[-1:] == [b"ahead"], 5 * SECOND)
    assert world.hosts["n3"].messages == world.hosts["n1"].messages
    assert any(fact.detail.endswith("ahead") for _, fact in world.events("state_sent"))
    assert [name for name, _ in world.events("awaits")] == ["n3"]
    world.send("n3", [b"together"])
    world.run_until(lambda: world.hosts["n1"].messages[-1] == b"together", 2 * SECOND)
    if durability == "durable":
        world.restart("n3")
        world.run_until(
            lambda: world.hosts["n3"].messages == world.hosts["n1"].messages, 5 * SECOND
        )


@pytest.mark.parametrize("restart", [False, True])
def test_a_state_that_is_ahead_is_not_put_in_when_it_is_decided_otherwise(restart: bool) -> None:
    """n3 is given a state with a message that no later leader has. It waits for its log to come to it, in vain."""
    world = state_with_a_gap(durability="durable")
    run_ahead(world)
    world.isolate("n2")
    world.drop = lambda sender, _t, frame: sender == "n1" and is_order(frame)
    world.run_until(lambda: bool(world.events("awaits")), 5 * SECOND)
    world.kill("n1")
    if restart:
        world.restart("n3")
    world.drop = None
    world.heal("n2", "n3")
    world.run_until(lambda: leader(world) != "", 5 * SECOND)
    world.send("n2", [b"instead", b"and more"])
    world.run_until(lambda: world.hosts["n3"].messages[-1:] == [b"and more"], 5 * SECOND)
    all_have(world, 53)
    assert b"ahead" not in world.hosts["n3"].messages
    world.heal_all()
    world.start("n1")
    all_have(world, 54)


def test_one_without_a_state_passes_only_what_is_decided() -> None:
    """Else it would seem to have delivered, and to give up, what it was never given."""
    world = started(1, delivery="fast", rejoin_ns=SECOND)
    sent = talk(world, ("n1",))
    settle(world, sent)
    world.hosts["n3"].fails_at = sent + 1
    world.drop = lambda sender, _t, frame: isinstance(frame, AppendResponse)
    world.send("n1", [b"n3 cannot take this"])
    world.run(20 * MILLISECOND)
    status = world.hosts["n3"].status
    assert status["state"] == "suspended"
    world.send("n1", [b"more"])
    world.run(20 * MILLISECOND)
    later = world.hosts["n3"].status
    assert later["last"] > status["last"]
    assert later["applied"] == status["applied"]


def test_a_state_that_was_ahead_and_is_cut_off_is_given_up() -> None:
    """n5 has the state of n1 and the entries up to it; the other three never heard of them."""
    world = state_with_a_gap(voters=5, transfer_retry_ns=5 * MILLISECOND)
    run_ahead(world)
    world.drop = None
    split(world, ("n1", "n5"))
    world.run_until(lambda: world.hosts["n5"].messages[-1:] == [b"ahead"], 100 * MILLISECOND)
    world.run(SECOND)
    world.send("n2", [b"instead"])
    world.run(50 * MILLISECOND)
    world.heal_all()
    all_have(world, 53)
    assert sorted({name for name, _ in world.events("rolled_back")}) == ["n1", "n5"]
    assert world.hosts["n5"].messages[-2:] == [b"instead", b"ahead"]


@pytest.mark.parametrize("durability", ["memory", "durable"])
def test_one_without_a_state_takes_an_older_one_than_it_has_passed(durability: str) -> None:
    """n3 has the longest log and no state; n2 has a state, and a log that is too short to lead. What n3 has passed
    since is still in its log: it goes back to the state of n2, applies the rest, and leads."""
    settings = {"durability": durability, "snapshot_bytes": 1000}
    world = started(1, rejoin_ns=200 * MILLISECOND, **settings)
    sent = talk(world, ("n1",))
    settle(world, sent)

    def lose(sender: str, target: str, frame: Any) -> bool:
        behind = target == "n2" and isinstance(frame, Append) and bool(frame.entries)
        return behind or (sender == "n3" and isinstance(frame, AppendResponse) and bool(frame.why))

    world.drop = lose
    for text in texts("n2 lacks", 20, size=100):
        world.send("n1", [text])
        world.run(2 * MILLISECOND)
    sent += 20
    world.hosts["n3"].fails_at = sent + 1
    world.send("n1", [b"n3 cannot take this"])
    world.run(30 * MILLISECOND)
    status = world.hosts["n3"].status
    assert (status["state"], status["commit"]) == ("suspended", status["last"])
    world.kill("n1")
    world.hosts["n3"].fails_at = 0
    world.drop = None
    world.run_until(lambda: len(world.hosts["n2"].messages) == sent + 1, 5 * SECOND)
    assert leader(world) == "n3"
    assert world.hosts["n3"].messages == world.hosts["n2"].messages
    assert not world.events("lost")
    if durability == "durable":
        world.restart("n3")
        settle(world, sent + 1)


def test_a_suspended_replica_leads_if_no_other_can() -> None:
    """n1 and n3 have decided that n3 is suspended, and n1 is gone. Without n3 nobody knows that, and with it nobody is
    elected whose log is shorter."""
    world = started(1, rejoin_ns=200 * MILLISECOND)
    sent = talk(world, ("n1",))
    settle(world, sent)
    world.hosts["n3"].fails_at = sent + 1
    world.drop = lambda _s, target, frame: target == "n2" and is_order(frame)
    world.send("n1", [b"n3 cannot take this"])
    world.run_until(lambda: suspended(world, "n3") == ["n3"], SECOND)
    assert suspended(world, "n2") == []
    world.kill("n1")
    world.hosts["n3"].fails_at = 0
    world.drop = None
    settle(world, sent + 1)
    world.run_until(lambda: suspended(world, "n2") == [], 5 * SECOND)


def test_one_that_is_never_to_lead_hands_on_a_log_that_only_it_has() -> None:
    """n1 and n3 have decided something, and n1 is gone for good. Only n3 knows of it, so nobody else is elected."""
    world = started(1, never_lead=("n3",))
    sent = talk(world, ("n1",))
    settle(world, sent)
    world.drop = lambda _s, target, frame: target == "n2" and is_order(frame)
    world.send("n1", [b"only n1 and n3 have this"])
    world.run_until(lambda: len(world.hosts["n3"].app.got) > sent, SECOND)
    world.kill("n1")
    world.drop = None
    settle(world, sent + 1)
    world.run_until(lambda: leader(world) == "n2", 5 * SECOND)


def suspended(world: World, name: str) -> list[Any]:
    """Who is suspended, as far as one replica knows that it is decided."""
    view = world.hosts[name].status["view"]
    return [member["name"] for member in view if member["suspended"]]


# -- availability ------------------------------------------------------------------------------------------------


def split(world: World, ours: tuple[str, ...]) -> None:
    for a in ours:
        for b in world.names:
            if b not in ours:
                world.cut(a, b)


def test_a_side_without_a_majority_goes_on() -> None:
    """The seed's 'at least one server'."""
    world = started(1, mode="availability")
    settle(world, talk(world, ("n1",)))
    world.kill("n1")
    world.kill("n2")
    world.run(SECOND)
    world.send("n3", [b"alone"])
    world.run(200 * MILLISECOND)
    assert world.hosts["n3"].messages[-1] == b"alone"


def test_one_of_two_that_restarts_is_admitted_again() -> None:
    """Views need a true majority, or two sides would not stay one group. But the life that ended is on no side."""
    world = started(1, voters=2, mode="availability")
    settle(world, talk(world, ("n1", "n2")))
    world.restart("n2")
    ready(world)
    assert leader(world) == "n1"


def test_a_majority_group_does_not() -> None:
    world = started(1)
    settle(world, talk(world, ("n1",)))
    world.kill("n1")
    world.kill("n2")
    world.run(SECOND)
    world.send("n3", [b"alone"])
    world.run(200 * MILLISECOND)
    assert len(world.hosts["n3"].messages) == 50


@pytest.mark.parametrize("durability", ["memory", "durable"])
@pytest.mark.parametrize("seed", range(4))
def test_when_two_sides_meet_one_wins_and_the_other_says_what_it_loses(
    seed: int, durability: str
) -> None:
    """Both sides decided things. The later term wins; terms of two sides are never the same."""
    world = started(seed, voters=4, mode="availability", durability=durability)
    settle(world, talk(world, ("n1", "n3")))
    split(world, ("n1", "n2"))
    world.run(SECOND)
    for k in range(5):
        world.send("n1", [f"left {k}".encode()])
        world.send("n3", [f"right {k}".encode()])
        world.run(20 * MILLISECOND)
    left, right = world.hosts["n2"].messages[100:], world.hosts["n4"].messages[100:]
    assert (len(left), len(right)) == (5, 5)
    world.heal_all()
    world.run_until(
        lambda: (
            len({tuple(host.messages) for host in world.hosts.values()}) == 1
            and leader(world) != ""
        ),
        20 * SECOND,
    )
    world.run(2 * SECOND)
    (final,) = {tuple(host.messages) for host in world.hosts.values()}
    assert final[100:105] in (tuple(left), tuple(right)), "one side's order is the group's"
    losers = {"n1", "n2"} if final[100:105] == tuple(right) else {"n3", "n4"}
    assert {name for name, _ in world.events("lost")} == losers
    world.send("n1", [b"together"])
    world.run_until(
        lambda: all(host.messages[-1] == b"together" for host in world.hosts.values()), 5 * SECOND
    )


def test_two_sides_never_lead_in_the_same_term() -> None:
    leaders: dict[tuple[int, int], str] = {}
    for seed in range(3):
        world = started(seed, voters=5, mode="availability")
        rng = Random(seed)
        for _ in range(15):
            world.heal_all()
            split(world, tuple(rng.sample(world.names, 2)))
            world.run(rng.randint(200, 600) * MILLISECOND)
        for name, fact in world.events("leads"):
            assert leaders.setdefault((seed, fact.term), name) == name
    assert len(leaders) > 10


def test_two_sides_with_different_views_never_lead_in_the_same_term() -> None:
    """What a term says of its leader must not depend on the view: here the side of n2 has removed n1, which goes on."""
    world = started(1, mode="availability", durability="durable")
    split(world, ("n1",))
    world.run(SECOND)
    world.inject(leader(world), RemoveReplica("n1"))
    world.run(SECOND)
    assert sorted(member["name"] for member in world.hosts["n2"].status["view"]) == ["n2", "n3"]
    for name in ("n1", "n2", "n3", "n1", "n3", "n2") * 3:
        world.restart(name)
        world.run(SECOND)
    leaders: dict[int, str] = {}
    for name, fact in world.events("leads"):
        assert leaders.setdefault(fact.term, name) == name
    assert sorted(leaders.values()).count("n1") > 3
    assert set(leaders.values()) == {"n1", "n2", "n3"}


def test_a_leader_that_is_being_removed_and_is_not_heard_leads_once_more() -> None:
    """n1's removal is in its log alone, so nobody else can be elected; and n2 has lost its memory."""
    world = started(1, mode="availability")
    settle(world, talk(world, ("n1",)))
    world.drop = lambda sender, target, frame: isinstance(frame, Append)
    world.inject("n1", RemoveReplica("n1"))
    world.run(20 * MILLISECOND)
    world.restart("n2")
    world.run(400 * MILLISECOND)
    assert [name for name, _ in world.events("steps down")] == ["n1"]
    world.drop = None
    world.send("n3", [b"after it"])
    world.run(2 * SECOND)
    assert world.hosts["n2"].messages[-1] == b"after it"
    assert world.hosts["n1"].status["state"] == "removed"
    assert sorted(member["name"] for member in world.hosts["n3"].status["view"]) == ["n2", "n3"]


def test_a_side_that_goes_on_alone_is_not_stopped_by_full_buffers() -> None:
    world = started(1, voters=3, mode="availability")
    world.isolate("n3")
    sent = 0
    for k in range(400):
        if world.hosts["n3"].source.held < 40_000:
            world.send("n3", texts(f"{k}", 10, size=200))
            sent += 10
        world.run(2 * MILLISECOND)
    assert sent * 200 > 4 * 64_000


# -- both, under faults ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("modes", [{"delivery": "fast"}, {"mode": "availability"}], ids=str)
def test_in_the_end_all_replicas_have_the_same(modes: dict[str, Any], seed: int) -> None:
    """Cuts of every kind while everybody sends: whatever had to be undone, one order is left."""
    rng = Random(f"modes/{seed}")
    world = started(seed, voters=5, durability=rng.choice(("memory", "durable")), **modes)
    for step in range(40):
        for name in world.names:
            if rng.random() < 0.5 and world.hosts[name].source.held < 30_000:
                world.send(name, [f"{name}/{step}".encode()])
        if rng.random() < 0.15:
            world.heal_all()
        if rng.random() < 0.2:
            split(world, tuple(rng.sample(world.names, rng.randint(1, 2))))
        world.run(rng.randint(1, 80) * MILLISECOND)
    world.heal_all()
    ready(world, 30 * SECOND)
    world.run(5 * SECOND)
    assert len({tuple(host.messages) for host in world.hosts.values()}) == 1
    assert all(
        [item.position for item in host.app.got] == list(range(1, len(host.app.got) + 1))
        for host in world.hosts.values()
    )
    undone.extend(name for kind in ("rolled_back", "lost") for name, _ in world.events(kind))


undone: list[str] = []


def test_the_runs_above_had_something_to_undo() -> None:
    if not undone:
        pytest.skip("they were not run")
    assert len(undone) > 3


# -- what is left of another side --------------------------------------------------------------------------------


def test_what_was_delivered_ahead_is_kept_though_it_is_said_to_be_free() -> None:
    """Another leader may say so before it is known that the order is otherwise: then it is read again."""
    world = started(1, delivery="fast")
    settle(world, talk(world, ("n1",)))
    world.drop = lambda _, __, frame: isinstance(frame, AppendResponse)
    world.send("n1", texts("ahead", 5))
    world.run(20 * MILLISECOND)
    n1, n2 = world.hosts["n1"], world.hosts["n2"]
    assert n2.messages[-1].startswith(b"ahead:4")
    assert n2.status["commit"] < n2.status["applied"]
    freed = Freed(GROUP, ((n1.source.stream, 55),))
    world.inject("n2", Received(node_id("n1"), [freed], world.now))
    assert n2.replica is not None
    assert n2.replica.inspect().streams.holds(n1.source.stream, 51, 55)


def test_a_state_of_a_side_that_has_lost_is_not_taken_for_what_the_leader_has() -> None:
    """Who gave it may not have heard yet that another side has won, with a log that is shorter."""
    log = Log()
    pending = PendingEntries(log, Streams(1 << 20, 8), binding=False)
    log.restart(Cursor(index=111, term=4))
    pending.restart()
    assert pending.match == 0
    pending.take(Append(GROUP, 8, 107, 8, 107))
    assert pending.diverged


def test_a_replica_gives_what_its_own_source_has_let_go_of() -> None:
    """The leader of another side has told the source that all have it."""
    world = started(1, voters=2)
    settle(world, talk(world, ("n1",)))
    world.drop = lambda _, __, frame: isinstance(frame, Payload)
    world.send("n1", texts("only n1", 3))
    source = world.hosts["n1"].source
    freed = Freed(GROUP, ((source.stream, 53),))
    world._feed(world.hosts["n1"], source_unit(GROUP), Received(node_id("n2"), [freed], world.now))
    assert source.held == 0
    world.drop = None
    settle(world, 53)


def test_a_long_log_that_is_wrong_gives_way_to_a_state() -> None:
    """n1 has written more than the others have decided since, and their logs do not go back to where its parts."""
    world = started(1, sources=1, patience_ns=SECOND)
    settle(world, talk(world, ("n2",)))
    for name in ("n1", "s1"):
        for other in ("n2", "n3"):
            world.cut(name, other)
    for k in range(130):
        world.send("s1", [b"%d" % k])
        world.run(MILLISECOND)
    world.kill("s1")
    wrong = world.hosts["n1"].status["last"]
    world.run_until(lambda: leader(world) in ("n2", "n3"), 2 * SECOND)
    status = world.hosts["n2"].status
    while status["last"] - status["log"] <= world.hosts["n1"].status["commit"]:
        world.send("n2", texts("n2", 20, size=1000))
        world.run(20 * MILLISECOND)
        status = world.hosts["n2"].status
        assert status["last"] < wrong
    world.heal_all()
    ready(world)
    world.send("n3", [b"to all"])
    world.run_until(
        lambda: all(b"to all" in host.messages for host in world.hosts.values()), 5 * SECOND
    )
    assert world.hosts["n2"].status["last"] < wrong
    world.check()


def test_a_state_on_disk_goes_with_the_side_that_it_was_of() -> None:
    """Or, if it restarts before it has another, a replica would put entries of the side that has won after it."""
    world = started(1, voters=2, mode="availability", durability="durable", snapshot_bytes=500)
    settle(world, talk(world, ("n1",)))
    replica = world.hosts["n2"].replica
    assert replica is not None
    assert replica.inspect().journal is not None
    assert replica.inspect().journal.state_index > 0
    world.isolate("n2")
    replica.inspect().pending.diverged = True
    world.run(5 * MILLISECOND)
    assert world.events("rolled_back")
    world.restart("n2")
    assert (world.hosts["n2"].status["last"], world.hosts["n2"].messages) == (0, [])
    world.heal_all()
    settle(world, 50)


def test_a_log_that_restarts_further_back_needs_messages_again() -> None:
    """The state of the side that has won may be from before what this replica had passed and let go of."""
    world = started(1, voters=2, mode="availability")
    settle(world, talk(world, ("n1",)))
    world.run(2 * SECOND)
    replica = world.hosts["n2"].replica
    assert replica is not None
    stream = replica.inspect().streams.get(world.hosts["n1"].source.stream)
    assert stream is not None
    assert stream.floor == 51
    other = Cursor(index=20, term=1 << 40, position=10, following={stream.id: 10})
    checkpoint = Checkpoint(VERSION, replica.inspect().group_epoch, CursorState.of(other), 0, b"")
    replica._installer._begin_log(other, checkpoint, Outbox())
    assert (stream.floor, replica.inspect().log.last) == (10, 20)
    assert replica.inspect().leadership.term == 1 << 40, (
        "nobody leads in a term before those of its log"
    )


def test_a_state_of_a_side_that_has_lost_is_not_taken_over_a_log_of_a_later_term() -> None:
    """It may be after more entries. Were it taken, what is left of the side that has won might be with one that cannot
    lead. But whoever leads has won: its log may go on from a state that was decided earlier."""
    world = started(1, voters=2, mode="availability")
    settle(world, talk(world, ("n1",)))
    replica = world.hosts["n2"].replica
    assert replica is not None
    core, installer = replica.inspect(), replica._installer
    peer, last = core.peers.named("n1"), core.log.last
    assert peer is not None
    term, view = core.log.tail.term, core.log.tail.view
    for leader_then, term_then, last_then in (
        ("", term - 1, last), ("", term, last + 50), ("n1", term - 1, last + 100),
    ):  # fmt: skip
        core.leadership.leader = leader_then
        index = max(last_then, last + 50)
        at = CursorState.of(Cursor(index=index, term=term_then, view=view))
        checkpoint = Checkpoint(VERSION, core.group_epoch, at, 0, b"")
        asked = Outbox()
        installer._snapshot_receiver.begin(peer, world.now, asked)
        request = decode_frame(asked.downs[0][1].messages[0])
        assert isinstance(request, StateRequest)
        whole = Snapshot(checkpoint).part(0)
        chunk = StateChunk(GROUP, request.request, index, 0, 1, whole, head=1)
        installer.chunk(peer, chunk, world.now, Outbox())
        installer.restored(Restored(index), world.now, Outbox())
        assert core.log.last == last_then
