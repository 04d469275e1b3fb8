"""Lost telemetry that has not been reported yet."""

from __future__ import annotations

from typing import Final

import msgspec

UNKNOWN: Final = -1
"""Value of `last` if the number of facts is unknown."""


class Loss(msgspec.Struct, frozen=True):
    kind: str
    incarnation: int
    first: int
    last: int
    reason: str


class Losses:
    """Lost ranges to be reported, with neighbours merged, at most `bound` of them.

    Beyond the bound, the newest entry of the kind is widened. That may report too much as lost, which makes an audit
    "not provable"; reporting too little would make it wrong.
    """

    def __init__(self, bound: int = 1000) -> None:
        self.facts = 0
        """Number of lost facts, as far as they could be counted."""
        self._bound = bound
        self._waiting: list[Loss] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, kind: str, incarnation: int, first: int, last: int, reason: str) -> None:
        self.facts += max(0, last - first + 1)
        for at in range(len(self._waiting) - 1, -1, -1):
            before = self._waiting[at]
            if (before.kind, before.incarnation) != (kind, incarnation):
                continue
            known = before.last != UNKNOWN and last != UNKNOWN
            if known and before.last + 1 == first and before.reason == reason:
                self._waiting[at] = Loss(kind, incarnation, before.first, last, reason)
                return
            if len(self._waiting) >= self._bound:
                widest = max(before.last, last) if known else UNKNOWN
                low = min(before.first, first)
                self._waiting[at] = Loss(kind, incarnation, low, widest, "several reasons")
                return
            break
        self._waiting.append(Loss(kind, incarnation, first, last, reason))

    def take(self) -> list[Loss]:
        taken, self._waiting = self._waiting, []
        return taken

    def give_back(self, losses: list[Loss]) -> None:
        """They could not be written: keep them, in front."""
        self._waiting[:0] = losses
