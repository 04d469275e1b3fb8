"""The Spark session that a run uses. One setting names the engine:

    local[*], local[4], local    Spark inside this process, on that many cores (the default is all of them)
    spark://host:port            a stand-alone cluster; its workers must see the same files
    sc://host:port               a Spark Connect server; it must see the same files
    yarn                         the YARN cluster of HADOOP_CONF_DIR
    k8s://https://host:port      a Kubernetes cluster, with Spark's own settings for it

What the engine's Java prints goes into a log file, so that a terminal shows the run and nothing else.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final
from urllib.parse import urlsplit

from holdfast.errors import MisuseError, SetupError
from holdfast.pipeline.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_ENGINE: Final = "local[*]"
SMALL_BYTES: Final = 4 << 20
"""Up to this much input (half a million facts), getting started costs more than the work."""

_ENGINES = re.compile(r"local(\[(\*|[1-9]\d*)\])?|spark://\S+|sc://\S+|yarn|k8s://\S+")
_SESSION_SETTINGS: Final = {
    # Times are UTC everywhere; a local zone would shift days.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Segments are small: many of them make one task.
    "spark.sql.files.openCostInBytes": "262144",
    # Many files are looked up by a job, by default with one task per file, which costs more than the lookup.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "64",
}
QUICK_START: Final = {
    # Compilers and planning at run time pay off only after a minute of work: without them a run over the telemetry
    # of a few nodes takes half the time.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_PORTS: Final = {"spark": 7077, "sc": 15002, "k8s": 443}
_REACH_SECONDS_MAX: Final = 10
_PARTITION_BYTES: Final = 8 << 20
"""Of input per task: segments are compressed about tenfold."""
_LAST_WORDS_MAX: Final = 2_000


class SparkMissing(SetupError):
    """The Python packages of the pipeline are not installed; says how to install them."""


class EngineFailed(SetupError):
    """The engine did not start or cannot be reached; says what it printed last."""


def check_engine(engine: str) -> None:
    """Raise `MisuseError` unless `engine` is one of the forms above."""
    if not _ENGINES.fullmatch(engine):
        raise MisuseError(
            f"unknown engine {engine!r}; nothing was started. Engines are local[*], local[N], "
            "spark://host:port, sc://host:port, yarn and k8s://https://host:port"
        )


def check_packages() -> None:
    """Raise `SparkMissing` unless the packages that a run needs are there."""
    missing = [name for name in ("pyspark", "matplotlib") if importlib.util.find_spec(name) is None]
    if missing:
        raise SparkMissing(
            f"the pipeline needs {' and '.join(missing)}, not installed here; nothing was started. "
            "Install with: pip install 'holdfast[pipeline]'"
        )


@contextlib.contextmanager
def open_engine(
    engine: str = DEFAULT_ENGINE,
    log: Path | None = None,
    input_bytes: int = 0,
) -> Iterator[SparkSession]:
    """A session on `engine` that suits `input_bytes` of input, stopped at the end.

    `log` takes what Java prints; without it, it is thrown away.
    """
    check_engine(engine)
    check_packages()
    small = input_bytes <= SMALL_BYTES
    settings = _SESSION_SETTINGS | {_PARTITIONS: str(_partitions(input_bytes))}
    if engine == "yarn" and not os.environ.get("HADOOP_CONF_DIR"):
        raise EngineFailed(
            "the engine yarn needs HADOOP_CONF_DIR, which is not set; nothing was run. "
            "Set it to the directory of the cluster's configuration"
        )
    if engine.startswith(("spark://", "sc://", "k8s://")):
        _check_reachable(engine)
    if engine.startswith("sc://"):
        session = _connect(engine, settings)
    else:
        if small and engine.startswith("local"):
            settings |= QUICK_START
        session = _launch(engine, settings, log)
    try:
        yield session
    finally:
        _stop(session)


@contextlib.contextmanager
def suited(session: SparkSession, input_bytes: int) -> Iterator[None]:
    """Settings of a session for one run over `input_bytes`; afterwards they are as before.

    A session that is kept has runs of any size. The many partitions and compiled plans of a large run are most of what
    a small one would cost.
    """
    wanted = {_PARTITIONS: str(_partitions(input_bytes))}
    if input_bytes <= SMALL_BYTES:
        fewest = min(int(session.conf.get(_PARTITIONS) or 2), _partitions(input_bytes))
        quick = {name: value for name, value in QUICK_START.items() if name.startswith("spark.sql")}
        wanted = quick | {_PARTITIONS: str(fewest)}
    before = {name: session.conf.get(name) for name in wanted}
    try:
        for name, value in wanted.items():
            session.conf.set(name, value)
        yield
    finally:
        # An engine that has died takes no settings, and the run says why it failed.
        with contextlib.suppress(Exception):
            for name, earlier in before.items():
                if earlier is None:
                    session.conf.unset(name)
                else:
                    session.conf.set(name, earlier)


def _partitions(input_bytes: int) -> int:
    return 2 if input_bytes <= SMALL_BYTES else max(8, input_bytes // _PARTITION_BYTES)


def _check_reachable(engine: str) -> None:
    """Spark itself waits for minutes, without a word, for an engine that is not there."""
    refused: list[str] = []
    # A stand-alone cluster may have several masters, of which one answers.
    for address in engine.partition("://")[2].split(","):
        place = urlsplit(address if "://" in address else f"//{address}")
        try:
            host, port = place.hostname or "", place.port or _PORTS[engine.partition(":")[0]]
            socket.create_connection((host, port), _REACH_SECONDS_MAX).close()
        except (OSError, ValueError) as problem:
            refused.append(f"{address}: {problem}")
        else:
            return
    raise EngineFailed(
        f"the engine {engine} cannot be reached; nothing was run. {'; '.join(refused)}. "
        "Start it, or use local[*]"
    )


def _stop(session: SparkSession) -> None:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    # An engine that died has nothing left to stop, and why it died is what matters.
    with contextlib.suppress(Py4JError, PySparkException, OSError):
        session.stop()
    _forget_dead_java()


def _forget_dead_java() -> None:
    """Spark keeps its connection to Java for the next session of the process, also when that Java has died."""
    from py4j.protocol import Py4JError
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway = SparkContext._gateway
    if gateway is None:
        return
    try:
        gateway.jvm.java.lang.System.nanoTime()
    except (Py4JError, OSError):
        with contextlib.suppress(Py4JError, OSError):
            gateway.shutdown()
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = None


def _connect(engine: str, settings: dict[str, str]) -> SparkSession:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        session = SparkSession.builder.remote(engine).create()
        for name, value in settings.items():
            session.conf.set(name, value)
    except (PySparkException, ImportError, OSError) as failure:
        raise EngineFailed(
            f"the engine {engine} cannot be used; nothing was run. {_short(str(failure))}"
        ) from failure
    return session


def _launch(engine: str, settings: dict[str, str], log: Path | None) -> SparkSession:
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:
        raise MisuseError("this process already runs a Spark session; pass it, or stop it first")
    conf = SparkConf(loadDefaults=False).setAll(list((settings | _launch_settings(engine)).items()))
    conf.setMaster(engine).setAppName("holdfast")
    with _environment(engine), _log_file(log) as words:
        try:
            # Java outlives a session that was stopped, and Spark takes no second one in a process.
            gateway = SparkContext._gateway or launch_gateway(
                conf, {"stdout": words, "stderr": words}
            )
            return SparkSession(SparkContext(conf=conf, gateway=gateway))
        except (PySparkException, Py4JError, OSError) as failure:
            _forget_dead_java()
            said = _last_words(Path(words.name)) or str(failure)
            raise EngineFailed(
                f"the engine {engine} did not start; nothing was run. {said}"
            ) from failure


def _launch_settings(engine: str) -> dict[str, str]:
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "holdfast-warehouse"),
    }
    if engine.startswith("local"):
        # No other machine takes part, so no other may connect, and a job looks files up no faster than the driver.
        settings |= {
            "spark.sql.sources.parallelPartitionDiscovery.threshold": "1024",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "2g",
            "spark.python.daemon.module": "holdfast.pipeline.python_workers",
        }
    return settings


@contextlib.contextmanager
def _environment(engine: str) -> Iterator[None]:
    """What Spark reads from the environment while it starts; `JAVA_HOME` is as before afterwards."""
    java_before = os.environ.get("JAVA_HOME")
    os.environ["JAVA_HOME"] = str(find_java().path)
    if engine.startswith("local"):
        os.environ["PYSPARK_PYTHON"] = sys.executable
    else:
        # Workers may keep their Python elsewhere: then the operator has said where.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    try:
        yield
    finally:
        if java_before is None:
            del os.environ["JAVA_HOME"]
        else:
            os.environ["JAVA_HOME"] = java_before


@contextlib.contextmanager
def _log_file(log: Path | None) -> Iterator[BinaryIO]:
    """The open log. Java keeps a handle of its own, so closing ours once it runs is right."""
    with tempfile.TemporaryDirectory(prefix="holdfast-") as scratch:
        path = log or Path(scratch) / "spark.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as words:
            yield words


def _last_words(log: Path) -> str:
    said = log.read_text(errors="replace").strip()
    return f"Its last words:\n{said[-_LAST_WORDS_MAX:]}" if said else ""


def _short(text: str) -> str:
    return text if len(text) <= _LAST_WORDS_MAX else text[:_LAST_WORDS_MAX] + " ..."
