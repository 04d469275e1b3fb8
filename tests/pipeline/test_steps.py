"""A run tells of its steps, does independent ones at the same time, and says which one failed."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from holdfast.pipeline.run_context import Step
from holdfast.pipeline.steps import Steps, Work


def steps(told: list[Step], threads: int) -> Steps:
    return Steps(told.append, 9, threads)


@pytest.mark.parametrize("threads", [1, 2])
def test_every_step_is_told_once(threads: int) -> None:
    told: list[Step] = []
    made = steps(told, threads)
    made.begin("first")
    made.together([partial(made.begin, f"part {number}") for number in range(5)])
    assert sorted(step.text for step in told) == ["first", *(f"part {n}" for n in range(5))]
    assert [step.done for step in told] == list(range(6))
    assert {step.total for step in told} == {9}


def test_two_pieces_of_work_are_done_at_the_same_time() -> None:
    """Each waits for the other."""
    meeting = threading.Barrier(2, timeout=20)

    def meet() -> None:
        meeting.wait()

    steps([], 2).together([meet, meet])
    assert not meeting.broken


@pytest.mark.parametrize("threads", [1, 2])
def test_the_step_that_failed_is_named_and_what_has_not_begun_is_left_out(threads: int) -> None:
    told: list[Step] = []
    made = steps(told, threads)

    def fail() -> None:
        made.begin("the second")
        raise ValueError("no room")

    works: list[Work] = [
        partial(made.begin, "the first"),
        fail,
        *[partial(made.begin, "later")] * 20,
    ]
    with pytest.raises(ValueError, match="no room"):
        made.together(works)
    assert made.doing == "the second"
    assert len(told) < len(works)


def test_without_a_failure_the_newest_step_is_named() -> None:
    made = steps([], 2)
    assert made.doing == "starting"
    made.begin("folding")
    assert made.doing == "folding"
