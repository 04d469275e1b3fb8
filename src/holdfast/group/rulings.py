"""What entries besides ranges add up to: criteria that hold, requests that were delivered, outputs that arrived.

Part of the cursor, so every replica has the same at the same place of the log, and a state that is given to another
replica has it too.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.group.criteria import Criterion, is_sound_criterion
from holdfast.group.entries import (
    EVERYBODY,
    Ignoring,
    Marked,
    Ordered,
    Resumed,
    Skipped,
    decode_data,
)
from holdfast.wire.frames import Entry

REQUESTS_KEPT: Final = 8192
"""So many request ids are remembered; an older request that is sent again is a new message."""
DESTINATIONS_MAX: Final = 1024
"""Of so many destinations it is remembered one by one what they have."""
ORDER, SKIP, IGNORE, RESUME, OUTPUTS = 1, 3, 7, 8, 9

Id = tuple[int, int]
"""(position, k): which output of a group."""
NOTHING: Final[Id] = (0, -1)
"""Before the first output there can be."""


class RulingsImage(msgspec.Struct, frozen=True, array_like=True):
    """As it travels with a state."""

    criteria: tuple[tuple[int, Criterion, int], ...] = ()
    requests: tuple[tuple[bytes, int], ...] = ()
    watermarks: tuple[tuple[str, int, int], ...] = ()
    floor: Id = NOTHING

    def is_sound(self) -> bool:
        return (
            all(is_sound_criterion(criterion) for _, criterion, _ in self.criteria)
            and len(self.requests) <= REQUESTS_KEPT
            and len(self.watermarks) <= DESTINATIONS_MAX
        )


class Rulings:
    """Changes with each entry that it is shown, and in no other way."""

    __slots__ = ("criteria", "floor", "requests", "watermarks")

    def __init__(self) -> None:
        self.criteria: dict[int, tuple[Criterion, int]] = {}
        """By id: the criterion, and how many messages it still takes (0: any number)."""
        self.requests: dict[bytes, int] = {}
        """Request ids that were delivered, oldest first, and the index of their entry."""
        self.watermarks: dict[str, Id] = {}
        """Per destination: the last output that it is known to have, where that is above the floor."""
        self.floor = NOTHING
        """Everything up to here has arrived, wherever it went."""

    def copy(self) -> Rulings:
        other = Rulings()
        other.criteria = dict(self.criteria)
        other.requests = dict(self.requests)
        other.watermarks = dict(self.watermarks)
        other.floor = self.floor
        return other

    def arrived(self, destination: str) -> Id:
        """The destination has every output up to this one."""
        return max(self.floor, self.watermarks.get(destination, NOTHING))

    def advance(self, entry: Entry) -> None:
        """Take one sound entry into account."""
        if entry.kind not in (ORDER, SKIP, IGNORE, RESUME, OUTPUTS) or not entry.data:
            return
        data = decode_data(entry)
        if isinstance(data, Ordered):
            for _, request in data.requests:
                self.requests[request] = entry.index
            while len(self.requests) > REQUESTS_KEPT:
                del self.requests[next(iter(self.requests))]
        elif isinstance(data, Skipped):
            self._use(data.criterion, entry.last - entry.first + 1)
        elif isinstance(data, Ignoring):
            self.criteria[entry.index] = (data.criterion, data.criterion.count)
        elif isinstance(data, Resumed):
            self.criteria.pop(data.criterion, None)
        elif isinstance(data, Marked):
            self._mark(data)

    def _use(self, criterion: int, count: int) -> None:
        held = self.criteria.get(criterion)
        if held is not None and held[1]:
            # What is used up stays, at less than nothing, until the leader says that it ends.
            self.criteria[criterion] = (held[0], held[1] - count or -1)

    def _mark(self, data: Marked) -> None:
        upto = (data.position, data.k)
        if data.destination == EVERYBODY:
            self.floor = max(self.floor, upto)
            self.watermarks = {to: at for to, at in self.watermarks.items() if at > self.floor}
            return
        before = self.watermarks.pop(data.destination, NOTHING)
        self.watermarks[data.destination] = max(before, upto)
        while len(self.watermarks) > DESTINATIONS_MAX:
            del self.watermarks[next(iter(self.watermarks))]

    def image(self) -> RulingsImage:
        return RulingsImage(
            tuple((id_, criterion, left) for id_, (criterion, left) in self.criteria.items()),
            tuple(self.requests.items()),
            tuple((name, position, k) for name, (position, k) in self.watermarks.items()),
            self.floor,
        )

    @staticmethod
    def of(image: RulingsImage) -> Rulings:
        made = Rulings()
        made.criteria = {id_: (criterion, left) for id_, criterion, left in image.criteria}
        made.requests = dict(image.requests)
        made.watermarks = {name: (position, k) for name, position, k in image.watermarks}
        made.floor = image.floor
        return made
