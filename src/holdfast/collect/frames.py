"""Frames of the collection of telemetry, tags 192 to 197. Each request has a number, which its answer repeats."""

from __future__ import annotations

from typing import Final

from holdfast.wire.codec import learn
from holdfast.wire.frames import Frame

PIECE_BYTES: Final = 128 << 10
NAMES_MAX: Final = 500
"""Segments in one list."""


class ListSegments(Frame, frozen=True, gc=False, array_like=True, tag=192):
    """The sealed segments after a name, in order of names."""

    n: int
    after: str = ""


class SegmentList(Frame, frozen=True, gc=False, array_like=True, tag=193):
    """Names (`kind/day=2026-11-15/file`) and sizes."""

    n: int
    files: tuple[tuple[str, int], ...] = ()
    more: bool = False
    problem: str = ""


class ReadSegment(Frame, frozen=True, gc=False, array_like=True, tag=194):
    n: int
    name: str
    offset: int


class SegmentPiece(Frame, frozen=True, gc=False, array_like=True, tag=195):
    """Bytes of a segment from the offset that was asked for; `problem` if there are none."""

    n: int
    data: bytes = b""
    problem: str = ""


class OfferAdvice(Frame, frozen=True, gc=False, array_like=True, tag=196):
    """A piece of an edition of advice; the last one completes `size` bytes."""

    n: int
    name: str
    offset: int
    size: int
    data: bytes


class AdviceTaken(Frame, frozen=True, gc=False, array_like=True, tag=197):
    n: int
    problem: str = ""


REQUESTS: Final = (ListSegments, ReadSegment, OfferAdvice)
ANSWERS: Final = (SegmentList, SegmentPiece, AdviceTaken)
Request = ListSegments | ReadSegment | OfferAdvice
Reply = SegmentList | SegmentPiece | AdviceTaken

learn((*REQUESTS, *ANSWERS))
