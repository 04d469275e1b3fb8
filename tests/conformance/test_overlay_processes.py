"""The overlay over real sockets: twelve node processes, kills, restarts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic_ns, sleep
from typing import Any

import pytest
from tests.conformance.worlds import free_port

from holdfast.errors import HoldfastError
from holdfast.runtime.control import ask
from holdfast.types import SECOND

COUNT = 12
HOSTS = [f"127.0.51.{k}" for k in range(1, COUNT + 1)]
PATIENCE_NS = 120 * SECOND


class Domain:
    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        port = free_port(HOSTS)
        for k in range(COUNT):
            realm = "east" if k % 2 else "west"
            text = f"""
domain = "processes"
name = "n{k}"
data = "{directory / f"n{k}"}"
join = ["{HOSTS[0]}:{port}", "{HOSTS[1]}:{port}"]
security.mode = "plain"
telemetry.enabled = false
[[adapter]]
name = "red"
address = "{HOSTS[k]}:{port}"
measure = []
[overlay]
realm = "{realm}"
"""
            (directory / f"n{k}.toml").write_text(text)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, role: str = "worker") -> None:
        config = self._directory / f"{name}.toml"
        command = [sys.executable, "-m", "tests.support.role_node", str(config), role]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=dict(os.environ))
        self.processes[name] = process
        self._stack.callback(_end, process)

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def ask(self, name: str, **request: Any) -> dict[str, Any]:
        return ask(self._directory / name / "control.sock", request, timeout_s=30.0)

    def answers(self, name: str, text: str = "x") -> list[str]:
        """The nodes that answer when `name` asks all workers."""
        try:
            outcome = self.ask(name, do="ask_role", role="worker", text=text)
        except HoldfastError:
            return []
        return sorted(reply["node"] for reply in outcome["replies"])

    def until_answers(self, name: str, wanted: list[str]) -> None:
        deadline = monotonic_ns() + PATIENCE_NS
        seen: list[str] = []
        while monotonic_ns() < deadline:
            seen = self.answers(name)
            if seen == sorted(wanted):
                return
            sleep(0.5)
        raise AssertionError(f"{name} reaches {seen}, not {sorted(wanted)}")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()


@pytest.fixture
def domain(tmp_path: Path) -> Iterator[Domain]:
    with ExitStack() as stack:
        yield Domain(tmp_path, stack)


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_every_living_instance_is_reached_after_kills_and_restarts(domain: Domain) -> None:
    names = [f"n{k}" for k in range(COUNT)]
    workers = names[2:]
    for name in names:
        domain.start(name, "worker" if name in workers else "")
    domain.until_answers("n0", workers)
    found = domain.ask("n1", do="find", role="worker")
    assert sorted(place["node"] for place in found["instances"]) == sorted(workers)

    killed = ["n3", "n6", found["first"] if found["first"] not in ("n3", "n6") else "n9"]
    for name in killed:
        domain.kill(name)
    left = [name for name in workers if name not in killed]
    for asker in ("n0", "n1", left[0]):
        domain.until_answers(asker, left)

    for name in killed:
        domain.start(name)
    for asker in ("n0", left[-1]):
        domain.until_answers(asker, workers)
