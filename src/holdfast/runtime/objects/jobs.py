"""Long operations that the command line starts and follows: with progress, and stoppable."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any, Final

from holdfast.errors import HoldfastError, MisuseError, QueueFull

JOBS_MAX: Final = 64
"""Jobs that are remembered; the oldest finished one is forgotten for a new one."""
Report = Callable[[int, int, str], object]
Work = Callable[[dict[str, Any], Report], Awaitable[dict[str, Any]]]


class Job:
    __slots__ = ("done", "task", "text", "total")

    def __init__(self) -> None:
        self.done = 0
        self.total = -1
        self.text = ""
        self.task: asyncio.Task[dict[str, Any]]

    def report(self, done: int, total: int, text: str) -> None:
        self.done, self.total, self.text = done, total, text


class Jobs:
    def __init__(self, works: dict[str, Work]) -> None:
        self._works = works
        self._numbers = count(1)
        self._jobs: dict[int, Job] = {}

    def start(self, request: dict[str, Any]) -> dict[str, Any]:
        work = self._works.get(str(request.get("what")))
        if work is None:
            raise MisuseError(f"there is no job {request.get('what')!r}; nothing was started")
        self._make_room()
        number, job = next(self._numbers), Job()
        job.task = asyncio.ensure_future(_run(work, request, job))
        self._jobs[number] = job
        return {"job": number}

    def _make_room(self) -> None:
        if len(self._jobs) < JOBS_MAX:
            return
        over = next((number for number, job in self._jobs.items() if job.task.done()), None)
        if over is None:
            raise QueueFull(f"{JOBS_MAX} jobs are in progress on this node; nothing was started")
        del self._jobs[over]

    def look(self, request: dict[str, Any]) -> dict[str, Any]:
        """How far a job is; its result or its error when it has ended."""
        job = self._find(request)
        if not job.task.done():
            return {"state": "running", "done": job.done, "total": job.total, "text": job.text}
        del self._jobs[int(request["job"])]
        if job.task.cancelled():
            return {"state": "stopped"}
        error = job.task.exception()
        if isinstance(error, HoldfastError):
            raise error
        if error is not None:
            raise HoldfastError(f"the job failed: {error!r}; look at the log of the node")
        return {"state": "done", "result": job.task.result()}

    def stop(self, request: dict[str, Any]) -> dict[str, Any]:
        self._find(request).task.cancel()
        return {"state": "stopping"}

    def _find(self, request: dict[str, Any]) -> Job:
        number = request.get("job")
        if not isinstance(number, int) or number not in self._jobs:
            raise MisuseError(f"there is no job {number!r}; it may have been fetched before")
        return self._jobs[number]


async def _run(work: Work, request: dict[str, Any], job: Job) -> dict[str, Any]:
    return await work(request, job.report)
