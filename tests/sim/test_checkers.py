"""The checks themselves: each must pass a good run and catch the very thing that it is there for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.sim.checking import BLUE, RED, UNIT, apply, checked
from tests.sim.toys import STEADY, Puppet, puppet

from holdfast.group.ports import (
    APPLY_MAX,
    AppFailed,
    Applied,
    Apply,
    Batch,
    Context,
    Restored,
    RestoreState,
    SnapshotTaken,
    TakeSnapshot,
)
from holdfast.machine import Failure, Result
from holdfast.sim.checkers import (
    Bounds,
    Checker,
    CheckFailed,
    DeadlinesMove,
    DeliveryOrder,
    NoFailures,
)
from holdfast.sim.host import Host
from holdfast.sim.ledger import Ledger
from holdfast.sim.world import World
from holdfast.types import MILLISECOND, SECOND, Nanos

# -- one order ---------------------------------------------------------------------------------------------------


def test_replicas_that_deliver_the_same_in_other_batches_are_fine() -> None:
    checker = DeliveryOrder()
    world, n1, n2 = checked(checker)
    apply(n1, 1, 1, b"a", b"b", b"c")
    apply(n1, 4, 1, b"x", stream=BLUE)
    apply(n2, 1, 1, b"a")
    apply(n2, 2, 2, b"b", b"c")
    apply(n2, 4, 1, b"x", stream=BLUE)
    world.finish()
    assert checker.delivered == 8


def violation(world: World, steps: Callable[[], None]) -> str:
    with pytest.raises(CheckFailed) as caught:
        steps()
    error = caught.value
    assert error.invariant == "replicas deliver one order"
    assert str(error).endswith("replay: holdfast sim run --seed 5 --scenario mine")
    return error.detail


def test_another_message_at_the_same_position_is_caught() -> None:
    world, n1, n2 = checked(DeliveryOrder())
    apply(n1, 1, 1, b"a")
    text = violation(world, lambda: apply(n2, 1, 1, b"x", stream=BLUE))
    assert "position 1 is message 1 of stream 2 here, elsewhere message 1 of stream 1" in text


def test_other_bytes_under_the_same_number_are_caught() -> None:
    world, n1, n2 = checked(DeliveryOrder())
    apply(n1, 1, 1, b"a")
    text = violation(world, lambda: apply(n2, 1, 1, b"b"))
    assert "message 1 differs at position 1" in text


def test_the_same_message_at_two_positions_is_caught() -> None:
    world, n1, n2 = checked(DeliveryOrder())
    apply(n1, 1, 1, b"a")
    text = violation(world, lambda: apply(n2, 2, 1, b"a"))
    assert "message 1 is at position 1 and at 2" in text


def test_a_message_delivered_twice_by_one_replica_is_caught() -> None:
    world, n1, _ = checked(DeliveryOrder())
    apply(n1, 1, 1, b"a", b"b")
    text = violation(world, lambda: apply(n1, 3, 2, b"b"))
    assert "message 2 of a stream comes after 2" in text


def test_a_hole_in_the_positions_is_caught() -> None:
    world, n1, _ = checked(DeliveryOrder())
    apply(n1, 1, 1, b"a")
    text = violation(world, lambda: apply(n1, 3, 2, b"b"))
    assert "position 3 follows 1" in text


def test_a_dropped_message_is_no_violation() -> None:
    world, n1, n2 = checked(DeliveryOrder())
    for host in (n1, n2):
        apply(host, 1, 1, b"a")
        apply(host, 2, 3, b"c")
    world.finish()


def test_a_restored_replica_goes_on_from_its_state() -> None:
    world, n1, n2 = checked(DeliveryOrder())
    apply(n1, 1, 1, b"a", b"b", b"c")
    n2.give("do", RestoreState(UNIT, 2, Ledger().snapshot()))
    apply(n2, 3, 3, b"c")
    text = violation(world, lambda: apply(n2, 4, 3, b"c"))
    assert "message 3 of a stream comes after 3" in text


def test_a_restarted_replica_starts_over_but_not_with_another_order() -> None:
    world, n1, _ = checked(DeliveryOrder())
    apply(n1, 1, 1, b"a", b"b")
    n1.crash()
    n1.start()
    apply(n1, 1, 1, b"a")
    text = violation(world, lambda: apply(n1, 2, 1, b"x", stream=BLUE))
    assert "position 2" in text


# -- failures, bounds, deadlines ---------------------------------------------------------------------------------


def fail_unit(host: Host, unit: str) -> None:
    puppet(host).failures.append(Failure(unit, ValueError("boom"), [], 0, stopped=False))
    host.give("unit", 1)
    host.world.run_for(MILLISECOND)


def test_a_unit_that_raises_fails_the_run() -> None:
    _, n1, _ = checked(NoFailures())
    with pytest.raises(CheckFailed, match=r"no unit fails.*link/1 on n1 raised ValueError"):
        fail_unit(n1, "link/1")


def test_expected_failures_are_let_through() -> None:
    _, n1, _ = checked(NoFailures("link/*"))
    fail_unit(n1, "link/1")
    with pytest.raises(CheckFailed):
        fail_unit(n1, "health")


def test_too_many_waiting_inputs_are_caught() -> None:
    world, n1, _ = checked(Bounds(inbox_max=100))
    for n in range(1000):
        n1.give("unit", n)
    with pytest.raises(CheckFailed, match=r"queues are bounded.*n1: \d+ inputs wait \(bound 100\)"):
        world.run_for(SECOND)


def test_a_replica_that_floods_its_application_is_caught() -> None:
    world, n1, _ = checked(Bounds())
    batch = Batch(1, RED, 1, [])
    for _ in range(3):
        n1.give("do", Apply(UNIT, 1, 0, batch, APPLY_MAX))
    with pytest.raises(CheckFailed, match="gives more to an application"):
        world.run_for(SECOND)


def test_a_deadline_that_stays_in_the_past_is_caught() -> None:
    world, n1, _ = checked(DeadlinesMove())
    core = puppet(n1)
    core.next_deadline = lambda: n1.now - 5  # type: ignore[method-assign]
    n1.give("unit", 1)
    with pytest.raises(CheckFailed, match=r"nodes do not spin.*n1 woke 101 times"):
        world.run_for(SECOND)


def test_deadlines_that_come_often_are_fine() -> None:
    class Ticker(Puppet):
        def turn(self, now: Nanos, inputs: list[tuple[str, Any]]) -> Result:
            self.deadline = now + 1000
            return super().turn(now, inputs)

    world = World(1)
    world.check(DeadlinesMove())
    host = world.add_host("n1", Ticker, STEADY)
    host.start()
    world.run_for(MILLISECOND)
    assert host.turns > 500


def test_later_protocols_add_checks_of_their_own() -> None:
    class NoGreetings(Checker):
        effects = (str,)

        def effect(self, host: Host, effect: str) -> None:
            if effect == "hello":
                host.world.fail("nobody greets", host.name)

    world, n1, _ = checked(NoGreetings())
    n1.give("do", "bye")
    world.run_for(MILLISECOND)
    n1.give("do", "hello")
    with pytest.raises(CheckFailed, match=r"nobody greets: violated at 1\.000001ms: n1"):
        world.run_for(MILLISECOND)


def test_an_effect_that_a_crash_cut_off_is_not_checked() -> None:
    seen = []

    class Watch(Checker):
        effects = (str,)

        def effect(self, host: Host, effect: str) -> None:
            seen.append(effect)

    counts = set()
    for seed in range(40):
        world, n1, _ = checked(Watch(), seed=seed)
        n1.crash_in_turn()
        seen.clear()
        for text in ("a", "b", "c"):
            n1.give("do", text)
        world.run_for(MILLISECOND)
        counts.add(len(seen))
        assert seen == ["a", "b", "c"][: len(seen)]
    assert counts == {0, 1, 2, 3}


# -- the application's worker ------------------------------------------------------------------------------------


class Fussy(Ledger):
    def apply(self, batch: Batch, context: Context) -> None:
        if batch.position > 2:
            raise ValueError("too far")
        super().apply(batch, context)


def test_the_application_answers_every_job_in_order() -> None:
    world, n1, _ = checked()
    apply(n1, 1, 1, b"a", size=7)
    n1.give("do", TakeSnapshot(UNIT, 9, 1))
    n1.give("do", RestoreState(UNIT, 4, Ledger().snapshot()))
    world.run_for(10 * MILLISECOND)
    applied, taken, restored = puppet(n1).heard
    assert applied == Applied(1, 7)
    assert isinstance(taken, SnapshotTaken)
    assert (taken.request, taken.index) == (9, 1)
    assert restored == Restored(4)


def test_batches_applied_one_after_the_other_are_reported_together_and_none_is_forgotten() -> None:
    world, n1, _ = checked()
    for n in range(1, 101):
        n1.give("do", Apply(UNIT, n, 0, Batch(n, RED, n, [memoryview(b"m")]), n))
    world.run_for(SECOND)
    answers = puppet(n1).of(Applied)
    assert len(answers) < 100
    assert [answer.index for answer in answers] == sorted(answer.index for answer in answers)
    assert answers[-1].index == 100
    assert sum(answer.size for answer in answers) == 5050


def test_an_application_that_raises_is_reported_and_gets_nothing_more() -> None:
    _, n1, _ = checked(application=lambda _: Fussy())
    for n in (1, 2, 3, 4):
        apply(n1, n, n, b"m")
    assert puppet(n1).of(AppFailed) == [AppFailed(3, "ValueError: too far")]
    assert sum(answer.size for answer in puppet(n1).of(Applied)) == 20


def test_a_paused_process_does_not_apply() -> None:
    world, n1, _ = checked()
    n1.give("do", Apply(UNIT, 1, 0, Batch(1, RED, 1, [memoryview(b"m")]), 1))
    world.run_for(10_000)
    n1.pause()
    world.run_for(SECOND)
    ledger = n1.workers[UNIT].replica
    assert isinstance(ledger, Ledger)
    assert (ledger.state.count, puppet(n1).heard) == (0, [])
    n1.resume()
    world.run_for(MILLISECOND)
    assert puppet(n1).heard == [Applied(1, 1)]


def test_a_restored_ledger_equals_the_one_it_came_from() -> None:
    world, n1, n2 = checked()
    apply(n1, 1, 1, b"a", b"b")
    ledger = n1.workers[UNIT].replica
    n2.give("do", RestoreState(UNIT, 1, ledger.snapshot()))
    world.run_for(10 * MILLISECOND)
    for host in (n1, n2):
        apply(host, 3, 3, b"c")
    other = n2.workers[UNIT].replica
    assert isinstance(ledger, Ledger)
    assert isinstance(other, Ledger)
    assert ledger.state == other.state
    assert ledger.state.count == 3
