"""The pictures of the report, as SVG that takes its colours and its font from the page around it.

matplotlib draws with stand-in colours; they become CSS variables, so one picture is right in light and in dark. Every
mark that means something has a tooltip.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from html import escape
from typing import Final

import msgspec
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, DateFormatter, date2num
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

_COLOURS: Final = {
    "well": "#00a001",
    "soft": "#00a002",
    "dead": "#00a003",
    "ink": "#00a004",
    "muted": "#00a005",
    "rail": "#00a006",
    "on": "#00a007",
}
"""What a colour is for to the stand-in that is drawn; the page defines `--well` and so on."""

STATE_COLOURS: Final = {"ok": "well", "soft error": "soft", "dead": "dead"}
NODES_MAX: Final = 24
BARS_MAX: Final = 30
_CELL_IN: Final = 0.44
_PAGE_IN: Final = 10.4
_TEXT_PT: Final = 9.0
_CHAR_IN: Final = 0.076
"""A little more than a character of `_TEXT_PT` takes: labels must fit in any font."""


class Cell(msgspec.Struct, frozen=True):
    """What a matrix shows for one sender and one listener."""

    state: str
    text: str
    tooltip: str
    had_trouble: bool


class Matrix(msgspec.Struct, frozen=True):
    """Sender by listener over one transport. A pair without a path has no cell."""

    title: str
    cells: Mapping[tuple[str, str], Cell]


class Bar(msgspec.Struct, frozen=True):
    """One stretch of trouble."""

    start: datetime
    seconds: float
    state: str
    text: str
    tooltip: str
    open: bool


class Row(msgspec.Struct, frozen=True):
    """One path in the timeline: when it was watched, and its troubles."""

    label: str
    start: datetime
    end: datetime
    bars: Sequence[Bar]


def is_wide(nodes: int, matrices: int) -> bool:
    """Whether a picture of that many matrices wants the page's whole width."""
    return _CELL_IN * nodes * matrices > _PAGE_IN * 0.55


