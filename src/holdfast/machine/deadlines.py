"""A heap of wake-ups, one for each unit. Ties go by the order in which they were asked for."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from holdfast.types import NEVER, Nanos


class Deadlines:
    """Who must be woken next. Changing a deadline leaves a stale entry behind, which is skipped when it surfaces."""

    __slots__ = ("_current", "_heap", "_order")

    def __init__(self) -> None:
        self._heap: list[tuple[Nanos, int, str]] = []
        self._current: dict[str, int] = {}
        """The entry of the heap that counts for each unit, by its order."""
        self._order = 0

    def set(self, unit: str, deadline: Nanos) -> None:
        """Replace the wake-up of `unit`; `NEVER` removes it."""
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
        """The units whose time has come, earliest first. They have no wake-up until they set one again."""
        units: list[str] = []
        heap, current = self._heap, self._current
        while heap and heap[0][0] <= now:
            _, order, unit = heappop(heap)
            if current.get(unit) == order:
                del current[unit]
                units.append(unit)
        return units

    def next(self) -> Nanos:
        """The earliest wake-up, or `NEVER`."""
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
