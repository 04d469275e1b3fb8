"""Schedules for rules of docs/design/groups.md that no other file here has; `scripts/rules-off` lists one test for each
rule, and shows that it fails without it."""

from __future__ import annotations

import threading
from queue import Queue
from typing import Any

import msgspec
from tests.unit.group.disks import LOG, STATE, VOTE, durable, rows
from tests.unit.group.harness import GROUP, World, leader, node_id, ready, settle
from tests.unit.group.losing import answer, delivered, losing, lossy, numbers, send
from tests.unit.group.outputs import heard, said, talking
from tests.unit.group.talking import started, talk, texts
from tests.unit.group.view_text import parts

from holdfast.group.consensus.election import REAL
from holdfast.group.frames import (
    Append,
    AppendResponse,
    Entry,
    Outputs,
    Payload,
    StreamId,
    VoteRequest,
    VoteResponse,
)
from holdfast.group.loss.actions import DROP
from holdfast.group.ports import AddReplica, Applied, Apply, Batch, Context, HandOver, Replica
from holdfast.links.ports import Received
from holdfast.runtime.worker import AppWorker
from holdfast.types import MILLISECOND, SECOND


def also_dropping(world: World, drop: Any) -> None:
    """Lose these frames besides those that are lost already."""
    before = world.drop
    world.drop = lambda sender, target, frame: (
        drop(sender, target, frame) or (before is not None and before(sender, target, frame))
    )


def test_a_decision_that_is_not_committed_is_not_reported_and_ends_with_its_leader() -> None:
    """Rule 3. n1 lacks message 2 and drops it, but nobody hears of that. The next leader has message 2."""
    world = lossy()
    answer(world, DROP)
    losing(world, range(2, 3), "n1")
    also_dropping(
        world,
        lambda sender, _, frame: (
            sender == "n1" and isinstance(frame, Append) and bool(frame.entries)
        ),
    )
    send(world, 3)
    world.run(100 * MILLISECOND)
    assert world.hosts["n1"].asked, "it was asked, and has answered"
    assert (world.hosts["n1"].told, numbers(world)) == ([], [])
    world.isolate("n1")
    world.run_until(lambda: numbers(world, "n2") == [1, 2, 3], 5 * SECOND)
    world.drop = None
    world.heal_all()
    delivered(world, [1, 2, 3])
    assert world.hosts["n1"].told == []


def test_a_new_leader_asks_nothing_before_a_majority_has_said_what_it_holds() -> None:
    """Rule 6. n2 takes over and lacks message 2, which n3 has. Nobody has told it yet: it must not decide that."""
    world = lossy(never_lead=("n3",))
    answer(world, DROP)
    losing(world, range(2, 3), "n1", "n2")
    world.hosts["n1"].on_loss = lambda _: None
    send(world, 3)
    world.run(3 * MILLISECOND)
    also_dropping(
        world, lambda _s, _t, frame: isinstance(frame, AppendResponse) and frame.all_marks
    )
    world.kill("s1")
    world.kill("n1")
    world.run_until(lambda: leader(world) == "n2", 5 * SECOND)
    world.run(120 * MILLISECOND)
    assert world.hosts["n2"].asked == []
    world.drop = None
    world.run_until(lambda: 3 in numbers(world, "n3"), 5 * SECOND)


def test_a_last_message_that_no_replica_got_is_announced_by_its_source() -> None:
    """Rule 7: idle streams repeat their last number. Nothing comes after it, and no replica has it to speak of it."""
    world = started(1, sources=1)
    world.drop = lambda sender, _, frame: sender == "s1" and isinstance(frame, Payload)
    world.send("s1", [b"the last one"])
    world.run(2 * MILLISECOND)
    world.drop = None
    settle(world, 1, limit_ns=SECOND)


