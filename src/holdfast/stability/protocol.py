"""The interface of the four protocols, and what they share.

A protocol instance serves one member in one view. It speaks of members by their place, 0 to n-1. The owner (normally
`Detector`) checks that a frame belongs to the view and comes from the life that the view names, then calls `take`.
Frames to send are appended to a list as `(places, frame)`: one entry for all receivers of the same frame.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np

from holdfast.stability.frames import (
    CubeState,
    ResultAck,
    RoundReport,
    RoundResult,
    RoundStart,
    Row,
    StabilityFrame,
)
from holdfast.stability.ports import Seat
from holdfast.stability.vectors import (
    Holders,
    Vector,
    any_true,
    nothing,
    pack,
    unknown_holders,
    unpack,
    unpack_holders,
)
from holdfast.types import NEVER, Nanos

ROUNDS_AHEAD_MAX: Final = 1 << 40
"""A round further ahead than this is refused: it would use up the numbers."""
ITERATION_MAX: Final = 1 << 40

Sends = list[tuple[tuple[int, ...], StabilityFrame]]


@dataclass(slots=True)
class Carry:
    """What survives a change of the view, in places and slots of the new view (rule 6)."""

    bits: int
    values: Vector
    holders: Holders
    rows: dict[int, Vector]
    """Reports of single members that this member has."""
    times: int
    """View changes that the round of `bits` has survived."""


def places_of(bits: int) -> tuple[int, ...]:
    """The members of a bitmap, in ascending order."""
    data = np.frombuffer(bits.to_bytes((bits.bit_length() + 7) // 8, "little"), np.uint8)
    return tuple(np.flatnonzero(np.unpackbits(data, bitorder="little")).tolist())


class Protocol:
    """One member of one view. Subclasses say how a round goes."""

    kind: ClassVar[str] = ""

    def __init__(self, seat: Seat, mine: Vector) -> None:
        """`mine` is the owner's report. The owner changes it in place; numbers in it only grow."""
        self.seat = seat
        self.mine = mine
        self.round = 1
        self.running = False
        self.wanted = False
        self.deadline: Nanos = NEVER
        self.rest_until: Nanos = 0
        """No round begins before this time."""
        self.began_ns: Nanos = 0
        """When the current round began."""
        self.stable: Vector = nothing(seat.slots)
        self.holders: Holders = unknown_holders(seat.slots, seat.size)
        self.version = 0
        """Grows whenever `stable` does."""
        self.rounds = 0
        """Rounds that ended here."""
        self.carries = 0
        """View changes that the current round has survived."""
        self.refused: dict[str, int] = {}
        self.suspected = 0
        """Members that cannot be reached now, as a bitmap. They are asked, but an iteration does not wait for them."""
        self._head = (seat.group, seat.epoch, seat.view, seat.life, seat.incarnation)
        self._bit = 1 << seat.place
        self._full = seat.full
        self._last: dict[int, tuple[int, int, int]] = {}
        """The latest (incarnation, round, iteration) of each sender."""
        self._handlers: dict[type[Any], Callable[[int, Any, Nanos, Sends], None]] = {}
        self._repeat_ns: Nanos = seat.config.repeat_ns

    # -- what the owner calls ------------------------------------------------------------------------------------

    def want(self, now: Nanos, sends: Sends) -> None:
        """Begin a round, or ask the member that begins rounds for one. At once, or when the gap is over."""
        if self.running:
            return
        if now < self.rest_until:
            self.wanted = True
            self.deadline = min(self.deadline, self.rest_until)
            return
        self.wanted = False
        self._begin(now, sends)

    def take(self, sender: int, frame: StabilityFrame, now: Nanos, sends: Sends) -> None:
        """A frame of this view from another member of it."""
        handler = self._handlers.get(type(frame))
        if handler is None:
            self.refuse("kind")
        else:
            handler(sender, frame, now, sends)

    def wake(self, now: Nanos, sends: Sends) -> None:
        """`deadline` has come. Must move it into the future."""
        raise NotImplementedError

    def learn(self, place: int, values: Vector, now: Nanos, sends: Sends) -> None:
        """The owner heard a member's report by another way. Protocols that have no use for it ignore it."""

    def suspect(self, suspected: int, now: Nanos, sends: Sends) -> None:
        """The members that cannot be reached now. It excuses no member (rule 4)."""
        self.suspected = suspected

    @property
    def initiates(self) -> bool:
        """Whether this member begins rounds itself. The others ask for one only when they are short of room."""
        return True

    def silent(self) -> int:
        """Members whose reports the running round lacks, as far as this member can tell."""
        return 0

    def carried(self) -> tuple[int, Vector, Holders, dict[int, Vector]]:
        """What this instance knows, in its own places and slots."""
        return 0, nothing(self.seat.slots), self.holders, {}

    def adopt(self, carry: Carry) -> None:
        """Continue from an earlier view."""

    # -- what subclasses share -----------------------------------------------------------------------------------

    def _begin(self, now: Nanos, sends: Sends) -> None:
        raise NotImplementedError

    def refuse(self, why: str) -> None:
        self.refused[why] = self.refused.get(why, 0) + 1

    def _age(self, sender: int, key: tuple[int, int, int]) -> int:
        """Whether something later came from this sender (-1), the same (0) or only earlier things (1)."""
        last = self._last.get(sender)
        if last is None or key > last:
            return 1
        if key == last:
            return 0
        self.refuse("late")
        return -1

    def _is_sound(self, round_: int, iteration: int = 0) -> bool:
        if 0 < round_ <= self.round + ROUNDS_AHEAD_MAX and 0 <= iteration < ITERATION_MAX:
            return True
        self.refuse("round")
        return False

    def _bits(self, data: bytes) -> int:
        """A bitmap from the wire; -1 when it has another length or names places that do not exist."""
        # rule: S-8e
        if len(data) == self.seat.bitmap_bytes:
            bits = int.from_bytes(data, "little")
            if bits <= self._full:
                return bits
        self.refuse("bitmap")
        return -1

    def _vector(self, frame: CubeState | RoundReport | RoundResult | Row) -> Vector | None:
        values = unpack(frame.values, self.seat.slots)
        if values is None:
            self.refuse("vector")
        return values

    def _holders(self, frame: CubeState | RoundReport | RoundResult) -> Holders | None:
        holders = unpack_holders(frame.holders, self.seat.slots, self.seat.size)
        if holders is None:
            self.refuse("holders")
        return holders

    def _result(self, frame: RoundResult) -> tuple[Vector, Holders] | None:
        """A result that may be true: nothing in it is above what this member itself has (rule 8)."""
        values, holders = self._vector(frame), self._holders(frame)
        if values is None or holders is None:
            return None
        # rule: S-8g
        if any_true(values > self.mine):
            self.refuse("above report")
            return None
        return values, holders

    def _settle(self, values: Vector, holders: Holders) -> None:
        """All members of the view have everything up to `values`. Never more than this member itself has."""
        # rule: S-8h
        values = np.minimum(values, self.mine)
        np.copyto(self.holders, holders, where=values >= self.stable)
        if any_true(values > self.stable):
            np.maximum(self.stable, values, out=self.stable)
            self.version += 1

    def _back_off(self, now: Nanos) -> None:
        """Set the next repetition; each is later than the one before."""
        self.deadline = now + self._repeat_ns
        self._repeat_ns = min(2 * self._repeat_ns, self.seat.config.repeat_max_ns)

    def _restart_timer(self, now: Nanos) -> None:
        self._repeat_ns = self.seat.config.repeat_ns
        self._back_off(now)

    def _others(self) -> tuple[int, ...]:
        return places_of(self._full & ~self._bit)

    def _bitmap(self, bits: int) -> bytes:
        return bits.to_bytes(self.seat.bitmap_bytes, "little")

    def _start_frame(self) -> RoundStart:
        return RoundStart(*self._head, self.round)

    def _result_frame(self, round_: int, values: Vector, holders: Holders) -> RoundResult:
        return RoundResult(*self._head, round_, pack(values), pack(holders))

    def _report_frame(
        self, round_: int, bits: int, values: Vector, holders: Holders | None
    ) -> RoundReport:
        if holders is None:
            return RoundReport(*self._head, round_, b"", pack(values), b"")
        return RoundReport(*self._head, round_, self._bitmap(bits), pack(values), pack(holders))

    def _ack_frame(self, round_: int, bits: int) -> ResultAck:
        return ResultAck(*self._head, round_, self._bitmap(bits))
