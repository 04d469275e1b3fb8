"""Message stability as the garbage collector of a group's buffers."""

from __future__ import annotations

from typing import Literal

import msgspec
import pytest
from tests.unit.group.harness import GROUP, World, node_id, settle
from tests.unit.group.pouring import pour
from tests.unit.group.talking import started, talk, texts
from tests.unit.group.view_text import suspended

from holdfast.errors import ConfigError
from holdfast.group.config import GROUP_STABILITY, GroupConfig, units_for
from holdfast.group.facts import StabilityFact
from holdfast.group.frames import Append, AppendResponse, Entry, Freed, Payload, StateRequest
from holdfast.group.log.entries import encode_data
from holdfast.group.peers import post
from holdfast.group.ports import AddReplica, TakeSnapshot
from holdfast.links.ports import Received
from holdfast.machine import Outbox
from holdfast.stability import HELD, PROTOCOLS, StabilityConfig
from holdfast.stability.frames import STABILITY_FRAMES, RoundResult
from holdfast.types import MICROSECOND, MILLISECOND, SECOND


def by(protocol: str) -> StabilityConfig:
    return StabilityConfig(
        protocol=protocol, period_ns=GROUP_STABILITY.period_ns, gap_ns=GROUP_STABILITY.gap_ns
    )


def logs(world: World) -> dict[str, int]:
    """Entries that each replica still has."""
    return {
        name: int(host.status["log"])
        for name, host in world.hosts.items()
        if host.replica is not None
    }


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_protocol_frees_all_buffers_when_all_is_quiet(protocol: str) -> None:
    world = started(1, stability=by(protocol))
    settle(world, talk(world, ("n1", "n2")))
    world.run(2 * SECOND)
    assert logs(world) == {"n1": 0, "n2": 0, "n3": 0}
    assert {host.source.status()["held"] for host in world.hosts.values()} == {0}
    statuses = [world.hosts[name].status["stability"] for name in ("n1", "n2", "n3")]
    assert {status["protocol"] for status in statuses} == {protocol}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_is_freed_that_a_replica_has_not_applied_and_it_is_named(protocol: str) -> None:
    """Invariant 4 and rule 9: the application of n3 does not move."""
    world = started(1, stability=by(protocol))
    settle(world, talk(world, ("n1", "n2")))
    world.run(SECOND)
    applied = int(world.hosts["n3"].status["applied"])
    world.hosts["n3"].frozen = True
    world.send("n1", [b"x" * 100] * 50)
    world.run(SECOND)
    for name in ("n1", "n2"):
        stability = world.hosts[name].status["stability"]
        assert stability["stable"] <= applied + 1
        assert world.hosts[name].status["log"] > 0
        assert {blocker["name"] for blocker in stability["blockers"]} == {"n3"}
    world.hosts["n3"].frozen = False
    world.run_until(lambda: set(logs(world).values()) == {0}, 5 * SECOND)


@pytest.mark.parametrize("mode", ["majority", "availability"])
def test_the_leader_knows_what_each_member_holds(mode: Literal["majority", "availability"]) -> None:
    """Of all streams together, as each member shows it itself: no member frees while the application of n3 is stuck."""
    world = started(1, mode=mode)
    settle(world, talk(world, ("n1", "n2")))
    world.hosts["n3"].frozen = True
    for source in ("n1", "n2"):
        world.send(source, [b"x" * 100] * 50)
    world.run(SECOND)
    own = {name: world.hosts[name].status["stability"]["held"] for name in ("n1", "n2", "n3")}
    assert min(own.values()) >= 2 * 50 * 100
    peers = world.hosts["n1"].status["peers"]
    assert {name: peer["held"] for name, peer in peers.items()} == {n: own[n] for n in ("n2", "n3")}
    world.hosts["n3"].frozen = False
    world.run_until(
        lambda: all(peer["held"] == 0 for peer in world.hosts["n1"].status["peers"].values()),
        5 * SECOND,
    )


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_source_forgets_what_all_hold_although_an_application_is_stuck(protocol: str) -> None:
    """Rule 1: every replica holds the messages, the application of n3 does not move. The source forgets their bytes,
    and its window stays as full as it is."""
    world = started(1, sources=1, stability=by(protocol))
    world.hosts["n3"].frozen = True
    world.send("s1", [b"x" * 100] * 50)
    source = world.hosts["s1"].source
    world.run_until(lambda: source.kept == 0, 2 * SECOND)
    assert source.held > 50 * 100
    assert world.hosts["n1"].status["log"] > 0, "replicas keep the log until it is applied"
    world.hosts["n3"].frozen = False
    world.run_until(lambda: source.held == 0, 5 * SECOND)


