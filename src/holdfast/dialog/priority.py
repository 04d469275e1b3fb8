"""Which dialog transmits or delivers next: weighted by priority, with ageing, so that none starves.

Each dialog that waits has a virtual time; the lowest goes next. Serving a dialog advances its virtual time by the
bytes served divided by the weight of its priority. A dialog that comes back after a pause starts at the current
virtual time: it cannot save up. So a dialog of priority 9 gets 512 times the share of one of priority 0, and that one
still gets its share.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

WEIGHTS: Final = tuple(1 << n for n in range(10))
SCALE: Final = 1 << 12
USUAL_BYTES: Final = 256


class Scheduler:
    """Dialogs that wait, by virtual time. Ties go by order of arrival."""

    __slots__ = ("_clock", "_heap", "_order", "_times", "_waiting")

    def __init__(self) -> None:
        self._clock = 0
        self._order = 0
        self._heap: list[tuple[int, int, int, bytes]] = []
        self._times: dict[bytes, int] = {}
        """Virtual time up to which a dialog was served, where that is ahead of the clock."""
        self._waiting: dict[bytes, int] = {}
        """Order number of the entry that counts."""

    def add(self, dialog: bytes, priority: int) -> None:
        """The dialog has something to be served. Adding it again changes nothing."""
        if dialog in self._waiting:
            return
        self._order += 1
        start = max(self._clock, self._times.get(dialog, 0))
        self._waiting[dialog] = self._order
        # By when a message of usual size would be served, so that of two that start together the higher goes first.
        # rule: D-priority-1a
        finish = start + USUAL_BYTES * SCALE // WEIGHTS[priority]
        heappush(self._heap, (finish, self._order, start, dialog))

    def next(self) -> bytes | None:
        """The dialog to serve now; it does not wait any more until it is added again."""
        heap, waiting = self._heap, self._waiting
        while heap:
            _, order, start, dialog = heappop(heap)
            if waiting.get(dialog) == order:
                del waiting[dialog]
                self._clock = max(self._clock, start)
                return dialog
        return None

    def served(self, dialog: bytes, size: int, priority: int) -> None:
        """Charge a dialog for what it was given."""
        time = max(self._clock, self._times.get(dialog, 0))
        # rule: D-20d
        self._times[dialog] = time + size * SCALE // WEIGHTS[priority] + 1
        if len(self._times) > 64 + 2 * len(self._waiting):
            self._times = {key: t for key, t in self._times.items() if t > self._clock}

    def remove(self, dialog: bytes) -> None:
        self._waiting.pop(dialog, None)
        self._times.pop(dialog, None)

    def __len__(self) -> int:
        return len(self._waiting)
