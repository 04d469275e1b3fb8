"""CubeFullDist: the members gossip along the edges of the hypercube (figure 5 of the paper, and section 3.5).

A member sends the minimum that it knows to its neighbours, hears theirs, and goes on to the next iteration when it has
heard all of them. After as many iterations as the cube has dimensions every member has heard of every other, directly
or not. Then the minimum is stable, at every member, and no member did more than another.

    resting ──gap over, and news or a neighbour's frame──► running ──G is full──► resting
       ▲   merges, does not send                              │ each iteration: send, hear all neighbours
       └──────────────────────────────────────────────────────┘
"""

from __future__ import annotations

from typing import ClassVar, Final

from holdfast.stability.config import CUBE
from holdfast.stability.frames import CubeState, RoundResult
from holdfast.stability.hypercube import dimensions, neighbours
from holdfast.stability.ports import Seat
from holdfast.stability.protocol import (
    ITERATION_MAX,
    ROUNDS_AHEAD_MAX,
    Carry,
    Protocol,
    Sends,
)
from holdfast.stability.vectors import Holders, Minimum, Vector, any_true, pack, unpack
from holdfast.types import NEVER, Nanos

NOTHING_YET: Final = (-1, 0, 0)


class Cube(Protocol):
    """One member of the hypercube."""

    kind: ClassVar[str] = CUBE

    def __init__(self, seat: Seat, mine: Vector) -> None:
        super().__init__(seat, mine)
        self._near = neighbours(seat.size, seat.place)
        self._minimum = Minimum(seat.slots, seat.size)
        self._value_bytes = self._minimum.values.nbytes
        self._holder_bytes = self._minimum.holders.nbytes
        self._iteration = 0
        self._paced_from = 2 * dimensions(seat.size) + 2
        """From this iteration on the repetition timer sets the pace: all that can be known is known, and the round
        waits for members that do not answer."""
        self._heard: dict[int, int] = dict.fromkeys(self._near, 0)
        """The latest iteration of this round that each neighbour was heard in."""
        self._lacking = len(self._near)
        """Neighbours that are waited for and were not heard in this iteration."""
        self._highest = 0
        """The highest round that was seen."""
        self._early: dict[int, CubeState] = {}
        """The latest frame of a later round from each neighbour. It belongs to the next round as well."""
        self._finished_ns: Nanos = 0
        """When the last round ended here."""
        self._answer: RoundResult | None = None
        """The result of the last round, for a neighbour that has missed it."""
        self._handlers = {CubeState: self._state, RoundResult: self._behind}

    # -- rounds --------------------------------------------------------------------------------------------------

    def _begin(self, now: Nanos, sends: Sends) -> None:
        self._open()
        self.running = True
        self.began_ns = now
        self._iteration = 1
        self._count_lacking()
        self._tell(now, sends)
        self._restart_timer(now)
        self._advance(now, sends)

    def _open(self) -> None:
        """The report is copied at the first send or merge of a round."""
        if not self._minimum.bits & self._bit:
            self._minimum.open(self.seat.place, self.mine)

    def _count_lacking(self) -> None:
        heard, iteration, suspected = self._heard, self._iteration, self.suspected
        self._lacking = sum(
            1 for near in self._near if heard[near] < iteration and not suspected >> near & 1
        )

    def _advance(self, now: Nanos, sends: Sends) -> None:
        """Go on as far as what was heard allows."""
        # rule: S-4a
        if self._minimum.bits == self._full:
            self._finish(now, sends)
        elif self.running and not self._lacking and self._iteration < self._paced_from:
            self._next_iteration(now, sends)

    def _next_iteration(self, now: Nanos, sends: Sends) -> None:
        heard = [at for near, at in self._heard.items() if not self.suspected >> near & 1]
        # A neighbour's frame of a later iteration counts for the earlier ones: one frame answers them all.
        reached = min(heard, default=self._iteration)
        self._iteration = max(self._iteration, min(reached, self._paced_from - 1)) + 1
        self._count_lacking()
        self._tell(now, sends)
        self._restart_timer(now)

    def _tell(self, now: Nanos, sends: Sends) -> None:
        if self._near:
            sends.append((self._near, self._frame()))

    def _frame(self) -> CubeState:
        minimum = self._minimum
        bits, values = self._bitmap(minimum.bits), pack(minimum.values)
        return CubeState(
            *self._head, self.round, self._iteration, bits, values, pack(minimum.holders)
        )

    def _finish(self, now: Nanos, sends: Sends) -> None:
        """Every member is in G. Tell the neighbours before the round is closed, or they would not hear of it."""
        minimum = self._minimum
        self._iteration += 1
        self._tell(now, sends)
        self._settle(minimum.values, minimum.holders)
        self._answer = self._result_frame(self.round, minimum.values, minimum.holders)
        self._finished_ns = now
        self.carries = 0
        self.rounds += 1
        self.round = max(self.round + 1, self._highest)
        self.running = False
        self.rest_until = now + self.seat.config.gap_ns
        self.deadline = NEVER
        minimum.bits = 0
        self._iteration = 0
        self._heard = dict.fromkeys(self._near, 0)
        self._lacking = len(self._near)
        early, self._early = self._early, {}
        for sender, frame in early.items():
            if frame.round >= self.round:
                self._merge(sender, frame)
                self.wanted = True
        if self.wanted:
            self.deadline = max(self.rest_until, now + 1)

    # -- frames --------------------------------------------------------------------------------------------------

    def _state(self, sender: int, frame: CubeState, now: Nanos, sends: Sends) -> None:
        # This is the path of nearly every frame; what it needs is written out here rather than called.
        round_, iteration, current = frame.round, frame.iteration, self.round
        if not 0 < round_ <= current + ROUNDS_AHEAD_MAX or not 0 <= iteration < ITERATION_MAX:
            self.refuse("round")
            return
        key, last = (frame.incarnation, round_, iteration), self._last.get(sender, NOTHING_YET)
        # rule: S-8a
        if key < last:
            self.refuse("late")
            return
        if round_ < current:
            self._last[sender] = key
            # What a slower member sent before it got the last frame of the round needs no answer.
            if key == last or now >= self._finished_ns + self.seat.config.repeat_ns:
                # rule: S-8c
                self._help(sender, now, sends)
            return
        before = self._minimum.bits
        if not self._merge(sender, frame):
            return
        self._last[sender] = key
        # rule: S-8b
        if round_ > current:
            self._highest = max(self._highest, round_)
            if sender in self._heard:
                self._early[sender] = frame
        if not self.running:
            # Waiting merges but does not send. After the gap a neighbour's round is a reason to take part.
            self.want(now, sends)
            return
        bits = self._minimum.bits
        if bits != before and self.deadline > now + self.seat.config.repeat_ns:
            self._restart_timer(now)
        if not self._lacking or bits == self._full:
            self._advance(now, sends)

    def _merge(self, sender: int, frame: CubeState) -> bool:
        """Take in a neighbour's minimum; False when it cannot be one."""
        bits = self._bits(frame.bits)
        if bits < 0:
            return False
        # rule: S-8d
        if not bits >> sender & 1:
            self.refuse("bitmap")
            return False
        minimum = self._minimum
        if bits & ~minimum.bits:
            if not self._is_minimum(bits, frame):
                return False
            if not minimum.bits & self._bit:
                minimum.open(self.seat.place, self.mine)
            minimum.merge_packed(bits, frame.values, frame.holders)
        self._hear(sender, frame.iteration if frame.round == self.round else self._iteration)
        return True

    def _is_minimum(self, bits: int, frame: CubeState) -> bool:
        if len(frame.values) != self._value_bytes or len(frame.holders) != self._holder_bytes:
            self.refuse("vector")
            return False
        # rule: S-8f
        if bits == self._full:
            values = unpack(frame.values, self.seat.slots)
            if values is not None and any_true(values > self.mine):
                self.refuse("above report")
                return False
        return True

    def _hear(self, sender: int, iteration: int) -> None:
        """A neighbour counts once in each iteration, and a later round counts for the current one only."""
        heard = self._heard.get(sender)
        if heard is None or iteration <= heard:
            return
        self._heard[sender] = iteration
        if heard < self._iteration <= iteration and not self.suspected >> sender & 1:
            self._lacking -= 1

    def _help(self, sender: int, now: Nanos, sends: Sends) -> None:
        """A member is behind: give it the result that it missed, or the current state if there is no result yet."""
        if self._answer is not None:
            sends.append(((sender,), self._answer))
        elif self.running:
            sends.append(((sender,), self._frame()))
        else:
            self.want(now, sends)

    def _behind(self, sender: int, frame: RoundResult, now: Nanos, sends: Sends) -> None:
        """A neighbour has the result of a round that this member is still in."""
        if not self._is_sound(frame.round):
            return
        if frame.round < self.round:
            self.refuse("late")
            return
        result = self._result(frame)
        if result is None:
            return
        self._highest = max(self._highest, frame.round + 1)
        self._open()
        self._minimum.merge(self._full, *result)
        self._advance(now, sends)

    # -- time, views ---------------------------------------------------------------------------------------------

    def wake(self, now: Nanos, sends: Sends) -> None:
        self.deadline = NEVER
        if not self.running:
            if self.wanted:
                self.want(now, sends)
            return
        if not self._lacking:
            self._iteration += 1
            self._count_lacking()
        self._tell(now, sends)
        self._back_off(now)

    def suspect(self, suspected: int, now: Nanos, sends: Sends) -> None:
        """Local suspicion shortens the wait of an iteration; G still needs every member of the view."""
        back = tuple(near for near in self._near if (self.suspected & ~suspected) >> near & 1)
        self.suspected = suspected
        self._count_lacking()
        if self.running:
            if back:
                sends.append((back, self._frame()))
            self._advance(now, sends)

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
