"""The interface of the unit that keeps the path table: to the measuring unit, the driver and clients."""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from holdfast.health.frames import PathRow
from holdfast.health.table.path_table import PathKey
from holdfast.telemetry.advice import Advice
from holdfast.types import Nanos

HEALTH: Final = "health"
"""The unit that measures."""
PATH_GOSSIP: Final = "path_gossip"
"""The unit that keeps the table."""


class Fresh(msgspec.Struct, frozen=True, gc=False):
    """From the measuring unit: it has put rows into the table."""


class RowsHeard(msgspec.Struct, frozen=True, gc=False):
    """To the measuring unit: new reports of listeners about what this node sends."""

    rows: tuple[PathRow, ...]


class ResetHistory(msgspec.Struct, frozen=True, gc=False):
    """An operator reports that a path was repaired."""

    path: PathKey
    by: str
    note: str = ""


class WallClock(msgspec.Struct, frozen=True, gc=False):
    """Offset from the monotonic time of the node to the wall clock."""

    offset_ns: Nanos


class AdviceNews(msgspec.Struct, frozen=True, gc=False):
    """To the measuring unit: the newest readable edition of advice, or that there is none."""

    advice: Advice | None
    source: str
    """The directory that it is read from."""
    damaged: tuple[str, ...] = ()
    """Newer editions that cannot be read, and why."""
    wall_offset_ns: Nanos = 0
    """From the monotonic time of the node to its wall clock, by which validity is judged."""


class Roster(Protocol):
    """Names of members and subnets, for texts and filters."""

    def name_of(self, node: bytes) -> str:
        """The name of the member."""

    def subnet_of(self, node: bytes, adapter: str) -> str:
        """The subnet of an adapter of a member; the name of the adapter while it is unknown."""
