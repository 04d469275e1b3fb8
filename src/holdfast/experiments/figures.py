"""Figures 8 to 14 of the paper, drawn from the results of a sweep, and one for the sizes beyond."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.experiments.points import PAPER_NAMES, Outcome
from holdfast.experiments.results import Curve, Results, first_ms, last_ms
from holdfast.experiments.sets import FAILURE_PROBABILITY, FAILURES, LARGE_DEGREE
from holdfast.stability.config import COORD, CUBE, FULL, TREE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS: Final = {CUBE: "#0072b2", COORD: "#d55e00", FULL: "#999999", TREE: "#009e73"}
MARKS: Final = {CUBE: "o", COORD: "s", FULL: "x", TREE: "^"}
_SETTINGS: Final = {
    "svg.fonttype": "none",
    "svg.hashsalt": "holdfast",  # the same results give the same bytes
    "font.size": 8.0,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "lines.markersize": 3.0,
    "lines.linewidth": 1.2,
}

Index = Callable[[Outcome], float]
Draw = Callable[["Axes", str], None]


def draw_figures(results: Results, directory: Path) -> list[Path]:
    """Write all figures for which there are results. Returns their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    densities = _shown(results)
    found: list[Path] = []
    for name, panels in _figures(results).items():
        if densities:
            found.append(_draw(directory / f"{name}.svg", panels, densities))
    found += _failures(results, directory) + _beyond(results, directory)
    return found


SHOWN: Final = ("degree 4", "p = 0.02")
"""The densities that figures show, if measured: with and without more links in larger networks."""
_NUMBER = re.compile(r"\d+\.\d{3,}")
_LARGE: Final = f"degree {LARGE_DEGREE:g}"
_FAILURES_AT: Final = f"p = {FAILURE_PROBABILITY:g}"


def _shown(results: Results) -> list[str]:
    measured = [
        density
        for density in sorted(results.densities())
        if len(results.curve(CUBE, density, first_ms)) > 2 and density != _LARGE
    ]
    return [density for density in measured if density in SHOWN] or measured


def _figures(results: Results) -> dict[str, list[tuple[str, Draw]]]:
    lines = lambda index, *left_out: _lines(results, index, left_out)
    return {
        "figure-8-round-time": [
            ("first member, ms", lines(first_ms)),
            ("last member, ms", lines(last_ms)),
        ],
        "figure-9-load": [
            ("packets in the network", lines(lambda o: o.load)),
            ("without FullDist", lines(lambda o: o.load, FULL)),
        ],
        "figure-10-queue": [
            ("longest queue, packets", lines(lambda o: o.longest_queue)),
            ("without FullDist", lines(lambda o: o.longest_queue, FULL)),
        ],
        "figure-11-hops-and-messages": [
            ("hops", lines(lambda o: o.hops)),
            ("messages", lines(lambda o: o.messages)),
        ],
        "figure-12-sensitivity": [
            ("first member: worst less best, ms", _spreads(results, first_ms)),
            ("longest queue: worst less best", _spreads(results, lambda o: o.longest_queue)),
        ],
    }


def _lines(results: Results, index: Index, left_out: tuple[str, ...]) -> Draw:
    def draw(axes: Axes, density: str) -> None:
        for protocol in (CUBE, COORD, FULL, TREE):
            if protocol not in left_out:
                _line(axes, results.curve(protocol, density, index), protocol)

    return draw


def _spreads(results: Results, index: Index) -> Draw:
    def draw(axes: Axes, density: str) -> None:
        for protocol in (CUBE, COORD, FULL, TREE):
            _line(axes, results.spread(protocol, density, index), protocol)

    return draw


def _line(axes: Axes, curve: Curve, protocol: str) -> None:
    if curve:
        style = {"color": COLOURS[protocol], "marker": MARKS[protocol]}
        axes.plot(list(curve), list(curve.values()), label=PAPER_NAMES[protocol], **style)  # type: ignore[arg-type]


def _draw(path: Path, panels: list[tuple[str, Draw]], densities: list[str]) -> Path:
    """One row of panels per density."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_SETTINGS):  # type: ignore[arg-type]
        figure = Figure(figsize=(7.2, 2.1 * len(densities)), layout="constrained")
        grid = figure.subplots(len(densities), len(panels), squeeze=False)
        for row, density in zip(grid, densities, strict=True):
            for axes, (title, draw) in zip(row, panels, strict=True):
                draw(axes, density)
                axes.set_title(f"{title} ({density})", fontsize=8)
                if axes.get_yscale() == "linear":
                    axes.set_ylim(bottom=0)
        if grid[0][0].lines:
            grid[0][0].legend(fontsize=7)
        for axes in grid[-1]:
            axes.set_xlabel("nodes")
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
    # Hundredths of a point are enough, and halve the file.
    path.write_text(_NUMBER.sub(lambda found: f"{float(found.group()):.2f}", drawn.getvalue()))
    return path


def _failures(results: Results, directory: Path) -> list[Path]:
    """Figures 13 and 14: one line per number of failed neighbours."""
    if not results.curve(CUBE, _FAILURES_AT, first_ms, failed=1):
        return []

    def lines(index: Index) -> Draw:
        def draw(axes: Axes, density: str) -> None:
            for failed in (0, *FAILURES):
                curve = results.curve(CUBE, density, index, failed=failed)
                known = results.curve(CUBE, density, index, failed=1)
                shown = {n: y for n, y in curve.items() if n in known}
                if shown:
                    shade = str(0.75 * failed / max(FAILURES))
                    label = f"{failed} failed"
                    axes.plot(
                        list(shown), list(shown.values()), color=shade, marker=".", label=label
                    )

        return draw

    made = {
        "figure-13-failures": [
            ("first member, ms", lines(first_ms)),
            ("longest queue, packets", lines(lambda o: o.longest_queue)),
        ],
        "figure-14-failures-hops": [("hops", lines(lambda o: o.hops))],
    }
    return [
        _draw(directory / f"{name}.svg", panels, [_FAILURES_AT]) for name, panels in made.items()
    ]


def _beyond(results: Results, directory: Path) -> list[Path]:
    """Round time and queues at the sizes of the compiled model, on logarithmic axes."""
    if not results.curve(CUBE, _LARGE, last_ms):
        return []

    def lines(index: Index) -> Draw:
        def draw(axes: Axes, density: str) -> None:
            for protocol in (CUBE, COORD, TREE):
                _line(axes, results.curve(protocol, density, index), protocol)
            axes.set_xscale("log")
            axes.set_yscale("log")

        return draw

    panels = [
        ("last member, ms", lines(last_ms)),
        ("longest queue, packets", lines(lambda o: o.longest_queue)),
    ]
    return [_draw(directory / "beyond-large.svg", panels, [_LARGE])]
