"""The current errors of each path, with their direction. Repeats are counted, not reported.

An error is reported when it starts and when it ends. A path that keeps changing is reported once as flapping, and its
other alarms are not reported until it has been stable for a while.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from holdfast.health.classify import FLAPPING, PATTERN, SIZE, SoftError
from holdfast.health.table.path_table import PathKey
from holdfast.health.table.values import Alarm, AlarmReport
from holdfast.types import SECOND, Nanos

FLAPS: Final = 3
"""A path is flapping if the same error has come and gone so often within the window. Different errors are different
faults, and so are limits of different sizes."""
FLAP_WINDOW_NS: Final = 60 * SECOND
ALARMS_MAX: Final = 10_000
"""Paths with alarms; beyond this, further ones are not tracked."""
_FLAPS: Final = (FLAPPING, "")

Fault = tuple[str, str, int, tuple[str, ...]]
"""An error class, a packet kind, and what tells one such fault from another."""


class Alarms:
    """The alarms of all paths in the table."""

    def __init__(self) -> None:
        self.active: dict[PathKey, dict[tuple[str, str], Alarm]] = {}
        """By path, then by error class and packet kind."""
        self._turned_at: dict[PathKey, Nanos] = {}
        """When each path last changed between healthy and faulty."""
        self._ends: dict[PathKey, dict[Fault, deque[Nanos]]] = {}
        """When it became healthy again after each fault."""
        self._unsound: dict[PathKey, dict[Fault, bool]] = {}
        """The faults of each path since it was last healthy."""

    def turned(self, now: Nanos, path: PathKey, errors: tuple[SoftError, ...]) -> None:
        """A path is healthy or faulty (still, or again): a fault that comes and goes too often makes it flapping."""
        seen = self._unsound.get(path)
        if errors:
            if seen is None:
                if len(self._unsound) >= ALARMS_MAX:
                    return
                seen = self._unsound[path] = {}
                self._turned_at[path] = now
            for error in errors:
                seen[_fault(error)] = True
        elif seen is not None:
            del self._unsound[path]
            self._turned_at[path] = now
            ends = self._ends.setdefault(path, {})
            for fault in seen:
                ends.setdefault(fault, deque(maxlen=FLAPS)).append(now)

    def flapping(self, now: Nanos, path: PathKey) -> bool:
        if path not in self._turned_at:
            return False
        if self._flaps(path):
            return now - self._turned_at[path] < FLAP_WINDOW_NS
        ends = self._ends.get(path, {})
        return any(len(at) == FLAPS and now - at[0] < FLAP_WINDOW_NS for at in ends.values())

    def calm(self, now: Nanos) -> list[PathKey]:
        """Paths that have stopped flapping; old changes are removed."""
        old = [path for path, at in self._turned_at.items() if now - at >= FLAP_WINDOW_NS]
        for path in old:
            del self._turned_at[path]
            self._ends.pop(path, None)
        return [path for path in old if self._flaps(path)]

    @property
    def restless(self) -> bool:
        """Whether `calm` has anything to do."""
        return bool(self._turned_at)

    def update(self, now: Nanos, path: PathKey, errors: tuple[SoftError, ...]) -> list[AlarmReport]:
        """Set the current errors of a path; returns what changed."""
        active = self.active.get(path, {})
        silent = self._flaps(path)
        now_wrong = {(error.error_class, error.kind): error for error in errors}
        reports: list[AlarmReport] = []
        for key in [key for key in active if key not in now_wrong]:
            alarm = active.pop(key)
            if not silent or key == _FLAPS:
                reports.append(AlarmReport(alarm, raised=False))
        for key, error in now_wrong.items():
            known = active.get(key)
            if known is None:
                known = active[key] = Alarm(path, error, now)
                if not silent:
                    reports.append(AlarmReport(known, raised=True))
            elif known.error != error or (silent and key == _FLAPS):
                active[key] = Alarm(path, error, known.since_ns, known.count + 1)
        if not active:
            self.active.pop(path, None)
        elif path in self.active or len(self.active) < ALARMS_MAX:
            self.active[path] = active
        else:
            return []
        return reports

    def _flaps(self, path: PathKey) -> bool:
        return _FLAPS in self.active.get(path, ())


def _fault(error: SoftError) -> Fault:
    """What an error has in common with another one of the same fault. Measured figures differ a little each time."""
    values = error.values if error.error_class in (SIZE, PATTERN) else ()
    value = error.value if error.error_class == SIZE else error.value.bit_length()
    return error.error_class, error.kind, value, values