def test_a_majority_is_one_of_the_view_in_the_log_decided_or_not() -> None:
    """Rule 6. j1 is to vote as a fourth. That is decided by three of four, not by two of the three before it."""
    world = started(1, joiners=1)
    world.inject("n1", AddReplica("j1"))
    quiet = ("n3", "j1")

    def learnt() -> bool:
        return parts(world, "n1").get("j1") == "learner"

    world.run_until(learnt, 5 * SECOND)
    world.drop = lambda sender, _, frame: (
        sender in quiet and isinstance(frame, AppendResponse) and frame.match >= last[0]
    )
    last = [1 << 60]
    replica = world.hosts["n1"].replica
    assert replica is not None
    log = replica.inspect().log

    def voting() -> bool:
        if log.tail.view is not None and len(log.tail.view.voters) == 4:
            last[0] = log.view_index
        return last[0] < 1 << 60

    world.run_until(voting, 5 * SECOND)
    world.run(60 * MILLISECOND)
    assert replica.inspect().leadership.leading
    assert log.commit < last[0], "two of four have it"
    world.drop = None
    world.run_until(lambda: parts(world, leader(world) or "n1").get("j1") == "voter", 5 * SECOND)


def test_a_state_is_that_of_one_position_whatever_is_delivered_meanwhile() -> None:
    """Rule 9. The application of the giver takes its time; messages are handed to it while its state is awaited."""
    world = started(1)
    sent = talk(world, ("n1", "n2"))
    settle(world, sent)
    world.app_delay_us = (3_000, 5_000)
    world.restart("n3")
    for _ in range(30):
        world.send("n1", texts("on", 2))
        world.run(2 * MILLISECOND)
    ready(world)
    settle(world, sent + 60)
    assert world.events("restored")


def test_the_leader_orders_only_what_it_holds() -> None:
    """Rule 1. Both others have message 2 and could acknowledge it, but n1 could not give it to anybody."""
    world = lossy()
    answer(world, lambda _: None)
    losing(world, range(2, 3), "n1")
    send(world, 3)
    world.run(100 * MILLISECOND)
    assert max(fact.last for fact in world.orders()) == 1
    world.drop = None
    delivered(world, [1, 2, 3])


def test_a_durable_replica_answers_when_its_vote_and_its_entries_are_on_disk() -> None:
    """Rule 2. Looked at as each answer leaves its node."""
    world = durable(1)
    answers = {"entries": 0, "votes": 0}

    def watch(sender: str, target: str, frame: Any) -> bool:
        if isinstance(frame, AppendResponse) and frame.ok:
            decode = msgspec.msgpack.Decoder(tuple[Entry, ...]).decode
            found = [entry.index for _, row in rows(world, sender, LOG) for entry in decode(row)]
            assert frame.match <= max(found), f"{sender} acknowledges what it has not written"
            answers["entries"] += 1
        elif isinstance(frame, VoteResponse) and frame.granted and frame.kind == 1:
            vote = msgspec.msgpack.decode(dict(rows(world, sender, VOTE))[b"vote"])
            assert vote[1:] == [frame.term, node_id(target)], f"{sender} has not written its vote"
            answers["votes"] += 1
        return False

    world.drop = watch
    sent = talk(world, ("n1", "n2"))
    settle(world, sent)
    world.restart("n1")
    ready(world)
    settle(world, sent + talk(world, ("n2",)))
    assert min(answers.values()) > 0


def test_a_voter_that_crashed_votes_for_no_other_candidate_in_that_term() -> None:
    """Rule 2. n1 asks again, in the same term and with a longer log than anybody has."""
    world = durable(1)
    votes: list[tuple[str, str, int]] = []

    def watch(sender: str, target: str, frame: Any) -> bool:
        if isinstance(frame, VoteResponse) and frame.granted and frame.kind == REAL:
            votes.append((sender, target, frame.term))
        return False

    world.drop = watch
    world.restart("n1")
    world.run_until(lambda: leader(world) in ("n2", "n3"), 5 * SECOND)
    voter, _, term = next(vote for vote in votes if vote[1] == leader(world) and vote[0] != "n1")
    world.restart(voter)
    world.run(MILLISECOND)
    votes.clear()
    replica = world.hosts[voter].replica
    assert replica is not None
    ballot = VoteRequest(GROUP, replica.inspect().group_epoch, REAL, term, term, 1 << 20)
    world.inject(voter, Received(node_id("n1"), [ballot], world.now))
    world.run(20 * MILLISECOND)
    assert votes == []
    assert replica.inspect().leadership.term == term, "it was not too late"


