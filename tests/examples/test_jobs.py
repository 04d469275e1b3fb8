"""`examples/jobs`: each job is processed exactly once, although the worker is killed in the middle."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest
from tests.support.postgres import postgres

SCRIPT = Path(__file__).parents[2] / "examples" / "jobs" / "jobs.py"
JOBS = 500
"""Enough that the worker is still busy when the first result is seen."""


@pytest.fixture(scope="module")
def dsn() -> Iterator[str]:
    with postgres() as server:
        yield server.get_uri()


def start(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(SCRIPT), *words])


async def count(dsn: str) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        found: int = await connection.fetchval("SELECT count(*) FROM results")
        return found
    finally:
        await connection.close()


async def results(dsn: str) -> list[tuple[int, int]]:
    connection = await asyncpg.connect(dsn)
    try:
        rows = await connection.fetch("SELECT number, square FROM results ORDER BY number")
        return [(row["number"], row["square"]) for row in rows]
    finally:
        await connection.close()


async def prepare(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute("CREATE TABLE results (number bigint, square bigint)")
    await connection.close()


def wait_for(dsn: str, enough: int, limit_s: float = 90.0) -> int:
    end = time.monotonic_ns() + int(limit_s * 1e9)
    while (found := asyncio.run(count(dsn))) < enough:
        assert time.monotonic_ns() < end, f"{found} of {enough} results"
        time.sleep(0.05)
    return found


@pytest.mark.slow
def test_a_worker_that_is_killed_loses_nothing_and_repeats_nothing(
    tmp_path: Path, dsn: str
) -> None:
    asyncio.run(prepare(dsn))
    node = start("node", str(tmp_path), "submitter")
    worker = None
    try:
        socket = tmp_path / "submitter" / "dialogs.sock"
        end = time.monotonic_ns() + int(60e9)
        while not socket.exists():
            assert time.monotonic_ns() < end
            time.sleep(0.02)
        # The submitter exits before there is a worker.
        assert start("submit", str(tmp_path), str(JOBS)).wait(60) == 0
        worker = start("work", str(tmp_path), dsn)
        killed_at = wait_for(dsn, 1)
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        worker = start("work", str(tmp_path), dsn)
        wait_for(dsn, JOBS)
        assert killed_at < JOBS, "it was killed in the middle"
        assert asyncio.run(results(dsn)) == [(n, n * n) for n in range(JOBS)]
    finally:
        for process in (node, worker):
            if process is not None:
                process.kill()
                process.wait()
