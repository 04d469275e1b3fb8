"""The worker that runs a replica's application: one job at a time, in order, each taking its time."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from holdfast.sim.host import Host

Job = Apply | TakeSnapshot | RestoreState | AskLoss | Tell


class Worker:
    """Runs the application of one unit off the turn. It ends with the process; its state is gone then."""

    def __init__(
        self, host: Host, unit: str, replica: Replica, random: Random, delay_ns: Nanos
    ) -> None:
        self._host = host
        self._boots = host.boots
        self._unit = unit
        self.replica = replica
        self._draw = random.getrandbits
        self._delay_ns = delay_ns
        self._jobs: deque[Job] = deque()
        self._failed = False
        self._stuck = False
        """The job is done but the process is paused: it is finished when the process goes on."""
        self.outstanding_bytes = 0
        """Of batches that were handed over and not answered; the replica bounds it by `APPLY_MAX`."""

    def give(self, job: Job) -> None:
        if self._failed and not isinstance(job, RestoreState):
            return  # Only a state from elsewhere can help it.
        self._failed = False
        self._jobs.append(job)
        if isinstance(job, Apply):
            self.outstanding_bytes += job.size
        if len(self._jobs) == 1:
            self._begin()

    def _begin(self) -> None:
        world = self._host.world
        usual_ns = self._delay_ns + self._host.application_slow_ns
        delay_ns = (usual_ns >> 1) + (self._draw(16) * usual_ns >> 16)
        world.at(world.now + delay_ns, self._done, self._boots)

    def resume(self) -> None:
        if self._stuck:
            self._stuck = False
            self._done(self._boots)

    def _done(self, boots: int) -> None:
        """Some of the jobs that wait are done; batches that were applied one after the other are reported as one."""
        host = self._host
        if host.boots != boots or not host.alive:
            return
        if host.paused:
            self._stuck = True
            return
        applied: Applied | None = None
        for _ in range(1 + self._draw(2)):
            if not self._jobs or self._failed:
                break
            answer = self._run(self._jobs.popleft())
            if isinstance(answer, Applied):
                size, said = (applied.size, applied.outputs) if applied else (0, ())
                applied = Applied(answer.index, answer.size + size, said + answer.outputs)
                continue
            self._report(applied, answer)
            applied = None
        self._report(applied)
        if self._jobs and not self._failed:
            self._begin()

    def _report(self, *answers: Any) -> None:
        for answer in answers:
            if answer is None:
                continue
            if isinstance(answer, Applied):
                self.outstanding_bytes = max(0, self.outstanding_bytes - answer.size)
            self._host.give(self._unit, answer)

    def _run(self, job: Job) -> Any:
        try:
            return self._answer(job)
        except Exception as error:  # noqa: BLE001  # an application may raise anything
            self._failed = True
            self._jobs.clear()
            self.outstanding_bytes = 0
            assert not isinstance(job, AskLoss), "what it raises there is an answer"
            return AppFailed(job.index, f"{type(error).__name__}: {error}")

    def _answer(self, job: Job) -> Any:
        match job:
            case Apply(index=index, log_ns=log_ns, batch=batch, size=size):
                said: list[Output] = []
                self.replica.apply(batch, self._context(log_ns, batch.position, said))
                return Applied(index, size, tuple(said))
            case TakeSnapshot(request=request, index=index):
                return SnapshotTaken(request, index, self.replica.snapshot())
            case RestoreState(index=index, data=data):
                self.replica.restore(data)
                return Restored(index)
            case AskLoss(question=question, info=info):
                try:
                    return LossAnswered(question, self.replica.on_loss(info))
                except Exception as error:  # noqa: BLE001  # as with any answer of an application
                    return LossAnswered(question, None, f"{type(error).__name__}: {error}")
            case Tell(index=index, log_ns=log_ns, decision=decision):
                self.replica.on_decision(decision, self._context(log_ns, -index))
                return None

    def _context(self, log_ns: Nanos, place: int, said: list[Output] | None = None) -> Context:
        """It follows from the place in the order and nothing else."""
        group = self._unit.partition("/")[2]
        return Context(group, log_ns, place, said)
