"""Runs a replica's application, one job at a time, and produces the answers for the replica. Both drivers use it.

An exception of an application affects its own replica only. An application that raised in `apply`, `restore` or
`on_decision` has failed: its state is invalid, and it needs a snapshot from another replica.
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import Final

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
from holdfast.types import Nanos

Job = Apply | TakeSnapshot | RestoreState | AskLoss | Tell
JOBS: Final[tuple[type, ...]] = (Apply, TakeSnapshot, RestoreState, AskLoss, Tell)
Answer = Applied | SnapshotTaken | Restored | LossAnswered | AppFailed

FAILED: Final = "the application has failed, and needs a snapshot itself"
TEXT_MAX: Final = 500
"""Characters of an exception's text that are sent to others."""


class ApplicationRunner:
    """One application. The replica bounds the work that it passes on, because it counts what was applied."""

    def __init__(self, group: str, application: Replica) -> None:
        """Raises `MisuseError` for methods that would do nothing when called, such as coroutine functions."""
        _check(group, application)
        self.application = application
        self.failed = False
        self.raised: BaseException | None = None
        """The exception of the last job, for the log."""
        kind = type(application)
        self._group = group
        self._is_asked = kind.on_loss is not Replica.on_loss
        self._is_told = kind.on_decision is not Replica.on_decision

    def run(self, job: Job) -> Answer | None:
        """Do one job; the answer for the replica's unit, if there is one."""
        self.raised = None
        if self.failed and not isinstance(job, RestoreState):
            if isinstance(job, TakeSnapshot):
                return SnapshotTaken(job.request, job.index, b"", FAILED)
            return None
        if isinstance(job, AskLoss):
            return self._ask(job)
        if isinstance(job, TakeSnapshot):
            return self._snapshot(job)
        try:
            if isinstance(job, Apply):
                return self._apply(job)
            if isinstance(job, RestoreState):
                self.application.restore(job.data)
                self.failed = False
                return Restored(job.index)
            if self._is_told:
                self.application.on_decision(job.decision, self._context(job.log_ns, -job.index))
        except BaseException as error:  # noqa: BLE001 whatever it raises suspends this replica only
            return self.fail(job.index, error)
        return None

    def fail(self, index: int, error: BaseException) -> AppFailed:
        """The application cannot continue from its state."""
        self.failed = True
        self.raised = error
        return AppFailed(index, text_of(error))

    def _apply(self, job: Apply) -> Applied:
        said: list[Output] = []
        context = self._context(job.log_ns, job.batch.position, said, job.locks)
        try:
            self.application.apply(job.batch, context)
        finally:
            context.outputs = None  # outputs from now on would be lost
        return Applied(job.index, job.size, tuple(said))

    def _ask(self, job: AskLoss) -> LossAnswered:
        """Ask the application about a loss. If it raises, the rules decide; its state is not affected."""
        if not self._is_asked:
            return LossAnswered(job.question, None)
        try:
            return LossAnswered(job.question, self.application.on_loss(job.info))
        except BaseException as error:  # noqa: BLE001 the application's own
            self.raised = error
            return LossAnswered(job.question, None, text_of(error))

    def _snapshot(self, job: TakeSnapshot) -> SnapshotTaken:
        """Take a snapshot. An exception here does not affect its state."""
        try:
            state: object = self.application.snapshot()
            if isinstance(state, bytes | bytearray | memoryview):
                return SnapshotTaken(job.request, job.index, bytes(state))
            error = f"snapshot() returned {type(state).__name__}, not bytes"
            self.raised = TypeError(error)
        except BaseException as problem:  # noqa: BLE001 the application's own
            error = f"snapshot() raised {text_of(problem)}"
            self.raised = problem
        return SnapshotTaken(job.request, job.index, b"", error)

    def _context(
        self,
        log_ns: Nanos,
        place: int,
        said: list[Output] | None = None,
        locks: Mapping[str, int] | None = None,
    ) -> Context:
        """Derived from the position in the order only."""
        return Context(self._group, log_ns, place, said, locks)


def _check(group: str, application: Replica) -> None:
    for name in ("apply", "snapshot", "restore", "on_loss", "on_decision"):
        method = getattr(application, name)
        if iscoroutinefunction(method) or isasyncgenfunction(method) or isgeneratorfunction(method):
            raise MisuseError(
                f"the application of group {group}: {name} must be a plain function, without `await` and `yield`, "
                "because it is called and not awaited; nothing was started"
            )


def text_of(error: BaseException) -> str:
    """The text of an exception of an application, in a form that can be stored and sent."""
    name = type(error).__name__
    try:
        text = f"{name}: {error}"
    except BaseException as problem:  # noqa: BLE001 the application's own, and the answer must not be lost for it
        text = f"{name}, whose text is not available: its __str__ raised {type(problem).__name__}"
    return text[:TEXT_MAX].encode("utf-8", "backslashreplace").decode()[:TEXT_MAX]
