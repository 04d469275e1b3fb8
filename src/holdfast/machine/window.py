"""Windows over increasing numbers: a replay window and a ring buffer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class ReplayWindow:
    """Records which of the last `size` numbers were seen. Older numbers count as seen and are refused."""

    __slots__ = ("_missing", "_top", "size")

    def __init__(self, size: int = 1024, top: int = -1) -> None:
        """`top`: all numbers up to this one count as seen."""
        self.size = size
        self._top = top
        self._missing: dict[int, None] = {}
        """Numbers below the top that were not seen, lowest first; some may be too old by now."""

    def accept(self, number: int) -> bool:
        """Record `number`. Returns True if it was not seen before and is not too old."""
        top = self._top
        if number <= top:
            if number not in self._missing:
                return False
            del self._missing[number]
            return number > top - self.size
        if number > top + 1:
            self._skip(top + 1, number)
        self._top = number
        return True

    def _skip(self, first: int, number: int) -> None:
        """Numbers from `first` up to `number`, the new top, were not seen."""
        oldest = number - self.size + 1
        self._missing.update(dict.fromkeys(range(max(first, oldest, 0), number)))
        if len(self._missing) > self.size:
            self._missing = {n: None for n in self._missing if n >= oldest}

    def fresh(self, number: int) -> bool:
        """Whether `accept` would return True, without recording: checked before the cost of decryption."""
        return number > self._top or (number in self._missing and number > self._top - self.size)


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
        """Store `item`. Returns False if the number is outside the window or in use."""
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
        """Remove everything below `upto`; the window moves up."""
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
