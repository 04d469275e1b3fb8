"""Values of the path table: alarms, changes, subscriptions. Structs, apart from the code that uses them."""

from __future__ import annotations

import msgspec

from holdfast.health.classify import SoftError
from holdfast.health.frames import PathRow
from holdfast.health.table.path_table import PathKey
from holdfast.types import Nanos


class Alarm(msgspec.Struct, frozen=True, gc=False):
    """A current error of a path."""

    path: PathKey
    error: SoftError
    since_ns: Nanos
    count: int = 1
    """How often it occurred since it was first reported."""


class AlarmReport(msgspec.Struct, frozen=True, gc=False):
    """An alarm that starts or ends, to be reported."""

    alarm: Alarm
    raised: bool


class PathChange(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The state of a path from `at_ns` (wall clock) on, as reported by its listener."""

    number: int
    at_ns: int
    path: PathKey
    kind: str
    """The packet kind; empty for a reset."""
    row: PathRow | None
    errors: tuple[str, ...]
    """The current error classes of the path."""
    by: str = ""
    note: str = ""
    """For a reset: by whom, and why."""


class ErrorMark(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """When a path last had an error class; `lasting` while it still has it."""

    path: PathKey
    error_class: str
    at_ns: int
    lasting: bool


class Filter(msgspec.Struct, frozen=True, gc=False):
    """The filter of a client; empty fields match everything."""

    members: tuple[bytes, ...] = ()
    """Paths from or to any of these."""
    subnets: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    """udp, tcp, frag, multicast"""
    attributes: tuple[str, ...] = ()
    """Only changes of one of these `ATTRIBUTES`."""
    size_min: int = 0
    """Only paths that pass packets of this size."""
    size_below: int = 0
    """Only paths that do not pass packets of this size."""
    loss_ppm_min: int = 0
    """Only paths with at least this loss, in parts per million."""


class Subscribe(msgspec.Struct, frozen=True, gc=False):
    """Subscribe to what matches the filter; a known client gets a new snapshot for its new filter."""

    client: int
    filter: Filter = Filter()
    history: int = 0
    """Number of past changes of this node's own paths in the snapshot."""


class Unsubscribe(msgspec.Struct, frozen=True, gc=False):
    client: int


class Taken(msgspec.Struct, frozen=True, gc=False):
    """The client has processed this many changes."""

    client: int
    count: int


class TableSnapshot(msgspec.Struct, frozen=True, gc=False):
    """Everything that matches the filter now."""

    at_ns: Nanos
    rows: tuple[PathRow, ...]
    lagged: bool = False
    """The client was too slow: changes were skipped, and this replaces them."""
    history: tuple[PathChange, ...] = ()


class RowChange(msgspec.Struct, frozen=True, gc=False):
    """A row is new (`before` is None), different, or does not match the filter any more (`after` is None)."""

    at_ns: Nanos
    before: PathRow | None
    after: PathRow | None


class HealthNews(msgspec.Struct, frozen=True, gc=False):
    """Effect for the driver: an item for a client."""

    client: int
    news: TableSnapshot | RowChange
