"""Coord: one member collects the reports of all and says what is stable (figure 1 of the paper, and section 3.5).

The coordinator keeps an account with the latest report of every member. A report that came since the last result
counts as the answer to the next START, wherever it came from (`learn`): while acknowledgements flow anyway there is
no START at all, and a round is one RoundResult to each member.

Reports only grow, so the account takes the larger number of two reports: order and repetition do not matter. Any
member answers a START of any other, so a new coordinator needs no agreement.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from holdfast.stability.config import COORD
from holdfast.stability.frames import ResultAck, RoundReport, RoundResult, RoundStart
from holdfast.stability.ports import Seat
from holdfast.stability.protocol import Carry, Protocol, Sends, places_of
from holdfast.stability.vectors import Holders, Vector, as_holders, nothing
from holdfast.types import NEVER, Nanos


class Coord(Protocol):
    """A member of a view with a coordinator, or the coordinator itself."""

    kind: ClassVar[str] = COORD

    def __init__(self, seat: Seat, mine: Vector) -> None:
        super().__init__(seat, mine)
        self.coordinator = 0
        self._rows: npt.NDArray[np.int64] | None = None
        """The account, one row per member. Only a coordinator needs it."""
        self._heard = 0
        """Members whose reports came since the last result."""
        self._unaware = 0
        """Members that have not confirmed the last result."""
        self._outcome: RoundResult | None = None
        self._handlers = {
            RoundStart: self._start,
            RoundReport: self._report,
            RoundResult: self._info,
            ResultAck: self._acked,
        }

    @property
    def _account(self) -> npt.NDArray[np.int64]:
        if self._rows is None:
            self._rows = np.zeros((self.seat.size, self.seat.slots), np.int64)
        return self._rows

    @property
    def leads(self) -> bool:
        return self.coordinator == self.seat.place

    def coordinate(self, place: int, now: Nanos, sends: Sends) -> None:
        """`place` coordinates from now on. A new coordinator begins a round: the last one may not have told all."""
        if place == self.coordinator:
            return
        self.coordinator = place
        self.running = False
        self.deadline = NEVER
        self._unaware = 0
        if self.leads:
            self.want(now, sends)

    # -- the coordinator -----------------------------------------------------------------------------------------

    def want(self, now: Nanos, sends: Sends) -> None:
        if self.leads:
            super().want(now, sends)
        else:
            sends.append(((self.coordinator,), self._report_frame(0, 0, self.mine, None)))

    def _begin(self, now: Nanos, sends: Sends) -> None:
        self.running = True
        self.began_ns = now
        self._heard |= self._bit
        if self._heard == self._full:
            self._finish(now, sends)
            return
        self._ask(sends)
        self._restart_timer(now)

    def _ask(self, sends: Sends) -> None:
        sends.append((places_of(self._full & ~self._heard), self._start_frame()))

    def _report(self, sender: int, frame: RoundReport, now: Nanos, sends: Sends) -> None:
        if frame.round != 0 and not self._is_sound(frame.round):
            return
        if frame.bits or frame.holders:
            self.refuse("bitmap")
            return
        values = self._vector(frame)
        if values is None:
            return
        self.learn(sender, values, now, sends)
        if frame.round == 0 and self.leads:
            self.want(now, sends)

    def learn(self, place: int, values: Vector, now: Nanos, sends: Sends) -> None:
        row = self._account[place]
        np.maximum(row, values, out=row)
        # rule: S-10c
        self._heard |= 1 << place
        if self.running and self._heard == self._full:
            self._finish(now, sends)

    def _finish(self, now: Nanos, sends: Sends) -> None:
        account = self._account
        account[self.seat.place] = self.mine
        lowest = account.argmin(axis=0)
        values = account[lowest, np.arange(self.seat.slots)]
        self._settle(values, as_holders(lowest, self.seat.size))
        self._outcome = self._result_frame(self.round, self.stable, self.holders)
        self.running = False
        self.round += 1
        self.rounds += 1
        self._heard = 0
        self._unaware = self._full & ~self._bit
        self.rest_until = now + self.seat.config.gap_ns
        self.deadline = NEVER
        if self._unaware:
            sends.append((places_of(self._unaware), self._outcome))
            self._restart_timer(now)

    def _acked(self, sender: int, frame: ResultAck, now: Nanos, sends: Sends) -> None:
        if not self._is_sound(frame.round):
            return
        if self._outcome is not None and frame.round == self._outcome.round:
            self._unaware &= ~(1 << sender)
            if not self._unaware and not self.running:
                self.deadline = self.rest_until if self.wanted else NEVER

    # -- every member --------------------------------------------------------------------------------------------

    def _start(self, sender: int, frame: RoundStart, now: Nanos, sends: Sends) -> None:
        key = (frame.incarnation, frame.round, 0)
        if not self._is_sound(frame.round) or self._age(sender, key) < 0:
            return
        self._last[sender] = key
        sends.append(((sender,), self._report_frame(frame.round, 0, self.mine, None)))

    def _info(self, sender: int, frame: RoundResult, now: Nanos, sends: Sends) -> None:
        key = (frame.incarnation, frame.round, 1)
        if not self._is_sound(frame.round) or self._age(sender, key) < 0:
            return
        result = self._result(frame)
        if result is None:
            return
        self._last[sender] = key
        self._settle(*result)
        self.rounds += 1
        sends.append(((sender,), self._ack_frame(frame.round, self._bit)))

    # -- time, views ---------------------------------------------------------------------------------------------

    def wake(self, now: Nanos, sends: Sends) -> None:
        self.deadline = NEVER
        if self.running:
            self._ask(sends)
            self._back_off(now)
            return
        if self.wanted and now >= self.rest_until:
            self.want(now, sends)
            return
        if self._unaware and self._outcome is not None:
            sends.append((places_of(self._unaware), self._outcome))
            self._back_off(now)
        if self.wanted:
            self.deadline = min(self.deadline, self.rest_until)

    @property
    def initiates(self) -> bool:
        return self.leads

    def silent(self) -> int:
        return self._full & ~self._heard if self.running else 0

    def carried(self) -> tuple[int, Vector, Holders, dict[int, Vector]]:
        rows = {} if self._rows is None else dict(enumerate(self._rows))
        return 0, nothing(self.seat.slots), self.holders, rows

    def adopt(self, carry: Carry) -> None:
        for place, row in carry.rows.items():
            self._account[place] = row
