"""Resuming: both ends compare where they stand before anything else, at every start, reconnection and move.

A store that was restored from a backup, or that lost commits it had reported, is behind what its partner
remembers. Continuing would lose messages silently: the partner has freed what was acknowledged, or discards a
number that is used a second time. So a position below what the other end remembers faults both.
"""

from __future__ import annotations

from holdfast.dialog.frames import RANGES_MAX, Resume
from holdfast.dialog.incoming import Incoming
from holdfast.dialog.outgoing import Outgoing
from holdfast.machine import RangeSet


def disagreement(
    out: Outgoing, inc: Incoming, answer: Resume, asked_top: int, asked_acked: list[int]
) -> str:
    """Why the two ends cannot go on; empty when they can. The ranges of the answer are sorted and disjoint.

    `asked_top` is one more than the highest number that had arrived here when this end asked, `asked_acked` what the
    partner had acknowledged by then. The answer is younger than both, whatever was lost, doubled or late meanwhile.
    """
    # rule: D-4b
    if answer.next < asked_top:
        return (
            f"the partner assigns number {answer.next} next, but number {asked_top - 1} arrived here: its store lost "
            "commits"
        )
    held = answer.ranges[-1] if answer.ranges else 0
    # rule: D-4c
    if held > out.next:
        return f"the partner has number {held - 1}, but the next number here is {out.next}: this store lost commits"
    if out.acknowledges:
        missing = _forgotten(asked_acked, answer.ranges)
        # rule: D-4d
        if missing is not None:
            return f"the partner acknowledged number {missing} and does not have it: its store lost commits"
        first = inc.received.first_missing(0)
        # rule: D-4e
        if answer.lowest > first:
            return f"the partner freed number {first}, which is not here: this store lost commits"
    return ""


def _forgotten(acked: list[int], ranges: list[int]) -> int | None:
    """The first number that was acknowledged and is not listed any more."""
    listed = RangeSet(zip(ranges[::2], ranges[1::2], strict=True))
    complete = len(ranges) < RANGES_MAX
    for start, stop in zip(acked[::2], acked[1::2], strict=True):
        first = listed.first_missing(start)
        if first < stop and (complete or first < ranges[-1]):
            return first
    return None