def test_a_source_keeps_what_one_replica_lacks_although_it_is_committed() -> None:
    """Rule 1: n3 gets no message. A majority has committed all of them, and the source still has every byte."""
    world = started(1, sources=1)
    world.drop = lambda _sender, target, frame: target == "n3" and isinstance(frame, Payload)
    world.send("s1", [b"x" * 100] * 50)
    world.run_until(lambda: len(world.hosts["n1"].messages) == 50, SECOND)
    world.run(SECOND)
    source = world.hosts["s1"].source
    assert (source.forgotten, source.kept) == (0, source.held)
    world.drop = None
    world.run_until(lambda: source.kept == 0, 5 * SECOND)
    settle(world, 50)


def test_a_durable_replica_holds_what_is_on_its_disk() -> None:
    """Rule 2: the disk of n3 does not write. The others commit, n3 knows that, and reports nothing of it as held."""
    world = started(1, durability="durable")
    sync = world._sync
    world._sync = lambda host: None if host.name == "n3" else sync(host)  # type: ignore[method-assign]
    world.send("n1", [b"x" * 100] * 50)
    world.run(100 * MILLISECOND)
    replica = world.hosts["n3"].replica
    assert replica is not None
    core = replica.inspect()
    assert core.stability is not None
    assert core.log.commit > core.stable, "it knows that more is committed than it has written"
    assert core.stability.detector.status(world.now).report[HELD] <= core.stable


def test_stability_frames_wait_for_earlier_writes() -> None:
    """Rule 2: they are promises, so they are never `immediate`."""
    out = Outbox()
    for kind in STABILITY_FRAMES:
        values = [b"" if field.type is bytes else 1 for field in msgspec.structs.fields(kind)[1:]]
        post(out, [node_id("n2")], kind("g", *values))
    assert [immediate for _, _, immediate in out.downs] == [False] * len(STABILITY_FRAMES)


def test_acknowledgements_between_two_rounds_are_one_report() -> None:
    """Under load a replica acknowledges many times for each round. The detector gets the last of them."""
    world = started(1, delay_us=(50, 60))
    replica = world.hosts["n1"].replica
    assert replica is not None
    stability = replica.inspect().stability
    assert stability is not None
    acks = 0

    def count(_from: str, to: str, frame: object) -> bool:
        nonlocal acks
        acks += to == "n1" and isinstance(frame, AppendResponse)
        return False

    world.drop = count
    learned, rounds = stability.detector.learned, stability.detector.status(world.now).rounds
    for _ in range(400):
        world.send("n1", [bytes(50)])
        world.run(100 * MICROSECOND)
    learned = stability.detector.learned - learned
    rounds = stability.detector.status(world.now).rounds - rounds
    assert acks > 40 * rounds
    assert 2 * (rounds - 1) <= learned <= 2 * (rounds + 1), "one of each of the two others"
    world.run(SECOND)
    assert logs(world) == {"n1": 0, "n2": 0, "n3": 0}


def test_a_member_that_begins_no_rounds_reports_with_its_answers() -> None:
    """Under load, with a message every 500 µs: a report in every turn would cost more than the answers do."""
    world = started(1)
    replica = world.hosts["n2"].replica
    assert replica is not None
    stability = replica.inspect().stability
    assert stability is not None
    held: list[int] = []
    rounds = stability.detector.status(world.now).rounds
    for _ in range(400):
        world.send("n1", [bytes(2000)])
        world.run(500 * MICROSECOND)
        if held[-1:] != [stability.held_bytes]:
            held.append(stability.held_bytes)
    rounds = stability.detector.status(world.now).rounds - rounds
    assert rounds > 20
    assert len(held) <= rounds + 200 // 20 + 1


@pytest.mark.parametrize("delivery", ["safe", "fast"])
def test_acknowledgements_are_reports_except_in_fast_groups(delivery: str) -> None:
    """Rule 10: a `fast` replica that runs ahead knows later than the leader what is committed. A result that counts on
    its acknowledgement could be above its own report, and it would refuse that."""
    world = started(1, delivery=delivery)
    for _ in range(20):
        world.send("n1", [bytes(50)] * 5)
        world.run(5 * MILLISECOND)
    replica = world.hosts["n1"].replica
    assert replica is not None
    stability = replica.inspect().stability
    assert stability is not None
    assert bool(stability.detector.learned) == (delivery == "safe")
    world.run(SECOND)
    assert logs(world) == {"n1": 0, "n2": 0, "n3": 0}


