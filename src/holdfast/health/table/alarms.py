"""The current errors of each path, with their direction. Repeats are counted, not reported.

An error is reported when it starts and when it ends. A path that keeps changing is reported once as flapping, and its
other alarms are not reported until it has been stable for a while.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from holdfast.health.classify import FLAPPING, SoftError
from holdfast.health.table.path_table import PathKey
from holdfast.health.table.values import Alarm, AlarmReport
from holdfast.types import SECOND, Nanos

FLAPS: Final = 6
"""This many changes between healthy and faulty within the window make a path flapping: three times each way."""
FLAP_WINDOW_NS: Final = 60 * SECOND
ALARMS_MAX: Final = 10_000
"""Paths with alarms; beyond this, further ones are not tracked."""
_FLAPS: Final = (FLAPPING, "")


class Alarms:
    """The alarms of all paths in the table."""

    def __init__(self) -> None:
        self.active: dict[PathKey, dict[tuple[str, str], Alarm]] = {}
        """By path, then by error class and packet kind."""
        self._turns: dict[PathKey, deque[Nanos]] = {}
        """When each path last changed between healthy and faulty."""
        self._unsound: dict[PathKey, bool] = {}

    def turned(self, now: Nanos, path: PathKey, sound: bool) -> None:
        """A path is healthy or faulty (still, or again): too many changes make it flapping."""
        if sound != (path in self._unsound):
            return
        if sound:
            del self._unsound[path]
        elif len(self._unsound) < ALARMS_MAX:
            self._unsound[path] = True
        self._turns.setdefault(path, deque(maxlen=FLAPS)).append(now)

    def flapping(self, now: Nanos, path: PathKey) -> bool:
        turns = self._turns.get(path)
        if not turns:
            return False
        if self._flaps(path):
            return now - turns[-1] < FLAP_WINDOW_NS
        return len(turns) == FLAPS and now - turns[0] < FLAP_WINDOW_NS

    def calm(self, now: Nanos) -> list[PathKey]:
        """Paths that have stopped flapping; old changes are removed."""
        old = [p for p, turns in self._turns.items() if now - turns[-1] >= FLAP_WINDOW_NS]
        for path in old:
            del self._turns[path]
        return [path for path in old if self._flaps(path)]

    @property
    def restless(self) -> bool:
        """Whether `calm` has anything to do."""
        return bool(self._turns)

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
