"""How late this node ran lately, which heartbeats say to their listeners.

A node that waits for a processor sends late and reads late. Its heartbeats carry the time at which its turn began, so
the listener would see a delay of the path. Both ends therefore measure how late they run, and as much of a delay is
credited to them and not to the path.
"""

from __future__ import annotations

from typing import Final

from holdfast.types import MILLISECOND, SECOND, Nanos

WINDOW_NS: Final = 1 * SECOND
STEP_NS: Final = 8 * MILLISECOND
STEPS_MAX: Final = 127
"""Heartbeats state it in so many steps of this, because they must stay small: one byte."""
UNBOUNDED_NS: Final = 3600 * SECOND
BUSY_NS: Final = 500 * MILLISECOND
"""A node that is later than this accuses no path of anything but death: its sockets overflow, and it sees the rest of
a round long after the beginning."""


class OwnLag:
    """The most by which this node was late in the last one or two seconds."""

    __slots__ = ("_before", "_from", "_most", "ns", "steps")

    def __init__(self) -> None:
        self.ns: Nanos = 0
        self.steps = 0
        """The same as heartbeats state it."""
        self._most: Nanos = 0
        self._before: Nanos = 0
        self._from: Nanos = 0

    def seen(self, now: Nanos, lag_ns: Nanos) -> None:
        """A turn was late by so much, or something waited for it for so long."""
        self.pass_time(now)
        self._most = max(self._most, lag_ns)
        self._state()

    def pass_time(self, now: Nanos) -> None:
        if 0 <= now - self._from < WINDOW_NS:
            return
        recent = 0 <= now - self._from < 2 * WINDOW_NS
        self._before, self._most, self._from = self._most if recent else 0, 0, now
        self._state()

    def _state(self) -> None:
        self.ns = max(self._most, self._before)
        self.steps = min(-(-self.ns // STEP_NS), STEPS_MAX)


def stated_ns(steps: int) -> Nanos:
    """What a peer states, within bounds. The highest step says 'as late or later': no delay is one of the path."""
    return max(steps, 0) * STEP_NS if steps < STEPS_MAX else UNBOUNDED_NS
