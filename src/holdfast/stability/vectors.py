"""Vectors of reports: on the wire, and the running minimum of a round with the holder of each number."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.int64]
"""One number per slot: everything up to it is held. 0 means nothing."""
Holders = npt.NDArray[np.unsignedinteger[Any]]
"""The place of the member that each minimum comes from. A number that is no place of the view: not known."""

_WIRE: Final = np.dtype("<i8")
_SHORT: Final = np.dtype("<u2")
_LONG: Final = np.dtype("<u4")
_SHORT_SIZE: Final = 0xFFFF
"""Views of up to this many members name holders in two bytes."""


def nothing(slots: int) -> Vector:
    return np.zeros(slots, np.int64)


def unknown_holders(slots: int, size: int) -> Holders:
    kind = _holder_type(size)
    return np.full(slots, np.iinfo(kind).max, kind)


def _holder_type(size: int) -> np.dtype[np.unsignedinteger[Any]]:
    return _SHORT if size <= _SHORT_SIZE else _LONG


def as_holders(places: npt.NDArray[np.integer[Any]], size: int) -> Holders:
    """Places as holders. A negative number becomes one that is not known."""
    return places.astype(_holder_type(size))


def pack(values: Vector | Holders) -> bytes:
    return values.tobytes()


def unpack(data: bytes, slots: int) -> Vector | None:
    """The vector, read-only, or None when it does not have `slots` numbers."""
    return np.frombuffer(data, _WIRE) if len(data) == 8 * slots else None


def unpack_holders(data: bytes, slots: int, size: int) -> Holders | None:
    """Holders, read-only, or None when there is not one per slot. Places are not checked: readers do that."""
    kind = _SHORT if size <= _SHORT_SIZE else _LONG
    return np.frombuffer(data, kind) if len(data) == kind.itemsize * slots else None


class Minimum:
    """The arrays G (as an integer bitmap) and M of a round, and the holder of each number in M.

    Invariant: for every member in `bits`, no number in `values` is above what that member has. Reports never
    shrink within a life, so the invariant survives delay, loss, repetition and mixing of rounds.
    """

    __slots__ = ("_mask", "bits", "holders", "values")

    def __init__(self, slots: int, size: int) -> None:
        self.bits = 0
        self.values: Vector = nothing(slots)
        self.holders: Holders = unknown_holders(slots, size)
        self._mask = np.empty(slots, np.bool_)

    def open(self, place: int, mine: Vector) -> None:
        """Begin with the own report."""
        self.bits = 1 << place
        self.values[:] = mine
        self.holders[:] = place

    def merge(self, bits: int, values: Vector, holders: Holders) -> None:
        """Take in another minimum. One that covers no further member adds nothing."""
        if not bits & ~self.bits:
            return
        self.bits |= bits
        mask = self._mask
        np.less(values, self.values, out=mask)
        if any_true(mask):
            np.copyto(self.values, values, where=mask)
            np.copyto(self.holders, holders, where=mask)

    def merge_packed(self, bits: int, values: bytes, holders: bytes) -> None:
        """The same with what a frame has, whose lengths were checked. Holders are read only if they are needed."""
        self.bits |= bits
        mask, mine = self._mask, self.values
        theirs = np.frombuffer(values, _WIRE)
        np.less(theirs, mine, out=mask)
        if mask.tobytes().find(b"\1") >= 0:
            np.copyto(mine, theirs, where=mask)
            np.copyto(self.holders, np.frombuffer(holders, self.holders.dtype), where=mask)


def any_true(mask: npt.NDArray[np.bool_]) -> bool:
    """Like `mask.any()`, several times as fast for short arrays."""
    return mask.tobytes().find(b"\1") >= 0
