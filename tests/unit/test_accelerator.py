"""The compiled core: used only where it fits the source, and the same program as the interpreted one."""

from __future__ import annotations

import ast
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
GROUP = """
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
DIALOGS = """
from holdfast import accelerator
from holdfast.sim.dialog_load import DialogLoad
from holdfast.sim.trace import Trace
trace = Trace()
result = DialogLoad(3, messages=40, transacted=True, moves=True, seconds=13, trace=trace).run()
print(accelerator.core(), trace.digest(), result["delivered"])
"""
ROLES = """
import hashlib
from holdfast import accelerator
from holdfast.sim.overlay_world import World
from holdfast.types import SECOND
total = hashlib.sha256()
class Traced(World):
    def _transmit(self, host, peer, item):
        total.update(b"%d " % self.now + host.id + peer + b"".join(item.messages))
        super()._transmit(host, peer, item)
world = Traced(5)
names = [f"n{k}" for k in range(8)]
for k, name in enumerate(names):
    world.add(name, realm="east" if k % 2 else "west")
world.mesh(3)
world.run(3 * SECOND)
for name in names[::3]:
    world.publish(name)
    world.run(2 * SECOND)
for k in range(40):
    world.send(names[k % 8], b"%d" % k, aggregate=k % 4 == 0)
world.cut("n0", "n1")
world.run(3 * SECOND)
world.kill("n3")
world.run(5 * SECOND)
world.restart("n3")
world.run(5 * SECOND)
print(accelerator.core(), total.hexdigest(), world.frames)
"""
OBJECTS = """
import hashlib
from holdfast import accelerator
from holdfast.sim.objects_world import ObjectWorld
from holdfast.types import SECOND
total = hashlib.sha256()
class Traced(ObjectWorld):
    def transmit(self, host, peer, messages):
        total.update(b"%d " % self.now + host.id + peer + b"".join(messages))
        super().transmit(host, peer, messages)
world = Traced(5)
world.run(3 * SECOND)
for k in range(8):
    assert world.create("abcde"[k % 5], f"/file{k}", bytes(20_000 + k)).ok
    assert world.write("abcde"[k % 4], f"/file{k}", b"new" * k).ok
    assert world.read("e", f"/file{k}").ok
world.kill("b")
world.run(20 * SECOND)
world.restart("b")
world.run(20 * SECOND)
print(accelerator.core(), total.hexdigest(), sum(world.frames.values()))
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
@pytest.mark.parametrize("extension", [accelerator.LIBRARY, accelerator.LOADER])
def test_without_one_of_the_binaries_the_source_runs(copy: Path, extension: str) -> None:
    (copy / "holdfast" / "_compiled" / accelerator.binary(extension).name).unlink()
    assert run(REPORT, copy).startswith("interpreted|the compiled core is damaged")


@needs_binaries
def test_a_compiled_module_knows_its_name_and_where_it_comes_from() -> None:
    code = (
        "import holdfast.links.sender as s, sys; "
        "print(s.__name__, s.__spec__.name, sys.modules[s.__name__] is s, s.__spec__.origin)"
    )
    name, spec, same, origin = run(code).split()
    assert (name, spec, same) == ("holdfast.links.sender", "holdfast.links.sender", "True")
    assert Path(origin) == accelerator.binary(accelerator.LIBRARY)


@needs_binaries
@pytest.mark.parametrize(
    "code", [GROUP, DIALOGS, ROLES, OBJECTS], ids=["group", "dialogs", "roles", "objects"]
)
def test_both_cores_send_the_same_bytes(code: str) -> None:
    """The digest of a simulated run covers every byte that left a node, and when."""
    compiled, pure = run(code).split(), run(code, HOLDFAST_PURE="1").split()
    assert compiled[0] == "compiled"
    assert pure[0] == "interpreted"
    assert compiled[1:] == pure[1:]
    assert int(pure[2]) > 100


def reraises_after_yield(function: ast.FunctionDef) -> list[int]:
    """The lines of a generator that re-raise what a handler caught, where the handler yields."""
    handlers = [node for node in ast.walk(function) if isinstance(node, ast.ExceptHandler)]
    found = []
    for handler in handlers:
        inside = list(ast.walk(handler))
        first = min(
            (node.lineno for node in inside if isinstance(node, ast.Yield | ast.YieldFrom)),
            default=0,
        )
        bare = [node for node in inside if isinstance(node, ast.Raise) and node.exc is None]
        found += [node.lineno for node in bare if 0 < first < node.lineno]
    return found


def test_no_generator_reraises_after_a_yield_in_the_same_handler() -> None:
    """Compiled code has lost the exception by then. It raises nothing, and damages the interpreter."""
    bad = [
        f"{file.relative_to(SOURCE)}:{line}"
        for file in accelerator.source_files()
        for function in ast.walk(ast.parse(file.read_text()))
        if isinstance(function, ast.FunctionDef)
        for line in reraises_after_yield(function)
    ]
    assert bad == []
