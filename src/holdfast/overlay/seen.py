"""What has been seen: duplicates are recognised until the lifetime that travels in the message is over."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

from holdfast.types import MILLISECOND, SECOND, Nanos

Value = TypeVar("Value")
HOPS_MAX: Final = 64
MARGIN_NS: Final = SECOND // 2
"""For the time that copies are under way between nodes, which their lifetime does not count."""
_SCALE: Final = 16
_GROWTH: Final[tuple[int, ...]] = tuple(
    [-(-(20**hops << _SCALE) // 19**hops) for hops in range(HOPS_MAX + 1)]
)


def shortened(left: Nanos) -> Nanos:
    """The lifetime of a copy that is sent on: a hop costs a twentieth, so that the last replies come back in time."""
    return left * 19 // 20


def lifetime_at_sender(lifetime: Nanos, hops: int) -> Nanos:
    """How long a message that has come this far may still be under way on other paths, which may be shorter. A node
    that forgets it sooner takes a later copy for another message, and delivers it again."""
    # Each hop also rounds down to a millisecond.
    return (lifetime + hops * MILLISECOND) * _GROWTH[min(hops, HOPS_MAX)] >> _SCALE


class Seen(Generic[Value]):
    """A bounded map that forgets. When it is full, new keys are refused: forgetting early would let a duplicate
    pass."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: dict[bytes, tuple[Nanos, Value]] = {}
        self._slots: dict[int, list[bytes]] = {}
        """Keys by the second in which they expire, so that a sweep touches only what it removes."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes, now: Nanos) -> Value | None:
        entry = self._entries.get(key)
        return entry[1] if entry is not None and entry[0] > now else None

    def put(self, key: bytes, value: Value, now: Nanos, until: Nanos) -> bool:
        if key not in self._entries and len(self._entries) >= self._limit:
            self.sweep(now)
            if len(self._entries) >= self._limit:
                return False
        self._entries[key] = (until, value)
        slot = until // SECOND
        keys = self._slots.get(slot)
        if keys is None:
            self._slots[slot] = [key]
        else:
            keys.append(key)
        return True

    def sweep(self, now: Nanos) -> None:
        entries = self._entries
        for slot in [slot for slot in self._slots if slot <= now // SECOND]:
            later = []
            for key in self._slots.pop(slot):
                entry = entries.get(key)
                if entry is None or entry[0] // SECOND != slot:
                    continue  # put again since, with another lifetime
                if entry[0] <= now:
                    del entries[key]
                else:
                    later.append(key)
            if later:
                self._slots[slot] = later
