"""Stores of a third party, for the tests of the configuration."""

from __future__ import annotations

import os

from holdfast.stores.dialogs.memory import MemoryDialogStore

MADE: list[tuple[str, str]] = []


class ShelfStore(MemoryDialogStore):
    """Called with its name and the options of the configuration."""

    def __init__(self, name: str, colour: str) -> None:
        MADE.append((name, colour))
        super().__init__(os.urandom(8))


class NoStore:
    """Has none of the methods."""

    def __init__(self, name: str) -> None:
        self.name = name
