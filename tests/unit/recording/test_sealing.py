"""A reader need not wait until a node seals its segments by itself."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from holdfast.pipeline import command
from holdfast.pipeline.jobs import PipelineFailed, RunReport
from holdfast.pipeline.sealing import Reported, seal_running, text_of
from holdfast.recording.segment_writer import SegmentWriter
from holdfast.telemetry.facts import NodeFact
from holdfast.types import SECOND

WALL_NS = 1_700_000_000 * SECOND


def writer(directory: Path) -> SegmentWriter:
    node = "0a" * 16
    return SegmentWriter(directory, node, "n1", 1, WALL_NS, lambda: 5 * SECOND, background=False)


def test_everything_recorded_until_now_is_readable_after_sealing(tmp_path: Path) -> None:
    segments = writer(tmp_path)
    segments.record([NodeFact(SECOND, "alarm", "something")])
    segments.write_out()
    assert list(tmp_path.glob("landing/*/*/*.parquet")) == [], "it is not old enough"
    assert segments.seal() == WALL_NS + 5 * SECOND
    assert len(list(tmp_path.glob("landing/*/*/*.parquet"))) == 1
    segments.close()


def answering(path: Path, answer: object) -> threading.Thread:
    """A node that answers one request."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen(1)

    def serve() -> None:
        client, _ = server.accept()
        client.recv(1000)
        client.sendall(msgspec.json.encode(answer) + b"\n")
        client.close()
        server.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


def test_a_running_node_is_asked_and_says_up_to_when_it_has_reported(tmp_path: Path) -> None:
    landing = tmp_path / "n1" / "telemetry" / "landing"
    landing.mkdir(parents=True)
    until_ns = WALL_NS + 7 * SECOND
    answer = {"name": "roof", "until_ns": until_ns, "problem": ""}
    thread = answering(tmp_path / "n1" / "control.sock", answer)
    (reported,) = seal_running([str(landing)])
    thread.join(10)
    assert (reported.name, reported.until_ns, reported.running) == ("roof", until_ns, True)
    assert text_of(reported) == "roof: up to 2023-11-14 22:13:27 UTC (running)"


def test_a_stopped_node_has_reported_up_to_its_last_segment(tmp_path: Path) -> None:
    data = tmp_path / "n2"
    segments = writer(data / "telemetry")
    segments.record([NodeFact(SECOND, "alarm", "something")])
    segments.close()
    (reported,) = seal_running([str(data / "telemetry" / "landing")])
    assert not reported.running
    assert reported.until_ns > 0
    assert text_of(reported).endswith("(not running)")


def test_a_copy_or_synthetic_telemetry_is_no_report_of_a_node(tmp_path: Path) -> None:
    """The times of its files are when it was copied or made, and its directory has another name than the node."""
    segments = writer(tmp_path / "collected" / "n3")
    segments.record([NodeFact(SECOND, "alarm", "something")])
    segments.close()
    assert seal_running([str(tmp_path / "collected" / "n3" / "landing")]) == ()


def test_a_pipeline_run_seals_before_it_reads_and_says_up_to_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its report describes the time before the last segments: '16 paths dead' after a sound demonstration."""
    order: list[str] = []
    reported = Reported(name="roof", until_ns=WALL_NS, running=True)

    def seal(landings: list[str]) -> tuple[Reported, ...]:
        order.append("seal")
        return (reported,)

    def run(*_: object) -> RunReport:
        order.append("read")
        raise PipelineFailed("no engine in this test")

    monkeypatch.setattr(command, "seal_running", seal)
    monkeypatch.setattr(command, "run_pipeline", run)
    landing = tmp_path / "landing"
    landing.mkdir()
    given = ["run", "--telemetry", str(tmp_path), "--out", str(tmp_path / "out")]
    CliRunner().invoke(command.app, given)
    assert order == ["seal", "read"]
    order.clear()
    CliRunner().invoke(command.app, [*given, "--no-seal"])
    assert order == ["read"]
