"""`holdfast pipeline run`: 0 fine, 1 failed, 2 misuse; one clear message instead of a traceback."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.pipeline.making import path_fact, write_segment
from typer.testing import CliRunner, Result

from holdfast.errors import MisuseError
from holdfast.pipeline import command, engine, jobs
from holdfast.pipeline.command import app, find_landings
from holdfast.pipeline.java import JavaHome, JavaMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def invoke(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["run", *map(str, arguments)])


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """The telemetry directory of a node that has recorded a soft error."""
    facts = [path_fact("alba", "brno", 0, 0), path_fact("alba", "brno", 1, 60, 600)]
    write_segment(tmp_path / "n1" / "landing", "path", facts)
    return tmp_path / "n1"


@pytest.mark.spark
def test_a_run_prints_a_short_summary_and_where_the_report_is(
    node: Path, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    torn = node / "landing" / "path" / "day=2026-11-15" / "torn.parquet"
    torn.write_bytes(b"")
    (node / "landing" / "dreams").mkdir()
    monkeypatch.setattr(command, "run_pipeline", partial(jobs.run_pipeline, session=spark))
    result = invoke("--telemetry", node, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("Read 2 facts in 1 segment. Days with news: 2026-11-15. ")
    assert lines[1] == "Paths:  1 soft error"
    assert lines[2].startswith(f"Set aside {torn}: the file is empty, moved to ")
    assert lines[3].startswith(f"Left alone {node}/landing/dreams: a kind of fact")
    assert lines[4] == f"Report: {tmp_path}/out/report.html"

    again = invoke("--telemetry", node, "--out", tmp_path / "out")
    assert again.stdout.startswith("Nothing new since the last run; 2 facts in 1 segment.")

    as_json = json.loads(invoke("--telemetry", node, "--out", tmp_path / "out", "--json").stdout)
    assert as_json["nothing_new"] is True
    assert as_json["paths"] == {"soft error": 1}
    assert as_json["tables"]["path_health"]["rows"] == 1


def test_nothing_recorded_yet_is_fine(tmp_path: Path) -> None:
    (tmp_path / "n1" / "landing").mkdir(parents=True)
    result = invoke("--telemetry", tmp_path / "n1", "--out", tmp_path / "out")
    assert result.exit_code == 0
    assert result.stdout == "Nothing is recorded yet: there are no telemetry segments.\n"


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (("--engine", "yarn"), "unknown engine 'yarn'; nothing was started"),
        (("--look-back", "0"), "a look-back of 0 days holds nothing"),
    ],
)
def test_misuse_exits_with_two(
    node: Path, tmp_path: Path, extra: tuple[str, str], said: str
) -> None:
    result = invoke("--telemetry", node, "--out", tmp_path / "out", *extra)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_directory_without_telemetry_is_misuse(tmp_path: Path) -> None:
    result = invoke("--telemetry", tmp_path, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert f"no landing/ directory at '{tmp_path}'" in result.stderr


def test_without_java_there_is_one_message_and_no_traceback(
    node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark import SparkContext

    def nowhere() -> JavaHome:
        raise JavaMissing(
            "the pipeline needs Java 17 or newer and found none; nothing was started."
        )

    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(engine, "find_java", nowhere)
    result = invoke("--telemetry", node, "--out", tmp_path / "out", "--engine", "local[1]")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "pipeline: the pipeline needs Java 17 or newer and found none" in result.stderr
    assert "Traceback" not in result.output


def test_without_pyspark_there_is_one_message_and_no_traceback(
    node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = invoke("--telemetry", node, "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert "pip install 'holdfast[pipeline]'" in result.stderr


def test_a_disk_that_fails_is_told_with_the_file(node: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file where the directory should be")
    result = invoke("--telemetry", node, "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert f"pipeline: {tmp_path}/out" in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "argument", ["{root}/n1", "{root}/n1/landing", "{root}", "{root}/n*", "{root}/*/landing"]
)
def test_telemetry_may_be_a_node_several_or_a_pattern(
    node: Path, tmp_path: Path, argument: str
) -> None:
    assert find_landings([argument.format(root=tmp_path)]) == [node / "landing"]


def test_several_nodes_are_found_once_each(node: Path, tmp_path: Path) -> None:
    (tmp_path / "n2" / "telemetry" / "landing").mkdir(parents=True)
    found = find_landings([str(tmp_path), str(node)])
    assert found == [node / "landing", tmp_path / "n2" / "telemetry" / "landing"]


def test_an_argument_that_finds_nothing_is_named(node: Path, tmp_path: Path) -> None:
    with pytest.raises(MisuseError, match="nowhere"):
        find_landings([str(node), str(tmp_path / "nowhere*")])


@pytest.mark.parametrize(("extra", "shown"), [((), True), (("--json",), False)])
def test_progress_is_for_people_and_not_for_programs(
    node: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    extra: tuple[str, ...],
    shown: bool,
) -> None:
    given: list[Any] = []

    def run(landings: Any, out: Any, engine: Any, progress: Any, **_: Any) -> None:
        given.append(progress)
        if progress is not None:
            progress(jobs.Step("table path_health", 1, 4))
        raise MisuseError("enough")

    monkeypatch.setattr(command, "run_pipeline", run)
    assert invoke("--telemetry", node, "--out", tmp_path / "out", *extra).exit_code == 2
    assert [progress is not None for progress in given] == [shown]
