"""The figures that the paper on object replicas describes in words, as scenarios that can be read as text."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.overlay_scenario import Scenario, scenario_files

FILES = scenario_files(Path(__file__).parent / "overlay")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_overlay_does_what_the_scenario_says(path: Path) -> None:
    said, seen = Scenario().run(path.read_text())
    assert seen == said


def test_every_figure_has_its_scenario() -> None:
    names = {path.stem for path in FILES}
    assert names >= {
        "breaking_a_cycle",
        "healing_a_partition",
        "linking_three_replicas",
        "moving_a_role",
        "recovery_around_a_failed_node",
    }


def test_a_scenario_that_says_something_else_fails() -> None:
    said, seen = Scenario().run("nodes a\npublish a r\nshow holders r\n| b\n")
    assert seen != said
