"""When the store of a unit that raised is opened again.

A new unit begins from what the store has, with a new epoch, as after a crash of the node: nothing that was acknowledged
is lost. But the input that made the unit raise may come again. So each failure within an hour doubles the wait, and
after the last wait the store stays closed. Only its own dialogs halt.
"""

from __future__ import annotations

from typing import Final

from holdfast.types import NEVER, SECOND, Nanos

WAITS: Final = (0, 10 * SECOND, 20 * SECOND, 40 * SECOND, 80 * SECOND, 160 * SECOND)
"""Before a store is opened again, by its failures within the last hour; 0: as soon as possible."""
REMEMBERED: Final = 3600 * SECOND


class Reopening:
    """The failures of the units of dialog stores."""

    __slots__ = ("_failures",)

    def __init__(self) -> None:
        self._failures: dict[str, list[Nanos]] = {}

    def failed(self, unit: str, now: Nanos) -> Nanos:
        """A unit raised: how long its store stays closed. `NEVER`: until the node is restarted."""
        recent = [at for at in self._failures.get(unit, ()) if now - at < REMEMBERED]
        recent.append(now)
        self._failures[unit] = recent
        return WAITS[len(recent) - 1] if len(recent) <= len(WAITS) else NEVER


def outlook(reason: str, wait_ns: Nanos) -> str:
    """Why a store is closed, what that means for its dialogs, and what to do."""
    if not wait_ns:
        return f"{reason}; it is opened again"
    if wait_ns < NEVER:
        return (
            f"its unit failed repeatedly ({reason}); its dialogs halt and lose nothing; it is opened again in "
            f"{wait_ns // SECOND} s"
        )
    return (
        f"its unit failed {len(WAITS) + 1} times within an hour ({reason}); its dialogs halt and lose nothing; "
        "it stays closed until the node is restarted: see the dumps of the failures in the node's directory `failures`"
    )
