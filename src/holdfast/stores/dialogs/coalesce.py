"""Leave out writes that later writes of the same commit undo.

A commit carries several turns. A message that arrives in one of them and is taken in the next need not be written, and
of the position of a dialog only the last one counts. A commit takes effect as a whole, so the result is the same.

An erasure always stays: the store may hold the key from earlier. The unit puts no rows into the tables that an
application's transaction inserts into, so a write that is left out never had to wait for such a row either.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from holdfast.machine import Put, Write


class _Erased:
    """Disjoint ranges of keys."""

    __slots__ = ("_starts", "_stops")

    def __init__(self) -> None:
        self._starts: list[bytes] = []
        self._stops: list[bytes] = []

    def add(self, first: bytes, stop: bytes) -> None:
        low, high = bisect_left(self._stops, first), bisect_right(self._starts, stop)
        if low < high:
            first, stop = min(first, self._starts[low]), max(stop, self._stops[high - 1])
        self._starts[low:high] = [first]
        self._stops[low:high] = [stop]

    def covers(self, key: bytes) -> bool:
        index = bisect_right(self._starts, key)
        return index > 0 and key < self._stops[index - 1]


def coalesce(writes: Sequence[Write]) -> list[Write]:
    """The writes, in order, without every `Put` whose key is written or erased again later."""
    rewritten: set[tuple[str, bytes]] = set()
    erased: dict[str, _Erased] = {}
    kept: list[Write] = []
    for write in reversed(writes):
        if isinstance(write, Put):
            place = (write.table, write.key)
            gone = erased.get(write.table)
            if place in rewritten or (gone is not None and gone.covers(write.key)):
                continue
            rewritten.add(place)
        elif write.first < write.stop:
            erased.setdefault(write.table, _Erased()).add(write.first, write.stop)
        kept.append(write)
    kept.reverse()
    return kept
