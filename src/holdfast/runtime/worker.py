"""Runs one replica's application off the event loop, in order, and says how far it has come."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any
from zlib import crc32

from holdfast.group.ports import (
    AppFailed,
    Applied,
    Apply,
    Context,
    Replica,
    Restored,
    RestoreState,
    SnapshotTaken,
    TakeSnapshot,
)

Job = Apply | TakeSnapshot | RestoreState


class AppWorker:
    """One thread for one application. What waits is bounded by the replica, which counts what was applied."""

    def __init__(self, group: str, application: Replica, answer: Callable[[Any], None]) -> None:
        """`answer` is called on the worker's thread with inputs for the replica's unit."""
        self._group = group
        self._application = application
        self._answer = answer
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._failed = False
        self._thread = threading.Thread(target=self._run, name=f"holdfast-app-{group}", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        with self._changed:
            self._jobs.append(job)
            self._changed.notify()

    def close(self, timeout_s: float = 5.0) -> bool:
        """Stop after the job that is running; False when the application does not return in time."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._jobs and not self._closing:
                    self._changed.wait()
                if self._closing:
                    return
                jobs, self._jobs = self._jobs, deque()
            self._work(jobs)

    def _work(self, jobs: deque[Job]) -> None:
        """Do a batch of jobs; what was applied is reported once for all that came before."""
        index = size = 0
        for job in jobs:
            if self._closing:
                return
            if self._failed and not isinstance(job, RestoreState):
                continue  # Only a state from elsewhere can help it.
            try:
                if isinstance(job, Apply):
                    self._application.apply(job.batch, self._context(job))
                    index, size = job.index, size + job.size
                    continue
                if index:
                    self._answer(Applied(index, size))
                    index = size = 0
                if isinstance(job, TakeSnapshot):
                    self._answer(
                        SnapshotTaken(job.request, job.index, self._application.snapshot())
                    )
                else:
                    self._application.restore(job.data)
                    self._failed = False
                    self._answer(Restored(job.index))
            except Exception as error:  # noqa: BLE001 the application's own; it suspends this replica only
                self._failed = True
                if index:
                    self._answer(Applied(index, size))
                    index = size = 0
                self._answer(AppFailed(job.index, f"{type(error).__name__}: {error}"))
        if index:
            self._answer(Applied(index, size))

    def _context(self, job: Apply) -> Context:
        seed = crc32(f"{self._group}/{job.batch.position}".encode())
        return Context(self._group, job.log_ns, Random(seed))
