"""When each path must be checked again.

Paths tick on a common grid, so many have the same time: they share one heap entry and one wake-up.
"""

from __future__ import annotations

from heapq import heappop, heappush

from holdfast.health.probing.path import Path
from holdfast.types import NEVER, Nanos


class TimerWheel:
    """Paths by time. Rescheduling a path leaves its old entry behind, which is skipped when its time comes."""

    __slots__ = ("_slots", "_times")

    def __init__(self) -> None:
        self._times: list[Nanos] = []
        self._slots: dict[Nanos, list[Path]] = {}

    def arm(self, path: Path) -> None:
        """Schedule the check of a path, if that is earlier than its current time."""
        at, check_at = path.probe_sender.due_at, path.probe_receiver.check_at
        if check_at < at:
            at = check_at
        if at < path.armed_at:
            path.armed_at = at
            if at in self._slots:
                self._slots[at].append(path)
            else:
                self._slots[at] = [path]
                heappush(self._times, at)

    def due(self, now: Nanos) -> list[Path]:
        """The paths whose time has come, earliest first, in the order in which they were scheduled. They are not
        scheduled any more."""
        found: list[Path] = []
        times = self._times
        while times and times[0] <= now:
            at = heappop(times)
            for path in self._slots.pop(at):
                if path.armed_at == at:
                    path.armed_at = NEVER
                    found.append(path)
        return found

    def next(self) -> Nanos:
        """The earliest scheduled time, or `NEVER`."""
        times = self._times
        while times:
            at = times[0]
            for path in self._slots[at]:
                if path.armed_at == at:
                    return at
            del self._slots[heappop(times)]
        return NEVER
