"""Locks and barriers of a group: rules 12 to 14 in docs/design/services.md, each with its schedule."""

from __future__ import annotations

import msgspec
from tests.unit.group.harness import GROUP, node_id
from tests.unit.group.serving import LEASE, Served

from holdfast.group.loss.actions import IGNORE
from holdfast.group.ports import Apply
from holdfast.group.services.client import POLL_NS
from holdfast.group.services.frames import ServiceAnswer, ServiceReply, ServiceRequest
from holdfast.group.services.values import Op, Outcome, ServiceOp
from holdfast.links.ports import Received
from holdfast.types import MILLISECOND, SECOND

HELD, EXPIRED, RELEASED = Outcome.HELD, Outcome.EXPIRED, Outcome.RELEASED


# -- locks -------------------------------------------------------------------------------------------------------


def test_a_lock_is_held_by_one_node_and_passes_in_the_order_of_requests() -> None:
    world = Served(sources=1).begin()
    first = world.lock("n2")
    token = world.token("n2", first)
    second = world.lock("s1")
    world.run(20 * MILLISECOND)
    third = world.lock("n3")
    world.run(100 * MILLISECOND)
    assert not world.has("s1", second, HELD)
    assert not world.has("n3", third, HELD)
    world.release("n2", first, token)
    later = world.token("s1", second)
    assert not world.has("n3", third, HELD)
    world.release("s1", second, later)
    assert token < later < world.token("n3", third)


def test_renewals_keep_a_lock_much_longer_than_its_lease() -> None:
    world = Served().begin()
    number = world.lock("n2")
    world.token("n2", number)
    world.run(10 * LEASE)
    assert not world.has("n2", number, EXPIRED)
    assert world.hosts["n2"].services.holds("till", world.now) == number
    renewals = world.notices("n2", number, Outcome.RENEWED)
    assert 20 <= len(renewals) <= 60, "about three in a lease"


def test_the_lock_of_a_dead_holder_is_released_after_its_lease() -> None:
    world = Served().begin()
    number = world.lock("n3")
    token = world.token("n3", number)
    waiting = world.lock("n2")
    world.run(50 * MILLISECOND)
    died = world.now
    world.kill("n3")
    assert world.token("n2", waiting) > token
    assert LEASE // 2 < world.now - died < 2 * LEASE


def test_a_holder_that_is_cut_off_gives_up_before_the_next_one_gets_the_lock() -> None:
    """Rule 12: a holder counts on its own clock from before it sent the renewal."""
    world = Served(sources=1).begin()
    number = world.lock("s1")
    token = world.token("s1", number)
    waiting = world.lock("n2")
    world.run(150 * MILLISECOND)
    world.isolate("s1")
    gone = world.wait("s1", number, EXPIRED, 2 * LEASE)
    assert "lease" in gone.why
    assert not world.has("n2", waiting, HELD), "two nodes would hold it by their own clocks"
    assert world.hosts["s1"].services.holds("till", world.now) == 0
    assert world.token("n2", waiting) > token


def test_locks_survive_the_loss_of_the_leader() -> None:
    world = Served(sources=1).begin()
    number = world.lock("s1", lease_ns=5 * SECOND)
    token = world.token("s1", number)
    waiting = world.lock("n3", lease_ns=5 * SECOND)
    world.run(50 * MILLISECOND)
    world.kill(world.leader())
    world.run_until(lambda: world.leader() != "", 3 * SECOND)
    world.run(SECOND)
    assert not world.has("n3", waiting, HELD)
    assert not world.has("s1", number, EXPIRED)
    world.release("s1", number, token)
    world.wait("s1", number, RELEASED)
    assert world.token("n3", waiting) > token


def test_a_new_leader_grants_full_leases() -> None:
    """Rule 12. The holder could not renew while there was no leader: it is not to blame."""
    world = Served(sources=2).begin()
    number = world.lock("s1", lease_ns=2 * SECOND)
    world.token("s1", number)
    waiting = world.lock("s2", lease_ns=2 * SECOND)
    world.run(100 * MILLISECOND)
    world.isolate("s1")
    world.run(1500 * MILLISECOND)
    old = world.leader()
    world.kill(old)
    world.run_until(lambda: world.leader() not in ("", old), 3 * SECOND)
    begun = world.now
    world.wait("s2", waiting, HELD, 10 * SECOND)
    assert world.now - begun >= 2 * SECOND - 50 * MILLISECOND


