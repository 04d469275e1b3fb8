"""The log and its cursors: what is committed stays, what conflicts goes, and the sum of entries is kept right."""

from __future__ import annotations

import pytest

from holdfast.group.frames import Entry, StreamId
from holdfast.group.log.replicated_log import LIVES_KEPT, Cursor, Kind, Log, is_sound

S = StreamId(b"s" * 16, 1, 0)
R = StreamId(b"r" * 16, 1, 0)


def order(log: Log, stream: StreamId, count: int, term: int = 1) -> Entry:
    tail = log.tail
    first = tail.next.get(stream, 1)
    entry = Entry(
        term, tail.index + 1, tail.position, 0, Kind.ORDER, stream, first, first + count - 1
    )
    log.append(entry)
    return entry


def some(*counts: int) -> Log:
    log = Log()
    for count in counts:
        order(log, S, count)
    return log


def test_positions_and_numbers_add_up() -> None:
    log = some(3, 4)
    order(log, R, 2)
    assert (log.last, log.tail.position, log.tail.next) == (3, 10, {S: 8, R: 3})


def test_truncation_takes_back_positions_and_numbers() -> None:
    log = some(3, 4)
    order(log, R, 2)
    log.truncate(2)
    assert (log.last, log.tail.position, log.tail.next) == (1, 4, {S: 4})


def test_what_is_committed_is_never_cut_off() -> None:
    log = some(3, 4)
    log.commit_to(2)
    with pytest.raises(AssertionError, match="committed"):
        log.truncate(2)


def test_trimming_keeps_the_sum_and_forgets_the_entries() -> None:
    log = some(3, 4, 5)
    log.commit_to(3)
    log.trim(2)
    assert (len(log), log.ground.index, log.ground.position, log.ground.next) == (1, 2, 8, {S: 8})
    assert log.term_at(1) is None
    assert log.term_at(2) == 1
    assert log.entry(3).first == 8


def test_what_is_not_committed_is_not_trimmed() -> None:
    log = some(3, 4)
    log.commit_to(1)
    with pytest.raises(AssertionError, match="committed"):
        log.trim(2)


@pytest.mark.parametrize(
    "change",
    [{"index": 3}, {"position": 5}, {"term": 0}, {"first": 5}, {"first": 3}, {"log_ns": -1}],
    ids=lambda change: next(iter(change)),
)
def test_an_entry_that_does_not_follow_does_not_fit(change: dict[str, int]) -> None:
    log = some(3)
    good = Entry(1, 2, 4, 0, Kind.ORDER, S, 4, 5)
    assert log.tail.fits(good)
    fields = {name: getattr(good, name) for name in good.__struct_fields__} | change
    assert not log.tail.fits(Entry(**fields))


def test_a_state_takes_the_place_of_the_log() -> None:
    log = some(3, 4, 5)
    log.commit_to(1)
    log.restart(Cursor(7, 2, 20, 0, {S: 20}))
    assert (log.ground.index, log.last, len(log), log.commit) == (7, 7, 0, 7)
    assert log.term_at(7) == 2
    order(log, S, 1, term=2)
    assert log.tail.next == {S: 21}


def test_only_the_last_lives_of_a_source_are_remembered() -> None:
    log = Log()
    for life in range(LIVES_KEPT + 2):
        order(log, StreamId(b"s" * 16, life, 0), 1)
    assert len(log.tail.next) == LIVES_KEPT
    assert log.tail.is_over(StreamId(b"s" * 16, 1, 0))
    assert not log.tail.is_over(StreamId(b"s" * 16, 2, 0))
    assert not log.tail.is_over(StreamId(b"r" * 16, 1, 0))


@pytest.mark.parametrize(
    "entry",
    [
        Entry(0, 1, 1, 0, Kind.TERM),
        Entry(1, 0, 1, 0, Kind.TERM),
        Entry(1, 1, 1, 0, Kind.TERM, S),
        Entry(1, 1, 1, 0, Kind.ORDER),
        Entry(1, 1, 1, 0, Kind.ORDER, S, 0, 1),
        Entry(1, 1, 1, 0, Kind.ORDER, S, 2, 1),
        Entry(1, 1, 1, 0, Kind.ORDER, S, 1, 1 << 40),
        Entry(1, 1, 1, 0, Kind.ORDER, StreamId(b"short", 1, 0), 1, 1),
        Entry(1, 1, 1, 0, Kind.SKIP, S, 1, 1),
        Entry(1, 1, 1, 0, 99),
    ],
)
def test_entries_that_make_no_sense_are_told(entry: Entry) -> None:
    assert not is_sound(entry)
