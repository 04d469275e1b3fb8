"""`holdfast roles`, `trees` and `find`: what they show, and that they say when nodes did not answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from holdfast.cli import app
from holdfast.runtime import control

PLACE = {"node": "n2", "realm": "east", "instance": "ab" * 32}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Run a command against a node that gives this answer."""

    def invoke(answer: dict[str, Any], command: str, *words: str) -> Result:
        monkeypatch.setattr(control, "ask", lambda *_, **__: answer)
        monkeypatch.setenv("COLUMNS", "200")
        return CliRunner().invoke(app, [command, str(tmp_path), *words], catch_exceptions=False)

    return invoke


def test_roles_lists_what_is_held_and_what_is_known(run: Any) -> None:
    held = {
        "role": "[/x]",
        "tree": "ab" * 16,
        "exclusive": True,
        "epoch": 3,
        "first": True,
        "linked": True,
    }
    known = {"role": "worker", "tree": "cd" * 16, "built": False, "routes": [{"node": "n2", "via": "n3"}]}  # fmt: skip
    result = run({"local": [held], "known": [known]}, "roles")
    assert result.exit_code == 0
    for text in ("[/x]", "exclusive", "first, linked", "worker", "n2 via n3"):
        assert text in result.stdout


def test_a_tree_is_drawn_with_every_node_once(run: Any) -> None:
    nodes = {"n1": ["n2"], "n2": ["n1", "n3", "n4"], "n3": ["n2"], "n4": ["n2"]}
    result = run({"nodes": nodes, "complete": True}, "trees")
    assert [line.strip("│├└─ ") for line in result.stdout.splitlines()] == ["n1", "n2", "n3", "n4"]
    assert result.stderr == ""


def test_a_tree_with_nodes_that_did_not_answer_says_so(run: Any) -> None:
    result = run({"nodes": {"n1": ["n2"]}, "complete": False}, "trees")
    assert "may be missing" in result.stderr


def test_find_marks_the_first_instance(run: Any) -> None:
    answer = {"first": "n2", "instances": [PLACE], "complete": True, "reason": ""}
    result = run(answer, "find", "worker")
    assert result.exit_code == 0
    assert "first" in result.stdout


def test_find_tells_no_instance_from_no_answer(run: Any) -> None:
    nothing: dict[str, Any] = {"first": None, "instances": [], "complete": True, "reason": ""}
    result = run(nothing, "find", "worker")
    assert result.exit_code == 1
    assert "no node has role worker" in result.stdout
    result = run({**nothing, "complete": False, "reason": "link failed"}, "find", "worker")
    assert result.exit_code == 1
    assert "no node has" not in result.stdout
    assert "instances may be missing: link failed" in result.stderr
    result = run({**nothing, "instances": [PLACE], "complete": False}, "find", "worker")
    assert result.exit_code == 1
    assert "n2" in result.stdout
