"""Alarms: which errors there are now, on which path, in which direction. Repeats collapse.

An error is reported when it comes and when it goes. A path that keeps changing is reported once as flapping, and
then its other alarms come and go in silence until it has been calm for a while.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from holdfast.health.classify import FLAPPING, SoftError
from holdfast.health.table import PathKey
from holdfast.types import SECOND, Nanos

FLAPS: Final = 6
"""So many changes between sound and not sound within the window make a path flap: three times to and fro."""
FLAP_WINDOW_NS: Final = 60 * SECOND
ALARMS_MAX: Final = 10_000
"""Paths with alarms; beyond it more of them are not told apart."""
_FLAPS: Final = (FLAPPING, "")


class Alarm(msgspec.Struct, frozen=True, gc=False):
    """An error that a path has now."""

    path: PathKey
    error: SoftError
    since_ns: Nanos
    count: int = 1
    """How often it was reported since it came: repeats are only counted."""


class Report(msgspec.Struct, frozen=True, gc=False):
    """Something to tell people: an alarm came, or went."""

    alarm: Alarm
    raised: bool


class Alarms:
    """The alarms of all paths in the table."""

    def __init__(self) -> None:
        self.active: dict[PathKey, dict[tuple[str, str], Alarm]] = {}
        """By path, then by class of error and kind of packets."""
        self._turns: dict[PathKey, deque[Nanos]] = {}
        """When each path last turned from sound to not sound, or back."""
        self._unsound: dict[PathKey, bool] = {}

    def turned(self, now: Nanos, path: PathKey, sound: bool) -> None:
        """A path is (still, or again) sound or not: too many changes make it flap."""
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
        """Paths that flapped and have come to rest; what turned long ago is forgotten."""
        old = [p for p, turns in self._turns.items() if now - turns[-1] >= FLAP_WINDOW_NS]
        for path in old:
            del self._turns[path]
        return [path for path in old if self._flaps(path)]

    @property
    def restless(self) -> bool:
        """Whether `calm` has anything to look at."""
        return bool(self._turns)

    def update(self, now: Nanos, path: PathKey, errors: tuple[SoftError, ...]) -> list[Report]:
        """These, and no others, are the errors of a path now; what is new about that."""
        active = self.active.get(path, {})
        silent = self._flaps(path)
        now_wrong = {(error.error_class, error.kind): error for error in errors}
        reports: list[Report] = []
        for key in [key for key in active if key not in now_wrong]:
            alarm = active.pop(key)
            if not silent or key == _FLAPS:
                reports.append(Report(alarm, raised=False))
        for key, error in now_wrong.items():
            known = active.get(key)
            if known is None:
                known = active[key] = Alarm(path, error, now)
                if not silent:
                    reports.append(Report(known, raised=True))
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
