"""What listeners say of one flow, as far as they say something of it alone; `placement` judges it.

A row speaks of a path and a kind; what a listener said of one flow (`Settled`) speaks of that flow alone, and goes
first: another port of the same path may carry what this one does not.
"""

from __future__ import annotations

import msgspec

from holdfast.wire.frames import PathRow, Settled


def of_this_flow(row: PathRow, said: Settled | None) -> PathRow:
    """The row of a path as it is for one flow of it."""
    if said is None or not row.alive:
        return row
    return msgspec.structs.replace(
        row,
        alive=said.alive,
        size=said.size or row.size,
        size_max=max(said.size_max, row.size_max),
        holes=said.holes,
        bad_patterns=said.bad_patterns or row.bad_patterns,
    )
