"""Rule 17: stretches of a log that were compared are taken over, unless their evidence may have changed."""

from __future__ import annotations

import random

import pytest

from holdfast.pipeline.frontier import NOTHING, Reading, Stretch, Touched, reading

FIRST_DAY = "2026-11-01"


def hour(number: int) -> str:
    return f"2026-11-{1 + number // 24:02d}T{number % 24:02d}"


def stretch(place: int, blocks: int = 2, *, differs: bool = False, group: str = "g") -> Stretch:
    """The blocks 10 * `place` to 10 * `place` + 9, recorded during one hour."""
    first = 10 * place
    last = first if blocks == 1 else first + 9
    return Stretch(group, 1, first, last, hour(place), hour(place), blocks, differs)


LOG = [stretch(place) for place in range(8)]


def kept(found: Reading) -> list[int]:
    return [one.first_block // 10 for one in found.kept]


def test_without_new_facts_everything_is_taken_over() -> None:
    found = reading(LOG, [], NOTHING, FIRST_DAY)
    assert (kept(found), found.again, found.hours) == (list(range(8)), (), ())


def test_new_facts_reopen_the_stretch_that_they_go_on_with_and_its_neighbour() -> None:
    found = reading(LOG, [Touched("g", 1, 75, 90)], hour(9), FIRST_DAY)
    assert kept(found) == [0, 1, 2, 3, 4, 5]
    assert found.again == (Touched("g", 1, 60, 90),)
    assert found.hours == ((hour(6), hour(6)), (hour(7), hour(7)))


def test_new_blocks_behind_the_last_stretch_reopen_it() -> None:
    """They may claim a position that its last block has."""
    found = reading(LOG, [Touched("g", 1, 85, 90)], hour(9), FIRST_DAY)
    assert kept(found) == [0, 1, 2, 3, 4, 5, 6]


def test_late_facts_reopen_what_was_recorded_in_their_hour_or_after() -> None:
    found = reading(LOG, [Touched("g", 1, 30, 39)], hour(5), FIRST_DAY)
    assert kept(found) == [0, 1]


def test_a_replica_that_catches_up_reopens_what_it_records_and_nothing_after() -> None:
    found = reading(LOG, [Touched("g", 1, 20, 25)], hour(9), FIRST_DAY)
    assert kept(found) == [0, 4, 5, 6, 7]
    assert found.again == (Touched("g", 1, 10, 39),)


def test_a_rollback_reopens_all_blocks_after_its_index() -> None:
    found = reading(LOG, [Touched("g", 1, 45, 1 << 62)], hour(9), FIRST_DAY)
    assert kept(found) == [0, 1, 2]


def test_the_look_back_reopens_what_it_cuts_and_drops_what_is_before() -> None:
    cut = Stretch("g", 1, 10, 19, hour(20), hour(30), 2, False)
    log = [stretch(0), cut, *(stretch(place + 30) for place in range(3))]
    found = reading(log, [], NOTHING, "2026-11-02")
    assert [one.first_block for one in found.kept] == [310, 320]
    assert found.gone == (cut, stretch(30), stretch(0))
    assert found.hours == (("2026-11-02", hour(30)), (hour(30), hour(30)))


def test_other_groups_and_epochs_are_taken_over() -> None:
    other = [stretch(7, group="h"), Stretch("g", 2, 70, 79, hour(7), hour(7), 2, False)]
    found = reading([*LOG, *other], [Touched("g", 1, 75, 80)], hour(9), FIRST_DAY)
    assert [one for one in found.kept if one in other] == [other[1], other[0]]


def test_differing_blocks_are_reopened_with_a_single_block_between_them_and_new_ones() -> None:
    """The block between may come to differ as well: then they are one stretch, whose entries are compared together."""
    log = [*LOG[:5], stretch(5, differs=True), stretch(6, blocks=1)]
    found = reading(log, [Touched("g", 1, 65, 69)], hour(9), FIRST_DAY)
    assert kept(found) == [0, 1, 2, 3, 4]
    wide = [*LOG[:5], stretch(5, differs=True), stretch(6)]
    assert kept(reading(wide, [Touched("g", 1, 75, 79)], hour(9), FIRST_DAY)) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("seed", range(200))
def test_no_range_that_is_compared_again_holds_a_block_that_is_kept(seed: int) -> None:
    rng = random.Random(seed)
    log = [
        stretch(place, rng.choice((1, 2)), differs=rng.random() < 0.2)
        for place in range(12)
        if rng.random() < 0.8
    ]
    news = [
        Touched("g", 1, low, low + rng.randrange(25))
        for low in (rng.randrange(130) for _ in range(rng.randrange(3)))
    ]
    since = hour(rng.randrange(14))
    found = reading(log, news, since, FIRST_DAY)
    assert sorted([*found.kept, *found.gone]) == sorted(log)
    for again in found.again:
        for one in found.kept:
            assert again.last_block < one.first_block or one.last_block < again.first_block
    for before, after in zip(found.again, found.again[1:], strict=False):
        assert before.last_block < after.first_block
    covered = [
        block for again in found.again for block in range(again.first_block, again.last_block + 1)
    ]
    assert all(block in covered for new in news for block in range(new.first_block, new.last_block))
    assert all(one.last_hour < since for one in found.kept)
