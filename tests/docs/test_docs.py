"""Every code block in the documentation runs: Python and console commands are executed, configurations are checked.

The blocks of one page share a directory and, for Python, a namespace. A configuration after the words "This is
`name.toml`:" becomes that file, for the commands after it. `text` and `json` blocks are not run. Commands that start
with `#` need root and run only where a lab is possible. A command that leaves a process behind writes its id to a file
`*.pid`.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from random import Random

import pytest

from holdfast.group.config import GroupConfig
from holdfast.group.replica import ReplicaMachine
from holdfast.lab.lab import Lab
from holdfast.node.config import parse_config
from holdfast.types import NodeId

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"This is `(\w+\.toml)`:\n\n```toml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUN = {"python", "toml", "console"}
SHOWN = {"text", "json"}


def blocks(page: Path) -> list[tuple[str, str]]:
    return [(kind, code) for kind, code in BLOCK.findall(page.read_text())]


def files(page: Path) -> dict[str, str]:
    """Configurations that the page names."""
    return {code: name for name, code in FILE.findall(page.read_text())}


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
            if (name := files(page).get(code)) is not None:
                (tmp_path / name).write_text(code)
        elif kind == "console":
            run_console(code, tmp_path)
    if "opentelemetry" in python and find_spec("opentelemetry") is None:
        pytest.skip("opentelemetry-sdk is not installed (extra dev)")
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
def no_process_is_left(tmp_path: Path) -> Iterator[None]:
    """End the nodes of a page that failed."""
    yield
    for file in tmp_path.glob("*.pid"):
        with suppress(ProcessLookupError, ValueError):
            os.kill(int(file.read_text()), signal.SIGKILL)


@pytest.fixture(autouse=True)
def no_lab_is_left() -> Iterator[None]:
    """Remove the lab of a page that failed."""
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


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, in the form that GitHub gives them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", page.read_text()):
        if target.startswith("http"):
            continue
        there = page.parent / target if target else page
        assert there.exists(), f"link to {target}"
        assert not anchor or anchor in anchors(there), f"link to {target}#{anchor}"


def test_every_event_of_a_group_is_explained() -> None:
    source = "".join(path.read_text() for path in (ROOT / "src/holdfast/group").rglob("*.py"))
    events = set(re.findall(r'\bfact\(\s*"([a-z _]+)"', source))
    events |= set(re.findall(r'GroupFact\(now, [\w.]+, "([a-z _]+)"', source))
    page = (ROOT / "docs/reference/telemetry.md").read_text()
    part = page.partition("## Events of a replica")[2].partition("\n## ")[0]
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
