"""The logical hypercube of any number of members, and the tree of S_Coord.

Members have places 0 to n-1. Two places are neighbours when their numbers differ in one bit. When n is not a power of
two some corners are missing; section 3.3 of the paper joins the neighbours of each missing corner in pairs, so that
every member keeps a degree of m or m-1 (m is the number of dimensions) and the diameter does not grow.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache


def dimensions(size: int) -> int:
    """Dimensions of the smallest cube that has room for `size` members."""
    return max(0, (size - 1).bit_length())


def compensating_edges(size: int) -> list[tuple[int, int]]:
    """Edges that replace those to missing corners, lower place first, in the order of the missing corners."""
    m = dimensions(size)
    found: list[tuple[int, int]] = []
    for corner in range(size, 1 << m):
        around = sorted(corner ^ 1 << k for k in range(m) if corner ^ 1 << k < size)
        around = around[len(around) % 2 :]  # The first of an odd number is left out.
        half = len(around) // 2
        found += zip(around[:half], around[half:], strict=True)
    return found


@lru_cache(maxsize=16)
def cube(size: int) -> tuple[tuple[int, ...], ...]:
    """The neighbours of every place, in ascending order."""
    m = dimensions(size)
    sides = [[place ^ 1 << k for k in range(m) if place ^ 1 << k < size] for place in range(size)]
    for low, high in compensating_edges(size):
        sides[low].append(high)
        sides[high].append(low)
    return tuple(tuple(sorted(dict.fromkeys(near))) for near in sides)


def neighbours(size: int, place: int) -> tuple[int, ...]:
    """The neighbours of one place, without computing the whole cube."""
    m = dimensions(size)
    near: dict[int, None] = {}
    for k in range(m):
        corner = place ^ 1 << k
        if corner < size:
            near[corner] = None
            continue
        around = sorted(corner ^ 1 << j for j in range(m) if corner ^ 1 << j < size)
        around = around[len(around) % 2 :]
        half = len(around) // 2
        if place in around:
            at = around.index(place)
            near[around[at + half if at < half else at - half]] = None
    return tuple(sorted(near))


def edges(size: int) -> list[tuple[int, int]]:
    """Every edge once, lower place first."""
    return [(a, b) for a, near in enumerate(cube(size)) for b in near if a < b]


def distances(size: int, start: int, without: Iterable[int] = ()) -> list[int]:
    """Hops from `start` to every place, -1 where there is no way, when the places `without` do not forward."""
    sides = cube(size)
    found = [-1] * size
    for place in without:
        found[place] = -2
    found[start] = 0
    ring = [start]
    while ring:
        further: list[int] = []
        for place in ring:
            for near in sides[place]:
                if found[near] == -1:
                    found[near] = found[place] + 1
                    further.append(near)
        ring = further
    return [max(-1, hops) for hops in found]


def diameter(size: int) -> int:
    """The largest number of hops between two members."""
    return max(max(distances(size, place)) for place in range(size))


def disjoint_paths(size: int, start: int, end: int) -> int:
    """How many paths from `start` to `end` share no member between them: so many members can fail less one.

    Maximum flow with a capacity of one per member: each place is split into an entry (2p) and an exit (2p + 1).
    """
    sides = cube(size)
    flow: dict[tuple[int, int], int] = {}
    source, sink = 2 * start + 1, 2 * end
    count = 0
    while True:
        before = _augment(sides, flow, source, sink)
        if before is None:
            return count
        count += 1
        at = sink
        while at != source:
            back = before[at]
            flow[back, at] = flow.get((back, at), 0) + 1
            flow[at, back] = flow.get((at, back), 0) - 1
            at = back


def _augment(
    sides: tuple[tuple[int, ...], ...], flow: dict[tuple[int, int], int], source: int, sink: int
) -> dict[int, int] | None:
    """A path with capacity left, as the vertex before each one; None when there is none."""
    before: dict[int, int] = {source: source}
    queue = [source]
    for at in queue:
        place, is_exit = divmod(at, 2)
        # From an exit to the entries around it; from an entry to its exit. Both also back against flow.
        ahead = [2 * near for near in sides[place]] if is_exit else [at + 1]
        behind = [at - 1] if is_exit else [2 * near + 1 for near in sides[place]]
        for there in ahead:
            if there not in before and flow.get((at, there), 0) < 1:
                before[there] = at
                queue.append(there)
        for there in behind:
            if there not in before and flow.get((at, there), 0) < 0:
                before[there] = at
                queue.append(there)
        if sink in before:
            return before
    return None


def tree_degree(size: int) -> int:
    """Children of a member of the tree: log2 n, as in the paper's experiments, and at least two."""
    return max(2, dimensions(size))


def parent(size: int, place: int) -> int:
    """The parent of a place in the tree; -1 for the root, which is place 0."""
    return (place - 1) // tree_degree(size) if place else -1


def children(size: int, place: int) -> tuple[int, ...]:
    degree = tree_degree(size)
    first = degree * place + 1
    return tuple(range(min(first, size), min(first + degree, size)))


@lru_cache(maxsize=16)
def subtrees(size: int) -> tuple[int, ...]:
    """For every place the members below it and itself, as a bitmap."""
    found = [1 << place for place in range(size)]
    for place in range(size - 1, 0, -1):
        found[parent(size, place)] |= found[place]
    return tuple(found)