def test_a_lease_is_not_expired_by_a_leader_without_fresh_contact_to_a_majority() -> None:
    """Rule 12. The old leader is cut off with a waiter on its side. It must not pass the lock on, nor log it."""
    world = Served(sources=2, election_ns=3 * SECOND).begin()
    old = world.leader()
    number = world.lock("s1")
    world.token("s1", number)
    waiting = world.lock("s2")
    world.run(100 * MILLISECOND)
    for name in ("n1", "n2", "n3", "s1"):
        if name != old:
            world.cut(old, name)
            world.cut("s2", name)
    world.run(2 * LEASE)
    leader = world.hosts[old]
    assert leader.status["state"] == "leading", "it has not noticed yet: elections take long here"
    assert leader.status["services"]["expired"] == 0
    assert not world.has("s2", waiting, HELD)


def test_renewals_that_wait_are_processed_before_a_lease_expires() -> None:
    """Rule 12. The leader is stopped for longer than the lease, as by SIGSTOP; the renewals wait in its queue."""
    world = Served(sources=1, voters=1).begin()
    number = world.arrive("s1", 2, lease_ns=400 * MILLISECOND)
    world.run(100 * MILLISECOND)
    world.pause("n1")
    world.run(600 * MILLISECOND)
    world.resume("n1")
    world.run(SECOND)
    assert world.hosts["n1"].status["services"]["expired"] == 0
    world.arrive("n1", 2)
    world.wait("s1", number, Outcome.PASSED)


def test_a_leader_that_was_stopped_expires_no_lease_before_renewals_can_arrive() -> None:
    """Rule 12. As above, but the renewals have not reached its queue when it runs again: they come a moment later."""
    world = Served(sources=1, voters=1).begin()
    number = world.arrive("s1", 2, lease_ns=400 * MILLISECOND)
    world.run(100 * MILLISECOND)
    world.pause("n1")
    world.drop = lambda _from, _to, frame: isinstance(frame, ServiceRequest)
    world.run(600 * MILLISECOND)
    world.drop = None
    world.resume("n1")
    world.run(SECOND)
    assert world.hosts["n1"].status["services"]["expired"] == 0
    world.arrive("n1", 2)
    world.wait("s1", number, Outcome.PASSED)


def test_release_with_a_stale_token_is_refused_and_changes_nothing() -> None:
    world = Served().begin()
    number = world.lock("n2")
    token = world.token("n2", number)
    leader = world.leader()
    op = ServiceOp(Op.RELEASE, number, "till", token=token - 1)
    frame = ServiceRequest(GROUP, world.hosts["n2"].incarnation, 1, (op,))
    world.inject(leader, Received(node_id("n2"), [frame], world.now))
    world.run(100 * MILLISECOND)
    assert world.hosts[leader].status["services"]["locks"][0]["token"] == token


def test_a_token_of_a_lock_that_was_lost_does_not_release_it() -> None:
    world = Served(sources=1).begin()
    number = world.lock("s1")
    token = world.token("s1", number)
    world.isolate("s1")
    other = world.lock("n2")
    mine = world.token("n2", other)
    world.heal_all()
    world.release("s1", number, token)
    world.wait("s1", number, EXPIRED)
    world.run(SECOND)
    locks = world.hosts[world.leader()].status["services"]["locks"]
    assert [(lock["holder"], lock["token"]) for lock in locks] == [("n2", mine)]


def test_a_cancelled_request_is_withdrawn_by_an_entry() -> None:
    """Rule 13. Otherwise the lock passes to a request that nothing waits for."""
    world = Served(sources=1).begin()
    first = world.lock("n2")
    token = world.token("n2", first)
    second, third = world.lock("s1"), world.lock("n3")
    world.run(100 * MILLISECOND)
    world.release("s1", second)
    world.wait("s1", second, RELEASED)
    world.release("n2", first, token)
    world.wait("n3", third, HELD, 300 * MILLISECOND)
    assert not world.has("s1", second, HELD)


