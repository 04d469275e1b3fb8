"""Assigns members to places on the cube of stability detection, by measured path quality (rule 7 in
docs/design/stability.md).

A member's place is its position in the view; the last members take the places of suspended ones (`seats_of`), which get
them back when they return. The leader checks periodically whether another order would use better paths, and commits it
like any other view. `Placer` damps this: small gains, short-lived ones and frequent changes do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from holdfast.group.config import GroupConfig
from holdfast.group.log.entries import View
from holdfast.health.frames import PathRow
from holdfast.stability import Member as StableMember
from holdfast.stability.config import CUBE
from holdfast.stability.placement import PathQuality, Placer, seat_members
from holdfast.types import MICROSECOND, SECOND, Nanos, NodeId

LOOK_NS: Final = 10 * SECOND
PathRows = Callable[[], Iterable[PathRow]]
"""The known state of all paths of the domain."""


class Seating:
    """Looks for a better order of the members, while this replica leads."""

    def __init__(self, config: GroupConfig, rows: PathRows) -> None:
        self._config = config
        self._rows = rows
        self._placer = Placer()
        self._look_ns: Nanos = 0
        self.changes = 0

    def look(self, view: View, now: Nanos) -> View | None:
        """A view with the same members in a better order; None if there is none, or it is too early."""
        if now < self._look_ns:
            return None
        self._look_ns = now + LOOK_NS
        members = seats_of(view)
        if self._config.stability.chosen(len(members)) != CUBE or self._config.mode != "majority":
            return None
        better = self._placer.look(members, qualities(self._rows()), now)
        if better is None:
            return None
        self.changes += 1
        places = {member.name: place for place, member in enumerate(better)}
        order = sorted(view.members, key=lambda member: places.get(member.name, len(places)))
        return View(view.number + 1, tuple(order), view.removed, view.group_epoch)


def seats_of(view: View) -> tuple[StableMember, ...]:
    """The members whose reports count, by place. It depends on the view alone, so all replicas agree.

    A suspended member has no place. The last member takes it, so that all others keep their neighbours.
    """
    members = [StableMember(m.name, NodeId(m.node), m.life) for m in view.members]
    active = [
        seat for seat, member in zip(members, view.members, strict=True) if not member.suspended
    ]
    # rule: S-7b
    return seat_members(members, active)


def qualities(rows: Iterable[PathRow]) -> dict[tuple[NodeId, NodeId], PathQuality]:
    """The best path in each direction between two nodes."""
    best: dict[tuple[NodeId, NodeId], PathQuality] = {}
    for row in rows:
        damaged = row.size < row.size_max or bool(row.bad_patterns) or bool(row.holes)
        quality = PathQuality(row.rtt_us * MICROSECOND, row.loss_ppm, damaged, row.alive)
        pair = (NodeId(row.sender), NodeId(row.listener))
        known = best.get(pair)
        if known is None or quality.cost < known.cost:
            best[pair] = quality
    return best
