"""The results of a sweep as curves: an index against the number of nodes, averaged over topologies."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from statistics import fmean

import msgspec

from holdfast.experiments.journal import Record
from holdfast.experiments.points import Outcome, Point
from holdfast.experiments.sets import read_point

Index = Callable[[Outcome], float]
Curve = dict[int, float]
"""A number for each number of nodes, in ascending order."""


def first_ms(outcome: Outcome) -> float:
    return outcome.first_ns / 1e6


def last_ms(outcome: Outcome) -> float:
    return outcome.last_ns / 1e6


class Results:
    """Everything that was measured, by point."""

    def __init__(self, found: Mapping[Point, Outcome], failed: int = 0) -> None:
        self._found = dict(found)
        self.failed = failed

    @classmethod
    def of(cls, records: Iterable[Record]) -> Results:
        found: dict[Point, Outcome] = {}
        failed = 0
        for record in records:
            point = read_point(record.task)
            if not isinstance(point, Point):
                continue
            if record.result is None:
                failed += 1
                continue
            # Both models give the same result, so a curve may come from either.
            plain = msgspec.structs.replace(point, model="machines")
            found[plain] = msgspec.convert(record.result, Outcome)
        return cls(found, failed)

    def __len__(self) -> int:
        return len(self._found)

    def rows(self) -> list[tuple[Point, Outcome]]:
        return list(self._found.items())

    def densities(self) -> list[str]:
        """Those of the plain points, with the most points first."""
        counts: dict[str, int] = {}
        for point in self._found:
            if point == plain_point(point):
                counts[point.density] = counts.get(point.density, 0) + 1
        return sorted(counts, key=lambda density: (-counts[density], density))

    def runs(self, protocol: str, density: str, **changed: object) -> dict[int, list[Outcome]]:
        """The outcomes by number of nodes, one per seed. `changed` are fields that differ from the plain point."""
        found: dict[int, list[Outcome]] = {}
        for point, outcome in self._found.items():
            if point.protocol != protocol or point.density != density:
                continue
            wanted = msgspec.structs.replace(plain_point(point), **changed)
            if point == wanted:
                found.setdefault(point.nodes, []).append(outcome)
        return dict(sorted(found.items()))

    def curve(self, protocol: str, density: str, index: Index, **changed: object) -> Curve:
        """The average over topologies."""
        runs = self.runs(protocol, density, **changed)
        return {nodes: fmean(map(index, found)) for nodes, found in runs.items()}

    def spread(self, protocol: str, density: str, index: Index) -> Curve:
        """The worst result of a size minus the best: sensitivity to the topology."""
        runs = self.runs(protocol, density)
        return {
            nodes: max(map(index, found)) - min(map(index, found))
            for nodes, found in runs.items()
            if len(found) > 1
        }


def plain_point(point: Point) -> Point:
    """The point with everything but protocol, size, density and seed as in the paper."""
    return Point(
        protocol=point.protocol, nodes=point.nodes, edge_probability=point.edge_probability,
        mean_degree=point.mean_degree, seed=point.seed,
    )  # fmt: skip


def growth(curve: Curve, from_nodes: int = 100) -> float:
    """The exponent b of the power law a·n^b that fits best: 0 is flat, 1 linear, 2 quadratic."""
    pairs = [(math.log(n), math.log(y)) for n, y in curve.items() if n >= from_nodes and y > 0]
    if len({x for x, _ in pairs}) < 2:
        return math.nan
    mean_x, mean_y = fmean(x for x, _ in pairs), fmean(y for _, y in pairs)
    over = sum((x - mean_x) * (y - mean_y) for x, y in pairs)
    return over / sum((x - mean_x) ** 2 for x, _ in pairs)