def test_a_copy_of_a_request_that_is_over_does_not_act_again() -> None:
    """Rule 13. A channel that was broken for long brings the request after the lock was released."""
    world = Served().begin()
    number = world.lock("n2")
    token = world.token("n2", number)
    world.release("n2", number, token)
    world.wait("n2", number, RELEASED)
    late = ServiceOp(Op.ACQUIRE, number, "till", LEASE)
    frame = ServiceRequest(GROUP, world.hosts["n2"].incarnation, number + 1, (late,))
    world.inject(world.leader(), Received(node_id("n2"), [frame], world.now))
    world.run(100 * MILLISECOND)
    assert world.hosts[world.leader()].status["services"]["locks"] == []


def test_a_request_that_comes_after_its_withdrawal_does_not_act() -> None:
    """Rule 13. The withdrawal overtakes the request; the lock would be granted to a caller that has left."""
    world = Served().begin()
    leader, incarnation = world.leader(), world.hosts["n2"].incarnation
    for op in (ServiceOp(Op.RELEASE, 7, "till"), ServiceOp(Op.ACQUIRE, 7, "till", LEASE)):
        frame = ServiceRequest(GROUP, incarnation, 7, (op,))
        world.inject(leader, Received(node_id("n2"), [frame], world.now))
        world.run(50 * MILLISECOND)
    assert world.hosts[leader].status["services"]["locks"] == []


def test_a_repeated_request_adds_no_entry() -> None:
    """Rule 13. A node repeats a request until it is answered; the log grows with the first copy only."""
    world = Served().begin()
    number = world.lock("n2")
    world.token("n2", number)
    leader = world.hosts[world.leader()]
    last = leader.status["last"]
    again = ServiceOp(Op.ACQUIRE, number, "till", LEASE)
    frame = ServiceRequest(GROUP, world.hosts["n2"].incarnation, number, (again,))
    for _ in range(3):
        world.inject(leader.name, Received(node_id("n2"), [frame], world.now))
        world.run(10 * MILLISECOND)
    assert leader.status["last"] == last


def test_a_lease_counts_from_before_its_renewal_was_sent() -> None:
    """Rule 12. The answer to a renewal takes four hops of 50 ms; the lease of the leader began earlier than that."""
    world = Served(sources=1, delay_us=(50_000, 50_000), election_ns=2 * SECOND).begin()
    number = world.lock("s1", lease_ns=LEASE)
    world.token("s1", number)
    renewed = world.wait("s1", number, Outcome.RENEWED)
    assert renewed.until_ns <= world.now - 200 * MILLISECOND + LEASE


def test_a_lock_that_the_answer_to_a_renewal_does_not_list_is_lost() -> None:
    """Rule 12. The notice that the lock ended did not arrive; the answer to the next renewal shows it."""
    world = Served(sources=1).begin()
    number = world.lock("s1", lease_ns=60 * SECOND)
    world.token("s1", number)
    beats: list[int] = []

    def look(_from: str, _to: str, frame: object) -> bool:
        if isinstance(frame, ServiceRequest):
            beats.extend(op.number for op in frame.ops if op.op == Op.RENEW)
        return isinstance(frame, ServiceReply)

    world.drop = look
    world.run_until(lambda: bool(beats), 30 * SECOND)
    world.run(10 * MILLISECOND)
    host = world.hosts["s1"]
    epoch = world.hosts[world.leader()].replica
    assert epoch is not None
    answers = (ServiceAnswer(beats[0], Outcome.RENEWED),)
    reply = ServiceReply(GROUP, host.incarnation, epoch.inspect().group_epoch, answers)
    world.ask("s1", Received(node_id(world.leader()), [reply], world.now))
    assert "does not know" in world.wait("s1", number, EXPIRED, MILLISECOND).why


def test_the_next_incarnation_of_a_holder_releases_its_locks_at_once() -> None:
    """Rule 13."""
    world = Served(sources=1).begin()
    number = world.lock("s1", lease_ns=60 * SECOND)
    world.token("s1", number)
    waiting = world.lock("n2")
    world.run(50 * MILLISECOND)
    world.restart("s1")
    world.wait("n2", waiting, HELD, SECOND)


