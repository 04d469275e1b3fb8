"""The claims of the paper, each checked against a number. A claim that is not confirmed is a result as well."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import msgspec

from holdfast.experiments.points import Outcome
from holdfast.experiments.results import Curve, Results, first_ms, growth, last_ms
from holdfast.experiments.sets import FAILURE_PROBABILITY, FAILURES
from holdfast.stability.config import COORD, CUBE, FULL, TREE

FLAT_MAX: Final = 0.25
"""A curve is flat when it grows with less than the fourth root of n."""
LINEAR: Final = (0.75, 1.25)
EXPLOSIVE_MIN: Final = 1.25
AFFECTED_MAX: Final = 0.25
"""'Hardly affected' allows a change of a quarter."""
SAME_MAX: Final = 0.15
"""The allowed difference between sizes at and next to a power of two."""


class Verdict(msgspec.Struct, frozen=True):
    """One claim on one kind of topology."""

    figure: str
    claim: str
    density: str
    measured: str
    wanted: str
    confirmed: bool | None
    """None: too few points were measured."""


Check = Callable[[Results, str], tuple[str, bool | None]]


class Claim(msgspec.Struct, frozen=True):
    figure: str
    text: str
    wanted: str
    check: Check
    only: str = ""
    """The density that the claim is about; empty: all."""


def _unknown(value: float) -> bool:
    return math.isnan(value) or math.isinf(value)


def _judged(value: float, text: str, good: bool) -> tuple[str, bool | None]:
    return ("no data", None) if _unknown(value) else (text, good)


def _queue(outcome: Outcome) -> float:
    return outcome.longest_queue


def _load(outcome: Outcome) -> float:
    return outcome.load


def _hops(outcome: Outcome) -> float:
    return outcome.hops


def _messages(outcome: Outcome) -> float:
    return outcome.messages


def _is_flat(protocol: str, index: Callable[[Outcome], float]) -> Check:
    def check(results: Results, density: str) -> tuple[str, bool | None]:
        curve = results.curve(protocol, density, index)
        exponent = growth(curve)
        return _judged(exponent, f"n^{exponent:.2f}", exponent <= FLAT_MAX)

    return check


def _is_linear(protocol: str, index: Callable[[Outcome], float]) -> Check:
    def check(results: Results, density: str) -> tuple[str, bool | None]:
        exponent = growth(results.curve(protocol, density, index))
        good = LINEAR[0] <= exponent <= LINEAR[1]
        return _judged(exponent, f"n^{exponent:.2f}", good)

    return check


def _explodes(results: Results, density: str) -> tuple[str, bool | None]:
    exponent = growth(results.curve(FULL, density, last_ms))
    return _judged(exponent, f"n^{exponent:.2f}", exponent >= EXPLOSIVE_MIN)


def _ends(curve: Curve) -> tuple[int, int] | None:
    large = [n for n in curve if n >= 100]
    return (large[0], large[-1]) if len(large) > 1 else None


def _gap_grows(results: Results, density: str) -> tuple[str, bool | None]:
    first, last = (results.curve(FULL, density, index) for index in (first_ms, last_ms))
    if 150 not in first or 400 not in first:
        return "no data", None
    text = f"{first[150]:.0f}/{last[150]:.0f} ms at 150, {first[400]:.0f}/{last[400]:.0f} at 400"
    return text, last[400] / first[400] > last[150] / first[150]


def _no_gap(protocol: str) -> Check:
    def check(results: Results, density: str) -> tuple[str, bool | None]:
        first = results.curve(protocol, density, first_ms)
        last = results.curve(protocol, density, last_ms)
        if not first:
            return "no data", None
        ratio = max(last[n] / first[n] for n in first)
        return f"last/first up to {ratio:.2f}", ratio <= 1 + AFFECTED_MAX

    return check


def _no_jitter(results: Results, density: str) -> tuple[str, bool | None]:
    curve = results.curve(CUBE, density, last_ms)
    pairs = [(a, b) for a, b in ((500, 512), (1000, 1024)) if a in curve and b in curve]
    if not pairs:
        return "no data", None
    off = max(abs(curve[b] / curve[a] - 1) for a, b in pairs)
    return f"{off:.0%} between neighbours", off <= SAME_MAX


def _above(index: Callable[[Outcome], float], more: str, less: str, size_max: int) -> Check:
    """Whether one protocol has the larger index at the largest size that both were run at."""

    def check(results: Results, density: str) -> tuple[str, bool | None]:
        a, b = results.curve(more, density, index), results.curve(less, density, index)
        both = [n for n in a if n in b and n <= size_max]
        if not both or both[-1] < 100:
            return "no data", None
        n = both[-1]
        return f"{a[n]:.0f} against {b[n]:.0f} at {n}", a[n] > b[n]

    return check


def _log_squared(results: Results, density: str) -> tuple[str, bool | None]:
    curve = results.curve(CUBE, density, _messages)
    ends = _ends(curve)
    if ends is None:
        return "no data", None
    factors = [y / (n * math.log2(n) ** 2) for n, y in curve.items() if n >= 100]
    spread = max(factors) / min(factors)
    text = f"{min(factors):.2f} to {max(factors):.2f} n log² n"
    return text, spread <= 2.0


def _exactly(protocol: str, formula: Callable[[int], int]) -> Check:
    def check(results: Results, density: str) -> tuple[str, bool | None]:
        curve = results.curve(protocol, density, _messages)
        if not curve:
            return "no data", None
        off = max(abs(y / formula(n) - 1) for n, y in curve.items())
        return f"off by at most {off:.1%}", off <= 0.05

    return check


def _sensitive(index: Callable[[Outcome], float], calm: str) -> Check:
    """Coord depends more on the topology: difference between best and worst, averaged over sizes."""

    def check(results: Results, density: str) -> tuple[str, bool | None]:
        a, b = results.spread(COORD, density, index), results.spread(calm, density, index)
        both = [n for n in a if n in b and n >= 100]
        if not both:
            return "no data", None
        coord, other = (sum(c[n] for n in both) / len(both) for c in (a, b))
        return f"{coord:.2f} against {other:.2f}", coord > other

    return check


def _unaffected(index: Callable[[Outcome], float]) -> Check:
    def check(results: Results, density: str) -> tuple[str, bool | None]:
        base = results.curve(CUBE, density, index)
        worst = 0.0
        seen = False
        for failed in FAILURES:
            curve = results.curve(CUBE, density, index, failed=failed)
            for n in curve:
                if n >= 100 and base.get(n):
                    seen = True
                    worst = max(worst, abs(curve[n] / base[n] - 1))
        return (f"at most {worst:.0%} off", worst <= AFFECTED_MAX) if seen else ("no data", None)

    return check


_LITTLE: Final = f"within {AFFECTED_MAX:.0%}"
_FAILURES_AT: Final = f"p = {FAILURE_PROBABILITY:g}"

CLAIMS: Final = (
    Claim("8", "round time of CubeFullDist is almost flat", f"n^b, b <= {FLAT_MAX}", _is_flat(CUBE, last_ms)),
    Claim("8", "round time of S_Coord is almost flat", f"n^b, b <= {FLAT_MAX}", _is_flat(TREE, last_ms)),
    Claim("8", "round time of Coord is linear", "n^b, b = 0.75 to 1.25", _is_linear(COORD, last_ms)),
    Claim("8", "round time of FullDist explodes", f"n^b, b >= {EXPLOSIVE_MIN}", _explodes),
    Claim("8", "FullDist: first and last member drift apart", "16/19 ms at 150, 46/82 at 400", _gap_grows),
    Claim("8", "Coord: hardly any difference of first and last", "last/first <= 1.25", _no_gap(COORD)),
    Claim("8", "incomplete cubes behave like complete ones", f"within {SAME_MAX:.0%}", _no_jitter),
    Claim("9", "FullDist loads the network most", "more than CubeFullDist", _above(_load, FULL, CUBE, 400)),
    Claim("9", "Coord loads it less than CubeFullDist", "less", _above(_load, CUBE, COORD, 1900)),
    Claim("10", "longest queue of Coord is linear", "n^b, b = 0.75 to 1.25", _is_linear(COORD, _queue)),
    Claim("10", "longest queue of CubeFullDist is almost flat", f"n^b, b <= {FLAT_MAX}", _is_flat(CUBE, _queue)),
    Claim("10", "longest queue of S_Coord is almost flat", f"n^b, b <= {FLAT_MAX}", _is_flat(TREE, _queue)),
    Claim("10", "FullDist has the longest queues", "longer than Coord", _above(_queue, FULL, COORD, 400)),
    Claim("11", "messages of CubeFullDist grow as n log² n", "factor within 2", _log_squared),
    Claim("11", "messages of FullDist: n (n-1)", "within 5 %", _exactly(FULL, lambda n: n * (n - 1))),
    Claim("11", "messages of Coord: 3 (n-1)", "within 5 %", _exactly(COORD, lambda n: 3 * (n - 1))),
    Claim("11", "messages of S_Coord: 3 (n-1)", "within 5 %", _exactly(TREE, lambda n: 3 * (n - 1))),
    Claim("11", "S_Coord makes fewer hops than Coord", "fewer", _above(_hops, COORD, TREE, 1900)),
    Claim("12", "topology matters more to Coord's round time", "larger spread", _sensitive(first_ms, CUBE)),
    Claim("12", "topology matters more to Coord's longest queue", "larger spread", _sensitive(_queue, CUBE)),
    Claim("13", "failures hardly affect the round time", _LITTLE, _unaffected(first_ms), _FAILURES_AT),
    Claim("13", "failures hardly affect the longest queue", _LITTLE, _unaffected(_queue), _FAILURES_AT),
    Claim("14", "failures hardly affect the hop count", _LITTLE, _unaffected(_hops), _FAILURES_AT),
)  # fmt: skip


def check_claims(results: Results) -> list[Verdict]:
    """A verdict for each claim and density."""
    found: list[Verdict] = []
    for claim in CLAIMS:
        for density in sorted(results.densities()):
            if claim.only and claim.only != density:
                continue
            measured, confirmed = claim.check(results, density)
            found.append(
                Verdict(claim.figure, claim.text, density, measured, claim.wanted, confirmed)
            )
    return found
