"""`holdfast pipeline`: the pipeline from a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressBar

from holdfast.errors import HoldfastError, MisuseError
from holdfast.pipeline.engine import DEFAULT_ENGINE
from holdfast.pipeline.jobs import Progress, RunReport, Step, run_pipeline
from holdfast.pipeline.schemas import COLUMNS
from holdfast.pipeline.sources import LOOK_BACK_DAYS
from holdfast.pipeline.words import count, duration, listing

FINE: Final = 0
FAILED: Final = 1
MISUSED: Final = 2
_NAMED_MAX: Final = 5
_GLOB_SIGNS: Final = frozenset("*?[")
_COLOURS: Final = {
    "ok": "green",
    "soft error": "yellow",
    "dead": "red",
    "holds": "green",
    "not provable": "yellow",
    "violated": "red",
}

app = typer.Typer(
    help="Turn telemetry of nodes into tables and a report.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def pipeline() -> None:
    """Turn telemetry of nodes into tables and a report."""


@app.command()
def run(
    telemetry: Annotated[
        list[str],
        typer.Option(
            "--telemetry",
            metavar="DIR",
            help="Telemetry of a node (it holds landing/), a directory of several, or a pattern. May be repeated.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where tables and report go.")],
    engine: Annotated[
        str,
        typer.Option("--engine", help="local[*], local[N], spark://host:port or sc://host:port"),
    ] = DEFAULT_ENGINE,
    look_back: Annotated[
        int, typer.Option("--look-back", metavar="DAYS", help="How many days of telemetry to use.")
    ] = LOOK_BACK_DAYS,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Bring tables and report up to date with what nodes have recorded. Without news it does nothing."""
    messages = Console(stderr=True, highlight=False)
    try:
        landings = find_landings(telemetry)
        with _progress_bar(messages, shown=not json) as progress:
            report = run_pipeline(landings, out, engine, progress, look_back_days=look_back)
    except HoldfastError as problem:
        messages.print(f"[red]pipeline:[/red] {escape(str(problem))}", soft_wrap=True)
        raise typer.Exit(MISUSED if isinstance(problem, MisuseError) else FAILED) from None
    except OSError as problem:
        messages.print(f"[red]pipeline:[/red] {escape(_about_disk(problem))}", soft_wrap=True)
        raise typer.Exit(FAILED) from None
    if json:
        sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    else:
        _summary(Console(highlight=False), report)


def find_landings(given: list[str]) -> list[Path]:
    """The landing directories that the arguments name; raises `MisuseError` for one that names none."""
    found: list[Path] = []
    for argument in given:
        places = [Path(argument)]
        if not places[0].exists() and _GLOB_SIGNS & set(argument):
            anchor = places[0].anchor
            pattern = str(places[0].relative_to(anchor))
            places = sorted(Path(anchor).glob(pattern))
        landings = [landing for place in places for landing in _landings_under(place)]
        if not landings:
            raise MisuseError(
                f"no landing/ directory at {argument!r}, nor in the directories there; nothing was done. "
                "Give the telemetry directory of a node, or one that holds several"
            )
        found += landings
    return sorted(set(found))


def _landings_under(place: Path) -> list[Path]:
    """`place` itself, its landing/, or the landing/ of the nodes in it."""
    if (place / "landing").is_dir():
        return [place / "landing"]
    if place.is_dir() and (
        place.name == "landing" or any((place / kind).is_dir() for kind in COLUMNS)
    ):
        return [place]
    return sorted([*place.glob("*/landing"), *place.glob("*/telemetry/landing")])


@contextlib.contextmanager
def _progress_bar(console: Console, shown: bool) -> Iterator[Progress | None]:
    if not shown:
        yield None
        return
    with ProgressBar(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    ) as bar:
        task = bar.add_task("looking", total=None)

        def show(step: Step) -> None:
            bar.update(task, description=step.text, completed=step.done, total=step.total)

        yield show


def _summary(console: Console, report: RunReport) -> None:
    if not report.segments and not report.report:
        console.print("Nothing is recorded yet: there are no telemetry segments.")
    elif report.nothing_new:
        console.print(f"Nothing new since the last run; {_basis(report)}. Tables are as they were.")
    else:
        days = listing(list(report.days_changed)) or "none"
        console.print(f"Read {_basis(report)}. Days with news: {days}. {duration(report.seconds)}.")
    if report.paths:
        console.print("Paths:  " + _tally(report.paths))
    for group, verdict in report.verdicts.items():
        console.print(f"Group {escape(group)}: replicas agree: {_coloured(verdict, verdict)}")
    for aside in report.set_aside[:_NAMED_MAX]:
        where = f", moved to {aside.now_at}" if aside.now_at else ""
        console.print(
            f"[yellow]Set aside[/yellow] {escape(f'{aside.path}: {aside.reason}{where}')}",
            soft_wrap=True,
        )
    if len(report.set_aside) > _NAMED_MAX:
        console.print(f"... and {count(len(report.set_aside) - _NAMED_MAX, 'more segment')}")
    for strange in report.strange[:_NAMED_MAX]:
        console.print(f"[yellow]Left alone[/yellow] {escape(strange)}", soft_wrap=True)
    if report.report:
        console.print(f"Report: {escape(report.report)}", soft_wrap=True)


def _basis(report: RunReport) -> str:
    return f"{count(report.facts, 'fact')} in {count(report.segments, 'segment')}"


def _tally(paths: dict[str, int]) -> str:
    states = [state for state in ("ok", "soft error", "dead") if paths.get(state)]
    return ", ".join(_coloured(state, f"{paths[state]} {state}") for state in states)


def _coloured(word: str, text: str) -> str:
    return f"[{_COLOURS[word]}]{escape(text)}[/]"


def _about_disk(problem: OSError) -> str:
    where = f"{problem.filename}: " if problem.filename else ""
    return (
        f"{where}{problem.strerror or problem}. Tables are whole, as they were or as they are now"
    )
