"""The parts of the report about causes, predictions and busy windows. Empty until those tables are published."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any, Final

from holdfast.pipeline.model_pictures import Bin, Located, draw_located, draw_reliability
from holdfast.pipeline.page import Content, and_more, path_name, table
from holdfast.pipeline.words import UNKNOWN, component, moment, percent

_FAULTS_MAX: Final = 12
_PREDICTIONS_MAX: Final = 12
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def show_models(content: Content, names: Mapping[str, str]) -> str:
    parts = [
        _scores(content),
        _predicted(content, names),
        _busy(content, names),
    ]
    return "\n".join(part for part in parts if part)


def show_causes(content: Content, names: Mapping[str, str]) -> str:
    """What is broken, the newest first."""
    if not content.localisation:
        return ""
    rows = sorted(content.localisation, key=lambda row: -row["start_at"].timestamp())
    picture = draw_located(
        [
            Located(
                " ".join(component(row, names)),
                row["start_at"],
                row["end_at"],
                row["confidence"],
                row["failing"],
                row["passing"],
            )
            for row in rows[:_FAULTS_MAX]
        ]
    )
    lines = [
        [
            _named(row, names) + _others(row, names),
            escape(", ".join(row["error_classes"])),
            moment(row["start_at"]),
            moment(row["end_at"]),
            percent(row["confidence"]),
            f"{row['failing']} failing, {row['passing']} passing",
        ]
        for row in rows[:_FAULTS_MAX]
    ]
    return (
        "<h2>Where the faults are</h2>\n"
        f'<div class="card">{picture}</div>\n'
        + table("Explains best |Symptoms |From |Until |#Confidence |Its paths", lines)
        + and_more(len(rows) - len(lines), "fault")
    )


def _named(row: Mapping[str, Any], names: Mapping[str, str]) -> str:
    kind, name = component(row, names)
    return f"{escape(kind)} <b>{escape(name)}</b>"


def _others(row: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Groups that the observed paths cannot tell apart from the named one."""
    rest = [" ".join(component(group, names)) for group in row["groups"][1:]]
    return f"<small>or {escape(', '.join(rest))}</small>" if rest else ""


def _scores(content: Content) -> str:
    if not content.scores:
        return ""
    lines = [
        [
            escape(row["model"]) + (" <b>(used)</b>" if row["chosen"] else ""),
            "baseline" if row["is_baseline"] else "model",
            _share(row["precision"]),
            _share(row["precision_low"]),
            _share(row["recall"]),
            UNKNOWN if row["brier"] is None else f"{row['brier']:.4f}",
            escape(row["why"] or ""),
        ]
        for row in content.scores
    ]
    return (
        "<h2>Prediction quality</h2>\n"
        '<p class="note">Judged on a later period than the models were fitted on. Advice is given only while the '
        "lower bound of the precision is above the configured one.</p>\n"
        + table("Model |Kind |#Precision |#At least |#Recall |#Brier |Notes", lines)
        + _reliability(content)
    )


def _reliability(content: Content) -> str:
    chosen = next((row for row in content.scores if row["chosen"] and row["bins"]), None)
    if chosen is None:
        return ""
    bins = [Bin(one["mean"], one["observed"], one["rows"]) for one in chosen["bins"]]
    return (
        '<p class="note">Reliability of the model in use: a point on the diagonal means that incidents followed as '
        "often as predicted. Larger points stand for more predictions.</p>"
        f'<div class="card">{draw_reliability(chosen["model"], bins)}</div>'
    )


def _predicted(content: Content, names: Mapping[str, str]) -> str:
    rows = [row for row in content.predictions if row["predicted"]]
    if not rows:
        return ""
    rows.sort(key=lambda row: -row["probability"])
    lines = [
        [
            _path(row, names),
            percent(row["probability"]),
            moment(row["valid_until"]),
            "yes" if row["advised"] else "no",
        ]
        for row in rows[:_PREDICTIONS_MAX]
    ]
    return (
        "<h2>Paths at risk</h2>\n"
        + table("Path |#Risk |Until |Advised", lines)
        + and_more(len(rows) - len(lines), "path")
    )


def _path(row: Mapping[str, Any], names: Mapping[str, str]) -> str:
    place = f"<small>{escape(row['subnet'])} · {escape(row['transport'])}</small>"
    return f"{escape(path_name(row, names))}{place}"


def _busy(content: Content, names: Mapping[str, str]) -> str:
    if not content.busy:
        return ""
    lines = [
        [
            f"{escape(names.get(row['node'], row['node'][:8]))}<small>{escape(row['adapter'])}</small>",
            f"{_DAYS[row['weekday'] % 7]} {row['hour']:02d}:00 for {row['hours']} h ({escape(row['zone'])})",
            percent(row["level"]),
            percent(row["probe_share"]),
        ]
        for row in content.busy[:_FAULTS_MAX]
    ]
    return "<h2>Busy windows</h2>\n" + table("Adapter |Window |#Expected load |#Probes kept", lines)


def _share(value: float | None) -> str:
    return UNKNOWN if value is None else percent(value)
