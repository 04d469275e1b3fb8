"""The writer's thread: turn order, one commit for all that waited, loads in their place, failures once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from holdfast.errors import MisuseError, StoreError, StoreFull
from holdfast.machine import Erase, Put, Write
from holdfast.stores import MemoryStore, StoreWriter
from holdfast.stores.writer import TURN_BYTES_MAX, write_size

WAIT_S = 30
"""For events that are certain to come; a time-out is a failure."""


def put(n: int, size: int = 1) -> Put:
    return Put("t", n.to_bytes(4, "big"), bytes(size))


class GatedStore(MemoryStore):
    """Commits only when it is let: `gate` opens, `entered` tells that a commit has begun."""

    def __init__(self, max_bytes: int = 1 << 40) -> None:
        super().__init__(max_bytes=max_bytes)
        self.gate = threading.Semaphore(0)
        self.entered = threading.Semaphore(0)
        self.batches: list[list[Write]] = []

    def commit(self, writes: Sequence[Write]) -> None:
        self.entered.release()
        assert self.gate.acquire(timeout=WAIT_S)
        super().commit(writes)
        self.batches.append(list(writes))


class Driver:
    """Collects what the callbacks say."""

    def __init__(self) -> None:
        self.written: list[int] = []
        self.failed: list[StoreError] = []

    def writer(self, store: MemoryStore, bound_bytes: int = 1 << 20) -> StoreWriter:
        return StoreWriter(store, self.written.append, self.failed.append, bound_bytes)


@contextmanager
def gated(max_bytes: int = 1 << 40) -> Iterator[tuple[GatedStore, Driver, StoreWriter]]:
    """A writer whose thread is held in the commit of turn 1."""
    store, driver = GatedStore(max_bytes), Driver()
    writer = driver.writer(store)
    writer.submit(1, [put(1)])
    assert store.entered.acquire(timeout=WAIT_S)
    try:
        yield store, driver, writer
    finally:
        store.gate.release(1000)
        writer.close()


def test_everything_that_waited_becomes_one_commit_in_turn_order() -> None:
    with gated() as (store, driver, writer):
        for turn in range(2, 12):
            writer.submit(turn, [put(turn)])
        store.gate.release(2)
        writer.close()
        assert store.batches == [[put(1)], [put(turn) for turn in range(2, 12)]]
        assert driver.written == [1, 11]
        assert writer.commits == 2


def test_submit_does_not_wait_for_the_disk_and_counts_what_is_outstanding() -> None:
    with gated() as (store, _driver, writer):
        first = write_size(put(1))
        assert writer.outstanding_bytes == first
        writer.submit(2, [put(2, size=100), Erase("t", b"a", b"bc")])
        assert writer.outstanding_bytes == first + write_size(put(2, size=100)) + 64 + 3
        store.gate.release(2)
        writer.close()
        assert writer.outstanding_bytes == 0


def test_one_large_turn_does_not_hold_up_all_others() -> None:
    """A state that came from another replica may be larger than the bound; links and groups go on meanwhile."""
    store, driver = GatedStore(), Driver()
    writer = driver.writer(store, bound_bytes=2 * TURN_BYTES_MAX)
    full = []
    for turn in range(1, 3):
        writer.submit(turn, [put(turn, size=3 * TURN_BYTES_MAX)])
        full.append(writer.full)
    assert writer.outstanding_bytes > 6 * TURN_BYTES_MAX
    store.gate.release(2)
    writer.close()
    assert [*full, writer.full] == [False, True, False], "but not without bound"


def test_the_writer_is_full_from_its_bound_on() -> None:
    store, driver = GatedStore(), Driver()
    writer = driver.writer(store, bound_bytes=2 * write_size(put(1)))
    full = []
    for turn in (1, 2):
        writer.submit(turn, [put(turn)])
        full.append(writer.full)
    store.gate.release(2)
    writer.close()
    assert [*full, writer.full] == [False, True, False]


def test_a_turn_is_reported_only_after_its_commit() -> None:
    with gated() as (store, driver, writer):
        writer.submit(2, [put(2)])
        assert driver.written == []
        store.gate.release()
        assert store.entered.acquire(timeout=WAIT_S)
        # The second commit has begun, so the first was reported, and nothing else.
        assert driver.written == [1]


def test_numbers_may_be_missing_because_turns_without_writes_stay_away() -> None:
    driver = Driver()
    writer = driver.writer(MemoryStore())
    writer.submit(3, [put(3)])
    writer.submit(9, [put(9)])
    writer.close()
    assert driver.written[-1] == 9


def test_a_load_sees_the_turns_before_it_and_none_after() -> None:
    with gated() as (store, _driver, writer):
        writer.submit(2, [put(2)])
        rows, empty = writer.load("t"), writer.load("empty")
        writer.submit(3, [put(3)])
        store.gate.release(3)
        assert rows.result(WAIT_S) == [(b"\0\0\0\1", b"\0"), (b"\0\0\0\2", b"\0")]
        assert empty.result(WAIT_S) == []
        writer.close()
        assert len(store.load("t")) == 3


def test_a_cancelled_load_is_left_out() -> None:
    with gated() as (store, driver, writer):
        rows = writer.load("t")
        assert rows.cancel()
        writer.submit(2, [put(2)])
        store.gate.release(2)
        writer.close()
        assert driver.written == [1, 2]


def test_a_failed_commit_is_told_once_and_nothing_is_written_after_it() -> None:
    with gated(max_bytes=300) as (store, driver, writer):
        writer.submit(2, [put(2, size=1000)])
        rows = writer.load("t")
        store.gate.release()
        assert store.entered.acquire(timeout=WAIT_S)
        writer.submit(3, [put(3)])
        store.gate.release()
        with pytest.raises(StoreFull):
            rows.result(WAIT_S)
        writer.submit(4, [put(4)])
        with pytest.raises(StoreFull):
            writer.load("t").result(WAIT_S)
        writer.close()
        assert driver.written == [1]
        assert [type(error) for error in driver.failed] == [StoreFull]
        assert len(store.load("t")) == 1


def test_an_error_of_a_foreign_store_reaches_the_driver_as_a_store_error() -> None:
    class Foreign(MemoryStore):
        def commit(self, writes: Sequence[Write]) -> None:
            raise ConnectionResetError("server gone")

    driver = Driver()
    writer = driver.writer(Foreign())
    writer.submit(1, [put(1)])
    writer.close()
    (error,) = driver.failed
    assert type(error) is StoreError
    assert "server gone" in str(error)


def test_a_load_that_fails_raises_for_its_reader_and_commits_continue() -> None:
    class Unreadable(MemoryStore):
        def load(self, *_: object) -> list[tuple[bytes, bytes]]:
            raise StoreError("unreadable")

    driver = Driver()
    writer = driver.writer(Unreadable())
    with pytest.raises(StoreError, match="unreadable"):
        writer.load("t").result(WAIT_S)
    writer.submit(1, [put(1)])
    writer.close()
    assert driver.written == [1]
    assert driver.failed == []


def test_close_writes_what_was_submitted_and_may_be_called_again() -> None:
    store, driver = MemoryStore(), Driver()
    writer = driver.writer(store)
    for turn in range(1, 200):
        writer.submit(turn, [put(turn)])
    writer.close()
    writer.close()
    assert driver.written[-1] == 199
    assert len(store.load("t")) == 199
    with pytest.raises(MisuseError, match="turn 200 was not written"):
        writer.submit(200, [put(200)])
    with pytest.raises(StoreError, match="ended"):
        writer.load("t").result(WAIT_S)


def test_turns_come_in_order() -> None:
    driver = Driver()
    writer = driver.writer(MemoryStore())
    writer.submit(2, [put(2)])
    with pytest.raises(AssertionError, match="in order"):
        writer.submit(1, [put(1)])
    writer.close()
    assert driver.written == [2]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_callback_that_raises_leaves_no_call_waiting() -> None:
    def gone(turn: int) -> None:
        raise RuntimeError("Event loop is closed")

    store = GatedStore()
    writer = StoreWriter(store, gone, Driver().failed.append)
    writer.submit(1, [put(1)])
    assert store.entered.acquire(timeout=WAIT_S)
    rows = writer.load("t")
    store.gate.release()
    with pytest.raises(StoreError, match="ended"):
        rows.result(WAIT_S)
    writer.close()


def test_an_event_loop_is_woken_through_call_soon_threadsafe() -> None:
    async def session() -> list[int]:
        loop = asyncio.get_running_loop()
        written: list[int] = []
        done = asyncio.Event()

        def on_written(turn: int) -> None:
            written.append(turn)
            if turn == 3:
                done.set()

        def threadsafe(turn: int) -> None:
            loop.call_soon_threadsafe(on_written, turn)

        writer = StoreWriter(MemoryStore(), threadsafe, Driver().failed.append)
        for turn in (1, 2, 3):
            writer.submit(turn, [put(turn)])
        await asyncio.wait_for(done.wait(), WAIT_S)
        assert len(await asyncio.wrap_future(writer.load("t"))) == 3
        writer.close()
        return written

    assert asyncio.run(session())[-1] == 3