def test_requests_are_repeated_until_they_are_committed() -> None:
    """Rule 13, over channels that lose half of all service frames."""
    world = Served(sources=1).begin()
    world.drop = lambda _from, _to, frame: (
        isinstance(frame, ServiceRequest | ServiceReply) and world.rng.random() < 0.5
    )
    for _ in range(5):
        number = world.lock("s1", lease_ns=5 * SECOND)
        token = world.wait("s1", number, HELD, 20 * SECOND).value
        world.release("s1", number, token)
        world.wait("s1", number, RELEASED, 20 * SECOND)


def test_a_request_that_waits_asks_again_before_its_next_renewal() -> None:
    """Rule 13. The answer that the lock was granted is lost. The renewal that would show it is 20 s away."""
    world = Served(sources=1).begin()
    leader = world.leader()
    first = world.lock(leader, lease_ns=60 * SECOND)
    token = world.token(leader, first)
    second = world.lock("s1", lease_ns=60 * SECOND)
    world.run(50 * MILLISECOND)
    world.drop = lambda _from, to, frame: isinstance(frame, ServiceReply) and to == "s1"
    world.release(leader, first, token)
    world.run(50 * MILLISECOND)
    world.drop = None
    assert not world.has("s1", second, HELD)
    world.wait("s1", second, HELD, 2 * POLL_NS)


def test_a_unit_that_was_rebuilt_gives_back_what_it_does_not_know() -> None:
    """Rule 13. It would renew a lock for ever that no caller holds any more."""
    world = Served(sources=1).begin()
    world.token("s1", world.lock("s1", "till"))
    released: list[int] = []

    def look(_from: str, _to: str, frame: object) -> bool:
        if isinstance(frame, ServiceRequest):
            released.extend(op.number for op in frame.ops if op.op == Op.RELEASE)
        return False

    world.drop = look
    world.rebuild_services("s1")
    world.token("s1", world.lock("s1", "other"))
    waiting = world.lock(world.leader(), "till")
    world.wait(world.leader(), waiting, HELD, LEASE)
    assert released


def test_services_act_on_commit_in_fast_groups_too() -> None:
    """Rule 13. A leader that cannot commit grants nothing, although it delivers messages at once."""
    world = Served(delivery="fast", election_ns=2 * SECOND, stall_ns=3 * SECOND).begin()
    leader = world.leader()
    others = [name for name in ("n1", "n2", "n3") if name != leader]
    for other in others:
        world.cut(leader, other)
    world.send(leader, [b"delivered at once"])
    number = world.lock(leader)
    world.run(SECOND)
    assert b"delivered at once" in world.hosts[leader].messages
    assert not world.has(leader, number, HELD)


def test_a_criterion_that_ignores_a_source_does_not_ignore_its_requests() -> None:
    """Rule 13."""
    world = Served(sources=1, transport="datagram", datagram_loss=0.0).begin()
    for host in world.hosts.values():
        host.on_loss = lambda _info: IGNORE(("source",), seconds=60)
    world.send("s1", [b"one"])
    world.run(100 * MILLISECOND)
    world.datagram_loss = 1.0
    world.drop = lambda source, _to, frame: source == "s1" and type(frame).__name__ == "Payload"
    world.send("s1", [b"two", b"three"])
    world.run(100 * MILLISECOND)
    world.kill("s1")
    leader = world.leader()
    world.run_until(lambda: bool(world.hosts[leader].status["ignoring"]), 60 * SECOND)
    world.drop, world.datagram_loss = None, 0.0
    world.start("s1")
    world.run(100 * MILLISECOND)
    assert world.hosts[leader].status["ignoring"]
    assert world.token("s1", world.lock("s1")) > 0


def test_the_tables_travel_with_a_snapshot() -> None:
    """Rule 13. A replica that takes a state knows the locks, and can lead."""
    world = Served(sources=1, learners=0).begin()
    number = world.lock("s1", lease_ns=20 * SECOND)
    token = world.token("s1", number)
    for _ in range(20):
        world.send("s1", [bytes(100)] * 20)
        world.run(20 * MILLISECOND)
    world.run(2 * SECOND)
    world.restart("n3")
    world.run_until(lambda: world.hosts["n3"].status["memory"] == "whole", 5 * SECOND)
    world.run(SECOND)
    locks = world.hosts["n3"].status["services"]["locks"]
    assert [(lock["name"], lock["token"]) for lock in locks] == [("till", token)]


