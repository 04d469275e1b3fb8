"""The state of a lab between commands: one file, replaced atomically, and a lock around every change."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from holdfast.errors import HoldfastError, MisuseError
from holdfast.lab.plan import Plan

FILE: Final = "lab.json"
SCHEMA: Final = 1


class Process(msgspec.Struct, frozen=True):
    """A process that the lab started. The start time distinguishes it from a later process with the same number."""

    pid: int
    started: int


class State(msgspec.Struct, frozen=True):
    """The complete state."""

    plan: Plan
    faults: dict[str, str] = {}
    """Names and texts, oldest first."""
    made: int = 0
    """The number of faults so far, so that names are unique."""
    ready: bool = False
    """False while the lab is being built, or if that was interrupted."""
    forwarder: Process | None = None
    nodes: dict[str, Process] = {}
    schema: int = SCHEMA


def load(directory: Path) -> State:
    path = directory / FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=State)
    except FileNotFoundError:
        raise MisuseError(
            f"there is no lab {directory.name!r}; create it with `holdfast lab up --name "
            f"{directory.name}`"
        ) from None
    except msgspec.DecodeError as error:
        raise HoldfastError(
            f"{path} is damaged ({error}); `holdfast lab down --name {directory.name}` still "
            "removes the lab"
        ) from None


def save(directory: Path, state: State) -> None:
    """Replace the file atomically."""
    fresh = directory / f"{FILE}.new"
    fresh.write_bytes(msgspec.json.encode(state))
    fresh.replace(directory / FILE)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """One command at a time changes a lab."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(directory / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def running(process: Process | None) -> bool:
    """Whether it is still that process, and not a zombie."""
    if process is None:
        return False
    seen = look_at(process.pid)
    return seen is not None and seen == process.started


def look_at(pid: int) -> int | None:
    """When the process with this number started, in kernel ticks; None if it is gone or has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
