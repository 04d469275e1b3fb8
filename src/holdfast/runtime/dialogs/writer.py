"""A thread around a dialog store: batches go in, commits come out in turn order; reads and questions take their turn.

While one commit is on its way, the turns behind it pile up. The next commit takes as many of them as the store writes
in `COMMIT_NS`, by the rate of the last ones: messages leave when their commit ends, so in a burst a commit that takes
everything would leave the partner without work until the whole burst is stored.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from time import monotonic_ns
from typing import Any, Final

import msgspec

from holdfast.errors import HoldfastError, StoreError
from holdfast.machine import Put, Write
from holdfast.stores.dialogs.coalesce import coalesce
from holdfast.stores.dialogs.port import DialogStore
from holdfast.types import MILLISECOND

BOUND_BYTES: Final = 32 << 20
WRITE_BYTES: Final = 64
COMMIT_NS: Final = 100 * MILLISECOND
"""The time that a commit of several turns should take."""
COMMIT_BYTES_MIN: Final = 1 << 20
COMMIT_BYTES_START: Final = 4 << 20
"""Until the rate of the store is known."""


Batch = tuple[int, Sequence[Write], int]


class Call(msgspec.Struct, frozen=True):
    """Something to do with the store between two commits."""

    work: Callable[[], Any]
    future: Future[Any]


class DialogWriter:
    """Commits turns to one store, off the event loop. The callbacks run on its thread."""

    def __init__(
        self,
        store: DialogStore,
        on_written: Callable[[int], None],
        on_failed: Callable[[HoldfastError], None],
    ) -> None:
        self.commits = 0
        self._store = store
        self._on_written = on_written
        self._on_failed = on_failed
        self._queue: deque[Batch | Call] = deque()
        self._changed = threading.Condition()
        self._outstanding = 0
        self._share = COMMIT_BYTES_START
        """A commit ends with the turn that reaches this size."""
        self._closing = False
        self._error: HoldfastError | None = None
        self._thread = threading.Thread(target=self._run, name="holdfast-dialogs", daemon=True)
        self._thread.start()

    @property
    def full(self) -> bool:
        return self._outstanding >= BOUND_BYTES

    def submit(self, turn: int, writes: Sequence[Write]) -> None:
        size = sum(len(w.value) if isinstance(w, Put) else 0 for w in writes) + WRITE_BYTES * len(
            writes
        )
        with self._changed:
            if self._error is None and not self._closing:
                self._outstanding += size
                self._queue.append((turn, writes, size))
                self._changed.notify()

    def call(self, work: Callable[[], Any]) -> Future[Any]:
        """Do something with the store after every turn submitted so far."""
        future: Future[Any] = Future()
        with self._changed:
            if self._closing or self._error is not None:
                future.set_exception(self._error or StoreError("the dialog store is closed"))
            else:
                self._queue.append(Call(work, future))
                self._changed.notify()
        return future

    def close(self) -> None:
        """Write what was submitted, end the thread, close the store."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._store.close()

    # -- on the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._closing:
                    self._changed.wait()
                if not self._queue:
                    return
                turns, call = self._next()
            if call is not None:
                self._answer(call.work, call.future)
            elif not self._commit(turns):
                self._give_up()
                return

    def _next(self) -> tuple[list[Batch], Call | None]:
        """The turns of the next commit, which ends before the next call, or that call."""
        turns: list[Batch] = []
        size = 0
        while self._queue and size < self._share:
            job = self._queue[0]
            if isinstance(job, Call):
                break
            turns.append(job)
            size += job[2]
            self._queue.popleft()
        if turns:
            return turns, None
        call = self._queue.popleft()
        assert isinstance(call, Call)
        return [], call

    def _commit(self, turns: list[Batch]) -> bool:
        begin = monotonic_ns()
        try:
            self._store.commit(coalesce([write for _, writes, _ in turns for write in writes]))
        except HoldfastError as error:
            self._error = error
        except Exception as error:  # noqa: BLE001 a foreign store may raise anything; its units must learn of it
            self._error = StoreError(
                f"the dialog store raised {error!r}; the last batch may be there or not"
            )
        if self._error is not None:
            self._on_failed(self._error)
            return False
        self.commits += 1
        size = sum(size for _, _, size in turns)
        self._adapt(size, monotonic_ns() - begin)
        with self._changed:
            self._outstanding -= size
        self._on_written(turns[-1][0])
        return True

    def _adapt(self, size: int, took: int) -> None:
        """Shrink at once, grow by halves. Small commits say nothing about the rate: their time is that of the sync."""
        if size >= COMMIT_BYTES_MIN:
            wanted = size * COMMIT_NS // max(took, 1)
            grown = (self._share + wanted) // 2
            self._share = max(COMMIT_BYTES_MIN, min(wanted, grown, BOUND_BYTES))

    @staticmethod
    def _answer(work: Callable[[], Any], future: Future[Any]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(work())
        except Exception as error:  # noqa: BLE001 belongs to the caller
            future.set_exception(error)

    def _give_up(self) -> None:
        with self._changed:
            left = [job for job in self._queue if isinstance(job, Call)]
            self._queue.clear()
        for call in left:
            if call.future.set_running_or_notify_cancel():
                call.future.set_exception(self._error or StoreError("the dialog store failed"))