# -- barriers ----------------------------------------------------------------------------------------------------


def test_a_barrier_releases_all_parties_at_once_and_has_generations() -> None:
    world = Served(sources=1).begin()
    generations = []
    for _ in range(2):
        numbers = {name: world.arrive(name, 3) for name in ("n1", "s1")}
        world.run(200 * MILLISECOND)
        assert not any(world.has(name, n, Outcome.PASSED) for name, n in numbers.items())
        numbers["n3"] = world.arrive("n3", 3)
        passed = [world.wait(name, n, Outcome.PASSED) for name, n in numbers.items()]
        assert len({notice.value for notice in passed}) == 1
        generations.append(passed[0].value)
    assert generations[0] < generations[1]


def test_an_arrival_counts_once_however_often_it_is_sent() -> None:
    """Rule 14."""
    world = Served().begin()
    number = world.arrive("n2", 2)
    world.run(100 * MILLISECOND)
    again = ServiceOp(Op.ARRIVE, number, "gate", LEASE, 2)
    frame = ServiceRequest(GROUP, world.hosts["n2"].incarnation, 1, (again, again))
    world.inject(world.leader(), Received(node_id("n2"), [frame], world.now))
    world.run(200 * MILLISECOND)
    assert not world.has("n2", number, Outcome.PASSED)
    twice = world.arrive("n2", 2)
    assert "already" in world.wait("n2", twice, Outcome.REFUSED).why


def test_the_first_arrival_fixes_the_parties() -> None:
    """Rule 14."""
    world = Served().begin()
    first = world.arrive("n1", 2)
    world.run(100 * MILLISECOND)
    other = world.arrive("n2", 3)
    assert "waits for 2 parties" in world.wait("n2", other, Outcome.REFUSED).why
    third = world.arrive("n3", 2)
    world.wait("n1", first, Outcome.PASSED)
    world.wait("n3", third, Outcome.PASSED)


def test_a_waiting_life_that_ends_breaks_the_generation_for_all() -> None:
    """Rule 14: by an entry, so all of them see the same; whether it restarts, dies or withdraws."""
    for how in ("restart", "kill", "withdraw"):
        world = Served(sources=2).begin()
        first = world.arrive("s1", 3)
        second = world.arrive("s2", 3)
        world.run(100 * MILLISECOND)
        if how == "restart":
            world.restart("s1")
        elif how == "kill":
            world.kill("s1")
        else:
            world.release("s1", first)
        broken = world.wait("s2", second, Outcome.BROKEN, 3 * LEASE)
        assert "gone" in broken.why
        fresh = [world.arrive(name, 2) for name in ("s2", "n1")]
        world.wait("n1", fresh[1], Outcome.PASSED)


def test_nothing_breaks_a_generation_after_its_release() -> None:
    """Rule 14. The release is committed, its notice is lost, and a party dies: the others still pass."""
    world = Served(sources=2).begin()
    first = world.arrive("s1", 2)
    world.run(100 * MILLISECOND)
    world.drop = lambda _from, to, frame: to == "s1" and isinstance(frame, ServiceReply)
    second = world.arrive("s2", 2)
    world.wait("s2", second, Outcome.PASSED)
    world.kill("s2")
    world.kill(world.leader())
    world.drop = None
    world.wait("s1", first, Outcome.PASSED, 10 * SECOND)
    world.run(3 * LEASE)  # the lease of s2 would have ended
    assert not world.has("s1", first, Outcome.BROKEN)


def test_phases_belong_to_the_same_parties() -> None:
    world = Served(sources=1).begin()
    numbers = {name: world.arrive(name, 2, phases=3) for name in ("n1", "s1")}
    for name, number in numbers.items():
        assert world.wait(name, number, Outcome.PASSED).phase == 1
    stranger = world.arrive("n2", 2, phases=3)
    assert "not one of them" in world.wait("n2", stranger, Outcome.REFUSED).why
    for phase in (2, 3):
        for name, number in numbers.items():
            world.arrive(name, 2, phases=3, phase=phase, number=number)
        for name, number in numbers.items():
            world.run_until(
                lambda name=name, number=number, phase=phase: any(
                    notice.phase == phase for notice in world.notices(name, number, Outcome.PASSED)
                ),
                5 * SECOND,
            )
    assert world.hosts[world.leader()].status["services"]["barriers"] == []


