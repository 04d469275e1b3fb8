"""Deliveries that do not end well: counting attempts, setting poison messages aside.

An attempt is recorded before the message is handed over, so that a message that kills the process is counted too. A
batch counts against none of its messages: after it was aborted, or did not return, its messages are delivered one at
a time, and only those attempts count.
"""

from __future__ import annotations

from holdfast.dialog.incoming import Piece
from holdfast.dialog.records import AttemptRow


class Attempts:
    """The attempts of one dialog."""

    __slots__ = ("aside", "counts", "limit", "single_below")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """Aborted deliveries that make a message poison; 0: none do."""
        self.single_below = 0
        self.counts: dict[int, int] = {}
        self.aside: dict[int, None] = {}
        """Poison messages, by number."""

    def alone(self, number: int) -> bool:
        """Whether this message must be delivered in a batch of its own."""
        return number < self.single_below

    def begin(self, pieces: list[Piece]) -> bool:
        """These messages are about to be handed over. True when the row must be written first."""
        if not self.limit:
            return False
        if len(pieces) == 1 and len(pieces[0].messages) == 1:
            number = pieces[0].first
            self.counts[number] = self.counts.get(number, 0) + 1
        else:
            self.single_below = max(self.single_below, pieces[-1].stop)
        return True

    def attempt(self, number: int) -> int:
        """Which delivery of the message this is."""
        return self.counts.get(number, 1)

    def succeeded(self, pieces: list[Piece]) -> bool:
        """The messages were taken for good. True when the row changed."""
        changed = False
        for piece in pieces:
            if self.counts:
                for number in range(piece.first, piece.stop):
                    changed |= self.counts.pop(number, 0) > 0
                    self.aside.pop(number, None)
            if self.single_below == piece.stop:
                # The batch that raised it is over, and everything below was delivered before it.
                self.single_below = 0
                changed = True
        return changed

    def failed(self, pieces: list[Piece], counts: bool) -> list[int]:
        """The transaction was aborted. Gives the messages that are poison now."""
        poison: list[int] = []
        single = len(pieces) == 1 and len(pieces[0].messages) == 1
        if not single or not self.limit:
            return poison
        number = pieces[0].first
        # rule: D-14e
        if not counts:
            self.counts[number] = max(0, self.counts.get(number, 1) - 1)
        elif self.counts.get(number, 0) >= self.limit:
            self.aside[number] = None
            poison.append(number)
        return poison

    def retry(self, number: int) -> None:
        """Deliver a poison message again, with a fresh count."""
        self.aside.pop(number, None)
        # rule: D-14h
        self.counts.pop(number, None)
        self.single_below = max(self.single_below, number + 1)

    def forget(self, number: int) -> None:
        """The message was discarded."""
        self.aside.pop(number, None)
        self.counts.pop(number, None)

    def row(self) -> AttemptRow | None:
        """None when there is nothing to keep."""
        if not self.single_below and not self.counts and not self.aside:
            return None
        return AttemptRow(self.single_below, list(self.counts.items()), list(self.aside))

    def restore(self, row: AttemptRow) -> list[int]:
        """After a restart every attempt that was begun and not settled has failed. Gives what is poison now."""
        self.single_below = row.single_below
        self.counts = dict(row.counts)
        self.aside = dict.fromkeys(row.aside)
        if not self.limit:
            return []
        fresh = [n for n, count in row.counts if count >= self.limit and n not in self.aside]
        # rule: D-14g
        self.aside.update(dict.fromkeys(fresh))
        return fresh
