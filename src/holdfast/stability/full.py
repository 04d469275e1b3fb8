"""FullDist: every member sends its report to every other (figure 2 of the paper, and section 3.5).

Place 0 begins a round with its row of the matrix; the others answer with theirs. A member that has the rows of all
members of a round takes the minimum of each column. Rows only grow, so of two rows of one member the larger numbers
count. The number of messages grows with the square of the number of members.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from holdfast.stability.config import FULL
from holdfast.stability.frames import RoundReport, Row
from holdfast.stability.ports import Seat
from holdfast.stability.protocol import Carry, Protocol, Sends, places_of
from holdfast.stability.vectors import Holders, Vector, as_holders, nothing, pack
from holdfast.types import NEVER, Nanos


class Full(Protocol):
    """One member of a view in which all talk to all."""

    kind: ClassVar[str] = FULL

    def __init__(self, seat: Seat, mine: Vector) -> None:
        super().__init__(seat, mine)
        self._matrix = np.zeros((seat.size, seat.slots), np.int64)
        self._heard = 0
        """Members whose rows of this round, or of a later one, are here."""
        self._later = 0
        """Members whose rows of a later round are here: they count in that round too."""
        self._highest = 0
        self._handlers = {Row: self._row, RoundReport: self._nudge}

    # -- rounds --------------------------------------------------------------------------------------------------

    def want(self, now: Nanos, sends: Sends) -> None:
        """Place 0 begins rounds. Another member asks it to, unless the round has begun."""
        if self.seat.place == 0 or self._heard & ~self._bit:
            super().want(now, sends)
        elif not self.running:
            sends.append(((0,), self._report_frame(0, 0, self.mine, None)))

    def _begin(self, now: Nanos, sends: Sends) -> None:
        self.running = True
        self.began_ns = now
        self._heard |= self._bit
        self._matrix[self.seat.place] = self.mine
        if self._full != self._bit:
            sends.append((self._others(), self._frame(self.round)))
        self._restart_timer(now)
        self._advance(now)

    def _frame(self, round_: int, ask: bool = False) -> Row:
        return Row(*self._head, round_, pack(self._matrix[self.seat.place]), ask)

    def _advance(self, now: Nanos) -> None:
        if not self.running or self._heard != self._full:
            return
        matrix = self._matrix
        lowest = matrix.argmin(axis=0)
        values = matrix[lowest, np.arange(self.seat.slots)]
        self._settle(values, as_holders(lowest, self.seat.size))
        self.rounds += 1
        self.round = max(self.round + 1, self._highest)
        self.running = False
        self.rest_until = now + self.seat.config.gap_ns
        self.deadline = NEVER
        self._heard, self._later = self._later, 0
        if self._heard:
            self.wanted = True
            self.deadline = max(self.rest_until, now + 1)

    # -- frames --------------------------------------------------------------------------------------------------

    def _row(self, sender: int, frame: Row, now: Nanos, sends: Sends) -> None:
        key = (frame.incarnation, frame.round, 0)
        if not self._is_sound(frame.round) or self._age(sender, key) < 0:
            return
        values = self._vector(frame)
        if values is None:
            return
        self._last[sender] = key
        row = self._matrix[sender]
        np.maximum(row, values, out=row)
        if frame.ask and (self.running or frame.round < self.round):
            # The row of this member's latest round serves for the one that the sender is in.
            latest = self.round if self.running else self.round - 1
            sends.append(((sender,), self._frame(max(latest, frame.round))))
        if frame.round < self.round:
            return
        self._heard |= 1 << sender
        if frame.round > self.round:
            self._highest = max(self._highest, frame.round)
            self._later |= 1 << sender
        if self.running:
            self._advance(now)
        else:
            self.want(now, sends)

    def _nudge(self, sender: int, frame: RoundReport, now: Nanos, sends: Sends) -> None:
        if frame.round or self.seat.place:
            self.refuse("round")
        else:
            self.want(now, sends)

    # -- time, views ---------------------------------------------------------------------------------------------

    def wake(self, now: Nanos, sends: Sends) -> None:
        self.deadline = NEVER
        if not self.running:
            if self.wanted:
                self.want(now, sends)
            return
        sends.append((places_of(self._full & ~self._heard), self._frame(self.round, ask=True)))
        self._back_off(now)

    @property
    def initiates(self) -> bool:
        return self.seat.place == 0

    def silent(self) -> int:
        return self._full & ~self._heard if self.running else 0

    def carried(self) -> tuple[int, Vector, Holders, dict[int, Vector]]:
        return 0, nothing(self.seat.slots), self.holders, dict(enumerate(self._matrix))

    def adopt(self, carry: Carry) -> None:
        for place, row in carry.rows.items():
            self._matrix[place] = row
