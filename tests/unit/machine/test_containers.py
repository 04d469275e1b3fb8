"""Range sets, windows, deadlines and the intake do what a plain model of each does."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.machine import Deadlines, Intake, RangeSet, ReplayWindow, RingWindow
from holdfast.types import BULK, CLASSES, DATA, NEVER, SYNC

models = settings(derandomize=True, deadline=None, max_examples=300)

bound = st.integers(-5, 40)
range_steps = st.lists(st.tuples(st.sampled_from(["add", "remove"]), bound, bound), max_size=30)


# -- RangeSet ----------------------------------------------------------------------------------------------------


def built(steps: list[tuple[str, int, int]]) -> tuple[RangeSet, set[int]]:
    ranges, model = RangeSet(), set[int]()
    for step, start, stop in steps:
        if step == "add":
            ranges.add(start, stop)
            model |= set(range(start, stop))
        else:
            ranges.remove(start, stop)
            model -= set(range(start, stop))
    return ranges, model


def runs(numbers: set[int]) -> list[tuple[int, int]]:
    """The maximal runs of a set of integers, half-open."""
    starts = sorted(n for n in numbers if n - 1 not in numbers)
    stops = sorted(n + 1 for n in numbers if n + 1 not in numbers)
    return list(zip(starts, stops, strict=True))


@models
@given(range_steps)
def test_a_range_set_holds_the_maximal_runs_of_its_integers(
    steps: list[tuple[str, int, int]],
) -> None:
    ranges, model = built(steps)
    assert list(ranges) == runs(model)
    assert len(ranges) == len(runs(model))
    assert ranges.total() == len(model)
    assert bool(ranges) == bool(model)
    assert ranges == RangeSet(reversed(runs(model)))


@models
@given(range_steps, bound, bound)
def test_questions_to_a_range_set_are_answered_as_by_a_set(
    steps: list[tuple[str, int, int]], start: int, stop: int
) -> None:
    ranges, model = built(steps)
    asked = set(range(start, stop))
    assert [n for n in range(-6, 42) if n in ranges] == sorted(model)
    assert ranges.covers(start, stop) == (asked <= model)
    assert list(ranges.missing(start, stop)) == runs(asked - model)
    first = start
    while first in model:
        first += 1
    assert ranges.first_missing(start) == first


def test_range_sets_that_differ_are_not_equal() -> None:
    assert RangeSet([(0, 3)]) != RangeSet([(0, 4)])
    assert RangeSet([(0, 3)]) != [(0, 3)]


# -- ReplayWindow ------------------------------------------------------------------------------------------------


@models
@given(st.integers(1, 12), st.lists(st.integers(0, 60), max_size=60))
def test_a_replay_window_accepts_each_recent_number_once(size: int, numbers: list[int]) -> None:
    window, seen, top = ReplayWindow(size), set[int](), -1
    for number in numbers:
        expected = number not in seen and number > top - size
        assert window.fresh(number) == expected
        assert window.accept(number) == expected
        assert not window.accept(number)
        assert not window.fresh(number)
        seen.add(number)
        top = max(top, number)


def test_a_replay_window_survives_a_jump_of_any_size() -> None:
    window = ReplayWindow(8)
    assert window.accept(3)
    assert window.accept(1 << 64)
    assert not window.accept(3)
    assert window.accept((1 << 64) - 7)
    assert not window.accept((1 << 64) - 8)


# -- RingWindow --------------------------------------------------------------------------------------------------

ring_steps = st.lists(
    st.tuples(st.sampled_from(["put", "put", "put", "release"]), st.integers(-2, 40)), max_size=60
)


@models
@given(st.integers(1, 9), st.integers(0, 7), ring_steps)
def test_a_ring_window_is_a_bounded_map_freed_from_below(
    capacity: int, base: int, steps: list[tuple[str, int]]
) -> None:
    window: RingWindow[str] = RingWindow(capacity, base)
    model: dict[int, str] = {}
    for at, (step, number) in enumerate(steps):
        if step == "put":
            fits = base <= number < base + capacity and number not in model
            assert window.put(number, f"item {at}") == fits
            if fits:
                model[number] = f"item {at}"
        else:
            window.release(number)
            base = max(base, number)
            model = {n: item for n, item in model.items() if n >= number}
        assert window.base == base
        assert window.held == len(model)
        assert [window.get(n) for n in range(-3, 60)] == [model.get(n) for n in range(-3, 60)]
        run: list[str] = []
        while base + len(run) in model:
            run.append(model[base + len(run)])
        assert list(window.contiguous()) == run


def test_a_full_ring_window_gives_all_its_items_and_ends() -> None:
    window: RingWindow[int] = RingWindow(3)
    assert all(window.put(n, n) for n in range(3))
    assert list(window.contiguous()) == [0, 1, 2]


# -- Deadlines ---------------------------------------------------------------------------------------------------

deadline_steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.sampled_from("abcd"), st.integers(0, 6)),
        st.tuples(st.just("set"), st.sampled_from("abcd"), st.just(NEVER)),
        st.tuples(st.just("due"), st.just(""), st.integers(0, 7)),
        st.tuples(st.just("next"), st.just(""), st.just(0)),
    ),
    max_size=200,
)


@models
@given(deadline_steps)
def test_deadlines_come_in_time_order_and_ties_in_the_order_asked(
    steps: list[tuple[str, str, int]],
) -> None:
    deadlines = Deadlines()
    model: dict[str, tuple[int, int]] = {}
    for at, (step, unit, time) in enumerate(steps):
        if step == "set":
            deadlines.set(unit, time)
            if time == NEVER:
                model.pop(unit, None)
            elif model.get(unit, (NEVER, 0))[0] != time:
                model[unit] = (time, at)
        elif step == "due":
            due = sorted((key, name) for name, key in model.items() if key[0] <= time)
            assert deadlines.due(time) == [name for _, name in due]
            for _, name in due:
                del model[name]
        else:
            assert deadlines.next() == min((key[0] for key in model.values()), default=NEVER)
    assert deadlines.next() == min((key[0] for key in model.values()), default=NEVER)


def test_asking_for_the_next_deadline_does_not_change_the_order() -> None:
    orders = []
    for asks in (False, True):
        deadlines = Deadlines()
        deadlines.set("a", 5)
        deadlines.set("a", 7)
        if asks:
            deadlines.next()
        deadlines.set("b", 5)
        deadlines.set("a", 5)
        orders.append(deadlines.due(5))
    assert orders == [["b", "a"], ["b", "a"]]


def test_a_deadline_that_moves_again_and_again_does_not_fill_the_heap() -> None:
    deadlines = Deadlines()
    for time in range(10_000):
        deadlines.set("a", time)
        deadlines.set("b", NEVER - 1 - time)
    assert len(deadlines._heap) <= 64 + 4 * 2 + 1
    assert deadlines.next() == 9_999


# -- Intake ------------------------------------------------------------------------------------------------------

intake_steps = st.lists(
    st.one_of(
        st.tuples(st.just("offer"), st.sampled_from(CLASSES), st.integers(1, 30)),
        st.tuples(st.just("take"), st.just(SYNC), st.integers(1, 60)),
    ),
    max_size=60,
)


@models
@given(intake_steps)
def test_an_intake_serves_classes_in_order_and_refuses_what_does_not_fit(
    steps: list[tuple[str, int, int]],
) -> None:
    intake = Intake(bound=50, reserve=20)
    bounds = {SYNC: 70, DATA: 50, BULK: 50}
    model: dict[int, list[tuple[int, int]]] = {cls: [] for cls in CLASSES}
    for at, (step, cls, amount) in enumerate(steps):
        if step == "offer":
            waiting = sum(size for _, size in model[cls])
            assert intake.room(cls) == max(0, bounds[cls] - waiting)
            fits = waiting + amount <= bounds[cls]
            assert intake.offer(cls, "unit", at, amount) == fits
            if fits:
                model[cls].append((at, amount))
        else:
            expected: list[tuple[str, int]] = []
            left = amount
            for queue in model.values():
                while queue and left > 0:
                    item, size = queue.pop(0)
                    left -= size
                    expected.append(("unit", item))
            assert intake.take(amount) == expected
        assert intake.waiting == sum(map(len, model.values()))


def test_an_intake_takes_one_input_of_any_size_when_it_is_empty() -> None:
    intake = Intake(bound=10, reserve=0)
    assert intake.offer(DATA, "unit", "large", 1000)
    assert not intake.offer(DATA, "unit", "small", 1)
    assert intake.room(DATA) == 0
    assert intake.take(1) == [("unit", "large")]
    assert intake.room(DATA) == 10


@pytest.mark.parametrize("cls", [DATA, BULK])
def test_a_flood_of_data_leaves_room_for_synchronisation(cls: int) -> None:
    intake = Intake(bound=10, reserve=5)
    while intake.offer(cls, "unit", "data", 5):
        pass
    assert intake.offer(SYNC, "unit", "vote", 10)
    assert intake.take(1) == [("unit", "vote")]


def test_what_cannot_be_refused_is_queued_beyond_the_bound_and_counts() -> None:
    intake = Intake(bound=10, reserve=0)
    assert intake.offer(DATA, "unit", 1, 10)
    intake.force(DATA, "unit", 2, 7)
    assert intake.room(DATA) == 0
    assert not intake.offer(DATA, "unit", 3, 1)
    assert intake.take(11) == [("unit", 1), ("unit", 2)]
    assert intake.waiting == 0
