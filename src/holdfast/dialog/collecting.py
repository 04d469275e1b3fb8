"""Abandoned dialogs: those that nothing will end any more are collected, counted and reported.

| state                      | abandoned when nothing was sent, received or changed for `abandoned_after_s` |
| -------------------------- | ---------------------------------------------------------------------------- |
| faulted, terminated, moved | always: no application repaired it, read it, or followed it |
| open                       | and there is no link to its partner |
| before a partner           | never: it is looking for one |

Deactivated dialogs are open ones that are not in memory: `inactive` finds them.
"""

from __future__ import annotations

from typing import Final

from holdfast.dialog import lifecycle
from holdfast.dialog.session import Dialog, Surroundings
from holdfast.dialog.states import FAULTED, MOVED, OPEN, TERMINATED
from holdfast.types import SECOND, Nanos

SCAN_MAX: Final = 3600 * SECOND


def every(env: Surroundings) -> Nanos:
    """The interval between two scans."""
    return max(SECOND, min(SCAN_MAX, env.abandoned_ns // 10))


def active(d: Dialog, now: Nanos) -> None:
    """Messages passed. The row says so only now and then: it must not be written with each of them."""
    wall = d.env.wall(now)
    if d.env.abandoned_ns and wall - d.touched > d.env.abandoned_ns // 4:
        d.touched = wall
        d.stage.row = True


def collect(d: Dialog, now: Nanos) -> None:
    """End the dialog if it was abandoned."""
    quiet = d.env.wall(now) - d.touched
    if quiet < d.env.abandoned_ns or (d.state == OPEN and d.connected):
        return
    if d.state not in (OPEN, FAULTED, TERMINATED, MOVED):
        return
    reason = f"abandoned: nothing happened for {quiet // SECOND} s"
    d.env.count("abandoned")
    if d.state in (OPEN, FAULTED):
        lifecycle.terminate(d, now, reason)
    d.stage.ended = ("abandoned", reason)
