"""Every cell of the table of receive rules, and each row under loss, duplication and reordering."""

from __future__ import annotations

from random import Random

import pytest

from holdfast.dialog.assurances import (
    AGAIN,
    AHEAD,
    BEHIND,
    DELIVER,
    DISCARD,
    HOLD,
    NEXT,
    SEEN,
    TABLE,
    rules_of,
)
from holdfast.dialog.config import assurances_of
from holdfast.dialog.incoming import Incoming

RULES = {
    # Without order: 'immediately made available', and 'considered a duplicate' only with at-most-once.
    0b000: (DELIVER, DELIVER, DELIVER, AGAIN),
    0b010: (DELIVER, DELIVER, DELIVER, DISCARD),
    0b100: (DELIVER, DELIVER, DELIVER, AGAIN),
    0b110: (DELIVER, DELIVER, DELIVER, DISCARD),
    # In order: 'less than the next expected sequence number ... discarded'; above it, at-least-once decides.
    0b001: (DELIVER, DELIVER, DISCARD, DISCARD),
    0b011: (DELIVER, DELIVER, DISCARD, DISCARD),
    0b101: (DELIVER, HOLD, DISCARD, DISCARD),
    0b111: (DELIVER, HOLD, DISCARD, DISCARD),
}
"""The text of the paper, by at-least-once, at-most-once and in-order."""
CELLS = [
    (code, arrival, row[arrival])
    for code, row in RULES.items()
    for arrival in (NEXT, AHEAD, BEHIND, SEEN)
    # At least once and in order, the expected number is the lowest missing one: nothing new is behind it.
    if not (arrival == BEHIND and code & 0b101 == 0b101)
]


def receiver(code: int, quota: int = 1000) -> Incoming:
    return Incoming(rules_of(assurances_of(code)), quota, 1 << 40, 1 << 10)


def arrive(inc: Incoming, *numbers: int) -> list[int]:
    """Messages arrive one by one; gives the numbers that became available, in order."""
    for number in numbers:
        inc.arrive(number, [memoryview(b"%d" % number)])
    got = []
    for piece in inc.take(1000, 1 << 30):
        got += range(piece.first, piece.stop)
    return got


def test_the_table_says_what_the_paper_says() -> None:
    assert {4 * key[0] + 2 * key[1] + key[2]: row for key, row in TABLE.items()} == RULES
    assert len(CELLS) == 30


@pytest.mark.parametrize(("code", "arrival", "action"), CELLS)
def test_cell(code: int, arrival: int, action: int) -> None:
    in_order = bool(code & 1)
    inc = receiver(code)
    # Number 1 arrived and was taken; in order without waiting, number 2 was skipped by number 3.
    if arrival == NEXT:
        first, number = [0], 1
    elif arrival == AHEAD:
        first, number = [0], 2
    elif arrival == BEHIND:
        first, number = [0, 2], 1
    else:
        first, number = [0], 0
    assert arrive(inc, *first) == first
    got = arrive(inc, number)
    if action == DELIVER:
        assert got == [number]
    elif action == AGAIN:
        assert got == [number]
        assert number in inc.taken
    else:
        assert got == []
    if action == HOLD:
        assert arrive(inc, 1) == [1, 2], "released when the gap has closed"
    if action == DISCARD:
        assert arrive(inc, number) == []
    if in_order and arrival == NEXT:
        assert inc.expected == 2


@pytest.mark.parametrize("code", range(8))
@pytest.mark.parametrize("seed", range(25))
def test_row_under_loss_duplication_and_reordering(code: int, seed: int) -> None:
    random = Random(100 * code + seed)
    alo, amo, order = bool(code & 4), bool(code & 2), bool(code & 1)
    inc = receiver(code)
    sent = list(range(60))
    # With at-least-once the sender sends again until everything arrived; otherwise each goes once, or is lost.
    air = [n for n in sent if alo or random.random() > 0.3]
    air += [n for n in air if random.random() < 0.3]
    # Late by up to eight places.
    places = sorted(range(len(air)), key=lambda place: air[place] + random.random() * 8)
    got: list[int] = []
    for place in places:
        inc.arrive(air[place], [memoryview(b"%d" % air[place])])
        if random.random() < 0.5:
            got += arrive(inc)
    got += arrive(inc)
    if amo or order:
        assert len(set(got)) == len(got)
    if order:
        assert got == sorted(got)
    if alo:
        assert set(got) == set(sent)
        assert list(inc.received) == [(0, 60)]
    else:
        assert set(got) <= set(air)
    if not order and not alo:
        assert set(got) == set(air), "whatever arrived is delivered"


@pytest.mark.parametrize("code", range(8))
def test_batches_have_the_same_effect_as_single_messages(code: int) -> None:
    random = Random(code)
    for _ in range(50):
        one, many = receiver(code), receiver(code)
        for _ in range(12):
            first = random.randrange(30)
            count = random.randint(1, 6)
            messages = [memoryview(b"%d" % n) for n in range(first, first + count)]
            many.arrive(first, messages)
            for number, message in enumerate(messages, first):
                one.arrive(number, [message])
            taken = [
                [n for piece in inc.take(3, 1 << 30) for n in range(piece.first, piece.stop)]
                for inc in (one, many)
            ]
            assert taken[0] == taken[1]
        assert one.received == many.received
        assert one.taken == many.taken
        assert one.expected == many.expected
        assert one.limit == many.limit


def test_in_order_without_at_least_once_skips_ahead() -> None:
    """'The next expected sequence number is set to one more than the sequence number of the arriving message.'"""
    inc = receiver(1)
    assert arrive(inc, 0, 5, 3, 6) == [0, 5, 6]


@pytest.mark.parametrize("code", range(8))
@pytest.mark.parametrize("seed", range(10))
def test_the_buffer_never_exceeds_its_quota(code: int, seed: int) -> None:
    random = Random(seed)
    inc = Incoming(rules_of(assurances_of(code)), 10, 10 * 100, 100)
    for _ in range(500):
        first = random.randrange(max(1, inc.limit - 15), inc.limit + 5)
        size = random.randint(1, 100)
        inc.arrive(first, [memoryview(bytes(size))] * random.randint(1, 4))
        inc.open_window()
        assert inc.buffered <= 10
        assert inc.buffered_bytes <= 1000
        if random.random() < 0.3:
            inc.take(random.randint(1, 5), 1 << 30)
            before = inc.limit
            assert inc.open_window() >= before, "the window never shrinks"
