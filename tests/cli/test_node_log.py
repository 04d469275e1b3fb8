"""The log of `holdfast node`: text for people, or JSON lines with `--log-format json` or `[log] format` (U5)."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from tests.conformance.worlds import free_port

from holdfast.cli.node import LogFormat, LogLevel, run
from holdfast.errors import ConfigError, MisuseError

PATIENCE_S = 100


def write(path: Path, extra: str = "") -> Path:
    path.write_text(
        f"""
domain = "logs"
name = "n1"
security.mode = "plain"
{extra}
[[adapter]]
name = "red"
address = "127.0.0.1:{free_port(["127.0.0.1"])}"
"""
    )
    return path


def test_every_line_of_a_node_that_logs_json_is_an_object_with_its_fields(tmp_path: Path) -> None:
    file = write(tmp_path / "n1.toml", 'log.format = "json"')
    node = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "node", str(file)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        assert node.stdout is not None
        lines = []
        for text in node.stdout:
            lines.append(json.loads(text))
            if lines[-1]["event"] == "node_running":
                break
        node.send_signal(signal.SIGTERM)
        rest, _ = node.communicate(timeout=PATIENCE_S)
    finally:
        node.kill()
    lines += [json.loads(text) for text in rest.splitlines()]
    assert node.returncode == 0
    events = [line["event"] for line in lines]
    assert events[0] == "plain_mode"
    assert {"node_start", "node_running", "node_stop"} <= set(events)
    for line in lines:
        assert line["time"].endswith("Z")
        assert (line["node"], line["domain"], line["subsystem"]) == ("n1", "logs", "node")
    running = lines[events.index("node_running")]
    assert running["incarnation"] == 1
    assert running["message"] == "node n1 of domain logs is running, incarnation 1"


def test_an_error_at_the_start_is_a_record_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(typer.Exit) as end:
        run(tmp_path / "missing.toml", log_format=LogFormat.json)
    assert end.value.exit_code == 2
    (record,) = caplog.records
    assert vars(record)["event"] == "node_ended"
    assert vars(record)["error"] == "ConfigError"
    assert "cannot be read" in record.getMessage()


def test_people_get_the_error_as_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        run(tmp_path / "missing.toml")
    assert caplog.records == []


@pytest.mark.parametrize(
    ("options", "format_", "level"),
    [
        ({}, "json", "error"),
        ({"quiet": True}, "json", "warning"),
        ({"log_format": LogFormat.text, "log_level": LogLevel.debug}, "text", "debug"),
    ],
)
def test_options_win_over_the_configuration(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str],
    format_: str,
    level: str,
) -> None:
    file = write(tmp_path / "n1.toml", 'log = {format = "json", level = "error"}')
    installed = []
    monkeypatch.setattr("holdfast.runtime.logs.install", lambda *given: installed.append(given))
    monkeypatch.setattr("holdfast.runtime.loop.run", lambda work: work.close())
    run(file, **options)  # type: ignore[arg-type]  # each has the type of its option
    ((config, fields),) = installed
    assert (config.format, config.level) == (format_, level)
    assert fields == {"node": "n1", "domain": "logs"}


def test_quiet_and_a_level_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(MisuseError, match="nothing was started"):
        run(write(tmp_path / "n1.toml"), quiet=True, log_level=LogLevel.info)


def test_every_level_of_the_command_line_is_one_of_logging() -> None:
    assert all(level.value.upper() in logging.getLevelNamesMapping() for level in LogLevel)
