"""Making files durable: the two steps that are easy to forget."""

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


def place(temporary: Path, final: Path) -> None:
    """Give a finished and synced file its final name, at once and durably. Both lie on one file system."""
    temporary.replace(final)
    sync_directory(final.parent)
