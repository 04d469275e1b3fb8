"""The worker of the application of a replica: one job at a time, in order, each with a duration."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import TYPE_CHECKING, Any

from holdfast.group.application import ApplicationRunner, Job
from holdfast.group.ports import AppFailed, Applied, Apply, Replica
from holdfast.types import Nanos

if TYPE_CHECKING:
    from holdfast.sim.host import Host


class Worker:
    """Runs the application of one unit outside the turn. It ends with the process, and its state is lost."""

    def __init__(
        self, host: Host, unit: str, replica: Replica, random: Random, delay_ns: Nanos
    ) -> None:
        self._host = host
        self._boots = host.boots
        self._unit = unit
        self._runner = ApplicationRunner(unit.partition("/")[2], replica)
        self._draw = random.getrandbits
        self._delay_ns = delay_ns
        self._jobs: deque[Job] = deque()
        self._stuck = False
        """The job is done but the process is paused; it completes when the process continues."""
        self.outstanding_bytes = 0
        """Bytes of batches that were passed on and not answered; the replica bounds it by `APPLY_MAX`."""

    @property
    def replica(self) -> Replica:
        return self._runner.application

    def give(self, job: Job) -> None:
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
        """Some waiting jobs are done; consecutive batches are reported as one."""
        host = self._host
        if host.boots != boots or not host.alive:
            return
        if host.paused:
            self._stuck = True
            return
        applied: Applied | None = None
        for _ in range(1 + self._draw(2)):
            if not self._jobs:
                break
            answer = self._run(self._jobs.popleft())
            if isinstance(answer, Applied):
                size, said = (applied.size, applied.outputs) if applied else (0, ())
                applied = Applied(answer.index, answer.size + size, said + answer.outputs)
                continue
            self._report(applied, answer)
            applied = None
        self._report(applied)
        if self._jobs:
            self._begin()

    def _report(self, *answers: Any) -> None:
        for answer in answers:
            if answer is None:
                continue
            if isinstance(answer, Applied):
                self.outstanding_bytes = max(0, self.outstanding_bytes - answer.size)
            self._host.give(self._unit, answer)

    def _run(self, job: Job) -> Any:
        answer = self._runner.run(job)
        if isinstance(answer, AppFailed):
            self.outstanding_bytes = 0
        elif answer is None and isinstance(job, Apply):
            self.outstanding_bytes = max(0, self.outstanding_bytes - job.size)
        return answer
