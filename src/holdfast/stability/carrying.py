"""What a member keeps when the view changes: bits and minima of surviving lives, numbers of surviving slots (rule 6).

Reports never shrink within a life, so a minimum that was taken in the old view is still a lower bound in the new one.
Dropping it would be safe too, but where members join every second no round of a large view would ever end.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from holdfast.stability.ports import View
from holdfast.stability.protocol import Carry, Protocol, places_of
from holdfast.stability.vectors import Holders, Vector, as_holders, nothing, unknown_holders

GONE: Final = -1
CARRIES_MAX: Final = 8
"""A round that survived so many view changes is given up: its reports are old, and hold the minimum of others down."""


def carry_over(protocol: Protocol, old: View, new: View) -> Carry:
    """What `protocol` knows, in the places and slots of the new view."""
    bits, values, holders, rows = protocol.carried()
    # rule: S-6c
    if protocol.carries >= CARRIES_MAX:
        bits = 0
    at = {(member.node, member.life): place for place, member in enumerate(new.members)}
    # rule: S-6b
    moved = np.array([at.get((member.node, member.life), GONE) for member in old.members], np.int64)
    kept = 0
    for place in places_of(bits):
        # rule: S-6a
        if moved[place] >= 0:
            kept |= 1 << int(moved[place])
    return Carry(
        kept,
        slots_over(values, old.slots, new.slots),
        _holders_over(holders, moved, old, new),
        {
            int(moved[place]): slots_over(row, old.slots, new.slots)
            for place, row in rows.items()
            if moved[place] >= 0
        },
        protocol.carries + 1,
    )


def slots_over(values: Vector, old: tuple[int, ...], new: tuple[int, ...]) -> Vector:
    """A vector for the new slots. Nothing is known of a slot that is new."""
    if old == new:
        return values.copy()
    at = {slot: k for k, slot in enumerate(old)}
    found = nothing(len(new))
    for k, slot in enumerate(new):
        if slot in at:
            found[k] = values[at[slot]]
    return found


def _holders_over(holders: Holders, moved: npt.NDArray[np.int64], old: View, new: View) -> Holders:
    """Holders in new places. One that left, or that no member of the old view could be, is not known any more."""
    known = holders < len(moved)
    placed = np.where(known, moved[np.where(known, holders, 0)], GONE)
    size = len(new.members)
    if old.slots == new.slots:
        return as_holders(placed, size)
    at = {slot: k for k, slot in enumerate(old.slots)}
    found = unknown_holders(len(new.slots), size)
    for k, slot in enumerate(new.slots):
        if slot in at:
            found[k : k + 1] = as_holders(placed[at[slot], None], size)
    return found
