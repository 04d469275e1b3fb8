"""The reference page says what is true."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.web.fake_status import FakeDomain

from holdfast.runtime import control
from holdfast.web import application
from holdfast.web.metrics import metrics_text

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "control.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("source", blocks("python"))
def test_every_example_runs(source: str) -> None:
    exec(compile(source, "control.md", "exec"), {"__name__": "example"})


def test_the_status_that_is_shown_has_the_parts_of_the_one_that_tests_use() -> None:
    [shown] = map(json.loads, blocks("json"))
    used = FakeDomain(2).status()
    assert list(shown) == list(used)
    for part in ("members", "paths", "links", "sources"):
        assert shown[part][0].keys() == used[part][0].keys()
    assert shown["groups"][0].keys() >= used["groups"][0].keys()  # all of them: tests/docs
    assert shown["node"].keys() == used["node"].keys()


def test_every_metric_is_named() -> None:
    for name in re.findall(r"# TYPE (\w+)", metrics_text(FakeDomain(2).status())):
        ending = name.removeprefix("holdfast_group").removeprefix("holdfast_link")
        assert f"`{name}" in PAGE or f"`{ending}`" in PAGE, name


def test_the_bounds_are_right() -> None:
    for said in (
        f"| one request | {control.REQUEST_BYTES_MAX >> 10} KiB |",
        f"| one answer | {control.ANSWER_BYTES_MAX >> 20} MiB |",
        f"| concurrent clients | {control.CLIENTS_MAX} |",
        f"| {control.IDLE_S_MAX:.0f} s |",
        f"({control.SOCKET_PATH_BYTES_MAX} bytes)",
        f"At most {application.WATCHERS_MAX} clients can be connected",
        f"reads nothing for {application.STUCK_S_MAX:.0f} seconds",
    ):
        assert said in " ".join(PAGE.split("\n")), said
