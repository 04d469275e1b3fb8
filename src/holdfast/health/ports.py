"""What crosses the border of the keeper: from the measuring unit, from the driver, from clients."""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from holdfast.health.table import PathKey
from holdfast.types import Nanos
from holdfast.wire.frames import PathRow

HEALTH: Final = "health"
"""The unit that measures."""
KEEPER: Final = "keeper"
"""The unit that keeps the table."""


class Fresh(msgspec.Struct, frozen=True, gc=False):
    """From the measuring unit: it has put rows into the table."""


class RowsHeard(msgspec.Struct, frozen=True, gc=False):
    """To the measuring unit: what listeners now say of what this node sends."""

    rows: tuple[PathRow, ...]


class ResetHistory(msgspec.Struct, frozen=True, gc=False):
    """An operator says that a path was repaired."""

    path: PathKey
    by: str
    note: str = ""


class WallClock(msgspec.Struct, frozen=True, gc=False):
    """What must be added to the node's own time to get the time of day."""

    offset_ns: Nanos


class Roster(Protocol):
    """Who is who, for texts and filters."""

    def name_of(self, node: bytes) -> str:
        """The member's name."""

    def subnet_of(self, node: bytes, adapter: str) -> str:
        """The subnet of a member's adapter; the adapter's name while that is not known."""