def draw_matrices(nodes: Sequence[str], matrices: Sequence[Matrix], name: str) -> str:
    """One matrix per transport, side by side, all with the same nodes."""
    nodes = nodes[:NODES_MAX]
    label_in = 0.25 + _CHAR_IN * max((len(node) for node in nodes), default=1)
    panel_in = _CELL_IN * len(nodes) + label_in + 0.35
    columns = max(1, min(len(matrices), int(_PAGE_IN // panel_in)))
    lines = -(-len(matrices) // columns)
    line_in = _CELL_IN * len(nodes) + label_in + 0.45
    width_in, height_in = panel_in * columns, line_in * lines
    figure = Figure(figsize=(width_in, height_in))
    tooltips: dict[str, str] = {}
    for place, matrix in enumerate(matrices):
        left = (place % columns) * panel_in + label_in
        top = (place // columns) * line_in + label_in + 0.25
        side = _CELL_IN * len(nodes)
        axes = figure.add_axes(
            (
                left / width_in,
                1 - (top + side) / height_in,
                side / width_in,
                side / height_in,
            )
        )
        _draw_matrix(axes, nodes, matrix, f"{name}-{place}", tooltips)
    return _svg(figure, f"{name}: state of each path, sender by listener", tooltips)


def draw_timeline(rows: Sequence[Row], name: str) -> str:
    """One line per path, one bar per trouble."""
    rows = rows[:BARS_MAX]
    label_in = 0.2 + _CHAR_IN * max(len(row.label) for row in rows)
    row_in = 0.30
    plot_in = _PAGE_IN - label_in - 0.3
    height_in = row_in * len(rows) + 0.55
    figure = Figure(figsize=(_PAGE_IN, height_in))
    axes = figure.add_axes(
        (label_in / _PAGE_IN, 0.40 / height_in, plot_in / _PAGE_IN, row_in * len(rows) / height_in)
    )
    start, end = _period(rows)
    axes.set_xlim(float(date2num(start)), float(date2num(end)))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    inches_per_second = plot_in / max((end - start).total_seconds(), 1e-6)
    tooltips: dict[str, str] = {}
    for place, row in enumerate(rows):
        axes.plot(
            [float(date2num(row.start)), float(date2num(row.end))],
            [place, place],
            color=_COLOURS["rail"],
            linewidth=4,
            solid_capstyle="round",
            zorder=1,
        )
        _draw_bars(axes, place, row, end, inches_per_second, f"{name}-{place}", tooltips)
    axes.set_yticks(range(len(rows)), [row.label for row in rows])
    axes.xaxis.set_major_locator(AutoDateLocator(minticks=4, maxticks=9))
    axes.xaxis.set_major_formatter(DateFormatter(_clock(end - start)))
    axes.grid(axis="x", color=_COLOURS["rail"], linewidth=0.6)
    axes.set_axisbelow(True)
    _bare(axes)
    return _svg(figure, "times in which paths were in trouble", tooltips)


def draw_hours(
    lines: Sequence[tuple[str, Mapping[str, tuple[float, float]]]], hours: Sequence[str]
) -> str:
    """A strip per path, a cell per hour: how much of it was bad, and how much of it dead."""
    label_px, width_px, row_px = 330.0, 1040.0, 17.0
    step = (width_px - label_px) / max(len(hours), 1)
    parts = []
    for down, (label, shares) in enumerate(lines):
        y = 4 + down * row_px
        parts.append(
            f'<text x="{label_px - 8}" y="{y + 11:.0f}" text-anchor="end" font-size="11" '
            f'fill="var(--ink)">{escape(label)}</text>'
        )
        for across, hour in enumerate(hours):
            if hour not in shares:
                continue
            bad, dead = shares[hour]
            colour = "rail" if not bad else "dead" if dead >= bad / 2 else "soft"
            opacity = 0.5 if not bad else 0.35 + 0.65 * bad
            parts.append(
                f'<rect x="{label_px + across * step:.1f}" y="{y}" width="{max(step - 0.6, 0.6):.1f}" height="13" '
                f'fill="var(--{colour})" fill-opacity="{opacity:.2f}"><title>{escape(label)}, {hour}: '
                f"{100 * bad:.0f} % bad, {100 * dead:.0f} % dead</title></rect>"
            )
    foot = 4 + len(lines) * row_px + 12
    parts += [
        f'<text x="{label_px + across * step:.0f}" y="{foot:.0f}" font-size="10" '
        f'fill="var(--muted)">{hours[across].replace("T", " ")}:00</text>'
        for across in sorted({0, len(hours) // 2, len(hours) - 1})
    ]
    return (
        f'<svg role="img" aria-label="paths by hour" viewBox="0 0 {width_px + 90:.0f} {foot + 6:.0f}" '
        f'width="100%">{"".join(parts)}</svg>'
    )


def _draw_matrix(
    axes: Axes, nodes: Sequence[str], matrix: Matrix, gid: str, tooltips: dict[str, str]
) -> None:
    axes.set_xlim(-0.5, len(nodes) - 0.5)
    axes.set_ylim(len(nodes) - 0.5, -0.5)
    empty: list[tuple[int, int]] = []
    for down, sender in enumerate(nodes):
        for across, listener in enumerate(nodes):
            cell = matrix.cells.get((sender, listener))
            if cell is None:
                empty.append((across, down))
                continue
            box = _box(across, down)
            box.set_facecolor(_COLOURS[STATE_COLOURS[cell.state]])
            box.set_gid(f"{gid}-{down}-{across}")
            tooltips[f"{gid}-{down}-{across}"] = cell.tooltip
            axes.add_patch(box)
            axes.text(
                *(across, down, cell.text),
                ha="center",
                va="center_baseline",
                color=_COLOURS["on"],
                fontsize=7.8,
                fontweight="bold",
            )
            if cell.had_trouble and cell.state == "ok":
                axes.plot(across, down, "o", ms=4.5, color=_COLOURS["soft"])
    # Most pairs of a large domain have no path: as markers they share one shape, which keeps the page small.
    axes.plot(
        *([across for across, _ in empty], [down for _, down in empty]),
        linestyle="none",
        marker=_box(0, 0).get_path(),
        ms=0.80 * _CELL_IN * 72,
        mew=0,
        color=_COLOURS["rail"],
        alpha=0.35,
    )
    axes.set_xticks(range(len(nodes)), nodes, rotation=90)
    axes.set_yticks(range(len(nodes)), nodes)
    axes.xaxis.tick_top()
    axes.set_title(matrix.title, fontsize=10, color=_COLOURS["ink"], loc="left", fontweight="bold")
    _bare(axes)


def _box(across: int, down: int) -> FancyBboxPatch:
    return FancyBboxPatch(
        (across - 0.40, down - 0.40),
        *(0.80, 0.80),
        boxstyle="round,pad=0,rounding_size=0.12",
        edgecolor="none",
    )


def _draw_bars(
    axes: Axes,
    place: int,
    row: Row,
    end: datetime,
    inches_per_second: float,
    gid: str,
    tooltips: dict[str, str],
) -> None:
    least_s = 0.05 / inches_per_second
    for number, bar in enumerate(row.bars):
        shown_s = max(bar.seconds, least_s)
        colour = _COLOURS[STATE_COLOURS[bar.state]]
        left = float(date2num(bar.start))
        patches = axes.barh(place, shown_s / 86_400, left=left, height=0.62, color=colour, zorder=2)
        patches[0].set_gid(f"{gid}-{number}")
        tooltips[f"{gid}-{number}"] = bar.tooltip
        if bar.open and shown_s * inches_per_second > 0.1:
            axes.plot(left + shown_s / 86_400, place, ">", ms=9, color=colour, mew=0, zorder=2)
        after = row.bars[number + 1].start if number + 1 < len(row.bars) else end
        free_in = ((after - bar.start).total_seconds() - shown_s) * inches_per_second
        text_in = _CHAR_IN * len(bar.text) + 0.08
        if text_in <= shown_s * inches_per_second:
            _label(axes, left + shown_s / 172_800, place, bar.text, "center", "on")
        elif text_in <= free_in:
            offset = (shown_s + 0.05 / inches_per_second) / 86_400
            _label(axes, left + offset, place, bar.text, "left", "ink")


def _label(axes: Axes, x: float, y: float, text: str, align: str, colour: str) -> None:
    axes.text(
        *(x, y, text),
        ha=align,
        va="center_baseline",
        zorder=3,
        fontsize=_TEXT_PT - 0.8,
        color=_COLOURS[colour],
        fontweight="bold" if colour == "on" else "normal",
    )


def _period(rows: Sequence[Row]) -> tuple[datetime, datetime]:
    starts = [row.start for row in rows] + [bar.start for row in rows for bar in row.bars]
    ends = [row.end for row in rows] + [
        bar.start + timedelta(seconds=bar.seconds) for row in rows for bar in row.bars
    ]
    start, end = min(starts), max(ends)
    margin = max((end - start) * 0.01, timedelta(milliseconds=500))
    return start - margin, end + margin


def _clock(span: timedelta) -> str:
    """How to write moments on an axis that is this long."""
    if span < timedelta(minutes=10):
        return "%H:%M:%S"
    return "%H:%M" if span < timedelta(hours=20) else "%d %b %H:%M"


def _bare(axes: Axes) -> None:
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0, labelsize=_TEXT_PT, labelcolor=_COLOURS["ink"], pad=4)
    axes.patch.set_visible(False)


def _svg(figure: Figure, label: str, tooltips: Mapping[str, str]) -> str:
    figure.patch.set_visible(False)
    # Text stays text, and the same tables give the same bytes.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "holdfast"}):
        out = io.StringIO()
        figure.savefig(
            out,
            format="svg",
            bbox_inches="tight",
            pad_inches=0.02,
            metadata={"Date": None, "Creator": None},
        )
    drawing = out.getvalue()
    drawing = drawing[drawing.index("<svg") :]
    drawing = re.sub(r"<metadata>.*?</metadata>", "", drawing, flags=re.DOTALL)
    for use, stand_in in _COLOURS.items():
        drawing = drawing.replace(stand_in, f"var(--{use})")
    drawing = _with_tooltips(drawing, tooltips.items())
    return drawing.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1)


def _with_tooltips(drawing: str, tooltips: Iterable[tuple[str, str]]) -> str:
    texts = dict(tooltips)

    def titled(match: re.Match[str]) -> str:
        text = texts.get(match[1])
        return match[0] if text is None else f"{match[0]}<title>{escape(text)}</title>"

    return re.sub(r'<g id="([^"]+)">', titled, drawing)
