"""Each claim of seed 001, selective message loss handling in a cluster of replicated servers, as a test.

The docstrings cite the seed by the words of the paragraph that makes the claim.
"""

from __future__ import annotations

import pytest

from holdfast.group.metadata import Annotator, Indication, Note, distances_at, indicate
from holdfast.wire.frames import About

TABLE_1 = {
    "P": (1, 1, 0, 1, 0, 0, 0, 1, 1, 0),
    "D0": (-1, -1, -1, 1, 2, 1, 1, 1, 2, 3),
}
TABLE_2 = {
    "P": (1, 2, 0, 1, 2, 0, 0, 2, 1, 0),
    "D0": (-1, -1, -1, 1, 2, 3, 1, 1, 2, 3),
    "D1": (-1, 1, 2, 3, 1, 2, 3, 4, 5, 1),
}


def notes(priorities: tuple[int, ...]) -> list[tuple[int, Note]]:
    return [(place, Note(priority)) for place, priority in enumerate(priorities)]


def distances_of(priorities: tuple[int, ...], levels: int, cut: int) -> list[tuple[int, ...]]:
    """What each message says, sent in frames of `cut` messages."""
    annotator = Annotator(levels)
    found: list[tuple[int, ...]] = []
    for start in range(0, len(priorities), cut):
        part = priorities[start : start + cut]
        about = annotator.take(0, len(part), notes(part))
        found += [distances_at(about, place) for place in range(len(part))]
    return found


# -- the two tables ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 2, 3, 7, 10])
def test_table_1_is_what_a_source_with_two_priorities_sends(cut: int) -> None:
    """'Table 1 shows metadata as transmitted from source, where -1 represents that no high priority was previously
    sent.' The same whatever frames the messages travel in."""
    assert distances_of(TABLE_1["P"], 2, cut) == [(d,) for d in TABLE_1["D0"]]


@pytest.mark.parametrize("cut", [1, 2, 3, 7, 10])
def test_table_2_is_what_a_source_with_three_priorities_sends(cut: int) -> None:
    """'Two ordinal distances may be utilized in order to indicate ordinal distance from the last high priority and
    medium priority messages. Table 2 shows metadata as transmitted from source.'"""
    expected = list(zip(TABLE_2["D0"], TABLE_2["D1"], strict=True))
    assert distances_of(TABLE_2["P"], 3, cut) == expected


def gaps(count: int) -> list[tuple[int, int]]:
    """All (X, Y) with something lost between them."""
    return [(x, y) for x in range(count) for y in range(x + 2, count + 1)]


@pytest.mark.parametrize(("before", "after"), gaps(10))
def test_a_lost_message_of_high_priority_is_noticed_in_table_1(before: int, after: int) -> None:
    """'IF (D(Y) == -1) OR (SQN(Y) - D(Y) <= SQN(X)) THEN only messages of low priority have been lost ELSE at least
    one message of high priority has been lost.'"""
    lost = TABLE_1["P"][before : after - 1]
    found = indicate(before, after, (TABLE_1["D0"][after - 1],), 2)
    assert (found.at_least[0] > 0) == (0 in lost)
    assert (found.possible == (1,)) == (0 not in lost)


@pytest.mark.parametrize(("before", "after"), gaps(10))
def test_a_lost_message_of_each_priority_is_noticed_in_table_2(before: int, after: int) -> None:
    """'Using the corresponding ordinal distance metadata, it can be determined whether a message of priority p was
    not received by the receiver.'"""
    lost = TABLE_2["P"][before : after - 1]
    distances = (TABLE_2["D0"][after - 1], TABLE_2["D1"][after - 1])
    found = indicate(before, after, distances, 3)
    for priority in (0, 1):
        assert (found.at_least[priority] > 0) == (priority in lost)
    for number, priority in found.known:
        assert TABLE_2["P"][number - 1] == priority


def test_the_number_of_lost_messages_is_the_difference_of_the_identifiers() -> None:
    """'After receiving message #45, next message should be #46. If any other message is received, e.g., #58, message
    loss may be detected. In the above example, twelve (12) messages are lost.'"""
    found: Indication = indicate(45, 58, (), 1)
    assert found.at_least == found.at_most == (12,)


def test_a_frame_without_priorities_says_that_all_are_of_the_lowest() -> None:
    """'At the sender side, a priority is assigned to each message': one that is not told has the lowest."""
    annotator = Annotator(3)
    assert annotator.take(0, 5).priorities == b""
    assert annotator.take(0, 1, [(0, Note(0))]).priorities == b"\0"
    assert annotator.next(0) == About(b"", (1, -1), (0, -1, -1, -1))
