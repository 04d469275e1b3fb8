"""The compiled core: used only where it fits the source, and the same program as the interpreted one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import accelerator

SOURCE = Path(accelerator.__file__).parent
BUILT = accelerator.MANIFEST.exists() and not accelerator.BINARIES.is_symlink()
needs_binaries = pytest.mark.skipif(
    not BUILT, reason="the core is not compiled here (no C compiler, or HOLDFAST_PURE)"
)

REPORT = (
    "import holdfast.links.sender, holdfast.accelerator as a; print(a.core(), a.reason(), sep='|')"
)
TRACE = """
from holdfast import accelerator
from holdfast.sim.cluster import Cluster, GroupPlan
from holdfast.sim.ledger import Load
from holdfast.sim.trace import Trace
from holdfast.types import SECOND, MILLISECOND
load = Load(every_ns=20 * MILLISECOND, batch_max=4, size_max=300)
cluster = Cluster(7, 3, ("red", "blue"), groups=(GroupPlan(voters=3, load=load),), until_ns=12 * SECOND, trace=Trace())
summary = cluster.run()
print(accelerator.core(), summary["trace"], summary["delivered"])
"""


def run(code: str, root: Path = SOURCE.parent, **env: str) -> str:
    clean = {name: value for name, value in os.environ.items() if name != "HOLDFAST_PURE"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=clean | {"PYTHONPATH": str(root)} | env,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package with its binaries, elsewhere."""
    shutil.copytree(SOURCE, tmp_path / "holdfast", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


@needs_binaries
def test_binaries_that_fit_the_source_are_used(copy: Path) -> None:
    assert run(REPORT, copy) == "compiled|"


@needs_binaries
def test_one_changed_file_and_the_source_runs(copy: Path) -> None:
    file = copy / "holdfast" / "links" / "sender.py"
    stamp = file.stat()
    file.write_text(file.read_text() + "\nCHANGED = True\n")
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # its time says nothing
    text = run("import holdfast.links.sender as s; print(s.CHANGED); " + REPORT, copy)
    assert text.splitlines()[0] == "True"
    assert text.splitlines()[1].startswith("interpreted|the source has changed")


@needs_binaries
def test_a_new_file_makes_the_binaries_stale(copy: Path) -> None:
    (copy / "holdfast" / "group" / "more.py").write_text("")
    assert run(REPORT, copy).startswith("interpreted|the source has changed")


@needs_binaries
def test_holdfast_pure_ignores_the_binaries(copy: Path) -> None:
    assert run(REPORT, copy, HOLDFAST_PURE="1") == "interpreted|HOLDFAST_PURE is set"
    assert run(REPORT, copy, HOLDFAST_PURE="0") == "compiled|"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "the core is not compiled"),
        ("{", "the compiled core is damaged"),
        ("{}", "the compiled core is damaged"),
        (
            json.dumps({"python": "cpython-27", "digest": "", "modules": []}),
            "the compiled core is for",
        ),
    ],
)
def test_without_fitting_binaries_the_source_runs_and_says_why(
    copy: Path, text: str | None, reason: str
) -> None:
    shutil.rmtree(copy / "holdfast" / "_compiled", ignore_errors=True)
    if text is not None:
        (copy / "holdfast" / "_compiled").mkdir()
        (copy / "holdfast" / "_compiled" / "manifest.json").write_text(text)
    core, _, why = run(REPORT, copy).partition("|")
    assert core == "interpreted"
    assert why.startswith(reason)


@needs_binaries
def test_both_cores_send_the_same_bytes() -> None:
    """The digest of a simulated run covers every byte that left a node, and when."""
    compiled, pure = run(TRACE).split(), run(TRACE, HOLDFAST_PURE="1").split()
    assert compiled[0] == "compiled"
    assert pure[0] == "interpreted"
    assert compiled[1:] == pure[1:]
    assert int(pure[2]) > 100
