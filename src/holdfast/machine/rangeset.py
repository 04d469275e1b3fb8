"""Sets of integers kept as sorted, disjoint, half-open ranges: what arrived, what is missing."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator


class RangeSet:
    """A set of integers as ranges `[start, stop)`; adding a range costs O(log n) plus what it swallows."""

    __slots__ = ("starts", "stops")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self.starts: list[int] = []
        self.stops: list[int] = []
        """Where ranges begin and end, in order. Others may look, where a call for each look would be too dear."""
        for start, stop in ranges:
            self.add(start, stop)

    def add(self, start: int, stop: int) -> None:
        """Add `[start, stop)`; touching ranges become one."""
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
        """Remove `[start, stop)`; a range that it splits becomes two."""
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
        """Whether every number of `[start, stop)` is in the set."""
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
        """The number of ranges, which is what it costs, not the number of integers."""
        return len(self.starts)

    def __bool__(self) -> bool:
        return bool(self.starts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RangeSet):
            return NotImplemented
        return self.starts == other.starts and self.stops == other.stops

    __hash__ = None  # type: ignore[assignment]  # mutable, so not a key

    def total(self) -> int:
        """How many integers are in the set."""
        return sum(self.stops) - sum(self.starts)

    def __repr__(self) -> str:
        return f"RangeSet({list(self)})"
