"""What a node's store is. Anybody can add one: the conformance suite in `tests/conformance` says when it is right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.machine import Write


class Store(Protocol):
    """Tables of bytes to bytes. `commit` blocks until everything is durable, so it is called off the event loop."""

    def load(self, table: str) -> list[tuple[bytes, bytes]]:
        """All rows of a table, by key."""
        ...

    def commit(self, writes: Sequence[Write]) -> None:
        """Make all writes durable, or none: raises `StoreError`, after which the store takes no more."""
        ...

    def close(self) -> None: ...
