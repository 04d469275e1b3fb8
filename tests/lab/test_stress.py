"""`holdfast stress` between real nodes: the matrix shows what is broken, and only that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.lab.labs import a_lab

from holdfast.lab import nodes
from holdfast.lab.lab import Lab

pytestmark = [pytest.mark.root, pytest.mark.alone]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with a_lab(tmp_path_factory.mktemp("labs"), hosts=2) as made:
        made.start_nodes()
        yield made


@pytest.fixture(autouse=True)
def healed(lab: Lab) -> Iterator[None]:
    yield
    lab.heal()


def stress(lab: Lab, *options: str) -> tuple[int, str]:
    first = str(nodes.config_of(lab.directory, "n1"))
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "stress", first, "n2", "--rounds", "4", *options],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, done.stdout


def matrix(lab: Lab, *options: str) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The cells of each direction."""
    _, text = stress(lab, "--json", *options)
    pairs = json.loads(text)["pairs"]
    assert [pair["failure"] for pair in pairs] == ["", ""]
    return {(pair["sender"], pair["listener"]): pair["cells"] for pair in pairs}


def test_between_sound_nodes_everything_passes_and_the_matrix_is_stored(
    lab: Lab, tmp_path: Path
) -> None:
    out = tmp_path / "matrix.json"
    code, text = stress(lab, "--out", str(out))
    assert code == 0, text
    assert "n1 -> n2" in text
    assert "n2 -> n1" in text
    stored = json.loads(out.read_text())
    kinds = {cell["kind"] for pair in stored["pairs"] for cell in pair["cells"]}
    assert "udp" in kinds
    for pair in stored["pairs"]:
        assert all(cell["sent"] == cell["heard"] > 0 for cell in pair["cells"])


def test_a_broken_way_fails_the_check_and_only_it_is_named(lab: Lab) -> None:
    lab.break_("red n1->n2 over 1200", "blue n2->n1 pattern 55555555 only udp")
    found = matrix(lab, "--size", "600", "--size", "1200", "--size", "1201", "--size", "1500")
    for cell in found["n1", "n2"]:
        if cell["kind"] == "udp":
            wrong = cell["adapter"] == "red" and cell["size"] > 1200
            assert cell["heard"] == (0 if wrong else 4), cell
    for cell in found["n2", "n1"]:
        if cell["kind"] == "udp":
            wrong = cell["adapter"] == "blue" and cell["pattern"] == "55"
            assert cell["heard"] == (0 if wrong else 4), cell


def test_exit_code_1_says_that_something_does_not_pass(lab: Lab) -> None:
    lab.break_("red n1->n2 over 1000")
    code, text = stress(lab)
    assert code == 1
    assert "no" in text


def test_replicas_that_cannot_be_asked_are_named(lab: Lab) -> None:
    first = str(nodes.config_of(lab.directory, "n1"))
    for words, complaint in (
        (["n1", "n2"], "--at"),
        ([first, "n9"], "no member is named 'n9'; the members are n1, n2"),
        ([first], "at least two nodes"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", "stress", *words],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode in (1, 2)
        assert complaint in done.stderr
        assert "Traceback" not in done.stderr


def test_every_kind_shows_its_own_fault_and_no_other(lab: Lab) -> None:
    """Both directions share the connections of TCP: a pattern that one way loses must not show on the other."""
    lab.break_(
        "red n1->n2 over 1000", "blue n2->n1 pattern 55555555", "red n2->n1 filter multicast"
    )
    found = matrix(lab)
    assert {cell["kind"] for cell in found["n1", "n2"]} == {
        "udp",
        "alt",
        "frag",
        "tcp",
        "multicast",
    }
    for cell in found["n1", "n2"]:
        wrong = cell["adapter"] == "red" and cell["size"] > 1000
        assert cell["heard"] == (0 if wrong else 4), cell
        assert cell["sent"] == 4, cell
    for cell in found["n2", "n1"]:
        lost = cell["adapter"] == "blue" and cell["pattern"] == "55"
        lost = lost or (cell["adapter"] == "red" and cell["kind"] == "multicast")
        assert cell["heard"] == (0 if lost else 4), cell
        assert cell["sent"] == 4, cell


def test_in_a_plain_domain_segments_pass_both_ways_as_well(tmp_path: Path) -> None:
    """Both ends number what they send on the connections that measure, and neither takes the other's for old."""
    name = f"p{os.getpid()}"
    made = Lab.up(name, hosts=2, subnets=1, run_in=tmp_path)
    try:
        made.start_nodes(plain=True)
        data = str(nodes.data_of(made.directory, "n1"))
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", "stress", data, "n2", "--rounds", "2"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "tcp" in done.stdout
    finally:
        Lab.down(name, tmp_path)
