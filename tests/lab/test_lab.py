"""Labs come and go without a trace, also two at once, and also after a crash."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.lab.wire import Wire
from typer.testing import CliRunner

from holdfast.cli.lab import app
from holdfast.errors import MisuseError, SetupError
from holdfast.lab import tools
from holdfast.lab.lab import Lab
from holdfast.lab.plan import prefix
from holdfast.lab.state import load, running

NAME = f"u{os.getpid()}"


def mine(name: str = NAME) -> list[str]:
    return [one for one in tools.namespaces() if one.startswith(prefix(name))]


@pytest.mark.root
def test_a_lab_leaves_nothing_behind(run_dir: Path) -> None:
    lab = Lab.up(NAME, run_in=run_dir)
    assert len(mine()) == 4
    lab.break_("red n1->n2 slow 1ms")
    forwarder = load(lab.directory).forwarder
    assert forwarder is not None
    assert len(Lab.down(NAME, run_dir)) == 4
    assert mine() == []
    assert not lab.directory.exists()
    assert not running(forwarder)


@pytest.mark.root
def test_two_labs_do_not_meet(run_dir: Path) -> None:
    first, second = f"{NAME}a", f"{NAME}b"
    labs = [Lab.up(name, 2, 1, run_in=run_dir) for name in (first, second)]
    try:
        labs[0].break_("red n1->n2 blackout")
        for lab, passes in zip(labs, (False, True), strict=True):
            with Wire(lab) as wire:
                assert wire.passes(1500) is passes
        assert Lab.names(run_dir) == [first, second]
        Lab.down(first, run_dir)
        with Wire(labs[1]) as wire:
            assert wire.passes(1500)
    finally:
        for name in Lab.names(run_dir):
            Lab.down(name, run_dir)


@pytest.mark.root
def test_a_lab_that_is_there_is_not_made_again(run_dir: Path) -> None:
    Lab.up(NAME, 2, 1, run_in=run_dir)
    try:
        with pytest.raises(MisuseError, match="already"):
            Lab.up(NAME, 2, 1, run_in=run_dir)
        assert len(mine()) == 3
    finally:
        Lab.down(NAME, run_dir)


@pytest.mark.root
def test_what_a_crash_left_is_removed(run_dir: Path) -> None:
    """A command that is killed half way leaves namespaces and a state that is not ready, or none at all."""
    script = (
        "import os, signal, sys; from pathlib import Path; from holdfast.lab import lab, topology;"
        "topology._devices = lambda plan: os.kill(os.getpid(), signal.SIGKILL);"
        "lab.Lab.up(sys.argv[1], run_in=Path(sys.argv[2]))"
    )
    done = subprocess.run([sys.executable, "-c", script, NAME, str(run_dir)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert mine()
    with pytest.raises(Exception, match="is incomplete"):
        Lab.open(NAME, run_dir)
    Lab.down(NAME, run_dir)
    assert mine() == []


@pytest.mark.root
def test_namespaces_without_a_state_are_removed_by_name(run_dir: Path) -> None:
    lab = Lab.up(NAME, 2, 1, run_in=run_dir)
    (lab.directory / "lab.json").unlink()
    assert len(Lab.down(NAME, run_dir)) == 3
    with pytest.raises(MisuseError, match="no lab"):
        Lab.down(NAME, run_dir)


@pytest.mark.root
def test_programs_in_a_lab_end_with_it(run_dir: Path) -> None:
    lab = Lab.up(NAME, 2, 1, run_in=run_dir)
    process = lab.popen("n1", ["sh", "-c", "echo up; exec sleep 600"], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"up\n"
    Lab.down(NAME, run_dir)
    assert process.wait(5) == -signal.SIGTERM


@pytest.mark.root
def test_a_forwarder_that_was_killed_is_started_again(run_dir: Path) -> None:
    lab = Lab.up(NAME, 2, 1, run_in=run_dir)
    try:
        lab.break_("red n1->n2 slow 1ms")
        first = load(lab.directory).forwarder
        assert first is not None
        os.kill(first.pid, signal.SIGKILL)
        os.waitpid(first.pid, 0)
        lab.heal()
        with Wire(lab) as wire:
            assert wire.passes(1500)
        lab.break_("red n1->n2 duplicate 100%")
        with Wire(lab) as wire:
            assert wire.arrive([bytes(100)]) == [0, 0]
    finally:
        Lab.down(NAME, run_dir)


@pytest.mark.root
def test_the_commands_do_what_they_say(run_dir: Path) -> None:
    def do(*words: str) -> dict[str, object]:
        options = ["--name", NAME, "--run-dir", str(run_dir), "--json"]
        result = CliRunner().invoke(app, [*words, *options], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        answer: dict[str, object] = json.loads(result.stdout)
        return answer

    assert do("up", "--hosts", "2", "--subnets", "1")["name"] == NAME
    try:
        assert do("break", "red  n1->n2  over 1000") == {"faults": {"f1": "red n1->n2 over 1000"}}
        assert do("status")["labs"][0]["faults"][0]["text"] == "red n1->n2 over 1000"  # type: ignore[index]
        words = [sys.executable, "-m", "holdfast", "lab", "exec", "n2", "--name", NAME]
        words += ["--run-dir", str(run_dir), "--", "sh", "-c", "ip -br addr show red; exit 7"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 7
        assert "10.70.0.2/24" in done.stdout
        assert do("heal") == {"healed": ["f1"]}
    finally:
        do("down")
    assert mine() == []


def test_without_root_a_lab_is_refused_and_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, run_dir: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SetupError, match=r"needs root.*nothing was done.*sudo"):
        Lab.up(NAME, run_in=run_dir)
    assert not run_dir.exists()


def test_without_its_programs_a_lab_is_refused_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, run_dir: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(tools.shutil, "which", lambda _: None)
    with pytest.raises(SetupError, match="apt-get install iproute2 nftables ethtool"):
        Lab.up(NAME, run_in=run_dir)
    assert not run_dir.exists()
