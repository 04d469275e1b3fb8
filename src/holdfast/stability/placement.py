"""Where members sit on the cube, so that its edges follow good paths (S8, rule 7).

The leader decides and commits the order of the members like a view. A change of membership moves as few members as it
can (`seat_members`). From time to time `Placer` compares the edges in use with a better arrangement, found by swapping
pairs. It proposes that arrangement only when it saves a good part of the cost, when several looks in a row confirm
this, and when the last change is long enough ago. Costs are classes (powers of two), so small changes of a path do
not count at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from holdfast.stability.hypercube import cube
from holdfast.stability.ports import Member
from holdfast.types import MILLISECOND, SECOND, Nanos, NodeId

Costs = npt.NDArray[np.int64]
"""The cost of the path between each two members, in the order of the view. Symmetric, zero on the diagonal."""

REPEAT_NS: Final = 20 * MILLISECOND
"""About what a lost frame costs: the time until it is repeated."""
SOFT_ERROR_NS: Final = 100 * MILLISECOND
DEAD_NS: Final = 10 * SECOND
UNKNOWN_NS: Final = 2 * MILLISECOND
"""A path that was not measured is taken for worse than a good path in a LAN and better than one known to be bad."""
CLASS_NS: Final = 1 << 16
COST_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class PathQuality:
    """What was measured on the path between two members (H14), the worse of the two directions."""

    rtt_ns: Nanos
    loss_ppm: int = 0
    soft_error: bool = False
    alive: bool = True

    @property
    def cost(self) -> int:
        """The expected time to get a frame across, rounded up to a power of two."""
        expected_ns = self.rtt_ns + self.loss_ppm * REPEAT_NS // 1_000_000
        expected_ns += SOFT_ERROR_NS if self.soft_error else 0
        expected_ns += 0 if self.alive else DEAD_NS
        return min(COST_MAX, 1 << (max(0, expected_ns) // CLASS_NS).bit_length())


UNKNOWN: Final = PathQuality(UNKNOWN_NS)


def seat_members(order: Sequence[Member], members: Sequence[Member]) -> tuple[Member, ...]:
    """Seat the members of a new view. Members that stay keep their place where they can.

    A new life of a node takes the place of the old one; a newcomer takes a free place; when members leave, the last
    ones move into their places.
    """
    waiting = {member.node: member for member in members}
    seats: list[Member | None] = [waiting.pop(member.node, None) for member in order]
    newcomers = list(waiting.values())
    for place, seated in enumerate(seats):
        if seated is None and newcomers:
            seats[place] = newcomers.pop(0)
    seats += newcomers
    while None in seats:
        last = seats.pop()
        if last is not None:
            seats[seats.index(None)] = last
    return tuple(member for member in seats if member is not None)


def costs_of(
    nodes: Sequence[NodeId], quality: Mapping[tuple[NodeId, NodeId], PathQuality]
) -> Costs:
    """The cost matrix of a view. A pair that was measured in both directions has the cost of the worse one."""
    places = {node: place for place, node in enumerate(nodes)}
    found = np.full((len(nodes), len(nodes)), -1, np.int64)
    for (one, other), path in quality.items():
        a, b = places.get(one), places.get(other)
        if a is not None and b is not None:
            found[a, b] = found[b, a] = max(int(found[a, b]), path.cost)
    found[found < 0] = UNKNOWN.cost
    np.fill_diagonal(found, 0)
    return found


@lru_cache(maxsize=4)
def _near(size: int) -> npt.NDArray[np.int64]:
    """The neighbours of every place, filled up with `size`, which is no place."""
    sides = cube(size)
    degree = max(map(len, sides))
    found = np.full((size, degree), size, np.int64)
    for place, near in enumerate(sides):
        found[place, : len(near)] = near
    return found


@lru_cache(maxsize=4)
def _adjacency(size: int) -> npt.NDArray[np.int64]:
    found = np.zeros((size, size), np.int64)
    for place, near in enumerate(cube(size)):
        found[place, list(near)] = 1
    return found


def arrangement_cost(costs: Costs, order: Sequence[int] | None = None) -> int:
    """The sum over all edges of the cube, with member `order[place]` at each place."""
    return int(np.trace(_edge_costs(_seated(costs, order)))) // 2


def _seated(costs: Costs, order: Sequence[int] | None) -> Costs:
    return costs.copy() if order is None else costs[np.ix_(order, order)]


def _edge_costs(seated: Costs) -> Costs:
    """`found[i, j]`: what the edges of place j would cost the member at place i."""
    padded = np.pad(seated, ((0, 0), (0, 1)))
    near = _near(len(seated))
    found = np.zeros_like(seated)
    for k in range(near.shape[1]):
        found += padded[:, near[:, k]]
    return found


def improve(costs: Costs, swaps_max: int, order: Sequence[int] | None = None) -> list[int]:
    """An order that costs less: at each step the swap of two members that saves most. Ties go to lower places."""
    size = len(costs)
    near = _adjacency(size)
    found = list(range(size)) if order is None else list(order)
    seated = _seated(costs, order)
    at = _edge_costs(seated)
    for _ in range(swaps_max):
        own = np.diagonal(at)
        change = at + at.T - own[:, None] - own[None, :] + 2 * seated * near
        a, b = divmod(int(change.argmin()), size)
        if change[a, b] >= 0:
            break
        found[a], found[b] = found[b], found[a]
        _swap(seated, at, near, a, b)
    return found


def _swap(seated: Costs, at: Costs, near: npt.NDArray[np.int64], a: int, b: int) -> None:
    """Exchange the members at two places, and bring `at` up to date without computing it again."""
    # Column j of `at` sums over the places near j: only those near exactly one of the two change.
    difference = seated[:, b] - seated[:, a]
    at += difference[:, None] * (near[a] - near[b])[None, :]
    seated[[a, b]] = seated[[b, a]]
    seated[:, [a, b]] = seated[:, [b, a]]
    at[[a, b]] = at[[b, a]]


class Placer:
    """Watches the arrangement of one view and proposes a better one, rarely."""

    def __init__(
        self,
        gain_percent: int = 20,
        confirmations: int = 3,
        hold_ns: Nanos = 60 * SECOND,
        swaps_max: int = 16,
    ) -> None:
        self._gain_percent = gain_percent
        self._confirmations = confirmations
        self._hold_ns = hold_ns
        self._swaps_max = swaps_max
        self._nodes: tuple[NodeId, ...] = ()
        self._candidate: list[int] = []
        self._confirmed = 0
        self._changed_ns: Nanos | None = None

    def look(
        self,
        members: tuple[Member, ...],
        quality: Mapping[tuple[NodeId, NodeId], PathQuality],
        now: Nanos,
    ) -> tuple[Member, ...] | None:
        """A better order of the members, or None. The caller commits it, or asks again later."""
        nodes = tuple(member.node for member in members)
        if nodes != self._nodes:
            self._nodes, self._candidate, self._confirmed = nodes, [], 0
        # rule: S-7d
        if self._changed_ns is not None and now - self._changed_ns < self._hold_ns:
            return None
        costs = costs_of(nodes, quality)
        if self._candidate and self._is_worth(costs, self._candidate):
            self._confirmed += 1
        else:
            self._candidate, self._confirmed = list(range(len(nodes))), 1
        # Each look does a bounded number of swaps and goes on where the last one ended.
        self._candidate = improve(costs, self._swaps_max, self._candidate)
        if not self._is_worth(costs, self._candidate):
            self._candidate = []
        # rule: S-7e
        if not self._candidate or self._confirmed < self._confirmations:
            return None
        order, self._candidate = self._candidate, []
        self._changed_ns = now
        return tuple(members[place] for place in order)

    def _is_worth(self, costs: Costs, order: list[int]) -> bool:
        now, then = arrangement_cost(costs), arrangement_cost(costs, order)
        # rule: S-7f
        return (now - then) * 100 >= now * self._gain_percent and then < now
