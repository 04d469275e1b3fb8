"""The demonstration: it keeps its claims, and whenever it is interrupted it leaves nothing running."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PATIENCE_S = 120


def start(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "holdfast", "demo", "--dir", str(directory), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=interruptible,  # noqa: PLW1509 no thread has been started
    )


def interruptible() -> None:
    """What runs in the background of a shell ignores Ctrl-C, and so would we."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def left_running(directory: Path) -> list[str]:
    """The command lines of processes that still work in this directory."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue  # not a process, or gone
        if str(directory) in command:
            found.append(command)
    return found


@pytest.mark.slow
@pytest.mark.alone
def test_the_demonstration_keeps_its_claims(tmp_path: Path) -> None:
    """With `--keep`, Ctrl-C after the last step is its normal end."""
    demo = start(tmp_path / "demo", "--no-pipeline", "--keep")
    assert demo.stdout is not None
    output = ""
    for line in demo.stdout:
        output += line
        if "The nodes keep running" in line:
            break
    demo.send_signal(signal.SIGINT)
    output += demo.communicate(timeout=PATIENCE_S)[0]
    assert demo.returncode == 0, output
    claims = " ".join(output.split())
    for claim in (
        "all replicas are equal",
        "a request to a role reaches every instance: 5 of 5 answered",
        "the object is still read: the content has the same SHA-256",
        "the dialog delivered everything exactly once, in order: 300 of 300",
    ):
        assert claim in claims, output
    # An instance behind the killed node on the tree of the role may be named as unknown.
    named = (
        r"names the instance that died: answered: (n[1235](, )?)+; failed: n4(; unknown: n[1235])?"
    )
    assert re.search(named, claims), output
    assert "Watch it live: http://127.0.0.1:" in output
    assert left_running(tmp_path) == []


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("1. A domain", signal.SIGTERM),
        ("Watch it live", signal.SIGINT),
        ("3. A soft error", signal.SIGINT),
        ("3. A soft error", signal.SIGTERM),
    ],
)
def test_an_interrupted_demonstration_leaves_nothing_running(
    tmp_path: Path, moment: str, number: signal.Signals
) -> None:
    demo = start(tmp_path / "demo", "--no-pipeline")
    assert demo.stdout is not None
    for line in demo.stdout:
        if moment in line:
            break
    demo.send_signal(number)
    rest, _ = demo.communicate(timeout=PATIENCE_S)
    assert demo.returncode == 1, rest
    assert "Interrupted" in rest
    assert left_running(tmp_path) == []
