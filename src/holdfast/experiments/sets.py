"""The points of a sweep: the set of the paper, sets beyond it, and a small one for a first run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from holdfast.errors import MisuseError
from holdfast.experiments.bad_links import PlacementPoint
from holdfast.experiments.joining import JoinPoint, RidePoint
from holdfast.experiments.points import Point
from holdfast.experiments.sweep import Job
from holdfast.stability.config import COORD, CUBE, FULL, PROTOCOLS, TREE
from holdfast.stability.hypercube import dimensions, neighbours

SIZES: Final = (
    10,
    20,
    50,
    100,
    128,
    150,
    200,
    256,
    300,
    400,
    500,
    512,
    700,
    1000,
    1024,
    1400,
    1900,
)
"""10 to 1900 nodes; powers of two and their neighbours show whether incomplete cubes behave like complete ones."""
FULL_SIZE_MAX: Final = 400
"""FullDist is run up to here, as in the paper."""
PROBABILITIES: Final = (0.01, 0.02, 0.04)
DEGREE: Final = 4.0
"""A second interpretation of 'edge probability 0.01 to 0.04': 0.04 at 100 nodes and 0.01 at 400 is four links per
node."""
SEEDS: Final = (1, 2, 3, 4, 5, 6)
FAILURE_SIZES: Final = (50, 100, 128, 200, 300, 500, 700, 1000)
FAILURES: Final = (1, 2, 3, 4, 5)
FAILURE_PROBABILITY: Final = 0.02
VARIANT_SIZES: Final = (128, 300, 700)
LOSSES: Final = (0.001, 0.01, 0.03)
LARGE_SIZES: Final = (2_000, 4_096, 8_192, 10_000, 16_384, 32_768, 65_536, 100_000)
LARGE_DEGREE: Final = 8.0

SETS: Final = ("small", "paper", "variants", "large", "beyond")

AnyPoint = Point | PlacementPoint | JoinPoint | RidePoint


def points_of(name: str) -> Sequence[AnyPoint]:
    """The points of a set, ordered so that the first part of a sweep is already useful."""
    if name == "small":
        return _grid(PROTOCOLS, (10, 20, 50, 100, 128), (0.04,), (), (1, 2))
    if name == "paper":
        return _paper()
    if name == "variants":
        return _variants()
    if name == "large":
        return _large()
    if name == "beyond":
        return _beyond()
    raise MisuseError(f"{name!r} is not a set of points, use one of {', '.join(SETS)}")


def _grid(
    protocols: Iterable[str],
    sizes: Sequence[int],
    probabilities: Iterable[float],
    degrees: Iterable[float],
    seeds: Iterable[int],
) -> list[Point]:
    densities = [(p, 0.0) for p in probabilities] + [(0.0, degree) for degree in degrees]
    return [
        Point(protocol=protocol, nodes=nodes, edge_probability=p, mean_degree=degree, seed=seed)
        for seed in seeds
        for p, degree in densities
        for protocol in protocols
        for nodes in sizes
        if protocol != FULL or nodes <= FULL_SIZE_MAX
    ]


def _paper() -> list[Point]:
    """Seed by seed, so that all curves are complete after a sixth of the time."""
    found: list[Point] = []
    for seed in SEEDS:
        found += _grid(PROTOCOLS, SIZES, PROBABILITIES, (DEGREE,), (seed,))
        found += [
            Point(nodes=nodes, edge_probability=FAILURE_PROBABILITY, seed=seed, failed=failed)
            for failed in FAILURES
            for nodes in FAILURE_SIZES
            if failed < len(neighbours(nodes, 0))
        ]
    return found


def _variants() -> list[Point]:
    """One parameter changed at a time where the paper does not specify it, and links that lose packets."""
    base = [
        Point(nodes=nodes, edge_probability=0.02, seed=seed)
        for seed in SEEDS[:3]
        for nodes in VARIANT_SIZES
    ]
    changed = msgspec.structs.replace
    found = [changed(point, bitmap=True) for point in base]
    found += [changed(point, one_starts=True) for point in base]
    found += [changed(point, failed=3, routers_down=True) for point in base]
    found += [changed(point, protocol=COORD, confirm=True) for point in base]
    for loss in LOSSES:
        found += [changed(point, loss=loss) for point in base]
        found += [changed(point, protocol=COORD, loss=loss, confirm=True) for point in base]
        found += [changed(point, protocol=TREE, loss=loss, confirm=True) for point in base]
    return found


def _large() -> list[Point]:
    return [
        Point(protocol=protocol, nodes=nodes, mean_degree=LARGE_DEGREE, seed=seed, model="compiled")
        for nodes in LARGE_SIZES
        for protocol in (CUBE, TREE, COORD)
        for seed in (SEEDS[:3] if nodes <= 20_000 else SEEDS[:1])
    ]


def _beyond() -> list[AnyPoint]:
    """Placement, joins and piggybacking, with the production detectors and placement code."""
    found: list[AnyPoint] = [
        PlacementPoint(nodes=nodes, mean_degree=8.0, seed=seed, placed=placed, bad_share=share)
        for seed in SEEDS
        for nodes in (64, 128)
        for share in (0.05, 0.1, 0.2)
        for placed in (False, True)
    ]
    found += [
        JoinPoint(nodes=128, joins=joins, every_us=every_us, seed=seed)
        for seed in SEEDS[:3]
        for joins, every_us in ((0, 1000), (8, 20_000), (8, 5_000), (8, 1_000), (32, 1_000))
    ]
    found += [
        RidePoint(nodes=128, every_us=every_us, ride=ride, seed=seed)
        for seed in SEEDS[:3]
        for every_us in (500, 2_000, 10_000)
        for ride in (False, True)
    ]
    return found


def with_model(points: Iterable[AnyPoint], model: str) -> list[AnyPoint]:
    """The points with another model of the members, where that model can run them."""
    found: list[AnyPoint] = []
    for point in points:
        if isinstance(point, Point):
            other = msgspec.structs.replace(point, model=model)
            try:
                other.check()
            except MisuseError:
                other = point
            found.append(other)
        else:
            found.append(point)
    return found


def messages_of(point: Point) -> int:
    """About how many messages a round has."""
    n, m = point.nodes, dimensions(point.nodes)
    if point.protocol == CUBE:
        return n * m * (m + 1)
    return n * (n - 1) if point.protocol == FULL else 3 * n


def _seconds_of(point: AnyPoint) -> float:
    if not isinstance(point, Point):
        return 5.0
    each_us = 2.0 if point.model == "compiled" else 12.0
    return messages_of(point) * each_us / 1e6 + point.nodes**2 * 4e-7 + 0.01


def jobs_of(points: Iterable[AnyPoint]) -> list[Job]:
    """Points as jobs, with an estimate of their cost."""
    found: list[Job] = []
    for point in points:
        point.check()
        found.append(Job(point.key, _seconds_of(point)))
    return found


def read_point(task: str) -> AnyPoint:
    found: AnyPoint = msgspec.json.decode(task, type=AnyPoint)
    return found


def measure(task: str) -> dict[str, Any]:
    """The work of a sweep: run the point that the task names."""
    from holdfast.experiments.bad_links import run_placement
    from holdfast.experiments.joining import run_joins, run_ride
    from holdfast.experiments.large import run_large
    from holdfast.experiments.rounds import run_round

    point = read_point(task)
    if isinstance(point, PlacementPoint):
        return run_placement(point)
    if isinstance(point, JoinPoint):
        return run_joins(point)
    if isinstance(point, RidePoint):
        return run_ride(point)
    outcome = run_large(point) if point.model == "compiled" else run_round(point)
    found: dict[str, Any] = msgspec.to_builtins(outcome)
    return found
