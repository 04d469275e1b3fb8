"""`holdfast advice`: what is in force and why; without valid advice it says that nodes work as before."""

from __future__ import annotations

import json
import time
from pathlib import Path

import msgspec
import typer
from typer.testing import CliRunner, Result

from holdfast.cli.advice import advice as command
from holdfast.recording.advice import encode_advice
from holdfast.telemetry.advice import PPM, Advice, BusyWindow, PathRisk

S = 1_000_000


def invoke(*arguments: object) -> Result:
    app = typer.Typer()
    app.command()(command)
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, [*map(str, arguments)])


def edition(now_us: int, **more: int) -> Advice:
    path = ("ab" * 16, "eth0", "cd" * 16, "eth0", "lan1", "udp")
    risk = PathRisk(path, 900_000, now_us + 3600 * S, True, "fails every night")
    busy = BusyWindow("ab" * 16, "eth0", now_us - S, now_us + 60 * S, PPM // 4)
    usual = {"created_us": now_us, "valid_until_us": now_us + 3600 * S} | more
    return Advice(snapshot=42, risks=(risk,), busy=(busy,), **usual)


def test_what_is_in_force_is_shown_with_the_reason(tmp_path: Path) -> None:
    now_us = time.time_ns() // 1000
    (tmp_path / "advice").mkdir()
    (tmp_path / "advice" / "00000042.parquet").write_bytes(encode_advice(edition(now_us)))
    result = invoke(tmp_path)
    assert result.exit_code == 0
    assert "Advice from snapshot 42" in result.stdout
    assert "fails every night" in result.stdout
    assert "Busy now: abababab eth0, 25 % of the probes" in result.stdout
    shown = json.loads(invoke(tmp_path, "--json", "--node", "ab" * 16).stdout)
    assert shown["in_force"] is True
    assert len(shown["avoided"]) == 1


def test_stale_and_damaged_advice_is_named(tmp_path: Path) -> None:
    now_us = time.time_ns() // 1000
    stale = msgspec.structs.replace(edition(now_us), valid_until_us=now_us - 10 * S)
    (tmp_path / "00000042.parquet").write_bytes(encode_advice(stale))
    (tmp_path / "00000043.parquet").write_bytes(b"PAR1")
    result = invoke(tmp_path)
    assert "00000043.parquet: not an advice file" in result.stdout
    assert "Not in force: it expired 1" in result.stdout
    assert "Nodes work as before" in result.stdout


def test_no_advice_is_no_error_and_no_directory_is(tmp_path: Path) -> None:
    assert "No advice. Nodes work as before." in invoke(tmp_path).stdout
    assert invoke(tmp_path / "nowhere").exit_code != 0
