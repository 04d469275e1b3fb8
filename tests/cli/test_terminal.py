"""Tables and lists for people, at the width of a plain terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.web.fake_status import FakeDomain
from typer.testing import CliRunner

from holdfast.cli import app
from holdfast.runtime import control


def output(
    answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch, where: Path, *command: str
) -> str:
    """What a command prints on a terminal of 80 columns, given the answer of the node."""
    monkeypatch.setattr(control, "ask", lambda *_, **__: answer)
    result = CliRunner().invoke(
        app, [*command[:2], str(where), *command[2:]], env={"COLUMNS": "80"}
    )
    assert result.exit_code == 0, result.output
    return result.output


def path(**changes: Any) -> dict[str, Any]:
    row = FakeDomain(2).status()["paths"][0]
    ends = {"sender": "n1", "listener": "n2", "sender_adapter": "blue", "listener_adapter": "blue"}
    return row | ends | {"subnet": "blue", "transport": "frag"} | changes


def test_a_row_of_the_table_fits_on_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    row = path(size=9000, size_max=9000, rtt_us=2565)
    text = output({"paths": [row]}, monkeypatch, tmp_path, "health", "table")
    line = next(line for line in text.splitlines() if "n1/blue -> n2/blue" in line)
    for cell in ("frag", "9000 of 9000", "0.0 %", "2.6 ms"):
        assert cell in line


def test_the_subnet_is_shown_where_the_adapters_do_not_name_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = [path(), path(sender_adapter="eth0")]
    text = output({"paths": rows}, monkeypatch, tmp_path, "health", "table")
    assert "n1/eth0 -> n2/blue (blue)" in text
    assert "n1/blue -> n2/blue (blue)" not in text


def test_an_incident_is_wrapped_within_the_terminal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = "UDP packets over 1000 bytes (972 of payload) vanish from n1/red to n2/red, one way only"
    incident = {"error_class": "size", "since_s": 14.0, "count": 2, "text": text}
    shown = output({"incidents": [incident]}, monkeypatch, tmp_path, "health", "incidents")
    assert max(map(len, shown.splitlines())) <= 80
    assert " ".join(shown.split()) == f"size since 14 s, 2 times: {text}"


def test_faults_are_listed_in_words_and_as_json(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answer = {"id": 1, "faults": ["1: over 1000, from red to any host: hit 0 times"]}
    where = str(tmp_path)
    monkeypatch.setattr(control, "ask", lambda *_, **__: answer)
    run = CliRunner().invoke
    assert run(app, ["fault", where, "over 1000"]).output == answer["faults"][0] + "\n"
    assert json.loads(run(app, ["fault", where, "over 1000", "--json"]).output) == answer
    monkeypatch.setattr(control, "ask", lambda *_, **__: {"faults": []})
    assert run(app, ["heal", where]).output == "no faults are active\n"


def test_a_service_and_a_fault_are_whole_in_the_list_of_dialogs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dialog = {
        "id": "91" * 24, "name": "91724c76-0e02-0", "uri": "warehouse-7", "state": "faulted", "sent": 1, "queued": 1,
        "in_flight": 0, "received": 0, "available": 0, "fault": "unknown-service", "poison": [],
    }  # fmt: skip
    answer = {"stores": [], "dialogs": [dialog]}
    lines = output(answer, monkeypatch, tmp_path, "dialogs", "list").splitlines()
    (row,) = (line for line in lines if "91724c76-0e02-0" in line)
    assert "warehouse-7" in row
    assert "faulted" in row
    assert any("unknown-service" in line for line in lines)
