"""Pictures of located faults, of the quality of predictions, and of what the audit covers. Plain SVG: the page has the
colours and the font. Every mark has a tooltip."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from html import escape
from typing import Final

import msgspec

_WIDTH: Final = 1040.0
_LABEL: Final = 330.0
_ROW: Final = 22.0
_SIDE: Final = 260.0


class Located(msgspec.Struct, frozen=True):
    """One located fault: when it was seen, and how its paths fared."""

    label: str
    start: datetime
    end: datetime
    confidence: float
    failing: int
    passing: int


class Bin(msgspec.Struct, frozen=True):
    """Predictions of about the same probability: what was predicted on average, and how often it happened."""

    mean: float
    observed: float
    rows: int


class Stretch(msgspec.Struct, frozen=True):
    """A range of a group's log with one verdict; `colour` is a variable of the page."""

    first: int
    last: int
    colour: str
    tooltip: str


def draw_located(faults: Sequence[Located]) -> str:
    """One line per fault: its time on a common axis, and the share of its paths that fail."""
    start = min(fault.start for fault in faults)
    span_s = max((max(fault.end for fault in faults) - start).total_seconds(), 1.0)
    shares = _WIDTH - 150
    plot = shares - 20 - _LABEL
    parts = []
    for down, fault in enumerate(faults):
        y = 4 + down * _ROW
        left = _LABEL + plot * (fault.start - start).total_seconds() / span_s
        width = max(4.0, plot * (fault.end - fault.start).total_seconds() / span_s)
        total = max(fault.failing + fault.passing, 1)
        when = f"{fault.start:%Y-%m-%d %H:%M} to {fault.end:%Y-%m-%d %H:%M} UTC"
        sure = f"confidence {fault.confidence:.2f}"
        counts = f"{fault.failing} failing, {fault.passing} passing paths"
        parts += [
            _text(_LABEL - 8, y + 13, fault.label, "end", 11),
            _rect(_LABEL, y + 7, plot, 2, "rail", 1.0),
            _rect(left, y + 2, width, 13, "dead", 0.3 + 0.7 * fault.confidence, f"{fault.label}, {when}, {sure}"),
            _rect(shares, y + 2, 140, 13, "well", 1.0, counts),
            _rect(shares, y + 2, 140 * fault.failing / total, 13, "dead", 1.0, counts),
        ]  # fmt: skip
    foot = 4 + len(faults) * _ROW + 12
    end = max(fault.end for fault in faults)
    parts += [
        _text(_LABEL, foot, f"{start:%Y-%m-%d %H:%M}", "start", 10, "muted"),
        _text(shares - 20, foot, f"{end:%Y-%m-%d %H:%M}", "end", 10, "muted"),
        _text(shares, foot, "its paths: failing, passing", "start", 10, "muted"),
    ]
    return _svg("located faults over time", _WIDTH, foot + 8, parts)


def draw_reliability(model: str, bins: Sequence[Bin]) -> str:
    """How often an incident followed, against the predicted probability. On the diagonal both are the same."""
    left, top = 46.0, 10.0
    most = max((one.rows for one in bins), default=1)
    parts = [
        _rect(left, top, _SIDE, _SIDE, "rail", 0.25),
        (
            f'<line x1="{left}" y1="{top + _SIDE}" x2="{left + _SIDE}" y2="{top}" '
            'stroke="var(--muted)" stroke-dasharray="4 4"/>'
        ),
    ]
    for one in bins:
        x, y = left + _SIDE * one.mean, top + _SIDE * (1 - one.observed)
        radius = 3 + 7 * (one.rows / most) ** 0.5
        said = f"{model}: predicted {one.mean:.2f}, observed {one.observed:.2f}, {one.rows} rows"
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="var(--ok)" fill-opacity="0.75">'
            f"<title>{escape(said)}</title></circle>"
        )
    foot = top + _SIDE + 16
    parts += [
        _text(left, foot, "0", "middle", 10, "muted"),
        _text(left + _SIDE, foot, "1", "middle", 10, "muted"),
        _text(left + _SIDE / 2, foot, "predicted probability", "middle", 11, "muted"),
        (
            f'<text transform="translate(18 {top + _SIDE / 2:.0f}) rotate(-90)" text-anchor="middle" '
            'font-size="11" fill="var(--muted)">observed share</text>'
        ),
    ]
    width = left + _SIDE + 20
    return _svg(f"reliability of {model}", width, foot + 8, parts, f"{width:.0f}")


def draw_ranges(group: str, stretches: Sequence[Stretch]) -> str:
    """The log of a group as one bar, coloured by verdict."""
    first = min(one.first for one in stretches)
    entries = max(one.last for one in stretches) - first + 1
    scale = _WIDTH / entries
    parts = [_rect(0, 2, _WIDTH, 14, "rail", 0.5)]
    parts += [
        _rect(
            (one.first - first) * scale,
            2,
            max(2.0, (one.last - one.first + 1) * scale),
            14,
            one.colour,
            1.0,
            one.tooltip,
        )
        for one in stretches
    ]
    return _svg(f"audited log of {group}", _WIDTH, 18, parts)


def _svg(
    label: str, width: float, height: float, parts: Sequence[str], shown_width: str = "100%"
) -> str:
    return (
        f'<svg role="img" aria-label="{escape(label)}" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{shown_width}">{"".join(parts)}</svg>'
    )


def _text(x: float, y: float, text: str, anchor: str, size: int, colour: str = "ink") -> str:
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" font-size="{size}" '
        f'fill="var(--{colour})">{escape(text)}</text>'
    )


def _rect(
    x: float, y: float, width: float, height: float, colour: str, opacity: float, tooltip: str = ""
) -> str:
    title = f"<title>{escape(tooltip)}</title>" if tooltip else ""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.0f}" rx="2" '
        f'fill="var(--{colour})" fill-opacity="{opacity:.2f}">{title}</rect>'
    )
