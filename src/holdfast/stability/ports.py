"""Values that pass between a stability detector and its owner."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.stability.config import StabilityConfig
from holdfast.types import Nanos, NodeId

HELD: Final = 0
APPLIED: Final = 1
ORDER_SLOTS: Final = (HELD, APPLIED)
"""With one order, two numbers say it all: the log is held up to one index and applied up to another."""


class Member(msgspec.Struct, frozen=True, gc=False):
    """One life of a member. A member that lost its memory comes back as another life."""

    name: str
    node: NodeId
    life: int


class View(msgspec.Struct, frozen=True):
    """A committed view: whose reports count. The order of the members is their place on the cube and the tree."""

    epoch: int
    """Which history the view belongs to."""
    index: int
    """Position of the entry that committed the view. Later views have higher positions."""
    members: tuple[Member, ...]
    slots: tuple[int, ...] = ORDER_SLOTS
    """Names of the numbers in a report, in order. A name is never used again for something else."""

    @property
    def id(self) -> tuple[int, int]:
        return self.epoch, self.index


class Seat(msgspec.Struct, frozen=True):
    """Where one member sits in one view: all that a protocol knows about the group."""

    config: StabilityConfig
    group: str
    epoch: int
    view: int
    life: int
    incarnation: int
    place: int
    size: int
    slots: int

    @property
    def full(self) -> int:
        """The bitmap of all members."""
        return (1 << self.size) - 1

    @property
    def bitmap_bytes(self) -> int:
        return (self.size + 7) // 8


class Blocker(msgspec.Struct, frozen=True, gc=False):
    """A member that keeps others from freeing."""

    name: str
    why: str
    """`silent`: its report is missing in the current round. `behind`: its report is the minimum of a slot.
    `unreachable`: this member waits for the result of a round, and cannot reach that member. `on another protocol`: it
    sends frames of another protocol, because its settings differ."""
    slot: int = -1
    """The slot that it holds back; -1 unless it is `behind`."""
    value: int = 0
    since_ns: Nanos = 0
    """How long this has been so."""


class StabilityStatus(msgspec.Struct, frozen=True):
    """What a detector shows to people and tests."""

    protocol: str
    """Empty while this member is in no view."""
    view: tuple[int, int]
    members: int
    place: int
    round: int
    rounds: int
    """Rounds that ended in this view."""
    running: bool
    report: tuple[int, ...]
    stable: tuple[int, ...]
    held_bytes: int
    lag_ns: Nanos
    """Age of the oldest report of this member that is not stable; 0 when all of it is."""
    last_lag_ns: Nanos
    """How long it took, the last time, until a report of this member was stable."""
    blockers: tuple[Blocker, ...]
    refused: dict[str, int]
    """Frames that were not acted upon, by reason."""
    sent: int
    """Frames sent, counted per receiver."""
    rode: int
    """Frames among them that travelled with other traffic."""
