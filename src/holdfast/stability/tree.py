"""S_Coord: reports travel up a tree of degree log n, each member adding its own (figure 3 of the paper, section 3.5).

The root (place 0) sends START to all members. A leaf answers its parent with its report, an inner member with the
minimum of its subtree once that is complete, and the root sends the result to all. A member that is asked again for
the same round sends what it has, complete or not: the root can then name the members that are missing.

Every member of the tree is a single point of failure for its subtree until the view changes. The other three
protocols are better suited to unreliable members.
"""

from __future__ import annotations

from typing import ClassVar

from holdfast.stability.config import TREE
from holdfast.stability.frames import ResultAck, RoundReport, RoundResult, RoundStart
from holdfast.stability.hypercube import parent, subtrees
from holdfast.stability.ports import Seat
from holdfast.stability.protocol import Carry, Protocol, Sends, places_of
from holdfast.stability.vectors import Holders, Minimum, Vector
from holdfast.types import NEVER, Nanos


class Tree(Protocol):
    """One member of the tree."""

    kind: ClassVar[str] = TREE

    def __init__(self, seat: Seat, mine: Vector) -> None:
        super().__init__(seat, mine)
        self._parent = parent(seat.size, seat.place)
        self._below = subtrees(seat.size)[seat.place]
        """This member and all members below it."""
        self._minimum = Minimum(seat.slots, seat.size)
        self._reported = False
        """The complete minimum of this round was sent to the parent."""
        self._aware = 0
        """Members at or below this one that have the last result."""
        self._aware_early = (0, 0)
        """A round whose result has not come here yet, and the members below that confirmed it already."""
        self._outcome: RoundResult | None = None
        self._handlers = {
            RoundStart: self._start,
            RoundReport: self._report,
            RoundResult: self._info,
            ResultAck: self._acked,
        }
        if seat.place:
            self.round = 0

    @property
    def is_root(self) -> bool:
        return self._parent < 0

    # -- the root ------------------------------------------------------------------------------------------------

    def want(self, now: Nanos, sends: Sends) -> None:
        if self.is_root:
            super().want(now, sends)
        else:
            # The subtree is not asked: the root only needs to know that there is a need.
            frame = self._report_frame(0, self._bit, self.mine, self.holders)
            sends.append(((0,), frame))

    def _begin(self, now: Nanos, sends: Sends) -> None:
        self.running = True
        self.began_ns = now
        self._open()
        if self._minimum.bits == self._full:
            self._finish(now, sends)
            return
        sends.append((self._others(), self._start_frame()))
        self._restart_timer(now)

    def _finish(self, now: Nanos, sends: Sends) -> None:
        minimum = self._minimum
        self._settle(minimum.values, minimum.holders)
        self._outcome = self._result_frame(self.round, self.stable, self.holders)
        self._aware = self._bit
        minimum.bits = 0
        self.carries = 0
        self.running = False
        self.round += 1
        self.rounds += 1
        self.rest_until = now + self.seat.config.gap_ns
        self.deadline = NEVER
        if self._full != self._bit:
            sends.append((self._others(), self._outcome))
            self._restart_timer(now)

    # -- reports -------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        if not self._minimum.bits & self._bit:
            self._minimum.open(self.seat.place, self.mine)

    def _start(self, sender: int, frame: RoundStart, now: Nanos, sends: Sends) -> None:
        key = (frame.incarnation, frame.round, 0)
        if sender != 0:
            self.refuse("sender")
            return
        if not self._is_sound(frame.round) or (age := self._age(sender, key)) < 0:
            return
        self._last[sender] = key
        if age > 0 and frame.round != self.round:
            self._enter(frame.round)
        self._open()
        if self._is_complete or age == 0:
            self._send_up(sends)

    def _enter(self, round_: int) -> None:
        """A round begins for this member. What it knew before a change of the view counts in the first one."""
        if self.round or not self._minimum.bits:
            self._minimum.open(self.seat.place, self.mine)
            self.carries = 0
        self.round = round_
        self._reported = False

    @property
    def _is_complete(self) -> bool:
        return not self._below & ~self._minimum.bits

    def _send_up(self, sends: Sends) -> None:
        minimum = self._minimum
        self._reported = self._is_complete
        frame = self._report_frame(self.round, minimum.bits, minimum.values, minimum.holders)
        sends.append(((self._parent,), frame))

    def _report(self, sender: int, frame: RoundReport, now: Nanos, sends: Sends) -> None:
        if frame.round == 0:
            if self.is_root:
                self.want(now, sends)
            return
        if not self._is_sound(frame.round):
            return
        ahead = frame.round > self.round
        if frame.round < self.round or (self.is_root and (ahead or not self.running)):
            self.refuse("late" if not ahead else "round")
            return
        bits, values, holders = self._bits(frame.bits), self._vector(frame), self._holders(frame)
        if bits < 0 or values is None or holders is None:
            return
        if not bits >> sender & 1:
            self.refuse("bitmap")
            return
        if ahead:
            self._enter(
                frame.round
            )  # The child got a START that was lost on the way to this member.
        self._open()
        new = bits & ~self._minimum.bits
        self._minimum.merge(bits, values, holders)
        if self.is_root:
            self._collected(new, now, sends)
        elif self._is_complete and (new or not self._reported):
            self._send_up(sends)

    def _collected(self, new: int, now: Nanos, sends: Sends) -> None:
        if self._minimum.bits == self._full:
            self._finish(now, sends)
        elif new and self.deadline > now + self.seat.config.repeat_ns:
            self._restart_timer(now)

    # -- results -------------------------------------------------------------------------------------------------

    def _info(self, sender: int, frame: RoundResult, now: Nanos, sends: Sends) -> None:
        key = (frame.incarnation, frame.round, 1)
        if sender != 0:
            self.refuse("sender")
            return
        if not self._is_sound(frame.round) or (age := self._age(sender, key)) < 0:
            return
        result = self._result(frame)
        if result is None:
            return
        self._last[sender] = key
        if age > 0:
            self._settle(*result)
            self.rounds += 1
            self.round = frame.round
            self._minimum.bits = 0
            self.carries = 0
            early, bits = self._aware_early
            self._aware = self._bit | (bits if early == frame.round else 0)
            self._outcome = frame
        if age == 0 or not self._below & ~self._aware:
            sends.append(((self._parent,), self._ack_frame(frame.round, self._aware)))

    def _acked(self, sender: int, frame: ResultAck, now: Nanos, sends: Sends) -> None:
        bits = self._bits(frame.bits)
        if bits < 0 or not self._is_sound(frame.round):
            return
        current = 0 if self._outcome is None else self._outcome.round
        if frame.round > current and not self.is_root:
            early, before = self._aware_early
            self._aware_early = (frame.round, bits | (before if early == frame.round else 0))
            return
        if frame.round != current:
            self.refuse("late")
            return
        new = bits & ~self._aware
        self._aware |= bits
        if self.is_root:
            if self._aware == self._full and not self.running:
                self.deadline = self.rest_until if self.wanted else NEVER
        elif new and not self._below & ~self._aware:
            sends.append(((self._parent,), self._ack_frame(frame.round, self._aware)))

    # -- time, views ---------------------------------------------------------------------------------------------

    def wake(self, now: Nanos, sends: Sends) -> None:
        self.deadline = NEVER
        if not self.is_root:
            return
        if self.running:
            # The members on the way up from a missing one have to send again as well.
            sends.append((self._others(), self._start_frame()))
            self._back_off(now)
            return
        if self.wanted and now >= self.rest_until:
            self.want(now, sends)
            return
        unaware = self._full & ~self._aware
        if unaware and self._outcome is not None:
            sends.append((places_of(unaware), self._outcome))
            self._back_off(now)
        if self.wanted:
            self.deadline = min(self.deadline, self.rest_until)

    @property
    def initiates(self) -> bool:
        return self._parent < 0

    def silent(self) -> int:
        return self._full & ~self._minimum.bits if self.running else 0

    def carried(self) -> tuple[int, Vector, Holders, dict[int, Vector]]:
        return self._minimum.bits, self._minimum.values, self._minimum.holders, {}

    def adopt(self, carry: Carry) -> None:
        if carry.bits & self._bit:
            minimum = self._minimum
            self.carries = carry.times
            minimum.bits = carry.bits
            minimum.values[:] = carry.values
            minimum.holders[:] = carry.holders
