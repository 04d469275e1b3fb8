"""The writer of a dialog store: which turns share a commit, in which order, and what becomes of a failure."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest

from holdfast.dialog.records import BLOCK, POSITION, number_key
from holdfast.errors import HoldfastError, StoreError
from holdfast.machine import Erase, Put, Write
from holdfast.runtime.dialogs import writer as module
from holdfast.runtime.dialogs.writer import (
    BOUND_BYTES,
    COMMIT_BYTES_MIN,
    COMMIT_BYTES_START,
    COMMIT_NS,
    DialogWriter,
)
from holdfast.stores.dialogs import MemoryDialogStore

WAIT_S = 30
MB = 1 << 20


class Clock:
    """Stands still, except for what the store takes."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


class PacedStore(MemoryDialogStore):
    """Takes a given time for each MB. The first commit waits for `gate`, so that turns pile up behind it."""

    def __init__(self, clock: Clock, ns_per_mb: int) -> None:
        super().__init__(b"paced")
        self.clock, self.ns_per_mb = clock, ns_per_mb
        self.entered, self.gate = threading.Event(), threading.Event()
        self.batches: list[list[Write]] = []
        self.error: Exception | None = None

    def commit(self, writes: Sequence[Write]) -> None:
        self.entered.set()
        assert self.gate.wait(WAIT_S)
        if self.error is not None:
            raise self.error
        super().commit(writes)
        size = sum(len(w.value) + module.WRITE_BYTES for w in writes if isinstance(w, Put))
        self.clock.now += size * self.ns_per_mb // MB
        self.batches.append(list(writes))


class Piled:
    """A writer that is held in the commit of turn 0, with turns behind it."""

    def __init__(self, clock: Clock, ns_per_mb: int = 0) -> None:
        self.store = PacedStore(clock, ns_per_mb)
        self.store.open()
        self.written: list[int] = []
        self.failed: list[HoldfastError] = []
        self.writer = DialogWriter(self.store, self.written.append, self.failed.append)
        self.writer.submit(0, [Put(POSITION, b"first", b"")])
        assert self.store.entered.wait(WAIT_S)

    def finish(self) -> list[int]:
        """Let all commits through; gives the last turn of each."""
        self.store.gate.set()
        self.writer.close()
        return self.written


@pytest.fixture
def piled(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Piled]:
    clock = Clock()
    monkeypatch.setattr(module, "monotonic_ns", clock)
    return lambda ns_per_mb=0: Piled(clock, ns_per_mb)


def block(turn: int, size: int) -> list[Write]:
    return [Put(BLOCK, number_key(turn), bytes(size))]


def sizes(store: PacedStore) -> list[int]:
    return [len(batch) for batch in store.batches]


def test_turns_that_wait_share_a_commit(piled: Callable[..., Piled]) -> None:
    held = piled()
    for turn in range(1, 20):
        held.writer.submit(turn, block(turn, 100))
    assert held.finish() == [0, 19]


def test_a_commit_of_a_burst_takes_about_its_time(piled: Callable[..., Piled]) -> None:
    """The store writes 8 MB in that time. The partner gets work after each commit, not after the burst."""
    held = piled(COMMIT_NS // 8)
    for turn in range(1, 101):
        held.writer.submit(turn, block(turn, MB - module.WRITE_BYTES))
    written = held.finish()
    assert written == sorted(written)
    assert written[-1] == 100
    counts = sizes(held.store)
    assert counts[1] == COMMIT_BYTES_START // MB, "nothing is known about the store yet"
    assert counts[2:-1] == [6, 7, *[8] * (len(counts) - 5)]


def test_a_store_that_becomes_slow_gets_small_commits_at_once(piled: Callable[..., Piled]) -> None:
    held = piled(100 * COMMIT_NS)
    for turn in range(1, 11):
        held.writer.submit(turn, block(turn, COMMIT_BYTES_MIN - module.WRITE_BYTES))
    held.finish()
    assert sizes(held.store) == [1, 4, *[1] * 6]
    assert held.writer._share == COMMIT_BYTES_MIN


def test_a_fast_store_never_gets_more_than_the_bound(piled: Callable[..., Piled]) -> None:
    held = piled(1)
    for turn in range(1, 101):
        held.writer.submit(turn, block(turn, MB - module.WRITE_BYTES))
    held.finish()
    assert sizes(held.store) == [1, 4, 32, 32, 32]
    assert held.writer._share == BOUND_BYTES


def test_small_commits_do_not_change_the_share(piled: Callable[..., Piled]) -> None:
    """Their time is that of the sync."""
    held = piled(1000 * COMMIT_NS)
    held.writer.submit(1, block(1, COMMIT_BYTES_MIN // 2))
    held.finish()
    assert held.writer._share == COMMIT_BYTES_START


def test_a_turn_larger_than_the_share_is_committed_whole(piled: Callable[..., Piled]) -> None:
    held = piled(100 * COMMIT_NS)
    turns = [block(1, 2 * MB), block(2, 40 * MB), block(3, 10), block(4, 10)]
    for turn, writes in enumerate(turns, 1):
        held.writer.submit(turn, writes)
    assert held.finish() == [0, 2, 4]
    assert not held.writer.full


def test_a_call_sees_the_turns_before_it_and_none_behind(piled: Callable[..., Piled]) -> None:
    held = piled()
    held.writer.submit(1, block(1, 10))
    rows = held.writer.call(lambda: len(held.store.load(BLOCK)))
    held.writer.submit(2, block(2, 10))
    assert held.finish() == [0, 1, 2]
    assert rows.result(0) == 1


def test_writes_that_a_later_turn_undoes_are_left_out(piled: Callable[..., Piled]) -> None:
    held = piled()
    held.writer.submit(1, [*block(1, 10), Put(POSITION, b"d", b"1")])
    held.writer.submit(2, [Erase(BLOCK, number_key(1), number_key(2)), Put(POSITION, b"d", b"2")])
    held.finish()
    assert held.store.batches[1] == [
        Erase(BLOCK, number_key(1), number_key(2)),
        Put(POSITION, b"d", b"2"),
    ]


@pytest.mark.parametrize("error", [StoreError("refused"), ZeroDivisionError()])
def test_a_failed_commit_is_reported_once_and_nothing_follows(
    piled: Callable[..., Piled], error: Exception
) -> None:
    held = piled()
    held.store.error = error
    held.writer.submit(1, block(1, 10))
    late = held.writer.call(lambda: 1)
    assert held.finish() == []
    assert len(held.failed) == 1
    assert isinstance(late.exception(0), StoreError)
    held.writer.submit(2, block(2, 10))
    assert isinstance(held.writer.call(lambda: 1).exception(0), StoreError)
    assert held.store.batches == []
