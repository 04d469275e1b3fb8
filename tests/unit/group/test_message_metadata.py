"""What messages say about others."""

from __future__ import annotations

from itertools import product

import pytest

from holdfast.group.frames import MessageMetadata
from holdfast.group.streams.message_metadata import (
    BACK,
    Annotator,
    created_before,
    distances_at,
    indicate,
    is_sound_about,
    merge,
    priority_at,
    topic_at,
    with_told,
)
from holdfast.group.streams.values import Note
from holdfast.types import MILLISECOND


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_what_is_said_of_lost_priorities_is_true_and_counts_are_as_narrow_as_can_be(
    levels: int,
) -> None:
    """Every way to give five messages priorities, the last one received, a gap before it from anywhere."""
    seen: dict[tuple[int, tuple[int, ...]], list[list[int]]] = {}
    for priorities in product(range(levels), repeat=5):
        about = Annotator(levels).take(0, 5, [(k, Note(p)) for k, p in enumerate(priorities)])
        distances = distances_at(about, 4)
        for before in range(4):
            found = indicate(before, 5, distances, levels)
            lost = priorities[before:4]
            counts = [lost.count(level) for level in range(levels)]
            for level in range(levels):
                assert found.at_least[level] <= counts[level] <= found.at_most[level]
            for number, priority in found.known:
                assert priorities[number - 1] == priority
            inside = tuple(d if 0 < d < 5 - before else 0 for d in distances)
            seen.setdefault((before, inside), []).append(counts)
    for (before, inside), all_counts in seen.items():
        found = indicate(before, 5, [d or -1 for d in inside], levels)
        for level in range(levels):
            values = [counts[level] for counts in all_counts]
            assert (found.at_least[level], found.at_most[level]) == (min(values), max(values))


@pytest.mark.parametrize("levels", [2, 3])
def test_what_others_tell_of_some_messages_narrows_what_is_known_and_keeps_it_true(
    levels: int,
) -> None:
    """Every way to give five messages priorities, 2 to 4 lost, and every part of them told by somebody."""
    for priorities in product(range(levels), repeat=5):
        about = Annotator(levels).take(0, 5, [(k, Note(p)) for k, p in enumerate(priorities)])
        alone = indicate(1, 5, distances_at(about, 4), levels)
        counts = [priorities[1:4].count(level) for level in range(levels)]
        for part in product((False, True), repeat=3):
            told = {n: priorities[n - 1] for n, is_told in enumerate(part, 2) if is_told}
            found = with_told(alone, 2, 4, told | {9: 0})
            assert set(found.known) == set(alone.known) | set(told.items())
            for level in range(levels):
                assert alone.at_least[level] <= found.at_least[level] <= counts[level]
                assert counts[level] <= found.at_most[level] <= alone.at_most[level]
            assert found.exact or len(found.known) < 3


def test_ages_are_those_of_the_messages_back() -> None:
    annotator = Annotator()
    for n in range(1, 1201):
        about = annotator.take(n * MILLISECOND, 1)
    assert about.ages_ns == tuple(back * MILLISECOND for back in BACK)
    assert Annotator().take(5, 3).ages_ns == (-1, -1, -1, -1)


def test_memory_of_times_is_bounded_and_forgets_the_oldest() -> None:
    annotator = Annotator()
    for n in range(1, 20_000):
        annotator.take(n * MILLISECOND, 1)
    assert len(annotator._times) <= 4096
    about = annotator.next(20_000 * MILLISECOND)
    assert about.ages_ns[3] == 1000 * MILLISECOND


def test_creation_times_between_known_ones_are_in_proportion() -> None:
    ages = (2, 20, 380, -1)
    assert created_before(1, ages) == 2
    assert created_before(10, ages) == 20
    assert created_before(55, ages) == 200
    assert created_before(200, ages) == 760
    assert created_before(3, (-1, -1, -1, -1)) is None


def test_notes_become_columns_that_say_the_same() -> None:
    said = [(1, Note(0, "rain")), (3, Note(topic="sun", request=b"r1")), (4, Note(resync=True))]
    about = Annotator(2).take(0, 5, said)
    assert [priority_at(about, k, 2) for k in range(5)] == [1, 0, 1, 1, 1]
    assert [topic_at(about, k) for k in range(5)] == ["", "rain", "", "sun", ""]
    assert about.requests == ((3, b"r1"),)
    assert about.resyncs == (4,)
    assert is_sound_about(about, 5)


@pytest.mark.parametrize(
    "about",
    [
        MessageMetadata(priorities=b"\0"),
        MessageMetadata(topic_column=b"\1\1"),
        MessageMetadata(topics=("x",) * 256),
        MessageMetadata(distances=(1,) * 16),
        MessageMetadata(ages_ns=(1,) * 5),
        MessageMetadata(requests=((2, b"r"),)),
        MessageMetadata(requests=((0, b""),)),
        MessageMetadata(resyncs=(-1,)),
    ],
)
def test_nonsense_is_not_sound(about: MessageMetadata) -> None:
    assert not is_sound_about(about, 2)


def test_two_gaps_together() -> None:
    one = indicate(0, 3, (2,), 2)
    other = indicate(5, 7, (-1,), 2)
    both = merge(one, other)
    assert both.at_least == (1, 2)
    assert both.exact
    assert both.highest == 0
