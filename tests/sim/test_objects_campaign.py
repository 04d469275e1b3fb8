"""Random runs of objects with a checker, and the checker itself."""

from __future__ import annotations

import pytest

from holdfast.sim.checkers import CheckFailed
from holdfast.sim.checkers.objects import ObjectHistory
from holdfast.sim.objects_campaign import Run, run_campaign
from holdfast.types import SECOND


def check(run: Run, objects: int, operations: int) -> None:
    """The checker saw enough to be able to fail: operations on every object, and faults."""
    histories = run.histories.values()
    assert len(histories) == objects
    assert sum(history.writes for history in histories) > operations
    assert sum(history.reads for history in histories) > operations
    assert all(history.writes > 0 and history.reads > 0 for history in histories)
    assert sum(run.troubles.values()) > 0, "no fault took place"


@pytest.mark.parametrize("seed", [2, 4, 48])
def test_no_acknowledged_write_is_lost_and_replicas_are_restored(seed: int) -> None:
    check(run_campaign(seed, seconds=12), 3, 50)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(100, 160))
def test_campaign(seed: int) -> None:
    check(run_campaign(seed, seconds=40, objects=4), 4, 200)


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = (run_campaign(8, seconds=4) for _ in range(2))
    assert first.outcomes == second.outcomes
    assert first.world.frames == second.world.frames
    assert first.world.now == second.world.now


def test_the_checker_sees_a_lost_write() -> None:
    history = ObjectHistory("x", b"one")
    history.wrote(SECOND, 2, b"two")
    with pytest.raises(CheckFailed, match="no acknowledged write is lost"):
        history.ended(1, b"one")


def test_the_checker_sees_an_old_read() -> None:
    history = ObjectHistory("x", b"one")
    history.wrote(SECOND, 2, b"two")
    history.read(SECOND - 1, 1, b"one")
    with pytest.raises(CheckFailed, match="a fresh read is not old"):
        history.read(2 * SECOND, 1, b"one")


def test_the_checker_sees_two_contents_of_one_edition() -> None:
    history = ObjectHistory("x", b"one")
    history.wrote(SECOND, 2, b"two")
    with pytest.raises(CheckFailed, match="an edition has one content"):
        history.read(SECOND, 2, b"other")
