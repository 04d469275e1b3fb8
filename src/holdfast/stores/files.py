"""Making files durable: the steps that are easy to forget."""

from __future__ import annotations

import os
from pathlib import Path


def sync_directory(directory: Path) -> None:
    """Make names that were added to a directory, or removed from it, durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_directory(directory: Path) -> None:
    """Make a directory and those above it, durably. Fine when it is there already."""
    if directory.is_dir():
        return
    if directory.parent != directory:
        make_directory(directory.parent)
    directory.mkdir(exist_ok=True)
    sync_directory(directory.parent)


def place(temporary: Path, final: Path) -> None:
    """Give a finished and synced file its final name, at once and durably. Both lie on one file system."""
    temporary.replace(final)
    sync_directory(final.parent)
