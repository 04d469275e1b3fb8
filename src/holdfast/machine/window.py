"""Windows over a growing number: which were seen (replay), what is kept for each (ring)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class ReplayWindow:
    """Remembers which of the last `size` numbers were seen. Older numbers count as seen: refuse, never repeat."""

    __slots__ = ("_bits", "_mask", "_top", "size")

    def __init__(self, size: int = 1024) -> None:
        self.size = size
        self._mask = (1 << size) - 1
        self._top = -1
        self._bits = 0

    def accept(self, number: int) -> bool:
        """True the first time that `number` is shown and it is not too old; records it."""
        ahead = number - self._top
        if ahead > 0:
            self._bits = ((self._bits << ahead) | 1) & self._mask if ahead < self.size else 1
            self._top = number
            return True
        if -ahead >= self.size:
            return False
        bit = 1 << -ahead
        if self._bits & bit:
            return False
        self._bits |= bit
        return True

    def fresh(self, number: int) -> bool:
        """Whether `accept` would accept, without recording: checked before the cost of opening a seal."""
        ahead = number - self._top
        return ahead > 0 or (-ahead < self.size and not self._bits & (1 << -ahead))


class RingWindow(Generic[T]):
    """A bounded map from consecutive numbers to items: `base` up to `base + capacity`, freed from below."""

    __slots__ = ("_slots", "base", "capacity", "held")

    def __init__(self, capacity: int, base: int = 0) -> None:
        assert capacity > 0
        self.capacity = capacity
        self.base = base
        self.held = 0
        self._slots: list[T | None] = [None] * capacity

    def put(self, number: int, item: T) -> bool:
        """Keep `item`; False when the number lies outside the window or is taken."""
        if not self.base <= number < self.base + self.capacity:
            return False
        slot = number % self.capacity
        if self._slots[slot] is not None:
            return False
        self._slots[slot] = item
        self.held += 1
        return True

    def get(self, number: int) -> T | None:
        if not self.base <= number < self.base + self.capacity:
            return None
        return self._slots[number % self.capacity]

    def release(self, upto: int) -> None:
        """Forget everything below `upto`; the window moves up."""
        last = min(upto, self.base + self.capacity)
        for number in range(self.base, last):
            slot = number % self.capacity
            if self._slots[slot] is not None:
                self._slots[slot] = None
                self.held -= 1
        self.base = max(self.base, upto)

    def contiguous(self) -> Iterator[T]:
        """Items from `base` up to the first hole."""
        for number in range(self.base, self.base + self.capacity):
            item = self._slots[number % self.capacity]
            if item is None:
                return
            yield item
