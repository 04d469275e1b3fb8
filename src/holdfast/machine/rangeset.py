"""Sets of integers as sorted, disjoint, half-open ranges, for received and missing numbers."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator


class RangeSet:
    """A set of integers as ranges `[start, stop)`. Adding a range costs O(log n) plus the ranges it absorbs."""

    __slots__ = ("starts", "stops")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self.starts: list[int] = []
        self.stops: list[int] = []
        """Starts and ends of the ranges, in order. Hot paths may read them directly to avoid a call."""
        for start, stop in ranges:
            self.add(start, stop)

    def add(self, start: int, stop: int) -> None:
        """Add `[start, stop)`. Adjacent ranges are merged."""
        if start >= stop:
            return
        starts, stops = self.starts, self.stops
        if not starts or start > stops[-1]:
            starts.append(start)
            stops.append(stop)
            return
        if start == stops[-1]:
            stops[-1] = stop
            return
        low = bisect_left(stops, start)
        high = bisect_right(starts, stop)
        if low < high:
            start = min(start, starts[low])
            stop = max(stop, stops[high - 1])
        starts[low:high] = [start]
        stops[low:high] = [stop]

    def remove(self, start: int, stop: int) -> None:
        """Remove `[start, stop)`, which may split a range in two."""
        if start >= stop or not self.starts:
            return
        starts, stops = self.starts, self.stops
        if start <= starts[0] and starts[0] < stop < stops[0]:
            starts[0] = stop
            return
        low = bisect_right(stops, start)
        high = bisect_left(starts, stop)
        if low >= high:
            return
        kept: list[tuple[int, int]] = []
        if starts[low] < start:
            kept.append((starts[low], start))
        if stops[high - 1] > stop:
            kept.append((stop, stops[high - 1]))
        starts[low:high] = [a for a, _ in kept]
        stops[low:high] = [b for _, b in kept]

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self.starts, number) - 1
        return at >= 0 and number < self.stops[at]

    def covers(self, start: int, stop: int) -> bool:
        """Whether the set contains every number of `[start, stop)`."""
        if start >= stop:
            return True
        at = bisect_right(self.starts, start) - 1
        return at >= 0 and stop <= self.stops[at]

    def first_missing(self, start: int) -> int:
        """The smallest number at or above `start` that is not in the set."""
        at = bisect_right(self.starts, start) - 1
        return self.stops[at] if at >= 0 and start < self.stops[at] else start

    def missing(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The ranges of `[start, stop)` that are not in the set, in order."""
        at = bisect_right(self.stops, start)
        while start < stop and at < len(self.starts):
            gap = min(self.starts[at], stop)
            if start < gap:
                yield start, gap
            start = max(start, self.stops[at])
            at += 1
        if start < stop:
            yield start, stop

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(list(zip(self.starts, self.stops, strict=True)))

    def __len__(self) -> int:
        """The number of ranges, not of integers: the memory cost of the set."""
        return len(self.starts)

    def __bool__(self) -> bool:
        return bool(self.starts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RangeSet):
            return NotImplemented
        return self.starts == other.starts and self.stops == other.stops

    __hash__ = None  # type: ignore[assignment]  # mutable, so not a key

    def total(self) -> int:
        """The number of integers in the set."""
        return sum(self.stops) - sum(self.starts)

    def __repr__(self) -> str:
        return f"RangeSet({list(self)})"