def test_what_a_state_covers_stays_on_disk_until_the_state_is_whole() -> None:
    """Rule 2. All crash while a state is being written, of which some pieces are on disk."""
    world = durable(1, snapshot_bytes=20_000, stored_chunk_bytes=100)
    sent = 0
    while not rows(world, "n2", STATE):
        world.send("n1", texts(f"{sent}", 10, size=200))
        sent += 10
        world.run(MILLISECOND)
    assert b"whole" not in dict(rows(world, "n2", VOTE)), "not all of it is written"
    world.run_until(lambda: bool(rows(world, "n1", STATE) and rows(world, "n3", STATE)), SECOND)
    most = max(len(host.messages) for host in world.hosts.values())
    for name in ("n1", "n2", "n3"):
        assert b"whole" not in dict(rows(world, name, VOTE))
        world.kill(name)
    world.start("n1", "n2", "n3")
    ready(world)
    settle(world, most)


def test_a_new_leader_decides_what_an_earlier_one_left_without_another_message() -> None:
    """Rule 6. Both others have n1's entry, n1 dies before it knows, and nobody sends anything more."""
    world = started(1, sources=1)
    world.drop = lambda _s, target, frame: target == "n1" and isinstance(frame, AppendResponse)
    world.send("s1", [b"left behind"])
    world.run(20 * MILLISECOND)
    assert [host.status["commit"] < host.status["last"] for host in replicas(world)] == [True] * 3
    world.kill("n1")
    world.drop = None
    settle(world, 1, limit_ns=5 * SECOND)


def replicas(world: World) -> list[Any]:
    return [host for host in world.hosts.values() if host.replica]


def test_one_that_was_given_a_state_and_leads_knows_which_requests_were_delivered() -> None:
    """Rule 7. The entry with the request id is gone from all logs when n1 comes back."""
    world = lossy()
    world.send("s1", [b"pay"], request=b"r1")
    settle(world, 1)
    world.run(2 * SECOND)
    world.restart("n1")
    ready(world)
    assert "n1" in [name for name, _ in world.events("restored")]
    world.inject(leader(world), HandOver(("n1",)))
    world.run_until(lambda: leader(world) == "n1", 5 * SECOND)
    world.send("s1", [b"pay"], request=b"r1")
    world.send("s1", [b"other"])
    settle(world, 2)
    world.run(SECOND)
    assert world.hosts["n2"].messages == [b"pay", b"other"]


class Where(Replica):
    """Notes in which thread it is called."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    def apply(self, batch: Batch, context: Context) -> None:
        self.threads.append(threading.get_ident())

    def snapshot(self) -> bytes:
        return b""

    def restore(self, state: bytes) -> None: ...


def test_an_application_is_not_called_on_the_event_loop() -> None:
    """Rule 9: that is the event loop, which must not wait for it. Only one that says it is `quick` is called there."""
    answers: Queue[Any] = Queue()
    application = Where()
    worker = AppWorker("book", application, answers.put)
    batch = Batch(1, StreamId(b"s" * 16, 1, 0), 1, [memoryview(b"x")])
    worker.submit([Apply("replica/book", 1, 0, batch, 1)])
    assert answers.get(timeout=10) == Applied(1, 1)
    assert worker.close()
    assert len(application.threads) == 1
    assert threading.get_ident() not in application.threads


def test_one_that_leads_again_sends_again_what_it_sent_in_an_earlier_term() -> None:
    """Rule 10. Nothing of it has arrived, and the time after which a leader tries again is not over."""
    world = talking("node:s1", output_retry_ns=60 * SECOND)
    losing_all = [True]
    world.drop = lambda sender, _, frame: (
        isinstance(frame, Outputs) and (sender != "n1" or losing_all[0])
    )
    for message in (b"1", b"2", b"3"):
        world.send("s1", [message])
        world.run(MILLISECOND)
    settle(world, 3)
    for name in ("n2", "n1"):
        world.inject(leader(world), HandOver((name,)))
        world.run_until(lambda name=name: leader(world) == name, 5 * SECOND)  # type: ignore[misc]
        assert heard(world) == []
        losing_all[0] = False
    world.run(SECOND)
    assert heard(world) == said(1, 3)
