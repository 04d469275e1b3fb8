"""What a link is told of its flows, from what listeners say of them.

A row speaks of a path and a kind; what a listener said of one flow (`Settled`) speaks of that flow alone, and goes
first: another port of the same path may carry what this one does not.
"""

from __future__ import annotations

import msgspec

from holdfast.links.ports import FlowReady, FlowVerdict
from holdfast.wire.frames import PathRow, Settled


def degraded(row: PathRow) -> bool:
    """Whether a row tells of a soft error."""
    return bool(0 < row.size < row.size_max or row.holes or row.bad_patterns)


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


def verdict(
    ready: FlowReady, rows: list[PathRow], before: FlowVerdict | None
) -> FlowVerdict | None:
    """What the rows of a flow's path say of sending on it; None when they say nothing."""
    by_kind = {row.transport: row for row in rows}
    own, datagrams = by_kind.get(ready.transport), by_kind.get("udp")
    if own is None and (datagrams is None or not datagrams.size_max):
        return before
    alive = own.alive if own is not None else before.alive if before is not None else True
    measured = [row for row in (own, datagrams) if row is not None and row.size_max]
    # A limit of the path that datagrams have shown hurts its streams as well.
    worse = any(degraded(row) for row in measured)
    size = own.size if own is not None and ready.transport == "udp" else 0
    return FlowVerdict(ready.flow, alive, size, worse)
