"""The compiled core: the protocol modules as binaries, used only if they were built from exactly this source.

    HOLDFAST_PURE=1 holdfast bench group      # always the interpreted core

`scripts/compile` builds the modules of `PACKAGES` that define no structs with mypyc into `holdfast/_compiled`, beside
a manifest with the digest of their source. `install` runs before any of them is imported. It compares the digest with
the present source. If one file differs, all modules run interpreted, so a stale binary never hides a change. Compiled
modules call each other directly, so they are used all together or not at all.

Apart from speed, both cores behave the same: the same seed produces the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import sysconfig
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final

PACKAGES: Final = (
    "machine",
    "wire",
    "telemetry",
    "subsystem",
    "links",
    "health",
    "stability",
    "group",
    "overlay",
    "dialog",
    "objects",
    "node",
)
"""The packages that are compiled or that define their types. A change in any of their files makes the binaries
stale."""
GROUP: Final = "holdfast_core"
LIBRARY: Final = f"{GROUP}__mypyc"
"""The extension that holds the code of all modules."""
LOADER: Final = f"{GROUP}_loader"
"""The extension that starts one of them (`scripts/loader.c`)."""
HERE: Final = Path(__file__).parent
BINARIES: Final = HERE / "_compiled"
MANIFEST: Final = BINARIES / "manifest.json"

COMPILED: Final = "compiled"
INTERPRETED: Final = "interpreted"


class Loader(ExtensionFileLoader):
    """Loads a compiled module from the library that holds all of them."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        library, loader = import_module(LIBRARY), import_module(LOADER)
        capsule = getattr(library, f"init_{spec.name.replace('.', '___')}")
        module: ModuleType = loader.start(capsule)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Does nothing: the module has run when it has been created."""


class Finder:
    """A meta path finder that loads compiled modules instead of their source."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._modules = frozenset(modules)

    def find_spec(
        self,
        name: str,
        _path: Sequence[str] | None = None,
        _target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if name in self._modules:
            loader: ExtensionFileLoader = Loader(name, os.fspath(binary(LIBRARY)))
        elif name in (LIBRARY, LOADER):
            loader = ExtensionFileLoader(name, os.fspath(binary(name)))
        else:
            return None
        return spec_from_file_location(name, loader.get_filename(name), loader=loader)


class _Choice:
    core = INTERPRETED
    reason = "not decided yet"


def core() -> str:
    """Which core runs: `compiled` or `interpreted`."""
    return _Choice.core


def reason() -> str:
    """Why the interpreted core runs; empty for the compiled one."""
    return _Choice.reason


def install() -> None:
    """Decide which core runs, once per process."""
    _Choice.reason = _problem()
    if _Choice.reason:
        return
    _Choice.core = COMPILED
    sys.meta_path.insert(0, Finder(json.loads(MANIFEST.read_bytes())["modules"]))


def _problem() -> str:
    if os.environ.get("HOLDFAST_PURE", "") not in ("", "0"):
        return "HOLDFAST_PURE is set"
    try:
        manifest = json.loads(MANIFEST.read_bytes())
        if manifest["python"] != python_tag():
            return f"the compiled core is for {manifest['python']}, but this is {python_tag()}"
        for file in (binary(LIBRARY), binary(LOADER)):
            if not file.exists():
                return f"the compiled core is damaged ({file.name} is missing); remove {BINARIES}"
        if manifest["digest"] != digest(source_files()):
            return (
                "the source has changed since the core was compiled; `make core` compiles it again"
            )
    except FileNotFoundError:
        return "the core is not compiled; `make core` compiles it (needs a C compiler)"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"the compiled core is damaged ({error}); remove {BINARIES}"
    return ""


def python_tag() -> str:
    """The interpreter and platform that binaries are built for."""
    return str(sysconfig.get_config_var("SOABI"))


def binary(extension: str) -> Path:
    return BINARIES / f"{extension}.{python_tag()}.so"


def source_files() -> list[Path]:
    """Every file that affects the binaries, in a fixed order."""
    files = [file for package in PACKAGES for file in (HERE / package).rglob("*.py")]
    return sorted([*files, *HERE.glob("*.py")])


def digest(files: Sequence[Path]) -> str:
    """A digest of the names and contents of files."""
    total = hashlib.sha256()
    for file in files:
        data = file.read_bytes()
        total.update(f"{file.relative_to(HERE)} {len(data)}\n".encode())
        total.update(data)
    return total.hexdigest()
