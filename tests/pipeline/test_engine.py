"""One setting names the engine, and what is missing is said in one clear message."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.errors import MisuseError
from holdfast.pipeline import engine as engines
from holdfast.pipeline.engine import (
    EngineFailed,
    SparkMissing,
    check_engine,
    open_engine,
    suited,
)
from holdfast.pipeline.frames import read_files
from holdfast.pipeline.java import JavaHome, JavaMissing
from holdfast.pipeline.storage.port import to_uri

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    "engine",
    [
        *("local", "local[*]", "local[2]", "spark://127.0.0.1:7077", "sc://localhost:15002"),
        *("yarn", "k8s://https://127.0.0.1:6443"),
    ],
)
def test_engines(engine: str) -> None:
    check_engine(engine)


@pytest.mark.parametrize(
    "engine", ["", "local[0]", "local[two]", "yarn://x", "http://x", "local[*] x"]
)
def test_another_engine_is_misuse_and_the_message_names_those_there_are(engine: str) -> None:
    with pytest.raises(MisuseError, match=r"nothing was started.*local\[\*\].*spark://.*sc://"):
        check_engine(engine)


def test_without_pyspark_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec

    def hide(name: str, package: str | None = None) -> Any:
        return None if name == "pyspark" else found(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", hide)
    with (
        pytest.raises(SparkMissing, match=r"needs pyspark.*pip install 'holdfast\[pipeline\]'"),
        open_engine(),
    ):
        pass


@pytest.fixture
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests keep one session; these tests need a process that has none yet."""
    from pyspark import SparkContext

    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(SparkContext, "_jvm", None)


@pytest.mark.usefixtures("no_session")
def test_without_java_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> JavaHome:
        raise JavaMissing("the pipeline needs Java 17 or newer and found none")

    monkeypatch.setattr(engines, "find_java", nowhere)
    with pytest.raises(JavaMissing, match="needs Java 17"), open_engine("local[1]"):
        pass


@pytest.mark.usefixtures("no_session")
def test_a_java_that_does_not_start_is_told_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "home" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'the library libjli.so is broken' >&2\nexit 3\n")
    java.chmod(0o755)
    monkeypatch.setattr(engines, "find_java", lambda: JavaHome(tmp_path / "home", 17, "JAVA_HOME"))
    log = tmp_path / "logs" / "spark.log"
    before = os.environ.get("JAVA_HOME")
    with (
        pytest.raises(EngineFailed, match=r"did not start(.|\n)*libjli\.so is broken"),
        open_engine("local[1]", log),
    ):
        pass
    assert "libjli.so is broken" in log.read_text()
    assert os.environ.get("JAVA_HOME") == before


@pytest.mark.parametrize("scheme", ["spark", "sc", "k8s://http"])
def test_an_engine_that_is_not_there_is_told_at_once(scheme: str) -> None:
    with socket.socket() as held:
        # Bound and not listening: nobody else can take the port, and nobody answers on it.
        held.bind(("127.0.0.1", 0))
        address = f"{scheme}://127.0.0.1:{held.getsockname()[1]}"
        with (
            pytest.raises(EngineFailed, match=r"cannot be reached; nothing was run.*refused"),
            open_engine(address),
        ):
            pass


def test_yarn_needs_the_configuration_of_its_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    with (
        pytest.raises(EngineFailed, match="HADOOP_CONF_DIR, which is not set"),
        open_engine("yarn"),
    ):
        pass


@pytest.mark.spark
def test_a_second_session_in_one_process_is_refused(spark: SparkSession) -> None:
    with pytest.raises(MisuseError, match="already runs a Spark session"), open_engine("local[1]"):
        pass


@pytest.mark.spark
def test_the_session_is_utc_and_local_to_this_machine(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.getConf().get("spark.sql.shuffle.partitions") == "2"
    context = spark.sparkContext.getConf()
    assert context.get("spark.driver.bindAddress") == "127.0.0.1"
    assert context.get("spark.ui.enabled") == "false"
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


@pytest.mark.spark
def test_a_local_engine_looks_up_the_files_of_a_table_without_a_job(
    spark: SparkSession, tmp_path: Path
) -> None:
    """By default Spark starts a job for more than 32 files, with one task per file."""
    rows = pa.table({"n": pa.array([7], pa.int64())})
    files = [tmp_path / f"{number}.parquet" for number in range(33)]
    for file in files:
        pq.write_table(rows, file)
    spark.sparkContext.setJobGroup("lookup", "files of a table")
    frame = read_files(spark, "n bigint", [to_uri(file) for file in files])
    assert list(spark.sparkContext.statusTracker().getJobIdsForGroup("lookup")) == []
    assert frame.count() == 33
    assert len(spark.sparkContext.statusTracker().getJobIdsForGroup("lookup")) > 0
    spark.sparkContext.setJobGroup("tests", "other tests")


@pytest.mark.spark
def test_a_kept_session_suits_each_run(spark: SparkSession) -> None:
    """A small run after a large one would otherwise start a task for each of many partitions."""
    names = ("spark.sql.shuffle.partitions", "spark.sql.codegen.wholeStage")
    settings = lambda: tuple(spark.conf.get(name) for name in names)
    before = settings()
    for name, value in zip(names, ("128", "true"), strict=True):
        spark.conf.set(name, value)
    try:
        with suited(spark, 1000):
            assert settings() == ("2", "false")
            assert spark.range(10).groupBy("id").count().rdd.getNumPartitions() == 2
        assert settings() == ("128", "true")
        with suited(spark, 320 << 20):
            assert settings() == ("40", "true")
    finally:
        for name, value in zip(names, before, strict=True):
            spark.conf.set(name, value or "")


@pytest.mark.spark
def test_python_workers_have_loaded_what_functions_need(spark: SparkSession) -> None:
    """Each would spend a second of CPU time on it, and idle workers are ended after a minute."""

    def loaded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import gc
        import sys

        names = [name for name in sys.modules if name.startswith("holdfast.pipeline.transforms.")]
        for _ in batches:
            columns = [pa.array([len(names)]), pa.array([gc.get_freeze_count()])]
            yield pa.RecordBatch.from_arrays(columns, names=["modules", "frozen"])

    (row,) = spark.range(1).mapInArrow(loaded, "modules bigint, frozen bigint").collect()
    assert row["modules"] > 10
    assert row["frozen"] > 10_000