def rounds_per_second(size: int, window_bytes: int) -> float:
    """With a message of this size every 2 ms."""
    world = started(1, window_bytes=window_bytes)
    world.run(SECOND)
    before, begin = int(world.hosts["n1"].status["stability"]["round"]), world.now
    for _ in range(500):
        world.send("n2", [bytes(size)])
        world.run(2 * MILLISECOND)
    rounds = int(world.hosts["n1"].status["stability"]["round"]) - before
    return rounds * SECOND / (world.now - begin)


def test_rounds_are_rare_while_no_source_waits_for_room() -> None:
    """Rounds cost as much as messages. With large messages or a small window there are more, so that sources get room
    in time."""
    assert 30 < rounds_per_second(100, 16 << 20) <= 50
    assert 30 < rounds_per_second(10_000, 16 << 20) <= 50
    assert rounds_per_second(100_000, 16 << 20) > 100
    assert rounds_per_second(100, 16_000) > 100


def test_a_learner_that_joins_gets_what_the_source_has_forgotten_from_replicas() -> None:
    """Rule 1: entries that are held everywhere are not applied yet, so the log has them and the source does not."""
    world = started(1, sources=1, joiners=1)
    world.kill("j1")
    for name in ("n1", "n2", "n3"):
        world.hosts[name].slowness = 2000
    world.send("s1", texts("s1", 50))
    source = world.hosts["s1"].source
    world.run_until(lambda: source.kept == 0, 5 * SECOND)
    assert source.held > 0
    world.start("j1")
    world.inject("n1", AddReplica("j1", voter=False))
    for name in ("n1", "n2", "n3"):
        world.hosts[name].slowness = 1
    world.run_until(lambda: len(world.hosts["j1"].messages) == 50, 20 * SECOND)
    world.check()


def test_the_leader_coordinates_also_after_a_change() -> None:
    """The acknowledgements go to it: any other coordinator would have to ask for reports."""
    world = started(1)
    world.kill("n1")
    world.run_until(lambda: world.hosts["n2"].status["leader"] not in ("", "n1"), 5 * SECOND)
    leader = world.hosts["n2"].status["leader"]
    world.start("n1")
    world.run_until(lambda: len(world.hosts["n1"].status["view"]) == 3, 5 * SECOND)
    world.run(SECOND)
    tellers: dict[str, int] = {}

    def look(one: str, _other: str, frame: object) -> bool:
        if isinstance(frame, RoundResult):
            tellers[one] = tellers.get(one, 0) + 1
        return False

    world.drop = look
    world.send("n3", [b"x" * 100] * 20)
    world.run(SECOND)
    assert list(tellers) == [leader]


def test_the_cube_frees_without_a_word_of_the_leader() -> None:
    """What the leader says about what is free is lost, and so is every result that it gives."""
    world = started(1, stability=by("cube"))
    world.drop = lambda sender, target, frame: (
        sender == "n1" and isinstance(frame, Freed | RoundResult)
    )
    settle(world, talk(world, ("n2", "n3")))
    world.run_until(lambda: logs(world)["n2"] == logs(world)["n3"] == 0, 5 * SECOND)


def test_a_pin_survives_a_change_of_the_leader() -> None:
    """Rule 5: n5 takes a state when the leader is lost. The next leader keeps the log for it as well."""
    world = started(1, voters=5, durability="durable", patience_ns=20 * SECOND)
    world.kill("n5")
    while suspended(world) != ["n5"]:
        assert world.now < 10 * SECOND, world.describe()
        pour(world, "n1", rounds=50, watch=[])
    pour(world, "n1", rounds=400, watch=[])
    world.restore_ns = 30 * SECOND
    world.start("n5")
    world.run_until(lambda: world.hosts["n1"].status["stability"]["pin"] > 0, 10 * SECOND)
    pin = world.hosts["n1"].status["stability"]["pin"]
    world.run_until(lambda: world.hosts["n2"].status["stability"]["pin"] == pin, SECOND)
    world.kill("n1")

    def leads() -> list[str]:
        return [n for n in ("n2", "n3", "n4") if world.hosts[n].status["state"] == "leading"]

    world.run_until(lambda: bool(leads()), 5 * SECOND)
    world.start("n1")  # or nothing more would be stable because of n1
    world.send("n2", [b"y" * 100] * 20)
    world.run(SECOND)
    (leader,) = leads()
    others = [world.hosts[name].status["applied"] for name in ("n1", "n2", "n3", "n4")]
    assert min(others) > pin, "all but n5 have applied more"
    assert world.hosts[leader].status["stability"]["pin"] == pin
    assert world.hosts[leader].status["stability"]["stable"] <= pin


