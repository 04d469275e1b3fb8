"""`holdfast status` answers first whether the node is fine (U2)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.web.fake_status import FakeDomain
from typer.testing import CliRunner

from holdfast.cli import app
from holdfast.health.problems import headline, problems_of
from holdfast.runtime import control

DEAD = {"error_class": "dead", "text": "nothing is heard from a to b: a cable", "place": "node b"}
SIZE = {"error_class": "size", "text": "UDP packets over 1400 bytes vanish", "place": "sent by a"}
JOIN = {"address": "10.0.0.1:7400", "text": "cannot join through 10.0.0.1:7400 for 9 s: no answer"}


def status(**parts: Any) -> dict[str, Any]:
    return FakeDomain(2).status() | parts


def test_a_node_without_problems_is_fine() -> None:
    assert problems_of(status()) == []
    assert headline(status()).startswith("fine")


def test_the_worst_comes_first_and_the_line_fits_80_columns() -> None:
    line = headline(status(incidents=[SIZE, DEAD]))
    assert line.startswith("NOT FINE: dead: nothing is heard from a to b [node b]")
    assert line.endswith("(and 1 more)")
    assert len(headline(status(incidents=[DEAD | {"text": "x" * 500}] * 12))) <= 80


def test_a_group_without_a_leader_and_a_member_that_is_down_are_problems() -> None:
    domain = FakeDomain(3)
    domain.down.add("n2")
    given = domain.status() | {"groups": [{"name": "book", "state": "following", "leader": ""}]}
    texts = [problem.text for problem in problems_of(given)]
    assert texts == ["member n2 is down", "group book has no leader"]


def test_a_node_that_cannot_join_says_so_unless_it_reached_another() -> None:
    assert problems_of(status(joining=[JOIN])) == []
    alone = FakeDomain(1).status() | {"joining": [JOIN]}
    assert [problem.text for problem in problems_of(alone)] == [JOIN["text"]]


@pytest.mark.parametrize(("incidents", "code"), [([], 0), ([SIZE], 1)])
def test_check_tells_by_its_exit_status(
    incidents: list[Any], code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(control, "ask", lambda *_: status(incidents=incidents))
    result = CliRunner().invoke(app, ["status", str(tmp_path), "--check"])
    assert result.exit_code == code
    assert result.output.startswith("fine" if not code else "NOT FINE: size")


def test_a_reason_that_the_first_line_cuts_is_printed_in_full_below(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    reason = "the peer's certificate comes from another authority"
    text = f"cannot join through 127.0.0.1:7400: 13 attempts in 21 s: {reason}"
    alone = FakeDomain(1).status() | {"joining": [{"text": text}]}
    monkeypatch.setattr(control, "ask", lambda *_: alone)
    printed = CliRunner().invoke(app, ["status", str(tmp_path)]).output
    assert text in " ".join(printed.split())


@pytest.mark.parametrize("broken", [{}, {"members": None, "incidents": [None], "groups": {}}])
def test_a_status_that_lacks_parts_does_not_raise(broken: dict[str, Any]) -> None:
    assert problems_of(broken) == []
