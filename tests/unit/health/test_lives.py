"""What must never happen: pauses, clocks, restarts, throttling and lost words kill nobody who is alive."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.health.wires import EVERYTHING, Wires

from holdfast.health.config import Tune
from holdfast.health.frames import Confirm, Heartbeat, Notice, Settled, Signature, SignatureAck
from holdfast.health.probing.liveness import Liveness
from holdfast.health.probing.state import Heard, state_of
from holdfast.health.probing.values import BusyWindow, Interest, QueueDepth
from holdfast.telemetry.facts import PathFact
from holdfast.types import MILLISECOND, SECOND, FlowId


def accused(wires: Wires, by: str, since: int) -> list[PathFact]:
    """What a unit said to be dead or worse."""
    return [
        fact
        for fact in wires.units[by].facts
        if fact.event == "change"
        and fact.now_ns > since
        and (not fact.alive or fact.size < fact.size_max or fact.bad_patterns or fact.flows_bad)
    ]


@pytest.mark.parametrize("seconds", [0.15, 0.5, 2.5, 30, 3600])
def test_a_stopped_process_accuses_no_path_when_it_continues(seconds: float) -> None:
    """Health: own lateness is credited, however long it was; SIGSTOP, a garbage collection, a busy loop."""
    wires = Wires(2, uses=EVERYTHING).run(5)
    begin = wires.now
    wires.pause("n1", seconds)
    wires.run(seconds + 10)
    assert accused(wires, "n1", begin) == []
    assert wires.row("n2", "n1").alive


def test_packets_that_a_stopped_process_could_not_take_in_are_not_held_against_the_path() -> None:
    """The kernel's buffer is full: small packets still fit in where large ones do not."""
    wires = Wires(2).run(5)
    begin = wires.now
    wires.pause("n1", 3)
    wires.faults = [lambda p: p[1] == "n1" and p[4] > 500]
    wires.run(2.9999)
    wires.faults = []
    wires.run(5)
    assert accused(wires, "n1", begin) == []


def test_a_node_that_is_always_late_still_detects_dead_members() -> None:
    """Lateness is credited, but each time it looks it has listened for a while."""
    wires = Wires(2).run(5)
    wires.faults = [lambda p: p[0] == "n2"]
    for _ in range(40):
        wires.pause("n1", 0.25)
        wires.run(0.26)
    assert not wires.row("n2", "n1", at="n1").alive


@pytest.mark.parametrize("jump_s", [-3600, -10, -0.5, 0.5, 10, 3600, 10**6])
def test_a_clock_that_jumps_accuses_no_path(jump_s: float) -> None:
    wires = Wires(2, uses=EVERYTHING).run(5)
    begin = {name: wires.now + unit.clock for name, unit in wires.units.items()}
    unit = wires.units["n1"]
    unit.clock += round(jump_s * SECOND)
    unit.armed_at = 0
    wires.run(10)
    assert accused(wires, "n1", min(begin["n1"], begin["n1"] + round(jump_s * SECOND))) == []
    assert accused(wires, "n2", begin["n2"]) == []
    assert wires.row("n2", "n1").rtt_us < 5_000_000
    wires.faults = [lambda p: p[0] == "n2"]
    wires.run_until(lambda: not wires.row("n2", "n1", at="n1").alive, 5)


