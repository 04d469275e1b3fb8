"""A thread that runs one replica's application, in order, and reports its progress.

An application that is marked `quick` is called on the event loop if possible: because of the GIL, passing a batch to a
thread takes longer than processing most batches.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic_ns
from typing import Any, Final

from holdfast.group.application import ApplicationRunner, Job
from holdfast.group.ports import Applied, Apply, AskLoss, LossAnswered, Output, Replica, Tell
from holdfast.types import MILLISECOND

log = logging.getLogger("holdfast")

QUICK_NS: Final = 10 * MILLISECOND
"""An application that works for longer than this without a pause is not quick."""
QUICK_MESSAGES: Final = 4096
"""This many messages at once can take longer than that, even at microseconds each, because a batch is not
interrupted."""
REPORT_NS: Final = 5 * MILLISECOND
"""Progress is reported at least this often while the application works."""


class AppWorker:
    """One thread for one application. The replica bounds the queue by counting what was applied."""

    def __init__(self, group: str, application: Replica, answer: Callable[[Any], None]) -> None:
        """`answer` is called on the worker thread with inputs for the unit of the replica."""
        self._runner = ApplicationRunner(group, application)
        self._group = group
        self._answer = answer
        kind = type(application)
        self._is_asked = kind.on_loss is not Replica.on_loss
        self._is_told = kind.on_decision is not Replica.on_decision
        self._is_quick = kind.quick
        self._jobs: SimpleQueue[list[Job]] = SimpleQueue()
        self._handed = 0
        self._finished = 0
        """Job lists that the thread was given, and those it has finished; each is counted by one thread only."""
        self._closing = False
        self._index = self._size = 0
        """Progress of the application, and its bytes, since the last report."""
        self._outputs: list[Output] = []
        self._reported_ns = 0
        self._thread = threading.Thread(target=self._run, name=f"holdfast-app-{group}", daemon=True)
        self._thread.start()

    def submit(self, jobs: list[Job]) -> None:
        """The work of one turn. Called on the event loop."""
        if not (self._is_asked and self._is_told):
            jobs = [job for job in jobs if self._concerns(job)]
        # rule: 9f
        if self._is_quick and self._handed == self._finished and _are_quick(jobs):
            self._work_here(jobs)
        else:
            self._hand(jobs)

    def _concerns(self, job: Job) -> bool:
        """Whether the application handles this job; if not, it can be answered without the thread."""
        if isinstance(job, AskLoss) and not self._is_asked:
            self._answer(LossAnswered(job.question, None))
            return False
        return self._is_told or not isinstance(job, Tell)

    def close(self, timeout_s: float = 5.0) -> bool:
        """Stop after the running job; False if the application does not return in time."""
        self._closing = True
        self._jobs.put([])
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _work_here(self, jobs: list[Job]) -> None:
        """On the event loop: the thread is idle, and gets nothing before this is done."""
        begun_ns = self._reported_ns = monotonic_ns()
        taken_ns = done = 0
        while done < len(jobs) and taken_ns <= QUICK_NS:
            self._do(jobs[done])
            done += 1
            taken_ns = monotonic_ns() - begun_ns
        self._report()
        if taken_ns > QUICK_NS:
            self._is_quick = False
            log.warning(
                "the application of group %s is marked quick but took %d ms; from now on it runs in "
                "a thread",
                self._group,
                taken_ns // MILLISECOND,
                extra=self._fields("application_slow") | {"took_ms": taken_ns // MILLISECOND},
            )
            self._hand(jobs[done:])

    def _hand(self, jobs: list[Job]) -> None:
        """To the thread."""
        if jobs:
            self._handed += 1
            self._jobs.put(jobs)

    def _run(self) -> None:
        waiting = self._jobs
        while not self._closing:
            jobs = waiting.get()
            taken = 1
            with suppress(Empty):
                while True:
                    jobs += waiting.get_nowait()
                    taken += 1
            try:
                self._work(jobs)
            except BaseException as error:  # noqa: BLE001 the replica waits for an answer, and for this thread
                index = next((job.index for job in jobs if not isinstance(job, AskLoss)), 0)
                failed = self._runner.fail(index, error)
                self._report()
                self._answer(failed)
            self._finished += taken

    def _work(self, jobs: list[Job]) -> None:
        """Run a batch of jobs; progress is reported for all of them, but never delayed for long."""
        self._reported_ns = monotonic_ns()
        for job in jobs:
            if self._closing:
                return
            self._do(job)
        self._report()

    def _do(self, job: Job) -> None:
        runner = self._runner
        if not isinstance(job, Apply) and not isinstance(job, AskLoss):
            self._report()
        answer = runner.run(job)
        if isinstance(answer, Applied):
            self._applied(answer)
            return
        if runner.raised is not None:
            self._log(job, runner.raised)
        if answer is not None:
            if not isinstance(job, AskLoss):
                self._report()
            self._answer(answer)
        # On the event loop, an interrupt is meant for the program, not for the application.
        is_interrupt = isinstance(runner.raised, KeyboardInterrupt)
        if is_interrupt and threading.current_thread() is not self._thread:
            raise runner.raised  # type: ignore[misc]  # it is an exception, see above

    def _log(self, job: Job, raised: BaseException) -> None:
        if self._runner.failed and not isinstance(job, AskLoss):
            text = "group %s: the application failed at entry %d"
            extra = self._fields("application_failed") | {"index": job.index}
            log.error(text, self._group, job.index, exc_info=raised, extra=extra)
        else:
            extra = self._fields("application_raised")
            log.error("group %s: the application raised", self._group, exc_info=raised, extra=extra)

    def _fields(self, event: str) -> dict[str, Any]:
        """What the log knows about this replica."""
        return {"event": event, "subsystem": "group", "group": self._group}

    def _applied(self, applied: Applied) -> None:
        self._outputs += applied.outputs
        self._index = applied.index
        self._size += applied.size
        # A slow application must be seen to move: the others wait for it, but not for one that makes no progress.
        if monotonic_ns() - self._reported_ns >= REPORT_NS:
            self._report()

    def _report(self) -> None:
        """Report the progress of the application, if there is any."""
        self._reported_ns = monotonic_ns()
        if self._index:
            self._answer(Applied(self._index, self._size, tuple(self._outputs)))
            self._index = self._size = 0
            self._outputs = []


def _are_quick(jobs: list[Job]) -> bool:
    """Whether all of it is suitable for a quick call: no snapshots, no decisions, and not too much."""
    messages = 0
    for job in jobs:
        if not isinstance(job, Apply):
            return False
        messages += len(job.batch.messages)
    return messages <= QUICK_MESSAGES
