"""What a heartbeat costs: paths share wake-ups, and what says nothing new is not looked at."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.health.wires import Wires, with_config

from holdfast.health.probing.attributes import MASKS_MAX, MIXED, NEUTRAL, Plan
from holdfast.health.probing.lane import Lane
from holdfast.health.probing.metrics import LossRate
from holdfast.health.probing.path import Path
from holdfast.health.probing.timer_wheel import TimerWheel
from holdfast.types import NEVER, Nanos

EVIDENCE = 25_000


def path_at(due_at: Nanos, check_at: Nanos = NEVER) -> Path:
    """A path that no wheel knows yet."""
    (path,) = Wires(2, ("red",)).run(0.1).units["n1"].machine._paths.values()
    path.armed_at = NEVER
    path.probe_sender.due_at, path.probe_receiver.check_at = due_at, check_at
    return path


# -- the wheel -------------------------------------------------------------------------------------------------------


def test_paths_of_one_time_come_together_and_in_the_order_in_which_they_were_armed() -> None:
    wheel = TimerWheel()
    paths = [path_at(100), path_at(50), path_at(100), path_at(900, check_at=100)]
    for path in paths:
        wheel.arm(path)
    assert wheel.next() == 50
    assert wheel.due(99) == [paths[1]]
    assert wheel.next() == 100
    assert wheel.due(100) == [paths[0], paths[2], paths[3]]
    assert wheel.next() == NEVER


def test_a_path_that_is_armed_for_an_earlier_time_comes_once() -> None:
    wheel = TimerWheel()
    path = path_at(100)
    wheel.arm(path)
    path.probe_receiver.check_at = 30
    wheel.arm(path)
    assert wheel.next() == 30
    assert wheel.due(30) == [path]
    assert wheel.next() == NEVER, "what was left behind wakes nobody"
    path.probe_receiver.check_at = NEVER
    wheel.arm(path)
    wheel.arm(path)
    assert wheel.due(200) == [path]


def test_a_later_wish_leaves_a_path_where_it_is() -> None:
    wheel = TimerWheel()
    path = path_at(100)
    wheel.arm(path)
    path.probe_sender.due_at = 500
    wheel.arm(path)
    assert wheel.due(100) == [path]


# -- what is not looked at -------------------------------------------------------------------------------------------


def calm_lane() -> Lane:
    plan = Plan((), (("udp", (500, 1000)),))
    lane = Lane(plan.lanes["udp"], ())
    for pair in range(1, 10):
        for rung in (0, 1):
            lane.arrived(pair, lane.plan.index(rung, NEUTRAL), pair)
        lane.announced(pair, both(lane), pair)
        lane.judge(pair, 5_000, EVIDENCE)
        lane.done()
    lane.news = False
    assert lane.calm
    return lane


def both(lane: Lane) -> int:
    return 1 << lane.plan.index(0, NEUTRAL) | 1 << lane.plan.index(1, NEUTRAL)


def test_a_complete_round_of_a_lane_without_doubts_needs_no_weighing() -> None:
    lane = calm_lane()
    lane.arrived(100, lane.plan.index(1, MIXED), 0)
    assert lane.announced(100, 1 << lane.plan.index(1, MIXED), 0)
    assert lane.complete(100)
    assert lane.pass_calmly(100)
    assert not lane.waits
    assert not lane.announced(100, 1, 5), "another flow announces the same round: it is over"


def test_a_round_is_weighed_when_something_is_open() -> None:
    lane = calm_lane()
    lane.announced(100, both(lane), 0)
    lane.arrived(101, lane.plan.index(1, NEUTRAL), 0)
    lane.announced(101, 1 << lane.plan.index(1, NEUTRAL), 0)
    assert not lane.complete(100)
    assert lane.complete(101)
    assert not lane.pass_calmly(101), "one before it still waits for its probes"
    lane.judge(10**9, 5_000, EVIDENCE)
    assert lane.doubts
    lane.arrived(102, lane.plan.index(1, NEUTRAL), 0)
    lane.announced(102, 1 << lane.plan.index(1, NEUTRAL), 0)
    assert not lane.pass_calmly(102), "what arrives speaks against the doubt"


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 70)), max_size=20))
def test_arrivals_that_are_only_counted_give_the_loss_that_reckoning_each_would(
    runs: list[tuple[int, int]],
) -> None:
    counted, reckoned = LossRate(), LossRate()
    for arrivals, lost in runs:
        counted.arrivals += arrivals
        for _ in range(arrivals):
            reckoned.seen(0)
        counted.seen(lost)
        reckoned.seen(lost)
        assert reckoned.judged_ppm >= 0
    assert (counted.ppm, counted.long_ppm) == (reckoned.ppm, reckoned.long_ppm)


def test_what_codes_stand_for_is_remembered_within_bounds() -> None:
    plan = Plan(("00",), (("udp", (500, 1000)), ("tcp", (500,))))
    udp, tcp = plan.lanes["udp"], plan.lanes["tcp"]
    codes = bytes([udp.base + 2, tcp.base + 1, udp.base + 4, 250])
    assert plan.masks(codes) == (("udp", 1 << 2 | 1 << 4), ("tcp", 1 << 1))
    assert plan.masks(codes) is plan.masks(bytes(codes))
    for number in range(4 * MASKS_MAX):
        plan.masks(number.to_bytes(4, "big"))
        plan.masks(number.to_bytes(100, "big"))
    assert len(plan._masks) <= MASKS_MAX


# -- the sum of it ---------------------------------------------------------------------------------------------------


class Calls:
    """Counts calls of functions of health, while it is switched on."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and "/holdfast/health/" in frame.f_code.co_filename:
            self.count += 1


def calls_per_packet(wires: Wires, seconds: float) -> float:
    wires.packets.clear()
    calls = Calls()
    before = sys.getprofile()
    sys.setprofile(calls)
    try:
        wires.run(seconds)
    finally:
        sys.setprofile(before)
    return calls.count / sum(wires.packets.values())


def test_a_quiet_heartbeat_costs_few_calls() -> None:
    """Sent and heard; with 16 flows at ten heartbeats a second each call here is one per cent of a simulation."""
    wires = Wires(5, ("red", "blue"), ("",), config=with_config(kinds=()))
    wires.run(5)
    assert calls_per_packet(wires, 4) < 14


def test_diagnostics_cost_few_calls() -> None:
    wires = Wires(5, ("red", "blue"))
    wires.run(8)
    assert calls_per_packet(wires, 4) < 30