def test_a_party_that_dies_between_two_phases_breaks_the_barrier() -> None:
    world = Served(sources=1).begin()
    numbers = {name: world.arrive(name, 2, phases=2) for name in ("n1", "s1")}
    for name, number in numbers.items():
        world.wait(name, number, Outcome.PASSED)
    world.kill("s1")
    world.arrive("n1", 2, phases=2, phase=2, number=numbers["n1"])
    world.wait("n1", numbers["n1"], Outcome.BROKEN, 3 * LEASE)


# -- bad input ---------------------------------------------------------------------------------------------------


def test_a_barrier_with_more_parties_than_nodes_is_refused() -> None:
    world = Served().begin()
    number = world.arrive("n2", 4)
    assert "3 nodes are known" in world.wait("n2", number, Outcome.REFUSED).why


def test_hostile_requests_are_counted_and_change_nothing() -> None:
    world = Served().begin()
    leader = world.leader()
    other = next(name for name in ("n1", "n2", "n3") if name != leader)
    life = world.hosts[other].incarnation
    ops = [
        ServiceOp(Op.ACQUIRE, 1, "till", 0),
        ServiceOp(Op.ACQUIRE, 1, "", LEASE),
        ServiceOp(Op.ACQUIRE, 1, "x" * 65, LEASE),
        ServiceOp(Op.ACQUIRE, -1, "till", LEASE),
        ServiceOp(Op.EXPIRE, 1),
        ServiceOp(99, 1, "till", LEASE),
        ServiceOp(Op.ARRIVE, 1, "gate", LEASE, 0),
        ServiceOp(Op.ARRIVE, 1, "gate", LEASE, 2, 1, 2),
    ]
    before = world.hosts[leader].status
    for op in ops:
        frame = ServiceRequest(GROUP, life, 0, (op,))
        world.inject(leader, Received(node_id(other), [frame], world.now))
    fine = ServiceOp(Op.ACQUIRE, 1, "till", LEASE)
    for forged in (life + 1, life - 1, -5):
        frame = ServiceRequest(GROUP, forged, 0, (fine,))
        world.inject(leader, Received(node_id(other), [frame], world.now))
    stranger = ServiceRequest(GROUP, 1, 0, (fine,))
    world.inject(leader, Received(node_id("stranger"), [stranger], world.now))
    world.run(100 * MILLISECOND)
    after = world.hosts[leader].status
    assert after["last"] == before["last"]
    assert after["ignored"]["service"] == len(ops) + 4


def test_hostile_replies_are_counted_and_grant_nothing() -> None:
    world = Served(sources=1).begin()
    number = world.lock("s1")
    token = world.token("s1", number)
    services = world.hosts["s1"].services
    fake = ServiceReply(GROUP, world.hosts["s1"].incarnation, 1, ())
    answers = (ServiceAnswer(number, 77), ServiceAnswer(number + 5, HELD, token + 9))
    bad = msgspec.structs.replace(fake, answers=answers)
    before = services.ignored
    world.ask("s1", Received(node_id("n1"), [bad], world.now))
    world.ask("s1", Received(node_id("nobody"), [fake], world.now))
    world.ask("s1", Received(node_id("n1"), [msgspec.structs.replace(fake, incarnation=99)], 0))
    assert services.ignored == before + 4
    assert services.holds("till", world.now) == number


def test_a_lock_of_another_epoch_of_the_group_is_lost() -> None:
    """An operator restarted the group from one replica. It may grant the same token to another node."""
    world = Served(sources=1).begin()
    number = world.lock("s1")
    token = world.token("s1", number)
    replica = world.hosts[world.leader()].replica
    assert replica is not None
    epoch = replica.inspect().group_epoch
    answers = (ServiceAnswer(number, HELD, token),)
    reply = ServiceReply(GROUP, world.hosts["s1"].incarnation, epoch + 1, answers)
    world.ask("s1", Received(node_id("n1"), [reply], world.now))
    assert "has begun again" in world.wait("s1", number, EXPIRED, MILLISECOND).why


