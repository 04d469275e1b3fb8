"""Publishing: immutable run directories, and a manifest that is replaced in one step.

    <root>/tables/<name>/runs/<run id>/*.parquet
    <root>/tables/<name>/manifest.json

A run is written under a temporary name, made durable, renamed, and only then named in the manifest. Whatever happens
in between, the manifest names a whole table. Publishing a run that is already published changes nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec
import pyarrow.parquet as pq

from holdfast.errors import HoldfastError, MisuseError
from holdfast.pipeline.reader import (
    MANIFEST_VERSION,
    Manifest,
    TableFile,
    read_manifest,
    table_dir,
)

RUNS_KEPT: Final = 3
"""The published run and the ones before it: a reader may still be in one."""

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class PipelineBusy(HoldfastError):
    """Another run works on the same output directory; nothing was done."""


@contextlib.contextmanager
def sole_writer(root: Path) -> Iterator[None]:
    """Hold the output directory for one run. The lock ends with the process, however it ends."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PipelineBusy(
                f"another run writes to {root} right now; nothing was done. Try again when it is done"
            ) from None
        yield


def publish(root: Path, name: str, run: str, write: Callable[[Path], None]) -> Manifest:
    """Stage a run and announce it. If it is published already, nothing is called and nothing changes."""
    stage(root, name, run, write)
    return announce(root, name, run)


def stage(root: Path, name: str, run: str, write: Callable[[Path], None]) -> None:
    """Make the run's directory, durable, seen by no reader yet. A run that is there already is not written again.

    `write` gets the path of a directory that does not exist yet and fills it with Parquet files. Callers of this and
    of `announce` hold `sole_writer`.
    """
    if not _RUN_ID.fullmatch(run):
        raise MisuseError(f"{run!r} is no name for a run: letters, digits, '.', '_' and '-' only")
    runs = table_dir(root, name) / "runs"
    _remove_drafts(runs)
    # A run that was renamed but never announced (a crash in between) is whole: its name comes last.
    if not (runs / run).exists():
        _make_run(runs, run, write)


def run_dir(root: Path, name: str, run: str) -> Path:
    """Where the files of a staged run lie."""
    return table_dir(root, name) / "runs" / run


def announce(root: Path, name: str, run: str) -> Manifest:
    """Make a staged run the table's content, in one step, and remove runs that nobody can be reading any more."""
    before = read_manifest(root, name)
    if before is not None and before.run == run:
        return before
    runs = table_dir(root, name) / "runs"
    manifest = Manifest(
        version=MANIFEST_VERSION,
        table=name,
        run=run,
        files=_files(runs / run),
        previous=_kept(before, run),
    )
    write_atomically(
        table_dir(root, name) / "manifest.json",
        msgspec.json.format(msgspec.json.encode(manifest), indent=2),
    )
    _remove_old(runs, {run, *manifest.previous})
    return manifest


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file in one step: readers see the old content or the new, also after a crash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    with draft.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    _sync(path.parent)


def _make_run(runs: Path, run: str, write: Callable[[Path], None]) -> None:
    draft = runs / f".draft-{run}"
    runs.mkdir(parents=True, exist_ok=True)
    try:
        write(draft)
        for path in sorted(draft.iterdir()):
            # Spark leaves marks and checksums of its own, which nobody reads.
            if path.suffix == ".parquet" and not path.name.startswith((".", "_")):
                _sync(path)
            else:
                path.unlink()
        _files(draft)
        _sync(draft)
        draft.rename(runs / run)
        _sync(runs)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _files(run: Path) -> tuple[TableFile, ...]:
    """The files of a run with their rows. Reading the footers is the proof that they are whole."""
    files = tuple(
        TableFile(path.name, pq.read_metadata(path).num_rows, path.stat().st_size)
        for path in sorted(run.glob("*.parquet"))
    )
    if not files:
        raise MisuseError(f"the run {run.name} has no Parquet file; nothing was published")
    return files


def _kept(before: Manifest | None, run: str) -> tuple[str, ...]:
    if before is None:
        return ()
    return tuple(old for old in (before.run, *before.previous) if old != run)[: RUNS_KEPT - 1]


def _remove_drafts(runs: Path) -> None:
    for draft in sorted(runs.glob(".draft-*")):
        shutil.rmtree(draft, ignore_errors=True)


def _remove_old(runs: Path, kept: set[str]) -> None:
    for path in sorted(runs.iterdir()):
        if path.name not in kept:
            shutil.rmtree(path, ignore_errors=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
