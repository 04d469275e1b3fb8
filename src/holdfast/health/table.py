"""The table: for every path, what its listener says of it. Everybody holds the same one after quiet.

A row belongs to its listener, who alone changes it and counts its versions; the newest version wins.
"""

from __future__ import annotations

from typing import Final

from holdfast.types import Nanos
from holdfast.wire.frames import PathRow

ROWS_MAX: Final = 200_000
NAME_MAX: Final = 64

RowKey = tuple[bytes, str, bytes, str, str]


def key_of(row: PathRow) -> RowKey:
    return row.sender, row.sender_adapter, row.listener, row.listener_adapter, row.transport


def _plausible(row: PathRow) -> bool:
    """Whether a row can be what a node says of a path: what is kept of others must have a bounded size."""
    names = (row.sender_adapter, row.listener_adapter, row.transport)
    return len(row.sender) == len(row.listener) == 16 and max(map(len, names)) <= NAME_MAX


class PathTable:
    """Rows by path, in the order in which they were first heard of."""

    def __init__(self) -> None:
        self.rows: dict[RowKey, PathRow] = {}
        self.since: dict[RowKey, Nanos] = {}
        """When this node learnt of the state that a path is in."""
        self._incarnations: dict[bytes, int] = {}
        """The life that each listener is known to be in: rows of an earlier one come too late."""

    def put(self, row: PathRow, now: Nanos = 0) -> bool:
        """Take a row if it is newer than ours; True when it was."""
        if row.incarnation < self._incarnations.get(row.listener, 0) or not _plausible(row):
            return False
        key = key_of(row)
        known = self.rows.get(key)
        if known is not None and (row.incarnation, row.n) <= (known.incarnation, known.n):
            return False
        if known is None and len(self.rows) >= ROWS_MAX:
            return False
        self.rows[key] = row
        if known is None or (known.alive, known.size) != (row.alive, row.size):
            self.since[key] = now
        return True

    def forget_node(self, node: bytes) -> None:
        """Drop every path from and to a node: it left."""
        for key in [k for k, row in self.rows.items() if node in (row.sender, row.listener)]:
            del self.rows[key], self.since[key]

    def forget(self, listener: bytes, before_incarnation: int) -> None:
        """Drop the rows of an earlier life of a listener, and take no more of them."""
        self._incarnations[listener] = max(self._incarnations.get(listener, 0), before_incarnation)
        for key in [
            k
            for k, row in self.rows.items()
            if row.listener == listener and row.incarnation < before_incarnation
        ]:
            del self.rows[key], self.since[key]
