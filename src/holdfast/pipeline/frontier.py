"""The frontier of the audit: which comparisons of a published snapshot still hold, and which must be made again.

A *stretch* is a run of blocks of one group's log with one outcome. It is kept with the hours that its evidence comes
from. A stretch is compared again if that evidence may have changed:

- facts of its hours are new, or facts of later hours tell of its blocks;
- a replica has rolled back entries of its blocks;
- part of its evidence is older than the look-back now;
- it lies beside blocks that are compared again: blocks that claim one position are found between neighbours.

All other stretches are taken over, and none of their rows is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

import msgspec

EVERYTHING: Final = ""
"""As the first hour that changed: all may have."""
NOTHING: Final = "9999"
"""As the first hour that changed: none has."""


class Stretch(msgspec.Struct, frozen=True, order=True):
    """Blocks `first_block` to `last_block` of a group's log, those that were recorded."""

    group: str
    epoch: int
    first_block: int
    last_block: int
    first_hour: str
    last_hour: str
    blocks: int
    differs: bool
    """Its entries were compared one by one, all together."""


class Touched(msgspec.Struct, frozen=True, order=True):
    """Blocks that new facts tell of."""

    group: str
    epoch: int
    first_block: int
    last_block: int


class Reading(msgspec.Struct, frozen=True):
    """What a run takes over, and what it reads."""

    kept: tuple[Stretch, ...]
    gone: tuple[Stretch, ...]
    """Stretches that are not taken over."""
    again: tuple[Touched, ...]
    """Ranges of blocks to compare; no two of them overlap, and none holds a block that is kept."""
    hours: tuple[tuple[str, str], ...]
    """First and last hour of their rows, of each stretch that is compared again."""


def reading(
    stretches: Iterable[Stretch], touched: Iterable[Touched], since: str, first_day: str
) -> Reading:
    """What must be compared again if hours from `since` on changed and the look-back begins with `first_day`."""
    by_log: dict[tuple[str, int], tuple[list[Stretch], list[Touched]]] = {}
    for stretch in sorted(stretches):
        by_log.setdefault((stretch.group, stretch.epoch), ([], []))[0].append(stretch)
    for blocks in sorted(touched):
        by_log.setdefault((blocks.group, blocks.epoch), ([], []))[1].append(blocks)
    kept: list[Stretch] = []
    gone: list[Stretch] = []
    again: list[Touched] = []
    hours: dict[tuple[str, str], None] = {}
    for _, (mine, news) in sorted(by_log.items()):
        live = [stretch for stretch in mine if stretch.last_hour >= first_day]
        reopened = _reopened(live, news, since, first_day)
        for stretch, is_reopened in zip(live, reopened, strict=True):
            (gone if is_reopened else kept).append(stretch)
            if is_reopened:
                hours.setdefault((max(stretch.first_hour, first_day), stretch.last_hour))
        gone += [stretch for stretch in mine if stretch.last_hour < first_day]
        again += _merged(
            [*news, *(_blocks_of(s) for s, a in zip(live, reopened, strict=True) if a)]
        )
    return Reading(tuple(kept), tuple(gone), tuple(again), tuple(hours))


def _reopened(
    live: Sequence[Stretch], news: Sequence[Touched], since: str, first_day: str
) -> list[bool]:
    """For each stretch of one log whether it is compared again."""
    stale = [s.last_hour >= since or s.first_hour < first_day or _meets(s, news) for s in live]
    reopened = list(stale)
    for place, stretch in enumerate(live):
        # New blocks may lie between two stretches, and touch neither.
        after = live[place + 1].first_block if place + 1 < len(live) else None
        before = live[place - 1].last_block if place else None
        beside = any(
            (stretch.last_block < new.first_block and (after is None or new.first_block < after))
            or (
                new.last_block < stretch.first_block and (before is None or before < new.last_block)
            )
            for new in news
        )
        near = stale[max(0, place - 1) : place + 2]
        reopened[place] = beside or any(near)
    return _with_differing_neighbours(live, reopened)


def _with_differing_neighbours(live: Sequence[Stretch], reopened: list[bool]) -> list[bool]:
    """A single block may come to differ because of one neighbour: then it joins its other one, if that differs."""
    found = list(reopened)
    for step in (1, -1):
        order = range(len(live)) if step > 0 else range(len(live) - 1, -1, -1)
        for place in order:
            beside = place - step
            if 0 <= beside < len(live) and found[beside] and live[place].differs:
                found[place] = found[place] or live[beside].blocks == 1
    return found


def _meets(stretch: Stretch, news: Iterable[Touched]) -> bool:
    return any(
        new.first_block <= stretch.last_block and stretch.first_block <= new.last_block
        for new in news
    )


def _blocks_of(stretch: Stretch) -> Touched:
    return Touched(stretch.group, stretch.epoch, stretch.first_block, stretch.last_block)


def _merged(ranges: Iterable[Touched]) -> list[Touched]:
    merged: list[Touched] = []
    for (group, epoch), found in groupby(sorted(ranges), key=lambda one: (one.group, one.epoch)):
        first = True
        for one in found:
            if not first and one.first_block <= merged[-1].last_block + 1:
                last = max(merged[-1].last_block, one.last_block)
                merged[-1] = Touched(group, epoch, merged[-1].first_block, last)
            else:
                merged.append(one)
            first = False
    return merged
