"""What the commands of the pipeline print for people."""

from __future__ import annotations

import sys
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.markup import escape

from holdfast.pipeline.run_report import RunReport
from holdfast.pipeline.sealing import text_of
from holdfast.pipeline.words import VERDICTS, count, duration, listing, percent

_NAMED_MAX: Final = 5
_COLOURS: Final = {
    "ok": "green",
    "soft error": "yellow",
    "dead": "red",
    "holds": "green",
    "not provable": "yellow",
    "violated": "red",
}


def show_run(report: RunReport, json: bool) -> None:
    if json:
        sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
        sys.stdout.flush()
    else:
        _summary(Console(highlight=False), report)


def _summary(console: Console, report: RunReport) -> None:
    if not report.snapshot:
        console.print("Nothing is recorded yet: there are no telemetry segments.")
    elif report.nothing_new:
        console.print(f"Nothing new since snapshot {report.snapshot}. Tables are unchanged.")
    else:
        extra = [f"{report.duplicates} duplicate"] if report.duplicates else []
        extra += [f"{report.conflicts} contradicting"] if report.conflicts else []
        added = f"{count(report.facts, 'fact')} from {count(report.segments_new, 'new segment')}"
        console.print(
            f"Snapshot {report.snapshot}: {added}{' (' + listing(extra) + ')' if extra else ''}, "
            f"{count(len(report.units_changed), 'hour or day', 'hours or days')} changed. {duration(report.seconds)}."
        )
    if report.too_late:
        console.print(
            f"[yellow]Too late[/yellow] {count(report.too_late, 'segment')}: stored, tables not recomputed"
        )
    if report.paths:
        console.print("Paths:  " + _tally(report.paths))
    for line in report.predictions:
        console.print(escape(line), soft_wrap=True)
    if report.incidents_open:
        console.print(f"Open incidents: {report.incidents_open}")
    for group, verdict in report.verdicts.items():
        console.print(f"Group {escape(group)}: replicas agree: {_coloured(verdict, verdict)}")
    for aside in report.set_aside[:_NAMED_MAX]:
        text = escape(f"{aside.path}: {aside.outcome}: {aside.reason}")
        console.print(f"[yellow]Set aside[/yellow] {text}", soft_wrap=True)
    if len(report.set_aside) > _NAMED_MAX:
        console.print(f"... and {count(len(report.set_aside) - _NAMED_MAX, 'more segment')}")
    for strange in report.strange[:_NAMED_MAX]:
        console.print(f"[yellow]Left alone[/yellow] {escape(strange)}", soft_wrap=True)
    for one in report.reported:
        console.print(f"Reported {escape(text_of(one))}", soft_wrap=True)
    if report.report:
        console.print(f"Report: {escape(report.report)}", soft_wrap=True)


def show_audit(
    console: Console,
    rows: list[dict[str, Any]],
    dialogs: list[dict[str, Any]],
    guarantees: list[dict[str, Any]],
    violations: list[dict[str, Any]],
) -> None:
    if not rows and not dialogs:
        console.print("No deliveries were recorded.")
    for name in dict.fromkeys(row["guarantee"] for row in guarantees):
        for word in VERDICTS:
            found = [
                row for row in guarantees if (row["guarantee"], row["verdict"]) == (name, word)
            ]
            if found:
                text = f"Guarantee {name}: {count(len(found), 'subject')}: {_coloured(word, word)}"
                console.print(f"{text}, for example: {escape(found[0]['why'])}.", soft_wrap=True)
    for word in VERDICTS:
        found = [row for row in dialogs if row["verdict"] == word]
        if found:
            text = f"{count(len(found), 'direction')} of dialogs: {_coloured(word, word)}"
            console.print(f"{text}, for example: {escape(found[0]['why'])}.", soft_wrap=True)
    for row in rows:
        epoch = f" epoch {row['epoch']:x}" if row["epoch"] else ""
        console.print(
            f"Group {escape(row['group'])}{epoch}: {_coloured(row['verdict'], row['verdict'])}: {escape(row['why'])}. "
            f"{percent(row['coverage'])} of {row['entries']} entries compared.",
            soft_wrap=True,
        )
    for row in violations[:20]:
        console.print(f"[red]{escape(row['claim'])}[/red]: {escape(row['text'])}", soft_wrap=True)
        for event in row["events"]:
            console.print(f"    {escape(event)}", soft_wrap=True)
    if len(violations) > 20:
        console.print(f"... and {count(len(violations) - 20, 'more violation')}")


def path_cells(rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Paths as columns that fit into a terminal: `n1/eth0 to n2/eth0` instead of four of them."""
    end = lambda row, side: f"{row[f'{side}_name']}/{row[f'{side}_adapter']}"
    size = lambda row: f"{row['size']} of {row['size_max']}" if row["size_max"] else ""
    return {
        "path": [escape(f"{end(row, 'sender')} to {end(row, 'listener')}") for row in rows],
        "subnet": [escape(row["subnet"]) for row in rows],
        "transport": [escape(row["transport"]) for row in rows],
        "state": [_coloured(row["state"], row["state"]) for row in rows],
        "size": [size(row) for row in rows],
        "observed": [cell("asked_coverage", row["asked_coverage"]) for row in rows],
    }


def cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name == "asked_coverage" or name.endswith("_ratio"):
        return percent(value)
    return escape(f"{value:.6g}" if isinstance(value, float) else str(value))


def _tally(paths: dict[str, int]) -> str:
    states = [state for state in ("ok", "soft error", "dead") if paths.get(state)]
    return ", ".join(_coloured(state, f"{paths[state]} {state}") for state in states)


def _coloured(word: str, text: str) -> str:
    return f"[{_COLOURS[word]}]{escape(text)}[/]"
