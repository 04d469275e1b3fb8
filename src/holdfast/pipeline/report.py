"""The report for people: one HTML page that needs nothing from anywhere, made of the published tables.

It says first what matters (is anything wrong, and where), then shows it, then says what it rests on.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any, Final

from holdfast.pipeline.model_pictures import Stretch, draw_ranges
from holdfast.pipeline.page import (
    TONES,
    Content,
    and_more,
    badge,
    names_of,
    or_zero,
    table,
    violations_box,
)
from holdfast.pipeline.quality import checks
from holdfast.pipeline.reader import Tables
from holdfast.pipeline.report_dialogs import show_dialogs
from holdfast.pipeline.report_guarantees import show_guarantees
from holdfast.pipeline.report_models import show_causes, show_models
from holdfast.pipeline.report_paths import show_hours, show_paths, show_timeline, show_worst
from holdfast.pipeline.report_rows import hours_of_worst, incidents_since
from holdfast.pipeline.storage.port import for_people
from holdfast.pipeline.words import UNKNOWN, VERDICTS, count, grouped, listing, moment, percent

_TABLES: Final = (
    *("recording", "nodes", "path_health", "deliveries", "delivery_audit"),
    *("audit_ranges", "delivery_violations", "dialog_audit", "dialog_violations"),
    *("guarantee_audit", "guarantee_violations"),
    *("located_faults", "prediction_scores", "predictions", "busy_windows"),
)
_SET_ASIDE_MAX: Final = 20
HEADLINE_GROUPS_MAX: Final = 3


def render_report(tables: Tables) -> str:
    """The page for a snapshot."""
    return render(load_content(tables))


def load_content(tables: Tables) -> Content:
    """The rows that the page shows; tables that no run has made yet are empty."""
    rows = {name: tables.rows(name) if tables.has(name) else [] for name in _TABLES}
    return Content(
        snapshot=tables.snapshot.number,
        recording=rows["recording"],
        nodes=rows["nodes"],
        health=rows["path_health"],
        hours=hours_of_worst(tables),
        incidents=incidents_since(tables, rows["path_health"]),
        deliveries=rows["deliveries"],
        audit=rows["delivery_audit"],
        ranges=rows["audit_ranges"],
        violations=rows["delivery_violations"],
        dialogs=rows["dialog_audit"],
        dialog_violations=rows["dialog_violations"],
        guarantees=rows["guarantee_audit"],
        guarantee_violations=rows["guarantee_violations"],
        localisation=rows["located_faults"],
        scores=rows["prediction_scores"],
        predictions=rows["predictions"],
        busy=rows["busy_windows"],
        checks=checks(tables),
        set_aside=[(for_people(e.path), e.outcome, e.reason) for e in tables.set_aside()],
    )


def render(content: Content) -> str:
    """The page."""
    names = names_of(content)
    parts = [
        _head(content),
        _tiles(content),
        show_causes(content, names),
        show_paths(content, names),
        show_timeline(content, names),
        show_hours(content, names),
        show_worst(content, names),
        show_models(content, names),
        _groups(content, names) + show_dialogs(content) + show_guarantees(content),
        _quality(content),
        _recorded(content, names),
        _footer(content),
    ]
    style = (files("holdfast.pipeline") / "report.css").read_text()
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="holdfast-snapshot" content="{content.snapshot}">\n'
        "<title>Holdfast network report</title>\n"
        f"<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in parts if part)
        + "\n</main>\n</body>\n</html>\n"
    )


# -- what matters ------------------------------------------------------------------------------------------------


def headline(content: Content) -> str:
    """The report in one sentence."""
    sentences = (
        _paths_sentence(content),
        _groups_sentence(content),
        _guarantees_sentence(content),
    )
    return " ".join(sentence for sentence in sentences if sentence)


def _paths_sentence(content: Content) -> str:
    states = [row["state"] for row in content.health]
    soft, dead = states.count("soft error"), states.count("dead")
    if not states:
        return "No path was recorded."
    if not soft and not dead:
        past = any(row["soft_error_s"] or row["dead_s"] for row in content.health)
        which = "The only path works" if len(states) == 1 else f"All {len(states)} paths work"
        return which + (" again." if past else ".")
    parts = []
    if soft:
        parts.append(f"{soft} with a soft error")
    if dead:
        parts.append(f"{dead} dead")
    return f"{soft + dead} of {count(len(states), 'path')} in trouble: {listing(parts)}."


def _groups_sentence(content: Content) -> str:
    by_verdict: dict[str, list[str]] = {}
    for row in content.audit:
        by_verdict.setdefault(row["verdict"], []).append(row["group"])
    if violated := by_verdict.get("violated"):
        return f"Replicas of {_first_few(violated)} do not agree."
    if open_ones := by_verdict.get("not provable"):
        return f"Whether replicas of {_first_few(open_ones)} agree cannot be proved."
    return "All replicas agree." if content.audit else ""


def _first_few(groups: list[str]) -> str:
    """A headline names three groups; the page below has all of them."""
    if len(groups) <= HEADLINE_GROUPS_MAX:
        return listing(groups)
    return listing(
        [
            *groups[: HEADLINE_GROUPS_MAX - 1],
            count(len(groups) - HEADLINE_GROUPS_MAX + 1, "other group"),
        ]
    )


def _guarantees_sentence(content: Content) -> str:
    """Only if one is violated: the page says below what holds."""
    broken = dict.fromkeys(
        row["guarantee"] for row in content.guarantees if row["verdict"] == "violated"
    )
    return f"Violated: {listing(list(broken))}." if broken else ""


def _head(content: Content) -> str:
    starts = [row["first_at"] for row in content.recording if row["first_at"]]
    ends = [row["last_at"] for row in content.recording if row["last_at"]]
    period = f"{moment(min(starts))} to {moment(max(ends))}" if starts else "nothing recorded"
    return (
        f'<p class="over">Holdfast network report</p>\n<h1>{escape(headline(content))}</h1>\n'
        f'<p class="note">What nodes recorded from {escape(period)}. "Now" is the last a node said.</p>'
    )


def _tiles(content: Content) -> str:
    states = [row["state"] for row in content.health]
    lost = sum(row["missing"] for row in content.recording)
    verdicts = [row["verdict"] for row in content.audit]
    worst = next((v for v in VERDICTS if v in verdicts), None)
    tiles = [
        ("ok", str(states.count("ok")), "paths ok"),
        ("soft", str(states.count("soft error")), "paths with a soft error"),
        ("dead", str(states.count("dead")), "paths dead"),
    ]
    if worst:
        agreeing = f"{verdicts.count('holds')} of {len(verdicts)}"
        tiles.append((TONES[worst], agreeing, "groups whose replicas agree"))
    facts = sum(row["facts"] for row in content.recording)
    tiles.append(("soft" if lost else "", grouped(facts), "facts recorded"))
    # A colour is for something to look at: a nought stays grey.
    return (
        '<div class="tiles">'
        + "".join(
            f'<div class="tile {tone if value != "0" else ""}"><b>{value}</b><span>{text}</span></div>'
            for tone, value, text in tiles
        )
        + "</div>"
    )


# -- groups ------------------------------------------------------------------------------------------------------


def _groups(content: Content, names: Mapping[str, str]) -> str:
    if not content.audit:
        return ""
    cards = []
    for verdict in content.audit:
        key = (verdict["group"], verdict["epoch"])
        replicas = [row for row in content.deliveries if (row["group"], row["epoch"]) == key]
        replica_table = table(
            "Replica |#Entries |#Messages |#First index |#Last index |#Incarnations",
            [
                [
                    escape(names.get(row["replica"], row["replica"][:8])),
                    *(grouped(row[name]) for name in _DELIVERY_NUMBERS),
                ]
                for row in replicas
            ],
            card=False,
        )
        named = [line.replace(" | ", "\n    ") for line in verdict["named"]]
        epoch = f" <small>epoch {verdict['epoch']:x}</small>" if verdict["epoch"] else ""
        cards.append(
            f'<div class="card"><div class="group"><h3>{escape(verdict["group"])}{epoch}</h3>'
            f'{badge(verdict["verdict"])}<span class="note">{escape(verdict["why"])}; '
            f"{percent(verdict['coverage'])} of the entries are compared</span></div>"
            f"{_range_table(content, key)}{replica_table}{violations_box(named)}</div>"
        )
    return (
        "<h2>Do replicas agree?</h2>\n"
        '<p class="note">Every entry of a group\'s log that two replicas recorded is compared: position, stream, '
        "numbers and a digest of the messages. Entries that a replica did not record count neither for nor "
        "against.</p>\n" + "\n".join(cards)
    )


def _range_table(content: Content, key: tuple[str, int]) -> str:
    ranges = [row for row in content.ranges if (row["group"], row["epoch"]) == key]
    lines = [
        [
            f"{grouped(row['first_index'])} to {grouped(row['last_index'])}",
            grouped(row["entries"]),
            badge(row["verdict"]),
            escape(row["why"]),
            escape(", ".join(row["replicas"])),
        ]
        for row in ranges[:_RANGES_MAX]
    ]
    if not ranges:
        return ""
    picture = draw_ranges(
        key[0],
        [
            Stretch(
                row["first_index"],
                row["last_index"],
                TONES[row["verdict"]],
                f"{row['first_index']} to {row['last_index']}: {row['verdict']}, {row['why']}",
            )
            for row in ranges[:_STRETCHES_MAX]
        ],
    )
    return (
        picture
        + table("Index |#Entries |Verdict |Why |Replicas", lines, card=False)
        + and_more(len(ranges) - len(lines), "range")
    )


_RANGES_MAX: Final = 12
_STRETCHES_MAX: Final = 500
_DELIVERY_NUMBERS: Final = ("entries", "messages", "first_index", "last_index", "incarnations")


def _quality(content: Content) -> str:
    if not content.checks:
        return ""
    lines = [
        [escape(check.name), badge("ok" if check.fine else "attention"), escape(check.detail)]
        for check in content.checks
    ]
    return "<h2>Data quality</h2>\n" + table("Check |Result |Detail", lines)


# -- what it rests on --------------------------------------------------------------------------------------------


def _recorded(content: Content, names: Mapping[str, str]) -> str:
    kinds = sorted({row["kind"] for row in content.recording})
    by_node: dict[str, dict[str, dict[str, Any]]] = {}
    for row in content.recording:
        by_node.setdefault(row["node"], {})[row["kind"]] = row
    lines = []
    for node in sorted(by_node, key=lambda node: names[node]):
        rows = by_node[node]
        missing = sum(row["missing"] for row in rows.values())
        facts = [rows[kind]["facts"] if kind in rows else 0 for kind in kinds]
        lines.append(
            [
                f"{escape(names[node])}<small>{escape(node[:8])}</small>",
                *(or_zero(number, grouped(number)) for number in facts),
                str(max(row["incarnations"] for row in rows.values())),
                or_zero(missing, f"<b>{missing}</b>"),
            ]
        )
    header = "Node |#" + " |#".join(escape(kind) for kind in kinds) + " |#Lives |#Missing"
    return (
        "<h2>What this rests on</h2>\n"
        '<p class="note">Facts per node and kind. Facts are numbered, so a missing one shows.</p>\n'
        + table(header, lines)
        + _losses(content, names)
        + _set_aside(content)
    )


def _losses(content: Content, names: Mapping[str, str]) -> str:
    rows = [
        row
        for row in content.recording
        if row["missing"] or row["said_lost"] or row["uncounted_losses"]
    ]
    if not rows:
        return '<p class="note">No telemetry was lost.</p>'
    return "<h2>Telemetry that was lost</h2>\n" + table(
        "Node |Kind |#Missing |#Named as lost by the node |#Unexplained |Reasons",
        [
            [
                escape(names[row["node"]]),
                escape(row["kind"]),
                str(row["missing"]),
                str(row["said_lost"])
                + (" and an unknown number" if row["uncounted_losses"] else ""),
                or_zero(row["unexplained"], f"<b>{row['unexplained']}</b>"),
                escape("; ".join(row["reasons"])) or UNKNOWN,
            ]
            for row in rows
        ],
    )


def _set_aside(content: Content) -> str:
    if not content.set_aside:
        return ""
    return (
        "<h2>Quarantine</h2>\n"
        '<p class="note">These segments are not used. They stay where their nodes wrote them.</p>'
        + table(
            "File |Outcome |Reason",
            [
                [f"<code>{escape(name)}</code>", escape(outcome), escape(reason)]
                for name, outcome, reason in content.set_aside[:_SET_ASIDE_MAX]
            ],
        )
        + and_more(len(content.set_aside) - _SET_ASIDE_MAX, "file")
    )


def _footer(content: Content) -> str:
    return f"<footer>Made by <code>holdfast pipeline run</code> from snapshot {content.snapshot}.</footer>"
