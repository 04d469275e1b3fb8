"""`holdfast experiments`: bad input is one clear line with exit code 2, results are kept, figures are drawn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from holdfast.cli.experiments import app
from holdfast.errors import MisuseError


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--set", "huge"), "'huge' is not a set of points"),
        (("--protocol", "cub"), "did you mean 'cube'"),
        (("--sizes", "1"), "1 nodes: a round needs 2 to"),
        (("--sizes", "ten"), "is not a list of numbers"),
        (("--sizes", "11"), "no point of the set 'small' is left"),
        (("--seeds", "9"), "is not A..B"),
        (("--model", "fast"), "'fast' is not a model"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(
    words: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    done = run("stability", "--engine", "none", "--out", str(tmp_path / "r"), *words)
    assert isinstance(done.exception, MisuseError)
    assert says in str(done.exception)
    assert not (tmp_path / "r").exists()


def test_a_report_without_results_says_how_to_get_some(tmp_path: Path) -> None:
    done = run("report", "--out", str(tmp_path))
    assert isinstance(done.exception, MisuseError)
    assert "Run: holdfast experiments stability" in str(done.exception)


def test_an_audit_needs_an_engine(tmp_path: Path) -> None:
    done = run("campaign", "--out", str(tmp_path), "--engine", "none", "--audit")
    assert isinstance(done.exception, MisuseError)


def test_a_sweep_is_measured_kept_and_drawn(tmp_path: Path) -> None:
    out = str(tmp_path / "r")
    words = (
        "stability",
        "--out",
        out,
        "--engine",
        "none",
        "--sizes",
        "10,20,50",
        "--seeds",
        "1..1",
    )
    done = run(*words, "--json")
    assert done.exit_code == 0
    points = json.loads(done.stdout)["points"]
    assert len(points) == 12
    assert all(found["result"]["messages"] > 0 for found in points)
    # The second time everything is known.
    kept = (tmp_path / "r" / "results.jsonl").read_bytes()
    assert run(*words).exit_code == 0
    assert (tmp_path / "r" / "results.jsonl").read_bytes() == kept
    drawn = run("report", "--out", out)
    assert drawn.exit_code == 0
    assert "messages of FullDist: n (n-1)" in drawn.stdout
    assert (tmp_path / "r" / "report" / "figure-8-round-time.svg").exists()
