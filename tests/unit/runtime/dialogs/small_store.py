"""A SQLite store on a disk with little room, for the tests of a full disk."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.stores.dialogs.sqlite import SqliteDialogStore


class SmallStore(SqliteDialogStore):
    """SQLite refuses to take more pages than the file `room` beside it says, as when the disk had no more."""

    def __init__(self, name: str, path: str) -> None:
        super().__init__(Path(path), os.urandom)
        pages = int(Path(f"{path}.room").read_text())
        for db in (self._db, self._tx):
            db.execute(f"PRAGMA max_page_count = {pages}")
