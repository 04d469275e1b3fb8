"""Every code block in the documentation runs: Python as it stands, configurations are checked, commands are run.

Blocks of one page share a directory and, for Python, their names, as they do for a reader who follows along.
`text` blocks are pictures and are not run. Commands that begin with `#` are for root, and are run where a lab can be.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from holdfast.cli.lab.lab import Lab
from holdfast.group.config import GroupConfig
from holdfast.group.replica import ReplicaMachine
from holdfast.node.config import parse_config
from holdfast.types import NodeId

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUN = {"python", "toml", "console"}
SHOWN = {"text", "json"}


def blocks(page: Path) -> list[tuple[str, str]]:
    return [(kind, code) for kind, code in BLOCK.findall(page.read_text())]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_says_what_it_is(page: Path) -> None:
    kinds = {kind for kind, _ in blocks(page)}
    assert kinds <= RUN | SHOWN, f"unknown kinds of blocks: {kinds - RUN - SHOWN}"


@pytest.mark.parametrize(
    "page", [p for p in PAGES if any(kind in RUN for kind, _ in blocks(p))], ids=name_of
)
def test_every_block_runs(page: Path, tmp_path: Path) -> None:
    python = ""
    for kind, code in blocks(page):
        if kind == "python":
            python += code + "\n"
        elif kind == "toml":
            parse_config(code, name_of(page))
        elif kind == "console":
            run_console(code, tmp_path)
    if python:
        script = tmp_path / "page.py"
        script.write_text(python)
        run([sys.executable, str(script)], tmp_path)


def run_console(code: str, directory: Path) -> None:
    for line in code.splitlines():
        if line.startswith("$ ") or (line.startswith("# ") and lab_possible()):
            run(["bash", "-ec", line[2:]], directory)


def lab_possible() -> bool:
    return os.geteuid() == 0 and all(map(shutil.which, ("ip", "nft", "ethtool")))


@pytest.fixture(autouse=True)
def no_lab_is_left() -> Iterator[None]:
    """A page that failed half way leaves none behind."""
    yield
    if lab_possible() and "tour" in Lab.names():
        Lab.down("tour")


def run(command: list[str], directory: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=directory,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, f"{command}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"


def test_every_link_between_pages_leads_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{name_of(page)} links to {target}"


def test_every_event_of_a_group_is_explained() -> None:
    source = "".join(path.read_text() for path in (ROOT / "src/holdfast/group").glob("*.py"))
    events = set(re.findall(r'\bfact\(\s*"([a-z _]+)"', source))
    events |= set(re.findall(r'GroupFact\(now, [\w.]+, "([a-z _]+)"', source))
    page = (ROOT / "docs/reference/telemetry.md").read_text()
    part = page.partition("### `group`")[2].partition("###")[0]
    rows = re.findall(r"^\| (`[^|]*) \|", part, re.MULTILINE)
    explained = set(re.findall(r"`([a-z _]+)`", " ".join(rows)))
    assert len(events) > 20
    assert events <= explained


def test_every_field_of_a_groups_status_is_explained() -> None:
    config = GroupConfig("book", ("n1",))
    replica = ReplicaMachine(
        config=config, node=NodeId(bytes(16)), name="n1", incarnation=1, rng=Random(1)
    )
    page = (ROOT / "docs/reference/control.md").read_text()
    shown = re.search(r'"groups": \[(.*?)^  \],', page, re.MULTILINE | re.DOTALL)
    assert shown is not None
    assert set(replica.status()) <= set(re.findall(r'"(\w+)":', shown[1]))
