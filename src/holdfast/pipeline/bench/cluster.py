"""A stand-alone Spark cluster on this machine, from the pip package: a master and some workers, on loopback."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.errors import SetupError
from holdfast.pipeline.bench.cpu import tree_cpu_s
from holdfast.pipeline.bench.data import START
from holdfast.pipeline.java import find_java
from holdfast.types import SECOND

if TYPE_CHECKING:
    from holdfast.pipeline.bench.measures import Measured

HOST: Final = "127.0.0.1"
START_NS_MAX: Final = 120 * SECOND
_MASTER: Final = "org.apache.spark.deploy.master.Master"
_WORKER: Final = "org.apache.spark.deploy.worker.Worker"
_ADDRESS: Final = re.compile(r"Starting Spark master at (spark://[\w.]+:\d+)")


class Cluster:
    """The processes of a running cluster. `url` is the engine."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = ""
        self.workers: list[subprocess.Popen[bytes]] = []
        self._master: subprocess.Popen[bytes] | None = None

    def start(self, workers: int) -> None:
        """Start the master and `workers` workers of one core each."""
        self.directory.mkdir(parents=True, exist_ok=True)
        log = self.directory / "master.log"
        self._master = self._spawn(log, _MASTER, "--host", HOST, "--port", "0", "--webui-port", "0")
        self.url = _wait_for(log, _ADDRESS, self._master).group(1)
        for number in range(workers):
            self.add_worker(number)

    def add_worker(self, number: int) -> None:
        log = self.directory / f"worker{number}.log"
        work = str(self.directory / f"work{number}")
        arguments = ("--host", HOST, "--cores", "1", "--memory", "1g", "--webui-port", "0")
        worker = self._spawn(log, _WORKER, *arguments, "--work-dir", work, self.url)
        self.workers.append(worker)
        _wait_for(log, re.compile("Successfully registered with master"), worker)

    def stop(self) -> None:
        """End all processes."""
        for process in (*self.workers, self._master):
            if process is not None and process.poll() is None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(20)
                process.kill()
                process.wait()

    def _spawn(self, log: Path, *arguments: str) -> subprocess.Popen[bytes]:
        import pyspark

        home = Path(pyspark.__file__).parent
        java = find_java().path
        environment = os.environ | {
            "JAVA_HOME": str(java),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_NO_DAEMONIZE": "1",
            "PYSPARK_PYTHON": sys.executable,
        }
        with log.open("wb") as words:
            return subprocess.Popen(
                [str(home / "bin" / "spark-class"), *arguments],
                stdout=words,
                stderr=subprocess.STDOUT,
                env=environment,
            )


@contextlib.contextmanager
def running_cluster(directory: Path, workers: int = 2) -> Iterator[Cluster]:
    """A cluster that ends with the block."""
    cluster = Cluster(directory)
    try:
        cluster.start(workers)
        yield cluster
    finally:
        cluster.stop()


def _wait_for(
    log: Path, pattern: re.Pattern[str], process: subprocess.Popen[bytes]
) -> re.Match[str]:
    deadline = time.monotonic_ns() + START_NS_MAX
    while time.monotonic_ns() < deadline:
        found = pattern.search(log.read_text(errors="replace"))
        if found:
            return found
        if process.poll() is not None:
            break
        time.sleep(0.2)
    last = log.read_text(errors="replace")[-1000:]
    raise SetupError(f"a process of the Spark cluster did not start; nothing was measured. {last}")


def bench_executors(directory: Path, facts: int, part_s: float, measured: Measured) -> None:
    """The same run on a cluster with one worker and with two, in processes of their own. Must not be called while this
    process has a session of its own that works."""
    from holdfast.pipeline.bench.measures import write_domain

    seconds: dict[int, float] = {}
    rows = 0
    until_ns = time.monotonic_ns() + int(part_s * SECOND)
    for workers in (1, 2):
        place = directory / f"workers{workers}"
        rows, hours = write_domain(place, 1, facts)
        with running_cluster(place / "cluster", workers) as cluster:
            used_s = tree_cpu_s()
            left_s = (until_ns - time.monotonic_ns()) / SECOND
            try:
                seconds[workers] = _run_on(cluster, place, hours, max(1.0, left_s))
            except subprocess.TimeoutExpired:
                measured.not_measured["executors"] = (
                    f"the run with {workers} did not end within {part_s:.0f} s. "
                    "Give it fewer facts, or more time with --part-seconds"
                )
                return
            measured.figures |= {
                f"run_{workers}_executors_s": seconds[workers],
                f"run_{workers}_executors_cpu_s": tree_cpu_s() - used_s,
            }
    measured.figures["run_executors_facts"] = rows
    measured.ratios["two_executors_vs_one"] = seconds[2] / seconds[1]
    if (os.cpu_count() or 1) < 4:
        measured.notes["executors"] = (
            "driver, master and executors share few cores, so two executors gain less than on two machines"
        )


def _run_on(cluster: Cluster, place: Path, hours: int, timeout_s: float) -> float:
    """Seconds of a run as the pipeline itself counts them, in a process of its own."""
    now = (START + timedelta(hours=hours + 1)).isoformat()
    code = (
        "import sys; from datetime import datetime\n"
        "from holdfast.pipeline.jobs import Settings, run_pipeline\n"
        "landing, out, engine, now = sys.argv[1:]\n"
        "settings = Settings(engine=engine, report=False)\n"
        "print(run_pipeline(landing, out, settings, now=datetime.fromisoformat(now)).seconds)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(place / "landing"), str(place / "out"), cluster.url, now],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
    if done.returncode:
        raise SetupError(f"the run on {cluster.url} failed: {done.stderr[-1000:]}")
    return float(done.stdout.split()[-1])
