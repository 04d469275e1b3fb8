"""When rounds begin, what rides along, and what status says."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from tests.support.stability_world import FAST, World, with_protocol
from tests.unit.stability.harness import Table, node_id, view_of

from holdfast.stability import PROTOCOLS
from holdfast.stability.frames import CubeState, ResultAck, RoundReport, RoundStart
from holdfast.stability.riding import Posts, Riding
from holdfast.types import MICROSECOND, MILLISECOND, NEVER, SECOND

FAST_PERIOD = 5 * MILLISECOND


def quiet(protocol: str = "cube", names: str = "abcd", **settings: int) -> Table:
    """A view whose first round is over, long ago."""
    table = Table(names, protocol, **settings)
    table.enter()
    table.report_all(10, 10)
    table.later(SECOND)
    return table


# -- triggers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_view_in_which_everything_is_stable_sends_nothing(protocol: str) -> None:
    table = quiet(protocol)
    sent = sum(table.status(name).sent for name in "abcd")
    table.later(10 * SECOND)
    assert sum(table.status(name).sent for name in "abcd") == sent
    assert all(table[name].deadline == NEVER for name in "abcd")


def test_a_round_begins_one_period_after_something_new_is_held() -> None:
    table = quiet()
    table.report("a", 11, 11)
    table.later(FAST_PERIOD - 1, deliver=False)
    assert not table.frames
    table.later(1, deliver=False)
    assert {(one, type(frame)) for one, _, frame in table.frames} == {("a", CubeState)}


def test_full_buffers_begin_a_round_without_waiting_for_the_period() -> None:
    table = quiet(held_bytes=1000, period_ns=SECOND, period_max_ns=SECOND)
    table.report("a", 11, 11, held_bytes=999)
    table.later(20 * MILLISECOND, deliver=False)
    assert not table.frames
    table.report("a", 12, 12, held_bytes=1000)
    table.later(2 * MILLISECOND, deliver=False)
    assert {one for one, _, _ in table.frames} == {"a"}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_rounds_that_free_little_are_further_apart(protocol: str) -> None:
    """Less than `calm_bytes`, or less than a sixteenth of what is held. The first round after a pause does not wait
    longer than otherwise."""
    calm_ns = 6 * FAST_PERIOD
    for low, high, least_ns in (
        (0, 999, calm_ns), (0, 1000, FAST_PERIOD),
        (31_000, 32_000, calm_ns), (15_000, 16_000, FAST_PERIOD),
    ):  # fmt: skip
        table = quiet(protocol, calm_ns=calm_ns, calm_bytes=1000)
        begun, ends = table.now, []
        for number in range(11, 2011):
            for name in "abcd":
                table.report(name, number, number, held_bytes=high if number % 2 else low)
            rounds = table.status("a").rounds
            table.later(100 * MICROSECOND)
            if table.status("a").rounds != rounds:
                ends.append(table.now)
        assert ends[0] - begun < 2 * FAST_PERIOD
        waits = [later - earlier for earlier, later in itertools.pairwise(ends)]
        assert least_ns <= min(waits) <= max(waits) < least_ns + FAST_PERIOD


def test_bytes_alone_begin_a_round() -> None:
    """The report does not move, but the buffer fills with what is not ordered yet."""
    table = quiet(held_bytes=1000, period_ns=SECOND, period_max_ns=SECOND)
    table.report("a", 11, 11)
    table.later(20 * MILLISECOND, deliver=False)
    assert not table.frames
    table.report("a", 11, 11, held_bytes=5000)
    table.later(2 * MILLISECOND, deliver=False)
    assert {one for one, _, _ in table.frames} == {"a"}


@pytest.mark.parametrize("protocol", ["coord", "tree", "full"])
def test_a_member_that_is_short_of_room_asks_the_one_that_begins_rounds(protocol: str) -> None:
    table = quiet(protocol, held_bytes=1000, period_ns=SECOND, period_max_ns=SECOND)
    table.report_all(20, 20)
    table.report("c", 21, 21, held_bytes=2000)
    table.later(1500 * MICROSECOND, deliver=False)
    assert [(one, other, type(frame)) for one, other, frame in table.frames] == [
        ("c", "a", RoundReport)
    ]
    table.later(20 * MILLISECOND)
    assert [table.stable(name) for name in "abcd"] == [(20, 20)] * 4


@pytest.mark.parametrize("protocol", ["coord", "tree", "full"])
def test_a_member_that_waits_in_vain_asks_for_a_round(protocol: str) -> None:
    """Everything that the coordinator itself reported is stable, so it has no reason for a round of its own."""
    table = Table("abcd", protocol)
    table.enter()
    table.later(100 * MILLISECOND)
    for name in "bcd":
        table.report(name, 10, 10)
    table.later(200 * MILLISECOND)
    assert table.status("b").rounds > 1


def test_rounds_without_progress_become_rare() -> None:
    """d does not move. The others have nothing new to say and wait longer and longer, up to period_max_ns."""
    table = quiet("cube")
    for name in "abc":
        table.report(name, 20, 20)
    table.later(SECOND)
    before = table.status("a").rounds
    table.later(SECOND)
    rounds = table.status("a").rounds - before
    assert (
        SECOND // table.config.period_max_ns - 2
        <= rounds
        <= SECOND // table.config.period_max_ns + 1
    )


def test_progress_resumes_soon_after_the_member_that_was_behind_has_caught_up() -> None:
    table = quiet("cube")
    for name in "abc":
        table.report(name, 20, 20)
    table.later(SECOND)
    table.report("d", 20, 20)
    table.later(FAST_PERIOD + table.config.gap_ns)
    assert [table.stable(name) for name in "abcd"] == [(20, 20)] * 4


def test_a_round_with_progress_ends_the_long_wait() -> None:
    """d moves a little. It may move on, so the others look again soon, though not all they have is stable."""
    table = quiet("cube")
    for name in "abc":
        table.report(name, 20, 20)
    table.later(SECOND)
    table.report("d", 15, 15)
    while table.stable("a") != (15, 15):
        table.later(MILLISECOND)
    before = table.status("a").rounds
    table.later(FAST_PERIOD + 2 * table.config.gap_ns)
    assert table.status("a").rounds > before


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_unanswered_frame_is_repeated_ever_less_often(protocol: str) -> None:
    """After 4, 12, 28 and 60 ms, and then every 32 ms."""
    table = quiet(protocol, "ab")
    table.cut_off = "b"
    table.report_all(20, 20)
    sent = table["a"].sent
    table.later(FAST_PERIOD + 160 * MILLISECOND)
    assert 6 <= table["a"].sent - sent <= 9


def full_buffers(held_bytes: Callable[[int], int]) -> list[int]:
    """The times between rounds while all members hold more than the setting allows, as a function of the step."""
    table = quiet("cube", held_bytes=1)
    ends: list[int] = []
    for step in range(400):
        for name in "abcd":
            table.report(name, step + 11, step + 11, held_bytes=held_bytes(step))
        rounds = table.status("a").rounds
        table.later(100 * MICROSECOND)
        if table.status("a").rounds != rounds:
            ends.append(table.now)
    return [later - earlier for earlier, later in itertools.pairwise(ends)]


def test_two_rounds_are_at_least_the_gap_apart() -> None:
    waits = full_buffers(lambda step: 1000 if step % 2 else 900)
    assert len(waits) > 10
    assert FAST.gap_ns <= min(waits) <= max(waits) < 2 * FAST.gap_ns


def test_full_buffers_hurry_no_round_that_frees_little() -> None:
    """A source that sends as fast as it can keeps them full. A round is worth hurrying once it frees a sixteenth."""
    waits = full_buffers(lambda step: 1000 if step % 2 else 950)
    assert len(waits) > 4
    assert FAST_PERIOD <= min(waits) <= max(waits) < FAST_PERIOD + FAST.gap_ns


# -- the lag bound -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 9, 33])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_lag_is_bounded_by_delivery_and_two_periods_and_two_rounds(
    protocol: str, size: int
) -> None:
    """A report just missed a round: it waits for that one to end, one period, and the next round. The others get the
    message `pace` later at most."""
    world = World(size, with_protocol(protocol), 3, delay_us=(100, 100), pace_us=(500, 1000))
    config = world.config
    hops = 2 * (size - 1).bit_length() + 4
    pace_ns, round_ns = 6 * 1000 * MICROSECOND, hops * 100 * MICROSECOND
    bound_ns = pace_ns + 2 * (config.period_of(size) + config.gap_ns) + 2 * round_ns
    worst = 0
    for _ in range(200):
        world.order(3)
        world.run(2 * MILLISECOND)
        worst = max(worst, *(world.status(name).last_lag_ns for name in world.hosts))
    assert 0 < worst <= bound_ns


# -- riding along --------------------------------------------------------------------------------------------------


def test_frames_ride_on_traffic_that_flows_anyway() -> None:
    """S7: while traffic flows to all neighbours, no frame is sent on its own."""
    table = quiet()
    for number in range(11, 40):
        table.report_all(number, number)
        for _ in range(10):
            for name in "abcd":
                for other in "abcd":
                    if name != other:
                        for frame in table[name].ride(node_id(other), table.now):
                            table.frames.append((name, other, frame))
            table.later(200 * MICROSECOND)
    alone = sum(table.status(name).sent - table.status(name).rode for name in "abcd")
    rode = sum(table.status(name).rode for name in "abcd")
    before = sum(quiet().status(name).sent for name in "abcd")
    assert rode > 50
    assert alone <= before + 4, "only the frames of the first round, before there was traffic"
    assert table.stable("a")[0] >= 35


def test_a_round_that_is_due_begins_with_the_traffic_that_follows() -> None:
    """S7: an owner calls `wake` from `ready` on, before it sends something: the frames of the round go with that."""
    table = quiet("coord")
    for other in "bcd":
        table["a"].ride(node_id(other), table.now)
    table.report("a", 11, 11)
    one = table["a"]
    assert one.deadline == one.ready + table.config.ride_ns
    table.now = one.ready + table.config.ride_ns // 2
    out: Posts = []
    one.wake(table.now, out)
    assert out == []
    assert [type(frame) for frame in one.ride(node_id("b"), table.now)] == [RoundStart]


def test_a_round_that_has_waited_for_traffic_in_vain_begins_without() -> None:
    """In one turn: its frames do not wait again."""
    table = quiet("coord")
    for other in "bcd":
        table["a"].ride(node_id(other), table.now)
    table.report("a", 11, 11)
    table.now = table["a"].deadline
    out: Posts = []
    table["a"].wake(table.now, out)
    assert [type(frame) for _, frame in out] == [RoundStart] * 3
    assert table["a"].deadline > table.now + table.config.ride_ns


def test_a_confirmation_waits_longer_for_a_ride() -> None:
    """Nothing but a repetition depends on it."""
    riding = Riding(2 * MILLISECOND)
    head = ("g", 1, 1, 1, 1, 1)
    for frame, wait_ns in ((RoundStart(*head), 2), (ResultAck(*head, b""), 8)):
        riding.ride(node_id("b"), 0)
        riding.post((node_id("b"),), frame, MILLISECOND, [])
        assert riding.deadline == (1 + wait_ns) * MILLISECOND
        assert riding.ride(node_id("b"), 0) == [frame]


def test_a_frame_goes_alone_when_traffic_does_not_come() -> None:
    table = quiet()
    for other in "bc":
        assert table["a"].ride(node_id(other), table.now) == []
    table.report("a", 11, 11)
    table.later(FAST_PERIOD, deliver=False)
    assert not table.frames, "there was traffic a moment ago: it waits"
    table.later(table.config.ride_ns, deliver=False)
    assert sorted(other for _, other, _ in table.frames) == ["b", "c"]
    assert table.status("a").rode == 0


def test_without_traffic_nothing_is_delayed() -> None:
    table = quiet()
    table["a"].ride(node_id("b"), table.now)
    table.later(SECOND)
    table.report("a", 11, 11)
    table.later(FAST_PERIOD, deliver=False)
    assert sorted(other for _, other, _ in table.frames) == ["b", "c"]


def test_a_later_frame_replaces_one_that_waits() -> None:
    table = quiet("coord")
    table["b"].ride(node_id("a"), table.now)
    table.report_all(11, 11)
    table.later(FAST_PERIOD)
    frames = table["b"].ride(node_id("a"), table.now)
    kinds = [type(frame) for frame in frames]
    assert len(kinds) == len(dict.fromkeys(kinds))


def test_what_waits_for_a_ride_is_dropped_when_the_view_changes() -> None:
    table = quiet()
    for other in "bc":
        table["a"].ride(node_id(other), table.now)
    table.report("a", 11, 11)
    table.later(FAST_PERIOD, deliver=False)
    table.enter("a", view_of("ab", 2))
    assert table["a"].ride(node_id("c"), table.now) == []
    assert all(frame.view == 2 for one, _, frame in table.frames if one == "a")


def test_a_ride_to_a_node_outside_the_view_takes_nothing() -> None:
    table = quiet()
    assert table["a"].ride(node_id("z"), table.now) == []


# -- status --------------------------------------------------------------------------------------------------------


def test_status_before_any_view() -> None:
    status = Table("a").status("a")
    assert (status.protocol, status.members, status.place, status.blockers) == ("", 0, -1, ())


def test_status_says_protocol_place_round_and_lag() -> None:
    table = quiet("cube")
    table.report("b", 15, 15, held_bytes=700)
    table.later(20 * MILLISECOND, deliver=False)
    status = table.status("b")
    assert (status.protocol, status.members, status.place) == ("cube", 4, 1)
    assert status.report == (15, 15)
    assert status.stable == (10, 10)
    assert status.held_bytes == 700
    assert status.lag_ns == 20 * MILLISECOND
    assert status.running


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_view_of_one_member_is_stable_by_itself(protocol: str) -> None:
    table = Table("a", protocol)
    table.enter()
    table.report("a", 5, 4)
    table.later(FAST_PERIOD * 2)
    assert table.stable("a") == (5, 4)
    assert not table.frames


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_version_grows_exactly_when_stable_does(protocol: str) -> None:
    table = quiet(protocol)
    before = table["c"].version
    table.later(SECOND)
    assert table["c"].version == before
    table.report_all(20, 20)
    table.later(SECOND)
    assert table["c"].version == before + 1
