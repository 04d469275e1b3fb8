"""Verdicts on the claims of the paper: made-up curves that confirm or refute each, and measured ones at small sizes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from holdfast.experiments.claims import CLAIMS, check_claims
from holdfast.experiments.figures import draw_figures
from holdfast.experiments.journal import Record
from holdfast.experiments.points import Outcome, Point
from holdfast.experiments.report import report_text
from holdfast.experiments.results import Results, first_ms, growth
from holdfast.experiments.rounds import run_round
from holdfast.experiments.sets import measure, points_of
from holdfast.experiments.sweep import run_task

SIZES = (100, 150, 400, 500, 512, 1000, 1024)


def outcome(n: int, protocol: str, good: bool, seed: int, failed: int = 0) -> Outcome:
    """What the paper would have measured, or the opposite of it."""
    flat, line = 10.0, n / 10
    log2 = math.log2(n) ** 2
    # Times in ms, queues, loads, hops, messages: as claimed, and then not.
    claimed = {
        "cube": (flat, flat * 1.1, 5, 500, n * log2, n * log2),
        "tree": (flat, flat * 1.1, 4, 80, 6 * n, 3 * (n - 1)),
        "coord": (
            line + 3 * seed,
            line * 1.1 + 3 * seed,
            n * (1 + seed / 4),
            100,
            9 * n,
            3 * (n - 1),
        ),
        "full": (n**1.6 / 500, n**2.1 / 5000, 4 * n, 9000, 4 * n * n, n * (n - 1)),
    }
    refuted = {
        "cube": (line * (1 + failed) * seed, line * (1 + failed) * (1 + (n % 100 > 0)) * seed,
                 n * (1 + failed) * seed, 500, n * n * (1 + failed), n * n),
        "tree": (line, line, n, 80, 99 * n, 4 * n),
        "coord": (flat, flat * 3, 5, 1000, 9 * n, 4 * n),
        "full": (flat * n / 100, flat * n / 100, 1, 10, n, n),
    }  # fmt: skip
    first, last, queue, load, hops, messages = (claimed if good else refuted)[protocol]
    return Outcome(
        first_ns=int(first * 1e6), last_ns=int(last * 1e6), load=load, load_fine=load,
        longest_queue=int(queue), hops=int(hops), messages=int(messages), links=1, joins=0,
        mean_hops=1.0,
    )  # fmt: skip


def made_up(good: bool) -> Results:
    found: dict[Point, Outcome] = {}
    for seed in (1, 2):
        for n in SIZES:
            for protocol in ("cube", "coord", "full", "tree"):
                for failed in (0, 1, 2) if protocol == "cube" else (0,):
                    point = Point(
                        protocol=protocol, nodes=n, edge_probability=0.02, seed=seed, failed=failed
                    )
                    found[point] = outcome(n, protocol, good, seed, failed)
    return Results(found)


def test_every_claim_is_confirmed_by_results_like_those_of_the_paper() -> None:
    verdicts = check_claims(made_up(good=True))
    assert len(verdicts) == len(CLAIMS)
    assert [v.claim for v in verdicts if v.confirmed is not True] == []


def test_every_claim_can_fail() -> None:
    verdicts = check_claims(made_up(good=False))
    assert [v.claim for v in verdicts if v.confirmed is not False] == []


def test_a_claim_without_data_is_not_judged() -> None:
    point = Point(nodes=10, edge_probability=0.02)
    verdicts = check_claims(Results({point: outcome(10, "cube", True, 1)}))
    assert {v.confirmed for v in verdicts if v.figure not in ("8", "11")} == {None}


@pytest.mark.parametrize(("power", "expected"), [(0.0, 0.0), (1.0, 1.0), (2.0, 2.0)])
def test_growth_is_the_exponent(power: float, expected: float) -> None:
    assert growth({n: 3.0 * n**power for n in (100, 200, 700)}) == pytest.approx(expected)


def test_measured_shapes_at_small_sizes() -> None:
    """What needs no large network: FullDist sends and loads most, and the cube spreads load."""
    by = {
        protocol: run_round(Point(nodes=100, mean_degree=4, protocol=protocol))
        for protocol in ("cube", "coord", "full")
    }
    assert by["full"].messages == 9900
    assert by["full"].load > 2 * by["cube"].load
    assert by["full"].longest_queue > by["coord"].longest_queue > 2 * by["cube"].longest_queue


def test_the_report_has_figures_claims_and_errors(tmp_path: Path) -> None:
    """From records as a sweep writes them, one of them an error, to pictures and a page."""
    points = [p for p in points_of("small") if p.nodes <= 50]
    records = [run_task(measure, point.key) for point in points]
    records.append(Record('{"kind":"round","nodes":9,"edge_probability":0.04}', error="No: reason"))
    results = Results.of(records)
    assert len(results) == len(points)
    drawn = draw_figures(results, tmp_path)
    assert [path.name for path in drawn][:2] == [
        "figure-8-round-time.svg",
        "figure-9-load.svg",
    ]
    assert all("<svg" in path.read_text()[:1000] for path in drawn)
    text = report_text(records)
    assert "## Points without a result" in text
    assert "| 11 | messages of FullDist: n (n-1) | p = 0.04 |" in text
    again = tmp_path / "again"
    assert draw_figures(results, again)[0].read_bytes() == drawn[0].read_bytes()
    assert results.curve("cube", "p = 0.04", first_ms)
