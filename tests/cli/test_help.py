"""What `holdfast` shows before any node runs: help, defaults and mistyped commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.cli import app
from holdfast.runtime import control


def output(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})
    return result.exit_code, result.output


def test_every_command_has_a_place_in_the_overview() -> None:
    """A command without a panel would be shown in a box of its own, above all others."""
    code, text = output("--help")
    assert code == 0
    assert "─ Commands ─" not in text
    assert (
        text.index(" demo ") < text.index(" node ") < text.index(" status ") < text.index(" sim ")
    )


def test_the_help_of_log_options_names_the_keys_of_the_configuration() -> None:
    _, text = output("node", "--help")
    assert "Default: log.format of the configuration." in text
    assert "Default: log.level of the configuration." in text


@pytest.mark.parametrize(
    ("group", "asked"), [("health", "health"), ("dialogs", "dialogs"), ("groups", "status")]
)
def test_a_node_without_a_command_is_shown(
    group: str, asked: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    requests: list[Any] = []

    def ask(_: Path, request: dict[str, Any], *__: Any, **___: Any) -> dict[str, Any]:
        requests.append(request)
        return {"paths": [], "stores": [], "dialogs": [], "groups": [], "members": []}

    monkeypatch.setattr(control, "ask", ask)
    output(group, str(tmp_path))
    assert [request["do"] for request in requests] == [asked]


def test_a_mistyped_command_is_not_taken_for_a_node() -> None:
    code, text = output("groups", "shwo", "n1.toml")
    assert code == 2
    assert "No such command 'shwo'. Did you mean 'show'?" in text


def test_a_directory_that_cannot_be_created_ends_the_demonstration_with_one_line() -> None:
    code, text = output("demo", "--dir", "/proc/nowhere", "--no-pipeline")
    assert code == 1
    assert "The demonstration failed" in text
    assert "/proc/nowhere" in text
