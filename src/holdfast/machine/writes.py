"""Requests of a machine to a store, and the answers of the store."""

from __future__ import annotations

import msgspec


class Put(msgspec.Struct, frozen=True, gc=False):
    """Store `value` durably under `(table, key)`. Keys of one table sort as bytes."""

    table: str
    key: bytes
    value: bytes


class Erase(msgspec.Struct, frozen=True, gc=False):
    """Delete every key of `table` in `[first, stop)`."""

    table: str
    first: bytes
    stop: bytes


Write = Put | Erase


class ReadTable(msgspec.Struct, frozen=True, gc=False):
    """Effect: read rows of the unit's store while the node runs. The result includes all writes requested before.
    Answered by `TableRead`."""

    unit: str
    table: str
    first: bytes = b""
    stop: bytes = b""
    """Rows with keys in `[first, stop)`; an empty `stop` is the end of the table."""
    limit: int = 0
    """The maximum number of rows; 0: all."""


class TableRead(msgspec.Struct, frozen=True, gc=False):
    """The answer to `ReadTable`."""

    table: str
    rows: list[tuple[bytes, bytes]]
    error: str = ""
    """Why nothing could be read."""


class StoreFailed(msgspec.Struct, frozen=True, gc=False):
    """Sent to every unit of a failed store other than the node's own: writes that were not reported durable are lost,
    and outputs that waited for them were discarded."""

    store: str
    reason: str