def test_an_availability_group_frees_by_its_leaders_account() -> None:
    world = started(1, mode="availability")
    settle(world, talk(world, ("n1", "n2")))
    world.run(2 * SECOND)
    assert set(logs(world).values()) == {0}
    assert world.hosts["n1"].status["stability"]["protocol"] == "account"
    with pytest.raises(ConfigError, match="leave it out"):
        GroupConfig("g", ("a",), mode="availability", stability=by("cube"))


def test_stability_frames_go_to_the_replica() -> None:
    frame = RoundResult("g", 1, 1, 1, 1, 1, b"", b"")
    assert units_for(frame) == ("replica/g",)
    assert len(STABILITY_FRAMES) == 6


@pytest.mark.parametrize("gap_ms", [2, 3, 5])
def test_stability_frames_travel_with_entries_and_acknowledgements(gap_ms: int) -> None:
    """S7: while messages flow, frames between the leader and the others need no packets and no turns of their own. A
    round that is due between two messages begins with the second."""
    world = started(1, stability=by("coord"))
    before = {name: world.hosts[name].status["stability"] for name in logs(world)}
    for _ in range(100):
        world.send("n1", [bytes(50)] * 5)
        world.run(gap_ms * MILLISECOND)
    for name, start in before.items():
        status = world.hosts[name].status["stability"]
        sent, rode = status["sent"] - start["sent"], status["rode"] - start["rode"]
        assert sent > 20
        assert rode > 0.75 * sent, (name, status)
    world.run(SECOND)
    assert logs(world) == {"n1": 0, "n2": 0, "n3": 0}


def test_facts_tell_which_member_blocks() -> None:
    world = started(1)
    world.hosts["n3"].frozen = True
    for _ in range(40):
        world.send("n1", [bytes(50)] * 5)
        world.run(100 * MILLISECOND)
    found = [fact for name, fact in world.facts if isinstance(fact, StabilityFact) and name == "n1"]
    assert found[0].protocol == "coord"
    assert found[0].members == 3
    assert [fact.blocker for fact in found if fact.blocker] == ["n3"]
    assert len(found) <= 4, "rarely"


def test_a_replica_that_has_not_reached_the_pin_gives_no_state() -> None:
    """Rule 5. The log is kept for n3 from its pin on. n2 knows the pin, but its application stands before it."""
    world = started(1)
    settle(world, talk(world, ("n1",)))
    applied = world.hosts["n2"].status["applied"]
    request = StateRequest(GROUP, 1, ((0, 0),))
    taken: list[int] = []
    world.watch = lambda name, effect: (
        taken.append(effect.index) if isinstance(effect, TakeSnapshot) and name == "n2" else None
    )
    for pin, ignored in ((applied + 50, 1), (0, 1)):
        pin_member(world, "n2", "n3", pin)
        world.inject("n2", Received(node_id("n3"), [request], world.now))
        world.run(50 * MILLISECOND)
        assert world.hosts["n2"].status["ignored"]["state before the pin"] == ignored
        assert bool(taken) == (not pin)


def pin_member(world: World, at: str, name: str, pin: int) -> None:
    """A committed view in which the log is kept for a member from `pin` on, as the leader would send it."""
    replica = world.hosts[at].replica
    assert replica is not None
    view = replica.inspect().log.tail.view
    assert view is not None
    member = view.named(name)
    assert member is not None
    changed = view.with_member(msgspec.structs.replace(member, suspended=pin > 0, pin=pin))
    tail = replica.inspect().log.tail
    entry = Entry(
        tail.term, tail.index + 1, tail.position, tail.log_ns, 4, None, 0, 0, encode_data(changed)
    )
    frame = Append(
        GROUP,
        tail.term,
        tail.index,
        tail.term,
        tail.index + 1,
        (entry,),
        0,
        replica.inspect().log.epoch,
    )
    world.inject(at, Received(node_id("n1"), [frame], world.now))
