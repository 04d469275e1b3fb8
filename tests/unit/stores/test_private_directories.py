"""What applications store is readable by the user of the node alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.stores.dialogs.sqlite import SqliteDialogStore
from holdfast.stores.sqlite import SqliteStore

OPEN: dict[str, Callable[[Path], SqliteStore | SqliteDialogStore]] = {
    "node": SqliteStore,
    "dialogs": lambda directory: SqliteDialogStore(directory / "d.sqlite", os.urandom),
}


def mode(directory: Path) -> int:
    return stat.S_IMODE(directory.stat().st_mode)


@pytest.mark.parametrize("kind", OPEN)
def test_the_directory_of_a_new_store_is_closed_to_other_users(kind: str, tmp_path: Path) -> None:
    directory = tmp_path / "new" / "data"
    before = os.umask(0o022)
    try:
        OPEN[kind](directory).close()
    finally:
        os.umask(before)
    assert mode(directory) == 0o700
    assert mode(directory.parent) == 0o755


@pytest.mark.parametrize("kind", OPEN)
def test_a_directory_that_exists_keeps_its_mode(kind: str, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    directory.chmod(0o750)
    OPEN[kind](directory).close()
    assert mode(directory) == 0o750
