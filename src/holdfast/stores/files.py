"""Making files durable."""

from __future__ import annotations

import os
from pathlib import Path


def sync_directory(directory: Path) -> None:
    """Make added and removed directory entries durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_directory(directory: Path, *, private: bool = False) -> None:
    """Create a directory durably, with the parents that are missing. Does nothing if it exists.

    Only the user of the node may enter a `private` one.
    """
    if directory.is_dir():
        return
    if directory.parent != directory:
        make_directory(directory.parent)
    directory.mkdir(mode=0o700 if private else 0o777, exist_ok=True)
    sync_directory(directory.parent)


def place(temporary: Path, final: Path) -> None:
    """Rename a finished and synced file to its final name, atomically and durably, on one file system."""
    temporary.replace(final)
    sync_directory(final.parent)