def test_replicas_that_name_each_other_get_few_requests() -> None:
    """Each says that the other leads. A request follows that at once a few times, and then waits for its repetition."""
    world = Served(sources=1).begin()
    world.drop = lambda _from, _to, frame: isinstance(frame, ServiceReply)
    world.lock("s1")
    world.run(MILLISECOND)
    asked: list[str] = []

    def count(_from: str, to: str, frame: object) -> bool:
        if isinstance(frame, ServiceRequest):
            asked.append(to)
        return isinstance(frame, ServiceReply)

    world.drop = count
    for turn in range(20):
        hint = ServiceReply(GROUP, world.hosts["s1"].incarnation, 0, (), ("n1", "n2")[turn % 2])
        world.ask("s1", Received(node_id("n3"), [hint], world.now))
    assert 1 <= len(asked) <= 3


def test_services_are_refused_in_availability_groups() -> None:
    world = Served(mode="availability").begin()
    leader = world.leader()
    number = world.lock("n2")
    world.run(2 * SECOND)
    assert not world.has("n2", number, HELD)
    assert world.hosts[leader].status["ignored"]["service"] > 0


def test_status_shows_holders_and_waiters() -> None:
    world = Served().begin()
    token = world.token("n2", world.lock("n2"))
    world.lock("n3")
    world.arrive("n3", 2)
    world.run(100 * MILLISECOND)
    services = world.hosts[world.leader()].status["services"]
    assert services["locks"] == [
        {"name": "till", "holder": "n2", "token": token, "lease_s": 1.0, "waiting": ["n3"]}
    ]
    assert [(b["name"], b["parties"], b["arrived"]) for b in services["barriers"]] == [
        ("gate", 2, ["n3"])
    ]
    assert services["grants"] == 1


def test_applications_see_which_locks_are_held_at_a_place_of_the_order() -> None:
    """A message that the old holder sent before it noticed is ordered after the lock has passed on: it is known."""
    world = Served(sources=1).begin()
    seen: dict[str, list[dict[str, int] | None]] = {}
    world.watch = lambda name, effect: (
        seen.setdefault(name, []).append(effect.locks) if isinstance(effect, Apply) else None
    )
    world.send("s1", [b"without"])
    world.run(50 * MILLISECOND)
    number = world.lock("s1")
    token = world.token("s1", number)
    world.send("s1", [b"with"])
    world.run(50 * MILLISECOND)
    world.release("s1", number, token)
    later = world.token("n2", world.lock("n2"))
    world.send("s1", [b"too late"])
    world.run(100 * MILLISECOND)
    expected = [None, {"till": token}, {"till": later}]
    assert seen == {"n1": expected, "n2": expected, "n3": expected}


def test_a_node_that_is_away_for_a_moment_is_still_a_possible_party() -> None:
    """Its arrival was accepted, and it is repeated while another node cannot be reached."""
    world = Served(sources=2).begin()
    number = world.arrive("s1", 5, lease_ns=5 * SECOND)
    world.run(100 * MILLISECOND)
    world.isolate("s2")
    for name in ("n1", "n2", "n3"):
        world.arrive(name, 5, lease_ns=5 * SECOND)
    world.run(2 * SECOND)
    assert not world.has("s1", number, Outcome.REFUSED)
    world.heal_all()
    world.arrive("s2", 5)
    world.wait("s1", number, Outcome.PASSED)


def test_a_lease_that_finds_the_log_full_expires_later() -> None:
    """The leader must not forget it: nothing else would free the lock."""
    world = Served(sources=1, log_entries=64).begin()
    number = world.lock("s1")
    world.token("s1", number)
    waiting = world.lock("n2", lease_ns=20 * SECOND)
    world.run(100 * MILLISECOND)
    world.kill("s1")
    for host in world.hosts.values():
        host.frozen = True
    for _ in range(100):
        world.send("n1", [b"x"])
        world.run(5 * MILLISECOND)
    world.run(2 * SECOND)
    assert world.hosts[world.leader()].status["log"] >= 64
    assert not world.has("n2", waiting, HELD)
    for host in world.hosts.values():
        host.frozen = False
    world.wait("n2", waiting, HELD, 10 * SECOND)
