"""The report for people: one HTML page that needs nothing from anywhere, made of the published tables.

It says first what matters (is anything wrong, and where), then shows it, then says what it rests on.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from holdfast.pipeline.page import TONES, Content, badge, names_of, or_zero, table
from holdfast.pipeline.publish import write_atomically
from holdfast.pipeline.reader import read_manifest, read_table
from holdfast.pipeline.report_paths import show_paths, show_timeline, show_worst
from holdfast.pipeline.words import UNKNOWN, count, grouped, listing, moment

_TABLES: Final = ("recording", "path_health", "path_troubles", "deliveries", "delivery_audit")
_SET_ASIDE_MAX: Final = 20


def write_report(root: Path, path: Path, stamp: str) -> None:
    """Write the page for the tables under `root`; `stamp` says which tables, for whoever must know."""
    write_atomically(path, render(load_content(root), stamp).encode())


def load_content(root: Path) -> Content:
    manifests = {name: read_manifest(root, name) for name in _TABLES}
    rows = {name: read_table(root, name).to_pylist() for name in _TABLES}
    return Content(
        recording=rows["recording"],
        health=rows["path_health"],
        troubles=rows["path_troubles"],
        deliveries=rows["deliveries"],
        audit=rows["delivery_audit"],
        set_aside=[_reason(path) for path in sorted((root / "quarantine").rglob("*.reason.txt"))],
        runs={name: manifest.run for name, manifest in manifests.items() if manifest is not None},
    )


def render(content: Content, stamp: str) -> str:
    """The page."""
    names = names_of(content)
    parts = [
        _head(content),
        _tiles(content),
        show_paths(content, names),
        show_timeline(content, names),
        show_worst(content, names),
        _groups(content, names),
        _recorded(content, names),
        _footer(content),
    ]
    style = (files("holdfast.pipeline") / "report.css").read_text()
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="holdfast-tables" content="{escape(stamp)}">\n'
        "<title>Holdfast network report</title>\n"
        f"<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in parts if part)
        + "\n</main>\n</body>\n</html>\n"
    )


# -- what matters ------------------------------------------------------------------------------------------------


def headline(content: Content) -> str:
    """The one sentence that somebody in a hurry reads."""
    return " ".join(
        sentence for sentence in (_paths_sentence(content), _groups_sentence(content)) if sentence
    )


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
        return f"Replicas of {listing(violated)} do not agree."
    if open_ones := by_verdict.get("not provable"):
        return f"Whether replicas of {listing(open_ones)} agree cannot be proved."
    return "All replicas agree." if content.audit else ""


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
    worst = next((v for v in ("violated", "not provable", "holds") if v in verdicts), None)
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
        replicas = [row for row in content.deliveries if row["group"] == verdict["group"]]
        replica_table = table(
            "Replica |#Entries |#Messages delivered |#Positions covered |#First |#Last |#Lives",
            [
                [
                    escape(names[row["replica"]]),
                    *(grouped(row[name]) for name in _DELIVERY_NUMBERS),
                ]
                for row in replicas
            ],
            card=False,
        )
        named = ""
        if verdict["named"]:
            lines = "\n\n".join(line.replace(" | ", "\n    ") for line in verdict["named"])
            named = f"<details open><summary>Offending rows</summary><pre>{escape(lines)}</pre></details>"
        cards.append(
            f'<div class="card"><div class="group"><h3>{escape(verdict["group"])}</h3>'
            f'{badge(verdict["verdict"])}<span class="note">{escape(verdict["why"])}</span></div>'
            f"{replica_table}{named}</div>"
        )
    return (
        "<h2>Do replicas agree?</h2>\n"
        '<p class="note">Every entry of a group\'s order that two replicas recorded is compared: position, stream, '
        "numbers and a digest of the messages. What a replica did not record counts neither for nor against.</p>\n"
        + "\n".join(cards)
    )


_DELIVERY_NUMBERS: Final = (
    *("entries", "messages", "positions"),
    *("first_position", "last_position", "incarnations"),
)


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
    more = len(content.set_aside) - _SET_ASIDE_MAX
    note = f'<p class="note">And {count(more, "more file")}.</p>' if more > 0 else ""
    return (
        "<h2>Segments set aside</h2>\n"
        '<p class="note">Damaged or unknown files were not used. They lie in the quarantine beside their reasons.</p>'
        + table(
            "File |Reason",
            [
                [f"<code>{escape(name)}</code>", escape(reason)]
                for name, reason in content.set_aside[:_SET_ASIDE_MAX]
            ],
        )
        + note
    )


def _footer(content: Content) -> str:
    runs = ", ".join(f"{name} {run}" for name, run in content.runs.items())
    return f"<footer>Made by <code>holdfast pipeline run</code> from these runs: {escape(runs)}</footer>"


def _reason(path: Path) -> tuple[str, str]:
    """The name of a file in quarantine and why it is there."""
    lines = path.read_text(errors="replace").splitlines()
    return path.name.removesuffix(".reason.txt"), lines[1] if len(lines) > 1 else "unknown"
