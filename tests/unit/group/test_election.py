"""Elections: who is replaced and who is not. Each rule with the schedule that breaks without it
(docs/design/groups.md)."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from tests.unit.group.harness import World, leader, node_id, ready, settle
from tests.unit.group.talking import epoch_of, started, talk

from holdfast.group.config import GroupConfig
from holdfast.group.consensus.election import PRE, REAL, Election
from holdfast.group.consensus.leadership import Role
from holdfast.group.core import Core
from holdfast.group.frames import Append, AppendResponse, Entry, Payload, VoteRequest, VoteResponse
from holdfast.group.log.entries import Member, View, encode_data
from holdfast.group.log.replicated_log import Kind
from holdfast.group.peer import Peer
from holdfast.group.ports import HandOver
from holdfast.links.ports import Received, SendChannel
from holdfast.machine import Outbox
from holdfast.types import MILLISECOND, SECOND
from holdfast.wire.codec import decode_frame
from holdfast.wire.frames import MemberInfo

# -- a leader that is gone ---------------------------------------------------------------------------------------


def longest_gap(world: World, watch: str, lasts_ns: int, senders: tuple[str, ...]) -> int:
    """The longest time between two deliveries at `watch` while `senders` send every 5 ms."""
    last, longest, count = world.now, 0, len(world.hosts[watch].messages)
    end = world.now + lasts_ns
    while world.now < end:
        for name in senders:
            world.send(name, [b"tick"])
        for _ in range(5):
            world.run(MILLISECOND)
            if len(world.hosts[watch].messages) > count:
                longest = max(longest, world.now - last)
                last, count = world.now, len(world.hosts[watch].messages)
    return max(longest, world.now - last)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("how", ["kill", "isolate", "pause"])
def test_a_leader_that_is_gone_is_replaced_within_half_a_second(how: str, seed: int) -> None:
    """L8, and the aim at the LAN preset: killed (SIGKILL), stopped (SIGSTOP), cut off."""
    world = started(seed, window_bytes=1_000_000)
    talk(world, ("n2",), rounds=3)
    getattr(world, how)("n1")
    assert longest_gap(world, "n2", 2 * SECOND, ("n2", "n3")) < 500 * MILLISECOND
    assert leader(world) in ("n2", "n3")
    world.check()


def test_nothing_that_the_old_leader_delivered_is_lost_or_ordered_otherwise() -> None:
    world = started(3)
    sent = talk(world, ("n1", "n2", "n3"))
    world.send("n1", [b"decided at the last moment"])
    world.run_until(lambda: len(world.hosts["n1"].messages) == sent + 1, SECOND)
    world.kill("n1")
    world.send("n2", [b"later"])
    settle(world, sent + 2)


def test_a_paused_leader_finds_out_that_it_leads_no_more() -> None:
    world = started(1)
    world.pause("n1")
    world.run(SECOND)
    assert leader(world) in ("n2", "n3")
    world.resume("n1")
    world.send("n1", [b"from the old one"])
    settle(world, 1)
    assert world.hosts["n1"].status["state"] == "following"


# -- rule 5: half-broken leaders ---------------------------------------------------------------------------------


def test_a_leader_that_sends_but_does_not_receive_is_replaced() -> None:
    """Rule 5. Its heartbeats arrive, so followers that honour any heartbeat would wait for it for ever."""
    world = started(1, window_bytes=1_000_000)
    world.drop = lambda sender, target, frame: target == "n1" and not isinstance(frame, Payload)
    assert longest_gap(world, "n3", 2 * SECOND, ("n2",)) < 800 * MILLISECOND
    assert leader(world) in ("n2", "n3")


def test_a_leader_whose_order_does_not_get_through_hands_over() -> None:
    """Rule 5. Small heartbeats pass, and are answered; frames with entries do not."""
    world = started(1)
    world.drop = lambda sender, _, frame: (
        sender == "n1" and isinstance(frame, Append) and bool(frame.entries)
    )
    world.send("n2", [b"large"])
    world.run_until(lambda: world.hosts["n3"].messages == [b"large"], SECOND)
    assert leader(world) in ("n2", "n3")
    assert [name for name, _ in world.events("stalls")] == ["n1"]


def test_a_stale_heartbeat_does_not_keep_a_follower_quiet() -> None:
    world = started(1)
    status = world.hosts["n3"].status
    asked: list[Any] = []

    def watch(sender: str, target: str, frame: Any) -> bool:
        if sender == "n3" and isinstance(frame, VoteRequest):
            asked.append(frame)
        return target == "n3"

    world.drop = watch
    for _ in range(20):
        stale = Append(
            "book", status["term"], status["last"], status["term"], 0, (), SECOND, epoch_of(world)
        )
        world.inject("n3", Received(node_id("n1"), [stale], world.now))
        world.run(40 * MILLISECOND)
    assert len(asked) >= 2, "it asks to be elected"


def test_a_leader_without_a_majority_steps_down() -> None:
    world = started(1)
    world.isolate("n1")
    world.run(400 * MILLISECOND)
    assert world.hosts["n1"].status["state"] == "following"
    assert "has not heard from a majority" in world.events("steps down")[0][1].detail


# -- nobody is replaced without need -----------------------------------------------------------------------------


def test_a_replica_that_comes_back_does_not_disturb_the_leader() -> None:
    """The pre-vote: without it n3 returns with a term that has grown by one for every time-out."""
    world = started(1)
    term = world.hosts["n1"].status["term"]
    world.isolate("n3")
    world.run(3 * SECOND)
    world.heal_all()
    settle(world, talk(world, ("n1", "n3")))
    assert (leader(world), world.hosts["n1"].status["term"]) == ("n1", term)


def test_one_that_alone_misses_the_leader_is_not_elected() -> None:
    """n3 hears n2 but not n1. n2 hears n1, so it gives no pre-vote: leader and term stay."""
    world = started(1)
    term = world.hosts["n1"].status["term"]
    world.cut("n1", "n3")
    world.send("n1", [b"x"])
    world.run(3 * SECOND)
    assert (leader(world), world.hosts["n1"].status["term"]) == ("n1", term)


def test_a_process_that_was_paused_accuses_no_path() -> None:
    """Its own lateness is credited: the heartbeats that it missed were sent."""
    world = started(1)
    term = world.hosts["n1"].status["term"]
    for _ in range(5):
        world.pause("n3")
        world.run(700 * MILLISECOND)
        asked: list[Any] = []
        world.drop = lambda sender, _, frame, seen=asked: bool(  # type: ignore[misc]
            sender == "n3" and isinstance(frame, VoteRequest) and seen.append(frame)
        )
        world.resume("n3")
        world.run(100 * MILLISECOND)
        assert asked == []
    assert (leader(world), world.hosts["n1"].status["term"]) == ("n1", term)


def test_a_leader_that_was_paused_for_a_moment_goes_on() -> None:
    """Nobody was heard because nobody was listened to."""
    world = started(1, election_ns=600 * MILLISECOND)
    term = world.hosts["n1"].status["term"]
    world.pause("n1")
    world.run(550 * MILLISECOND)
    world.resume("n1")
    world.run(SECOND)
    assert (leader(world), world.hosts["n1"].status["term"]) == ("n1", term)


# -- who may lead ------------------------------------------------------------------------------------------------


def test_replicas_that_may_never_lead_are_not_elected() -> None:
    """L10. n2 and n3 are left and n2 is not eligible."""
    for seed in range(5):
        world = started(seed, never_lead=("n2",))
        world.kill("n1")
        world.run_until(lambda w=world: leader(w) == "n3", 5 * SECOND)  # type: ignore[misc]


def test_a_group_whose_first_voter_may_never_lead_is_founded_by_the_next() -> None:
    world = started(1, never_lead=("n1",))
    assert leader(world) == "n2"


def test_the_leader_hands_over_to_the_one_that_is_preferred() -> None:
    world = started(1, voters=5)
    sent = talk(world, ("n1", "n2"))
    before = world.now
    world.inject("n1", HandOver(("n9", "n4")))
    world.run_until(lambda: leader(world) == "n4", SECOND)
    assert world.now - before < 20 * MILLISECOND, "nobody waits for a time-out"
    settle(world, sent + talk(world, ("n1", "n2")))


def test_a_hand_over_that_no_replica_takes_is_given_up() -> None:
    world = started(1)
    world.drop = lambda sender, target, frame: isinstance(frame, VoteRequest)
    world.inject("n1", HandOver(("n2",)))
    settle(world, talk(world, ("n1", "n2")))
    assert leader(world) == "n1"
    assert world.events("stays")


def test_a_group_of_two_survives_the_restart_of_each_of_them() -> None:
    """Both are a majority, but what one alone remembers is everything that was ever decided."""
    world = started(1, voters=2)
    sent = 0
    for name in ("n2", "n1", "n2"):
        sent += talk(world, ("n1", "n2"), rounds=3)
        settle(world, sent)
        world.restart(name)
        ready(world)
    world.send("n1", [b"on"])
    settle(world, sent + 1)


# -- votes -------------------------------------------------------------------------------------------------------


class Bench:
    """Voter n2 of n1, n2, n3 with a log that ends at (term 2, index 3), in term 2."""

    def __init__(self) -> None:
        config = GroupConfig("g", ("n1", "n2", "n3"))
        self.core = core = Core(config, node_id("n2"), "n2", 1)
        for name in ("n1", "n3"):
            core.peers.up(node_id(name), MemberInfo(node_id(name), name, 1, ()))
        self.view = View(1, tuple(Member(name, node_id(name), 1, True) for name in config.voters))
        core.group_epoch = 7
        core.log.append(Entry(1, 1, 1, 0, Kind.VIEW, data=encode_data(self.view)))
        core.log.append(Entry(2, 2, 1, 0, Kind.TERM))
        core.log.append(Entry(2, 3, 1, 0, Kind.TERM))
        core.new_term(2)
        self.election = Election(core, Random(1))

    def ask(
        self, name: str, term: int, last: tuple[int, int] = (2, 3), kind: int = REAL
    ) -> VoteResponse:
        out = Outbox()
        ballot = VoteRequest("g", 7, kind, term, *last, encode_data(self.view))
        self.election.asked(Peer(node_id(name), name, 1, 1), ballot, 0, out)
        (_, item, _) = out.downs[0]
        assert isinstance(item, SendChannel)
        vote = decode_frame(item.messages[0])
        assert isinstance(vote, VoteResponse)
        return vote

    def answer(self, name: str, kind: int, term: int, granted: bool = True, life: int = 1) -> bool:
        vote = VoteResponse("g", 7, kind, term, granted)
        return self.election.voted(Peer(node_id(name), name, life, life), vote, 0, Outbox())


def test_a_replica_votes_once_in_a_term() -> None:
    bench = Bench()
    assert bench.ask("n1", 3).granted
    assert bench.ask("n1", 3).granted, "the same one may ask again"
    assert not bench.ask("n3", 3).granted
    assert bench.ask("n3", 4).granted


@pytest.mark.parametrize(
    ("last", "granted"), [((2, 3), True), ((3, 1), True), ((2, 2), False), ((1, 99), False)]
)
def test_only_one_whose_log_is_as_long_is_voted_for(last: tuple[int, int], granted: bool) -> None:
    """Raft 5.4.1: otherwise a leader could lack what is decided."""
    assert Bench().ask("n1", 3, last).granted is granted
    assert Bench().ask("n1", 3, last, PRE).granted is granted


def test_a_pre_vote_changes_nothing() -> None:
    bench = Bench()
    assert bench.ask("n1", 9, kind=PRE).granted
    assert (bench.core.leadership.term, bench.core.leadership.voted) == (2, b"")


def test_a_refusal_says_the_term() -> None:
    bench = Bench()
    bench.core.new_term(8)
    vote = bench.ask("n1", 3)
    assert (vote.granted, vote.term) == (False, 8)


def test_votes_are_counted_once_and_only_of_the_lives_in_the_view() -> None:
    bench = Bench()
    bench.election.campaign(0, Outbox())
    assert bench.core.leadership.role is Role.CANDIDATE
    assert not bench.answer("n3", REAL, 2), "of another term"
    assert not bench.answer("n3", PRE, 3), "of another kind"
    bench.core.peers.up(node_id("n3"), MemberInfo(node_id("n3"), "n3", 2, ()))
    assert not bench.answer("n3", REAL, 3, life=2), "it voted for another one, and forgot"
    assert bench.answer("n1", REAL, 3)


def test_a_later_term_in_a_refusal_ends_a_campaign() -> None:
    bench = Bench()
    bench.election.campaign(0, Outbox())
    bench.answer("n1", REAL, 30, granted=False)
    assert (bench.core.leadership.term, bench.core.leadership.role) == (30, Role.FOLLOWER)


def test_there_is_one_leader_in_a_term_whatever_is_lost() -> None:
    """Invariant 5."""
    leaders: dict[tuple[int, int], str] = {}
    for seed in range(4):
        world = started(seed, voters=5, loss=0.2, reorder=True)
        rng = Random(seed)
        for _ in range(40):
            world.heal_all()
            for name in rng.sample(world.names, 2):
                world.isolate(name)
            world.run(rng.randint(50, 400) * MILLISECOND)
        for name, fact in world.events("leads"):
            assert leaders.setdefault((seed, fact.term), name) == name
    assert len(leaders) > 20


def test_what_waits_for_its_messages_is_discarded_when_the_term_changes() -> None:
    """Rule 1. n3 has the entries of n1's last moments but not their messages; n2 and n4, n5 decide otherwise. Had n3
    kept the entries and appended them when the messages came, it would claim what nobody decided."""
    world = started(1, voters=5)
    world.drop = lambda sender, target, frame: isinstance(frame, Payload) and sender == "n1"
    world.send("n1", [b"ordered by n1, held by nobody else"])
    world.run(20 * MILLISECOND)
    assert world.hosts["n3"].status["lag"] > 0
    assert world.hosts["n3"].status["last"] < world.hosts["n1"].status["last"]
    world.kill("n1")
    world.run_until(lambda: leader(world) != "", SECOND)
    world.send("n2", [b"x"])
    world.run(100 * MILLISECOND)
    assert world.hosts["n3"].messages == [b"x"]
    world.check()


def test_answers_of_an_older_term_count_for_nothing() -> None:
    world = started(1)
    world.inject(
        "n1",
        Received(
            node_id("n2"),
            [AppendResponse("book", 1, 99, True, group_epoch=epoch_of(world))],
            world.now,
        ),
    )
    assert world.hosts["n1"].status["commit"] <= world.hosts["n1"].status["last"]
    settle(world, talk(world, ("n1",)))
