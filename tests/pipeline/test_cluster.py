"""P10: the same run on a stand-alone cluster, through Spark Connect, on Kubernetes, and with a worker that dies."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from tests.pipeline.pods import api_server

from holdfast.pipeline.bench.cluster import HOST, Cluster, running_cluster
from holdfast.pipeline.bench.data import START
from holdfast.pipeline.bench.measures import write_domain
from holdfast.pipeline.engine import QUICK_START
from holdfast.pipeline.java import find_java
from holdfast.pipeline.reader import open_tables

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.campaign, pytest.mark.timeout(1800)]

FACTS = 40_000
_RUN = """
import sys; from datetime import datetime
from holdfast.pipeline.jobs import Settings, run_pipeline
landing, out, engine, now = sys.argv[1:]
run_pipeline(landing, out, Settings(engine=engine), now=datetime.fromisoformat(now))
"""


def run_on(engine: str, root: Path, out: str, **environment: str) -> None:
    """A run in a process of its own: the tests of this process keep a session."""
    now = (START + timedelta(hours=9)).isoformat()
    done = subprocess.run(
        [sys.executable, "-c", _RUN, str(root / "landing"), str(root / out), engine, now],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def check(root: Path, out: str) -> None:
    tables = open_tables(root / out)
    assert {row["verdict"] for row in tables.rows("delivery_audit")} == {"holds"}
    assert len(tables.rows("path_health")) == 24
    assert tables.rows("incidents")
    assert "<svg" in (root / out / "report.html").read_text()


def test_a_stand_alone_cluster_gives_the_same_tables_also_when_a_worker_dies(
    tmp_path: Path,
) -> None:
    write_domain(tmp_path, 1, FACTS)
    with running_cluster(tmp_path / "cluster", workers=2) as cluster:
        run_on(cluster.url, tmp_path, "out")
        check(tmp_path, "out")
        killer = threading.Thread(target=_kill_when_busy, args=(cluster, tmp_path / "again"))
        killer.start()
        run_on(cluster.url, tmp_path, "again")
        killer.join()
        assert cluster.workers[0].poll() is not None, "it was killed during the run"
    check(tmp_path, "again")
    both = [open_tables(tmp_path / out).rows("incidents") for out in ("out", "again")]
    assert both[0] == both[1]


def _kill_when_busy(cluster: Cluster, out: Path) -> None:
    """Kill a worker and its executor once facts are being stored."""
    deadline = time.monotonic_ns() + 600 * 10**9
    while time.monotonic_ns() < deadline and not (out / "facts").exists():
        time.sleep(0.1)
    worker = cluster.workers[0]
    children = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
    for pid in (*map(int, children), worker.pid):
        os.kill(pid, 9)
    worker.wait()


@contextmanager
def connect_server(directory: Path) -> Iterator[str]:
    """A Spark Connect server of the pip package, on a free port of loopback."""
    import pyspark
    from tests.conformance.worlds import free_port

    home, port = Path(pyspark.__file__).parent, free_port([HOST])
    log = directory / "connect.log"
    environment = os.environ | {
        "JAVA_HOME": str(find_java().path),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": HOST,
        "PYSPARK_PYTHON": sys.executable,
    }
    settings = {
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.grpc.binding.address": HOST,
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        # As on a local engine with little input: compilers do not pay off in a run of seconds.
        **QUICK_START,
    }
    options = [text for item in settings.items() for text in ("--conf", "=".join(item))]
    server = "org.apache.spark.sql.connect.service.SparkConnectServer"
    command = [
        str(home / "bin" / "spark-submit"),
        "--master",
        "local[2]",
        *options,
        "--class",
        server,
    ]
    with log.open("wb") as words:
        process = subprocess.Popen(
            [*command, "spark-internal"], stdout=words, stderr=subprocess.STDOUT, env=environment
        )
    try:
        deadline = time.monotonic_ns() + 180 * 10**9
        while not re.search("Spark Connect server started", log.read_text(errors="replace")):
            assert process.poll() is None, log.read_text(errors="replace")[-2000:]
            assert time.monotonic_ns() < deadline, log.read_text(errors="replace")[-2000:]
            time.sleep(0.2)
        yield f"sc://{HOST}:{port}"
    finally:
        process.terminate()
        process.wait(60)


def test_spark_connect_gives_the_same_tables(tmp_path: Path) -> None:
    write_domain(tmp_path, 1, FACTS)
    with connect_server(tmp_path) as engine:
        run_on(engine, tmp_path, "out")
    check(tmp_path, "out")


def test_kubernetes_executors_give_the_same_tables_by_settings_that_spark_reads(
    tmp_path: Path,
) -> None:
    """Spark's Kubernetes backend against a stand-in for the API server, which starts the pods as processes here."""
    write_domain(tmp_path, 1, FACTS)
    settings = {
        "spark.kubernetes.container.image": "holdfast",
        "spark.executor.instances": "2",
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": HOST,
        # The stand-in does not push changes of pods.
        "spark.kubernetes.executor.enableApiWatcher": "false",
        "spark.kubernetes.executor.apiPollingInterval": "5s",
    }
    (tmp_path / "conf").mkdir()
    lines = "".join(f"{name} {value}\n" for name, value in settings.items())
    (tmp_path / "conf" / "spark-defaults.conf").write_text(lines)
    with api_server(tmp_path / "pods") as (engine, pods):
        run_on(engine, tmp_path, "out", SPARK_CONF_DIR=str(tmp_path / "conf"))
        assert len(pods.processes) == 2
        assert pods.asked[-1].startswith("DELETE"), "it takes its pods away at the end"
    check(tmp_path, "out")
