"""A heap of deadlines, one per unit. Ties break in the order in which the deadlines were set."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from holdfast.types import NEVER, Nanos


class Deadlines:
    """The next units to wake. Changing a deadline leaves a stale heap entry, which is skipped when it surfaces."""

    __slots__ = ("_current", "_heap", "_order")

    def __init__(self) -> None:
        self._heap: list[tuple[Nanos, int, str]] = []
        self._current: dict[str, int] = {}
        """The valid heap entry of each unit, by sequence number."""
        self._order = 0

    def set(self, unit: str, deadline: Nanos) -> None:
        """Replace the deadline of `unit`; `NEVER` removes it."""
        current = self._current
        if deadline >= NEVER:
            current.pop(unit, None)
            return
        self._order += 1
        current[unit] = self._order
        heappush(self._heap, (deadline, self._order, unit))
        if len(self._heap) > 64 + 4 * len(current):
            self._compact()

    def due(self, now: Nanos) -> list[str]:
        """The units whose deadline has passed, earliest first. Their deadlines are removed."""
        units: list[str] = []
        heap, current = self._heap, self._current
        while heap and heap[0][0] <= now:
            _, order, unit = heappop(heap)
            if current.get(unit) == order:
                del current[unit]
                units.append(unit)
        return units

    def next(self) -> Nanos:
        """The earliest deadline, or `NEVER`."""
        heap, current = self._heap, self._current
        while heap:
            deadline, order, unit = heap[0]
            if current.get(unit) == order:
                return deadline
            heappop(heap)
        return NEVER

    def _compact(self) -> None:
        current = self._current
        self._heap = [entry for entry in self._heap if current.get(entry[2]) == entry[1]]
        heapify(self._heap)
