"""Reports of listeners about single flows; `placement` judges them.

A row describes a path and a kind; a report about one flow (`Settled`) describes that flow alone and takes precedence:
another port of the same path may carry what this one does not.
"""

from __future__ import annotations

import msgspec

from holdfast.health.frames import PathRow, Settled


def of_this_flow(row: PathRow, said: Settled | None) -> PathRow:
    """The row of a path as it applies to one of its flows."""
    if said is None or not row.alive:
        return row
    return msgspec.structs.replace(
        row,
        alive=said.alive,
        size=said.size or row.size,
        size_max=max(said.size_max, row.size_max),
        holes=said.holes,
        bad_patterns=said.bad_patterns or row.bad_patterns,
        flows_bad=0,
    )
