"""`holdfast status` for people."""

from __future__ import annotations

from typing import Any

import pytest
from tests.web.fake_status import FakeDomain
from typer.testing import CliRunner

from holdfast.cli import app
from holdfast.runtime import control


def shown(status: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> str:
    monkeypatch.setattr(control, "ask", lambda *_: status)
    result = CliRunner().invoke(app, ["status", str(tmp_path)], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.output


def test_it_says_where_traffic_goes_and_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    status = FakeDomain(2).status()
    link = status["links"][0]
    link["channels"][0]["reason"] = "red/red/tcp: segments over 1000 bytes do not pass"
    row = {"port": 20, "path": "", "reason": "waits", "moves": 0}
    link["datagrams"] = [row | {"sent": 1, "refused": 3, "refusal": "900 bytes do not pass"}]
    lines = shown(status, monkeypatch, tmp_path).splitlines()
    channel = next(line for line in lines if f"channel 0 to {link['peer']}" in line)
    assert "segments over 1000 bytes do not pass" in channel
    datagrams = next(line for line in lines if f"datagrams 20 to {link['peer']}" in line)
    assert "waits; 3 refused: 900 bytes do not pass" in datagrams
