"""Many independent tasks on the executors of a Spark session, in waves.

A wave is one Spark job of about eight tasks per core, each with several points; its results go into the journal before
the next wave begins. A sweep that is killed therefore loses at most one wave. An error of a point is its result. If a
whole job fails, because a worker was killed or ran out of memory, the wave is bisected until the point that causes it
is found.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.errors import HoldfastError
from holdfast.experiments.journal import Journal, Record, SweepStopped

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

Work = Callable[[str], dict[str, Any]]
"""Does one task, which is a text, and returns its result. Must be importable by name on the executors."""

TASKS_PER_CORE: Final = 8
WAVE_SECONDS: Final = 10.0
"""How much work a wave has per core, as estimated."""
ERROR_CHARS_MAX: Final = 2_000
_RECORD: Final = "record string"


class Job(msgspec.Struct, frozen=True):
    """One task and its estimated cost."""

    task: str
    seconds: float = 1.0


class Progress(msgspec.Struct, frozen=True):
    done: int
    failed: int
    total: int


def run_task(work: Work, task: str) -> Record:
    """The record of a task. Any exception is recorded; it does not affect the rest of the sweep."""
    try:
        return Record(task, work(task))
    except HoldfastError as problem:
        return Record(task, error=f"{type(problem).__name__}: {problem}")
    except Exception as problem:  # noqa: BLE001  # an error of one point must not end the sweep
        where = traceback.extract_tb(problem.__traceback__)[-1]
        text = f"{type(problem).__name__}: {problem} ({where.name}, line {where.lineno})"
        return Record(task, error=text[:ERROR_CHARS_MAX])


def sweep(
    jobs: Sequence[Job],
    work: Work,
    journal: Journal,
    session: SparkSession | None = None,
    progress: Callable[[Progress], None] | None = None,
    again: bool = False,
) -> dict[str, Record]:
    """Run the jobs that are not in the journal. Without a session, they run in this process.

    `again` repeats those that failed. Returns the records of all jobs.
    """
    known = journal.read()
    left = [job for job in jobs if job.task not in known or (again and known[job.task].error)]
    tell = progress or (lambda _: None)
    open_tasks = {job.task for job in left}
    records = {job.task: known[job.task] for job in jobs if job.task not in open_tasks}
    report = lambda: tell(
        Progress(len(records), sum(1 for r in records.values() if r.error), len(jobs))
    )
    report()
    run = _Here(work) if session is None else _Spark(session, work)
    for wave in waves(left, run.cores):
        found = run.wave(wave)
        journal.append(found)
        records.update((record.task, record) for record in found)
        report()
    return records


def waves(jobs: Sequence[Job], cores: int) -> Iterator[list[Job]]:
    """Cut the jobs, in their order, into waves of about the same cost."""
    wave: list[Job] = []
    seconds = 0.0
    for job in jobs:
        wave.append(job)
        seconds += job.seconds
        if seconds >= WAVE_SECONDS * cores:
            yield wave
            wave, seconds = [], 0.0
    if wave:
        yield wave


def bundles(jobs: Sequence[Job], count: int) -> list[list[str]]:
    """Distribute jobs over at most `count` tasks, the largest first, each to the task with the least work."""
    shares: list[tuple[float, list[str]]] = [(0.0, []) for _ in range(min(count, len(jobs)))]
    for job in sorted(jobs, key=lambda job: -job.seconds):
        at = min(range(len(shares)), key=lambda k: shares[k][0])
        seconds, tasks = shares[at]
        tasks.append(job.task)
        shares[at] = (seconds + job.seconds, tasks)
    return [tasks for _, tasks in sorted(shares, key=lambda share: -share[0])]


class _Here:
    """Runs tasks in this process, one after the other."""

    cores = 1

    def __init__(self, work: Work) -> None:
        self._work = work

    def wave(self, jobs: list[Job]) -> list[Record]:
        return [run_task(self._work, job.task) for job in jobs]


class _Spark:
    """Runs tasks on the executors of a session."""

    def __init__(self, session: SparkSession, work: Work) -> None:
        self._session = session
        self._work = work
        self.cores = _cores(session)

    def wave(self, jobs: list[Job]) -> list[Record]:
        try:
            return self._job(jobs)
        except Exception as problem:
            if isinstance(problem, HoldfastError):
                raise
            self._check_engine(problem)
            if len(jobs) == 1:
                text = f"the worker failed: {_first_line(problem)}"
                return [Record(jobs[0].task, error=text[:ERROR_CHARS_MAX])]
        half = len(jobs) // 2
        return self.wave(jobs[:half]) + self.wave(jobs[half:])

    def _job(self, jobs: list[Job]) -> list[Record]:
        shares = bundles(jobs, TASKS_PER_CORE * self.cores)
        rows = self._session.range(0, len(shares), 1, len(shares))
        found = rows.mapInArrow(_worker(shares, self._work), _RECORD).toArrow()
        decode = msgspec.json.Decoder(Record).decode
        return [decode(text) for text in found["record"].to_pylist()]

    def _check_engine(self, problem: Exception) -> None:
        """If the engine has stopped, every job would fail: stop the sweep."""
        try:
            self._session.range(1).count()
        except Exception:  # noqa: BLE001  # whatever an engine that is gone raises
            raise SweepStopped(
                f"the engine failed: {_first_line(problem)}; finished waves are kept. "
                "Start it and run the same command again"
            ) from problem


def _cores(session: SparkSession) -> int:
    try:
        return max(1, session.sparkContext.defaultParallelism)
    except Exception:  # noqa: BLE001  # a Connect session has no context; its cores are not known here
        return 2


def _first_line(problem: Exception) -> str:
    lines = [line for line in str(problem).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(problem).__name__


def _worker(
    shares: list[list[str]], work: Work
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for share in batch.column(0).to_pylist():
                records = [run_task(work, task) for task in shares[share]]
                texts = [msgspec.json.encode(record).decode() for record in records]
                yield pa.RecordBatch.from_pydict({"record": pa.array(texts, pa.string())})

    return run