def test_a_restart_is_no_fault_of_any_path() -> None:
    wires = Wires(3).run(5)
    wires.restart("n2")
    begin = wires.now
    wires.run(10)
    for name in wires.units:
        assert accused(wires, name, begin + SECOND // 2) == []
    assert wires.row("n2", "n1").size == 1500


actions = st.one_of(
    st.tuples(st.just("pause"), st.sampled_from(["n1", "n2"]), st.integers(1, 40)),
    st.tuples(st.just("jump"), st.sampled_from(["n1", "n2"]), st.integers(-100, 100)),
    # A node that promises to be heard every 25 ms, and then pauses for 200 ms, is rightly taken for dead.
    st.tuples(st.just("tune"), st.sampled_from(["n1", "n2"]), st.integers(4, 40)),
    st.tuples(st.just("demand"), st.sampled_from(["n1", "n2"]), st.integers(0, 40)),
    st.tuples(st.just("lose words"), st.sampled_from(["n1", "n2"]), st.integers(0, 4)),
)


def act(wires: Wires, action: tuple[str, str, int]) -> None:
    what, name, amount = action
    if what == "pause":
        wires.pause(name, amount / 200)
    elif what == "jump":
        wires.units[name].clock += amount * SECOND // 10
        wires.units[name].armed_at = 0
        wires._arm(wires.units[name])  # its timers go on, whatever its clock says
    elif what == "tune":
        wires.give(name, Tune("", "basic_active", period_ns=amount * 25 * MILLISECOND))
        wires.give(name, Tune("", "diag_active", period_ns=amount * 30 * MILLISECOND))
    elif what == "demand":
        wires.give(name, QueueDepth("red", amount << 16))
        wires.give(name, Interest("", amount % 2))
        now = wires.now + wires.units[name].clock
        wires.give(name, BusyWindow("", now, now + SECOND, amount * 25))
    else:
        kind: Any = (Signature, SignatureAck, Notice, Settled, Confirm)[amount]
        wires.channel_faults = [lambda _a, b, f: b == name and isinstance(f, kind)]


@settings(
    max_examples=25, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
@given(
    st.lists(st.tuples(st.integers(1, 30), actions), max_size=8),
    st.integers(0, 1000),
    st.sampled_from([0.0, 0.001, 0.01]),
)
def test_nothing_that_a_node_does_to_itself_kills_a_live_one(
    plan: list[tuple[int, tuple[str, str, int]]], seed: int, loss: float
) -> None:
    """Invariant 7; H13: throttling never raises a false alarm. Pauses up to 200 ms, clocks that jump up to 10 s,
    tunables, demand, lost announcements, loss."""
    wires = Wires(2, seed=seed).run(4)
    wires.loss = loss
    begins = {name: len(unit.facts) for name, unit in wires.units.items()}
    for wait, action in plan:
        wires.run(wait / 20)
        act(wires, action)
    wires.channel_faults = []
    wires.run(5)
    for name, unit in wires.units.items():
        dead = [f for f in unit.facts[begins[name] :] if f.event == "change" and not f.alive]
        assert dead == []
        worse = [
            f for f in unit.facts[begins[name] :] if f.event == "change" and 0 < f.size < f.size_max
        ]
        assert worse == []


# -- an hour ---------------------------------------------------------------------------------------------------------


def _hour(loss: float, seconds: int, seed: int = 1) -> list[PathFact]:
    """A hundred paths with loss and random pauses of every node; what was said to be wrong."""
    wires = Wires(5, ("a", "b", "c", "d", "e"), ("", "alt"), seed=seed).run(5)
    wires.loss = loss
    begin = wires.now
    for _ in range(seconds):
        if wires.rng.random() < 0.2:
            wires.pause(wires.rng.choice(list(wires.units)), wires.rng.choice([0.05, 0.15, 0.3]))
        wires.run(1)
    return [fact for name in wires.units for fact in accused(wires, name, begin)]


@pytest.mark.parametrize("loss", [0.001, 0.01])
def test_loss_and_pauses_raise_no_false_alarm(loss: float) -> None:
    """A hundred paths; the hour itself is `test_an_hour_of_loss_and_pauses_raises_no_false_alarm`."""
    assert _hour(loss, 20) == []


@pytest.mark.campaign
@pytest.mark.parametrize("part", range(1, 7))
@pytest.mark.parametrize("loss", [0.001, 0.01])
def test_an_hour_of_loss_and_pauses_raises_no_false_alarm(loss: float, part: int) -> None:
    """In six parts of ten minutes, each with a seed of its own, so that they can run side by side (`-n 2`)."""
    assert _hour(loss, 600, seed=part) == []


def dead_rows(wires: Wires) -> list[PathFact]:
    return [fact for fact in wires.changes() if not fact.alive]


def test_a_connection_that_was_not_heard_yet_does_not_make_another_dead() -> None:
    """Both nodes opened a connection at the same time, and the first heartbeat of one was received before the other
    was agreed on: for a moment the whole path was dead, which its history kept."""
    old, new = Liveness(0, SECOND, stream=True), Liveness(2, SECOND, stream=True)
    old.basic(Heartbeat(1, 0, SECOND, 0, 0, 3), 1)
    flows = {FlowId(1): Heard("tcp", old), FlowId(2): Heard("tcp", new)}
    assert state_of("tcp", flows, None, {}, 0, mute=False).alive
    new.die(2 * SECOND)
    assert not state_of("tcp", flows, None, {}, 0, mute=False).alive, (
        "it should be heard by now, too"
    )


def test_a_connection_that_ends_before_it_is_heard_accuses_no_path() -> None:
    """Of two connections that were opened at the same time, one is closed at once."""
    wires = Wires(2, connect=False)
    flow = wires.flow("n1", "n2", "red", "tcp")
    wires.close(flow)
    wires.run(0.001)
    wires.join("n1", "n2")
    wires.run(1)
    assert dead_rows(wires) == []
    assert wires.row("n1", "n2", "tcp").alive
