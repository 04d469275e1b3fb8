"""The store interface. Third parties can implement it; the conformance suite in `tests/conformance` tests it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.machine import Write


class Store(Protocol):
    """Tables of bytes to bytes. `commit` blocks until everything is durable, so it is called off the event loop."""

    def load(
        self, table: str, first: bytes = b"", stop: bytes = b"", limit: int = 0
    ) -> list[tuple[bytes, bytes]]:
        """The rows of a table in the order of their keys: those in `[first, stop)`, or up to the end if `stop` is
        empty; at most `limit` of them unless it is 0."""
        ...

    def commit(self, writes: Sequence[Write]) -> None:
        """Make all writes durable, or none. Raises `StoreError`, after which the store accepts no more."""
        ...

    def close(self) -> None: ...
