"""Version vectors of loose objects."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.objects.values import Sibling

Vector = tuple[tuple[bytes, int], ...]


def dominates(a: Vector, b: Vector) -> bool:
    """Whether `a` has seen every write that `b` has."""
    seen = dict(a)
    return all(seen.get(node, 0) >= count for node, count in b)


def merged(vectors: Iterable[Vector]) -> Vector:
    """The least vector that dominates all of these."""
    highest: dict[bytes, int] = {}
    for vector in vectors:
        for node, count in vector:
            highest[node] = max(highest.get(node, 0), count)
    return tuple(sorted(highest.items()))


def advanced(vector: Vector, node: bytes) -> Vector:
    """One more write at `node`."""
    counts = dict(vector)
    counts[node] = counts.get(node, 0) + 1
    return tuple(sorted(counts.items()))


def combined(siblings: Iterable[Sibling]) -> tuple[Sibling, ...]:
    """The siblings that no other one dominates, each once, in a deterministic order."""
    kept: list[Sibling] = []
    for one in sorted(siblings, key=lambda sibling: (sibling.vector, sibling.write)):
        # rule: R-11e
        if any(dominates(other.vector, one.vector) for other in kept):
            continue
        # rule: R-11a
        kept = [other for other in kept if not dominates(one.vector, other.vector)]
        kept.append(one)
    return tuple(kept)
