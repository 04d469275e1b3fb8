"""Following a job of a node: a command that is stopped stops the job, which runs on the node."""

from __future__ import annotations

import json
import signal
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


class FakeNode(socketserver.UnixStreamServer):
    """A control socket with a job that runs until it is stopped."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), Handler)
        self.asked: list[str] = []
        self.followed = threading.Event()
        """A command follows the job."""


class Handler(socketserver.StreamRequestHandler):
    server: FakeNode

    def handle(self) -> None:
        request = json.loads(self.rfile.readline())
        self.server.asked.append(request["do"])
        answers: dict[str, Any] = {
            "object-start": {"job": 7},
            "object-job": {"state": "running", "done": 1, "total": 2, "text": ""},
            "object-stop": {"state": "stopping"},
        }
        self.wfile.write(json.dumps(answers[request["do"]]).encode() + b"\n")
        if request["do"] == "object-job":
            self.server.followed.set()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    with FakeNode(tmp_path / "control.sock") as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_is_stopped_stops_its_job(
    node: FakeNode, tmp_path: Path, number: signal.Signals
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"data")
    command = [sys.executable, "-m", "holdfast", "objects", "put", str(tmp_path), str(file), "/x"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert node.followed.wait(60)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "stopped; the steps that were done stay" in " ".join(errors.split())
    assert node.asked[0] == "object-start"
    assert node.asked[-1] == "object-stop"
