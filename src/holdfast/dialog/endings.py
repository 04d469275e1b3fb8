"""Dialogs that are over: their ids remain, as ranges, so that a late frame never starts one again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from holdfast.dialog.ids import counter_of, creator_of
from holdfast.dialog.records import (
    ENDED,
    ENDING,
    EndingRow,
    after,
    decode,
    encode,
    flat,
    pairs,
)
from holdfast.machine import Erase, Put, RangeSet, Write

DETAILS_MAX: Final = 4096
"""Ended dialogs whose final ranges are kept. Of older ones only the id remains."""
FORGOTTEN: Final = EndingRow("forgotten", [], "", 0)


class Endings:
    __slots__ = ("_details", "_ranges")

    def __init__(self) -> None:
        self._ranges: dict[bytes, RangeSet] = {}
        self._details: dict[bytes, EndingRow] = {}

    def restore(
        self, ended: Iterable[tuple[bytes, bytes]], ending: Iterable[tuple[bytes, bytes]]
    ) -> None:
        for creator, value in ended:
            self._ranges[creator] = RangeSet(pairs(decode(list[int], value)))
        rows = [(key, decode(EndingRow, value)) for key, value in ending]
        self._details = dict(sorted(rows, key=lambda item: (item[1].wall, item[0])))

    def of(self, dialog: bytes) -> EndingRow | None:
        """How a dialog ended; None when it did not end here."""
        found = self._details.get(dialog)
        if found is not None:
            return found
        ranges = self._ranges.get(creator_of(dialog))
        # rule: D-17d
        return FORGOTTEN if ranges is not None and counter_of(dialog) in ranges else None

    def add(self, dialog: bytes, row: EndingRow) -> list[Write]:
        """Record an ending; gives what to write."""
        creator, counter = creator_of(dialog), counter_of(dialog)
        ranges = self._ranges.setdefault(creator, RangeSet())
        ranges.add(counter, counter + 1)
        self._details[dialog] = row
        writes: list[Write] = [
            Put(ENDED, creator, encode(flat(ranges))),
            Put(ENDING, dialog, encode(row)),
        ]
        if len(self._details) > DETAILS_MAX:
            oldest = next(iter(self._details))
            del self._details[oldest]
            writes.append(Erase(ENDING, oldest, after(oldest)))
        return writes

    def __len__(self) -> int:
        return sum(ranges.total() for ranges in self._ranges.values())
