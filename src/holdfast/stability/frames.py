"""Frames of the stability protocols (tags 96 to 111).

All of them carry the name of the group, the committed view that they belong to, the sender's life as that view has
it, and the sender's incarnation. They are ordered by (view, incarnation, round, iteration).

A vector is two fields: `values` (eight bytes per slot) and `holders` (the place of the member that each minimum comes
from, two bytes per slot, four in a view of more than 65 535 members; all bits set when it is not known). Numbers are
little-endian and of fixed width, so that neither end converts anything: that is worth more than the bytes.
"""

from __future__ import annotations

from typing import Final

from holdfast.wire.codec import learn
from holdfast.wire.frames.base import Frame


class CubeState(Frame, frozen=True, gc=False, array_like=True, tag=96):
    """CubeFullDist: the minimum over the members in `bits`, as the sender knows it."""

    group: str
    epoch: int
    view: int
    life: int
    incarnation: int
    round: int
    iteration: int
    bits: bytes
    values: bytes
    holders: bytes


class RoundStart(Frame, frozen=True, gc=False, array_like=True, tag=97):
    """Coord and S_Coord: the coordinator asks for reports (START)."""

    group: str
    epoch: int
    view: int
    life: int
    incarnation: int
    round: int


class RoundReport(Frame, frozen=True, gc=False, array_like=True, tag=98):
    """Coord: the sender's report. S_Coord: the minimum over the members in `bits` (ACK).

    Round 0 answers no START: the sender is short of room and asks for a round.
    """

    group: str
    epoch: int
    view: int
    life: int
    incarnation: int
    round: int
    bits: bytes
    values: bytes
    holders: bytes


class RoundResult(Frame, frozen=True, gc=False, array_like=True, tag=99):
    """What every member of the view has (INFO). The cube sends it to a member that is a round behind."""

    group: str
    epoch: int
    view: int
    life: int
    incarnation: int
    round: int
    values: bytes
    holders: bytes


class ResultAck(Frame, frozen=True, gc=False, array_like=True, tag=100):
    """The members in `bits` have the result of `round` (ACKINFO)."""

    group: str
    epoch: int
    view: int
    life: int
    incarnation: int
    round: int
    bits: bytes


class Row(Frame, frozen=True, gc=False, array_like=True, tag=101):
    """FullDist: the sender's report (INFO)."""

    group: str
    epoch: int
    view: int
    life: int
    incarnation: int
    round: int
    values: bytes
    ask: bool = False
    """The sender lacks the receiver's row."""


STABILITY_FRAMES: Final[tuple[type[Frame], ...]] = (
    CubeState,
    RoundStart,
    RoundReport,
    RoundResult,
    ResultAck,
    Row,
)
learn(STABILITY_FRAMES)

StabilityFrame = CubeState | RoundStart | RoundReport | RoundResult | ResultAck | Row
