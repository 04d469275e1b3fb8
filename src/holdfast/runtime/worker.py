"""Runs one replica's application, in order, and says how far it has come.

It has a thread of its own, so that whatever it does holds nobody up. One that says it is `quick` is called on the
event loop where it can be: with one interpreter, handing a batch over takes longer than most batches do.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from queue import Empty, SimpleQueue
from time import monotonic_ns
from typing import Any, Final

from holdfast.errors import MisuseError
from holdfast.group.ports import (
    AppFailed,
    Applied,
    Apply,
    AskLoss,
    Context,
    LossAnswered,
    Output,
    Replica,
    Restored,
    RestoreState,
    SnapshotTaken,
    TakeSnapshot,
    Tell,
)
from holdfast.types import MILLISECOND, Nanos

Job = Apply | TakeSnapshot | RestoreState | AskLoss | Tell

log = logging.getLogger("holdfast")

QUICK_NS: Final = 10 * MILLISECOND
"""Who works for longer than this without a pause is not quick, whatever it says."""
QUICK_MESSAGES: Final = 4096
"""So many at once can take longer than that, even if each takes microseconds: there is no pause within a batch."""
REPORT_NS: Final = 5 * MILLISECOND
"""What was applied is reported at least this often while the application works."""
FAILED: Final = "the application has failed, and awaits a state itself"
TEXT_MAX: Final = 500
"""So many letters of what an application raised are told to others."""


class AppWorker:
    """One thread for one application. What waits is bounded by the replica, which counts what was applied."""

    def __init__(self, group: str, application: Replica, answer: Callable[[Any], None]) -> None:
        """`answer` is called on the worker's thread with inputs for the replica's unit."""
        _check(group, application)
        self._group = group
        self._application = application
        self._answer = answer
        kind = type(application)
        self._is_asked = kind.on_loss is not Replica.on_loss
        self._is_told = kind.on_decision is not Replica.on_decision
        self._is_quick = kind.quick
        self._jobs: SimpleQueue[list[Job]] = SimpleQueue()
        self._handed = 0
        self._finished = 0
        """Lists of jobs that the thread was given, and that it is done with; each is counted by one thread only."""
        self._closing = False
        self._failed = False
        self._index = self._size = 0
        """How far the application has come, and how many bytes that was, since it was last reported."""
        self._outputs: list[Output] = []
        self._reported_ns = 0
        self._thread = threading.Thread(target=self._run, name=f"holdfast-app-{group}", daemon=True)
        self._thread.start()

    def submit(self, jobs: list[Job]) -> None:
        """What one turn wants done. Called on the event loop."""
        if not (self._is_asked and self._is_told):
            jobs = [job for job in jobs if self._concerns(job)]
        if self._is_quick and self._handed == self._finished and _are_quick(jobs):
            self._work_here(jobs)
        else:
            self._hand(jobs)

    def _concerns(self, job: Job) -> bool:
        """Whether the application has anything to say to this."""
        if isinstance(job, AskLoss) and not self._is_asked:
            self._answer(LossAnswered(job.question, None))
            return False
        return self._is_told or not isinstance(job, Tell)

    def close(self, timeout_s: float = 5.0) -> bool:
        """Stop after the job that is running; False when the application does not return in time."""
        self._closing = True
        self._jobs.put([])
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _work_here(self, jobs: list[Job]) -> None:
        """On the event loop: the thread has nothing to do, and gets nothing before this is done."""
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
                "the application of group %s says that it is quick and took %d ms; from now on it works in a thread",
                self._group,
                taken_ns // MILLISECOND,
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
                self._fail(next((j.index for j in jobs if not isinstance(j, AskLoss)), 0), error)
            self._finished += taken

    def _work(self, jobs: list[Job]) -> None:
        """Do a batch of jobs; what was applied is reported for all that came before, but never held back for long."""
        self._reported_ns = monotonic_ns()
        for job in jobs:
            if self._closing:
                return
            self._do(job)
        self._report()

    def _do(self, job: Job) -> None:
        if self._failed and not isinstance(job, RestoreState):
            # Only a state from elsewhere can help it. Its own is worth nothing; whoever waits for that must hear it.
            if isinstance(job, TakeSnapshot):
                self._answer(SnapshotTaken(job.request, job.index, b"", FAILED))
            return
        if isinstance(job, AskLoss):
            self._ask(job)
            return
        try:
            if isinstance(job, Apply):
                self._apply(job)
            else:
                self._report()
                self._do_other(job)
        except BaseException as error:
            self._fail(job.index, error)
            if (
                isinstance(error, KeyboardInterrupt)
                and threading.current_thread() is not self._thread
            ):
                raise  # On the event loop it is not the application's: somebody wants the program to end.

    def _fail(self, index: int, error: BaseException) -> None:
        """Whatever the application raises suspends this replica only."""
        self._failed = True
        self._report()
        self._answer(AppFailed(index, text_of(error)))
        log.error(
            "group %s: the application failed at entry %d", self._group, index, exc_info=error
        )

    def _apply(self, job: Apply) -> None:
        said: list[Output] = []
        context = self._context(job.log_ns, job.batch.position, said)
        try:
            self._application.apply(job.batch, context)
        finally:
            context.outputs = None  # what it says from now on would be lost
        self._outputs += said
        self._index = job.index
        self._size += job.size
        # One that is slow must be seen to move: the others wait for it, but not for one that stands still.
        if monotonic_ns() - self._reported_ns >= REPORT_NS:
            self._report()

    def _report(self) -> None:
        """Tell the replica how far the application has come, if that is news."""
        self._reported_ns = monotonic_ns()
        if self._index:
            self._answer(Applied(self._index, self._size, tuple(self._outputs)))
            self._index = self._size = 0
            self._outputs = []

    def _ask(self, job: AskLoss) -> None:
        """What the application raises here leaves the answer to the table: nothing depends on its state."""
        try:
            self._answer(LossAnswered(job.question, self._application.on_loss(job.info)))
        except BaseException as error:  # noqa: BLE001 the application's own
            self._answer(LossAnswered(job.question, None, text_of(error)))

    def _do_other(self, job: TakeSnapshot | RestoreState | Tell) -> None:
        application = self._application
        if isinstance(job, TakeSnapshot):
            self._answer(self._snapshot(job))
        elif isinstance(job, RestoreState):
            application.restore(job.data)
            self._failed = False
            self._answer(Restored(job.index))
        else:
            application.on_decision(job.decision, self._context(job.log_ns, -job.index))

    def _snapshot(self, job: TakeSnapshot) -> SnapshotTaken:
        """What the application raises here has not changed its state."""
        try:
            state: object = self._application.snapshot()
            if isinstance(state, bytes | bytearray | memoryview):
                return SnapshotTaken(job.request, job.index, bytes(state))
            error = f"snapshot() gave {type(state).__name__}, not bytes"
            log.error("group %s: %s", self._group, error)
        except BaseException as problem:
            error = f"snapshot() raised {text_of(problem)}"
            log.exception("group %s: snapshot() failed", self._group)
        return SnapshotTaken(job.request, job.index, b"", error)

    def _context(self, log_ns: Nanos, place: int, said: list[Output] | None = None) -> Context:
        """It follows from the place in the order and nothing else."""
        return Context(self._group, log_ns, place, said)


def _are_quick(jobs: list[Job]) -> bool:
    """Whether all of it is what a quick application is quick at: not states, not decisions, and not very much."""
    messages = 0
    for job in jobs:
        if not isinstance(job, Apply):
            return False
        messages += len(job.batch.messages)
    return messages <= QUICK_MESSAGES


def _check(group: str, application: Replica) -> None:
    """Refuse methods that do nothing when they are called."""
    for name in ("apply", "snapshot", "restore", "on_loss", "on_decision"):
        method = getattr(application, name)
        if iscoroutinefunction(method) or isasyncgenfunction(method) or isgeneratorfunction(method):
            raise MisuseError(
                f"the application of group {group}: {name} has to be a plain `def` without `await` and `yield`, "
                "or it would do nothing when it is called; nothing was started"
            )


def text_of(error: BaseException) -> str:
    """What an application raised, in words that can be written down and sent: its own may be none."""
    name = type(error).__name__
    try:
        text = f"{name}: {error}"
    except BaseException as problem:  # noqa: BLE001 the application's own, and the answer must not be lost for it
        text = f"{name}, whose text cannot be had: its __str__ raised {type(problem).__name__}"
    return text[:TEXT_MAX].encode("utf-8", "backslashreplace").decode()[:TEXT_MAX]
