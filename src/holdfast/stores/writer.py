"""A writer thread for a store: turns are submitted, and commits complete in turn order. One disk sync serves many
turns.

While one commit is in progress, further turns queue up; the next commit takes them all. The slower the disk, the larger
the batch.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final

import msgspec

from holdfast.errors import MisuseError, StoreError
from holdfast.machine import Put, Write
from holdfast.stores.port import Store

Rows = list[tuple[bytes, bytes]]

BOUND_BYTES: Final = 64 << 20
TURN_BYTES_MAX: Final = 16 << 20
"""The maximum that one turn counts against the bound. Only a turn that writes a received snapshot has more; that is in
memory anyway and must not block everything else until it is on disk."""
WRITE_BYTES: Final = 64
"""The cost of one write in addition to its key and value."""

ENDED: Final = "the writer of the store has ended; nothing more is written or read"


class _Turn(msgspec.Struct, frozen=True):
    number: int
    writes: Sequence[Write]
    size: int


class _Load(msgspec.Struct, frozen=True):
    table: str
    first: bytes
    stop: bytes
    limit: int
    rows: Future[Rows]


class StoreWriter:
    """Commits turns to a store in a separate thread.

    `submit` never blocks or refuses, because a turn that ran cannot be undone. The caller keeps the bound: while
    `full`, it runs no turn that could write. After a failed commit nothing more is written: `on_failed` is called once,
    and the node stops.

    Both callbacks run on the writer thread; an asyncio driver passes wrappers of `loop.call_soon_threadsafe`.
    """

    def __init__(
        self,
        store: Store,
        on_written: Callable[[int], None],
        on_failed: Callable[[StoreError], None],
        bound_bytes: int = BOUND_BYTES,
    ) -> None:
        self.bound_bytes = bound_bytes
        self.commits = 0
        """Number of transactions; turns divided by this is the number of turns per disk sync."""
        self._store = store
        self._on_written = on_written
        self._on_failed = on_failed
        self._queue: deque[_Turn | _Load] = deque()
        self._changed = threading.Condition()
        self._outstanding = 0
        self._counted = 0
        """Outstanding bytes, as counted against the bound."""
        self._last_turn = 0
        self._closing = False
        self._error: StoreError | None = None
        # A daemon thread: a program that ends without closing is a crash, which stores survive.
        self._thread = threading.Thread(target=self._run, name="holdfast-store", daemon=True)
        self._thread.start()

    @property
    def outstanding_bytes(self) -> int:
        """Bytes that were submitted and are not durable yet."""
        return self._outstanding

    @property
    def full(self) -> bool:
        """The bound is reached: run no turn that could write until the next `on_written`."""
        return self._counted >= self.bound_bytes

    def submit(self, turn: int, writes: Sequence[Write]) -> None:
        """Commit the writes of a turn after those of all earlier turns. Turns without writes need not be submitted."""
        with self._changed:
            if self._closing:
                raise MisuseError(f"the writer of the store is closed; turn {turn} was not written")
            assert turn > self._last_turn, "turns must be submitted in order"
            self._last_turn = turn
            if self._error is not None:
                return
            size = sum(map(write_size, writes))
            self._outstanding += size
            self._counted += min(size, TURN_BYTES_MAX)
            self._queue.append(_Turn(turn, writes, size))
            self._changed.notify()

    def load(
        self, table: str, first: bytes = b"", stop: bytes = b"", limit: int = 0
    ) -> Future[Rows]:
        """Read rows, as `Store.load` does, as of the last submitted turn. Fails with `StoreError`."""
        future: Future[Rows] = Future()
        with self._changed:
            if self._closing or self._error is not None:
                future.set_exception(self._error or StoreError(ENDED))
            else:
                self._queue.append(_Load(table, first, stop, limit, future))
                self._changed.notify()
        return future

    def close(self) -> None:
        """Write everything that was submitted, then end the thread. The owner closes the store."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        assert threading.current_thread() is not self._thread, (
            "close must not be called from a callback"
        )
        self._thread.join()

    # -- on the writer's thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (job := self._take()) is not None:
                if isinstance(job, _Load):
                    self._read(job)
                elif not self._commit(job):
                    return
        finally:
            # Even if a callback raised (its event loop is gone), all waiting callers must be released.
            self._give_up()

    def _take(self) -> list[_Turn] | _Load | None:
        """All turns up to the next load, or that load; None at the end."""
        queue = self._queue
        with self._changed:
            while not queue and not self._closing:
                self._changed.wait()
            if not queue:
                return None
            if isinstance(first := queue[0], _Load):
                queue.popleft()
                return first
            turns: list[_Turn] = []
            while queue and isinstance(turn := queue[0], _Turn):
                turns.append(turn)
                queue.popleft()
            return turns

    def _commit(self, turns: list[_Turn]) -> bool:
        try:
            self._store.commit([write for turn in turns for write in turn.writes])
        except StoreError as error:
            self._error = error
        except Exception as error:  # noqa: BLE001 a foreign store may raise anything; the node must learn of it
            self._error = StoreError(
                f"the store raised {error!r}; earlier commits are safe, this write may or may not be "
                "stored"
            )
        if self._error is not None:
            self._on_failed(self._error)
            return False
        self.commits += 1
        with self._changed:
            self._outstanding -= sum(turn.size for turn in turns)
            self._counted -= sum(min(turn.size, TURN_BYTES_MAX) for turn in turns)
        self._on_written(turns[-1].number)
        return True

    def _read(self, job: _Load) -> None:
        if not job.rows.set_running_or_notify_cancel():
            return
        try:
            job.rows.set_result(self._store.load(job.table, job.first, job.stop, job.limit))
        except Exception as error:  # noqa: BLE001 belongs to the reader
            job.rows.set_exception(error)

    def _give_up(self) -> None:
        with self._changed:
            if self._error is None:
                self._error = StoreError(ENDED)
            left = [job for job in self._queue if isinstance(job, _Load)]
            self._queue.clear()
        for job in left:
            if job.rows.set_running_or_notify_cancel():
                job.rows.set_exception(self._error)


def write_size(write: Write) -> int:
    """The size of a write, as counted against the bound."""
    if isinstance(write, Put):
        return len(write.key) + len(write.value) + WRITE_BYTES
    return len(write.first) + len(write.stop) + WRITE_BYTES
