"""`holdfast pipeline`: the pipeline from a terminal.

Exit codes: 0 fine, 1 failed, 2 called wrongly, 3 the audit found a violation (`audit` only).
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressBar
from rich.table import Table

from holdfast.errors import HoldfastError, MisuseError, SetupError
from holdfast.pipeline.engine import DEFAULT_ENGINE, check_engine, open_engine
from holdfast.pipeline.engine_words import engine_words
from holdfast.pipeline.jobs import (
    REPORT_NAME,
    Progress,
    Settings,
    Step,
    run_pipeline,
    write_report,
)
from holdfast.pipeline.opening import store_of, tables_with_session
from holdfast.pipeline.printing import cell, path_cells, show_audit, show_run
from holdfast.pipeline.reader import open_tables
from holdfast.pipeline.schemas import COLUMNS
from holdfast.pipeline.sealing import seal_running
from holdfast.pipeline.settings import BUCKETS, LOOK_BACK_DAYS
from holdfast.pipeline.storage.hadoop import HadoopStore
from holdfast.pipeline.storage.port import Store, for_people, join, scheme_of, to_uri
from holdfast.pipeline.storage.stores import Stores
from holdfast.pipeline.units import Retention
from holdfast.pipeline.watching import KeptEngine, keep_watching
from holdfast.pipeline.words import count

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.pipeline.advising import AdviceSettings
    from holdfast.pipeline.reader import Tables
    from holdfast.telemetry.advice import Advice

FINE: Final = 0
FAILED: Final = 1
MISUSED: Final = 2
VIOLATED: Final = 3
KEPT: Final = Retention()
_GLOB_SIGNS: Final = frozenset("*?[")

app = typer.Typer(
    help="Turn telemetry of nodes into tables, a report, answers and advice.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Telemetry = Annotated[
    list[str],
    typer.Option(
        "--telemetry",
        metavar="DIR",
        help="Telemetry of a node (it holds landing/), a directory of several, a pattern or a URI. May be repeated.",
    ),
]
Out = Annotated[str, typer.Option("--out", metavar="DIR", help="Directory or URI of the tables.")]
Engine = Annotated[
    str,
    typer.Option(
        "--engine", help="local[*], local[N], spark://host:port, sc://host:port, yarn or k8s://..."
    ),
]
RemoteEngine = Annotated[
    str,
    typer.Option("--engine", help="For an output that is no local directory; otherwise not used."),
]
LookBack = Annotated[
    int, typer.Option("--look-back", metavar="DAYS", help="Days that path health and report cover.")
]
RawDays = Annotated[int, typer.Option(help="Days that facts are kept.")]
RollupDays = Annotated[int, typer.Option(help="Days that hourly tables are kept.")]
IncidentDays = Annotated[int, typer.Option(help="Days that incidents are kept.")]
Buckets = Annotated[
    int, typer.Option(help="Buckets of nodes in the fact store; fixed by the first run.")
]
ModelsEvery = Annotated[
    int,
    typer.Option(
        min=0,
        help="Seconds between runs of the models (causes, predictions, busy windows); 0 for never.",
    ),
]
Inventory = Annotated[
    str,
    typer.Option(
        metavar="FILE", help="CSV: node, adapter, and any of realm, switch, port. For causes."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.callback()
def pipeline() -> None:
    """Turn telemetry of nodes into tables, a report, answers and advice."""


@app.command()
def run(
    telemetry: Telemetry,
    out: Out,
    engine: Engine = DEFAULT_ENGINE,
    look_back: LookBack = LOOK_BACK_DAYS,
    raw_days: RawDays = KEPT.raw_days,
    rollup_days: RollupDays = KEPT.rollup_days,
    incident_days: IncidentDays = KEPT.incident_days,
    buckets: Buckets = BUCKETS,
    reconcile: Annotated[
        bool, typer.Option("--reconcile", help="List all landing folders, not only recent ones.")
    ] = False,
    models_every: ModelsEvery = 3600,
    seal: Annotated[
        bool, typer.Option(help="Ask nodes that run on this machine to seal their telemetry first.")
    ] = True,
    inventory: Inventory = "",
    json: Json = False,
) -> None:
    """Bring tables and report up to date with new segments. Without news it does nothing."""
    console = messages()
    with failures(console):
        keep = Retention(raw_days=raw_days, rollup_days=rollup_days, incident_days=incident_days)
        settings = Settings(
            engine=engine,
            look_back_days=look_back,
            retention=keep,
            buckets=buckets,
            reconcile=reconcile,
            models_every_s=models_every,
            inventory=inventory,
        )
        landings = find_landings(telemetry)
        reported = seal_running(landings) if seal else ()
        with progress_bar(console, shown=not json) as progress:
            report = run_pipeline(landings, out, settings, progress)
    show_run(msgspec.structs.replace(report, reported=reported), json)


@app.command()
def watch(
    telemetry: Telemetry,
    out: Out,
    engine: Engine = DEFAULT_ENGINE,
    look_back: LookBack = LOOK_BACK_DAYS,
    raw_days: RawDays = KEPT.raw_days,
    rollup_days: RollupDays = KEPT.rollup_days,
    incident_days: IncidentDays = KEPT.incident_days,
    buckets: Buckets = BUCKETS,
    every: Annotated[
        float, typer.Option(help="Seconds between looks for new segments.", min=0.1)
    ] = 60.0,
    runs: Annotated[int, typer.Option(help="Stop after so many looks; 0 for never.", min=0)] = 0,
    models_every: ModelsEvery = 3600,
    inventory: Inventory = "",
    advise_too: Annotated[
        bool, typer.Option("--advise", help="Publish advice after each run.")
    ] = False,
    json: Json = False,
) -> None:
    """Run again and again, with one engine, as segments arrive. Ctrl-C stops it between or during runs."""
    console = messages()
    with failures(console), KeptEngine(lambda: open_engine(engine, input_bytes=1 << 30)) as kept:
        keep = Retention(raw_days=raw_days, rollup_days=rollup_days, incident_days=incident_days)
        settings = Settings(
            engine=engine,
            look_back_days=look_back,
            retention=keep,
            buckets=buckets,
            models_every_s=models_every,
            inventory=inventory,
        )
        kept.session()  # An engine that cannot start ends the command here.

        def look() -> None:
            landings = find_landings(telemetry)
            with kept.renewed_after_failure() as session:
                with progress_bar(console, shown=not json) as progress:
                    report = run_pipeline(landings, out, settings, progress, session=session)
                if not report.nothing_new:
                    show_run(report, json)
                    if advise_too:
                        _publish_advice(out, Stores(remote=lambda: HadoopStore(session)))

        tell = lambda problem: console.print(
            f"[red]pipeline:[/red] {escape(problem)}", soft_wrap=True
        )
        keep_watching(look, every, runs, tell)


@app.command()
def audit(
    out: Out,
    group: Annotated[str, typer.Option(help="Only this group.")] = "",
    engine: RemoteEngine = DEFAULT_ENGINE,
    json: Json = False,
) -> None:
    """Show the verdicts on what groups and dialogs delivered, and on the other guarantees. Exits with 3 if one is
    violated."""
    console = messages()
    with failures(console), store_of(out, engine) as store:
        tables = open_tables(out, store)
        rows = tables.rows("delivery_audit") if tables.has("delivery_audit") else []
        violations = tables.rows("delivery_violations") if tables.has("delivery_violations") else []
        ranges = tables.rows("audit_ranges") if tables.has("audit_ranges") else []
        dialogs = tables.rows("dialog_audit") if tables.has("dialog_audit") and not group else []
        if dialogs:
            violations = [*violations, *tables.rows("dialog_violations")]
        has_guarantees = tables.has("guarantee_audit") and not group
        guarantees = tables.rows("guarantee_audit") if has_guarantees else []
        if guarantees:
            violations = [*violations, *tables.rows("guarantee_violations")]
    mine = lambda found: [row for row in found if not group or row.get("group") == group]
    rows, violations, ranges = mine(rows), mine(violations), mine(ranges)
    if group and not rows:
        console.print(f"[red]pipeline:[/red] no group {escape(group)!r} was recorded")
        raise typer.Exit(MISUSED)
    if json:
        print_json(
            {
                "audit": rows,
                "ranges": ranges,
                "dialogs": dialogs,
                "guarantees": guarantees,
                "violations": violations,
            }
        )
    else:
        show_audit(Console(highlight=False), rows, dialogs, guarantees, violations)
    if any(row["verdict"] == "violated" for row in (*rows, *dialogs, *guarantees)):
        raise typer.Exit(VIOLATED)


@app.command()
def ask(
    question: Annotated[
        str, typer.Argument(help="For example: clean for 30d and size >= 4096 and protocol = udp")
    ],
    out: Out,
    engine: Engine = DEFAULT_ENGINE,
    sql: Annotated[
        bool, typer.Option("--sql", help="The question is SQL over the published tables.")
    ] = False,
    limit: Annotated[int, typer.Option(help="Rows to print.", min=1)] = 1000,
    json: Json = False,
) -> None:
    """Ask which paths satisfy a condition, now and in history; or ask anything in SQL."""
    console = messages()
    with failures(console):
        from holdfast.pipeline.question import parse

        check_engine(engine)
        if not sql:
            parse(question)
        with tables_with_session(out, engine, with_facts=sql) as (tables, session):
            rows, columns = answer(session, tables, question, sql, limit)
    if json:
        print_json({"rows": rows})
        return
    console = Console(highlight=False)
    if not rows:
        console.print("No path satisfies this." if not sql else "No rows.")
        return
    shown = (
        {name: [cell(name, row[name]) for row in rows] for name in columns}
        if sql
        else path_cells(rows)
    )
    table = Table(*shown)
    for cells in zip(*shown.values(), strict=True):
        table.add_row(*cells)
    console.print(table)


@app.command()
def report(
    out: Out,
    to: Annotated[str, typer.Option("--to", metavar="FILE", help="Write it here.")] = "",
    engine: RemoteEngine = DEFAULT_ENGINE,
) -> None:
    """Write the HTML report again from the published tables."""
    console = messages()
    target = to_uri(to) if to else join(to_uri(out), REPORT_NAME)
    with failures(console), store_of(out, engine) as store:
        tables = open_tables(out, store)
        if to and Path(to).is_dir():
            raise MisuseError(f"{to} is a directory; nothing was written. Give --to a file")
        write_report(tables, store, target)
    Console(highlight=False).print(f"Report: {escape(for_people(target))}", soft_wrap=True)


@app.command()
def advise(
    out: Out,
    enter: Annotated[float, typer.Option(help="Risk from which a path is avoided.")] = 0.5,
    leave: Annotated[float, typer.Option(help="Risk below which it is used again.")] = 0.3,
    valid: Annotated[int, typer.Option(help="Seconds that the advice is valid.")] = 3600,
    moves: Annotated[int, typer.Option(help="Paths of the domain that may be avoided.")] = 10,
    engine: RemoteEngine = DEFAULT_ENGINE,
    json: Json = False,
) -> None:
    """Publish advice for nodes from the newest tables."""
    console = messages()
    with failures(console):
        from holdfast.pipeline.advising import AdviceSettings

        settings = AdviceSettings(enter=enter, leave=leave, valid_s=valid, moves_max=moves)
        with store_of(out, engine) as store:
            uri, advice = _publish_advice(out, store, settings)
    if json:
        print_json(msgspec.to_builtins(advice))
        return
    avoided = sum(risk.avoid for risk in advice.risks)
    Console(highlight=False).print(
        f"Advice from snapshot {advice.snapshot}: {count(len(advice.risks), 'path')} at risk, {avoided} to avoid, "
        f"{count(len(advice.busy), 'busy window')}. {escape(uri)}",
        soft_wrap=True,
    )


# -- what commands share -----------------------------------------------------------------------------------------


def find_landings(given: list[str]) -> list[str]:
    """The landing directories that the arguments name; raises `MisuseError` for one that names none."""
    found: list[str] = []
    for argument in given:
        if scheme_of(argument) != "file":
            found.append(argument.rstrip("/"))
            continue
        places = [Path(argument.removeprefix("file://"))]
        if not places[0].exists() and _GLOB_SIGNS & set(argument):
            anchor = places[0].anchor
            pattern = str(places[0].relative_to(anchor))
            places = sorted(Path(anchor).glob(pattern))
        landings = [str(landing) for place in places for landing in _landings_under(place)]
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


def answer(
    session: SparkSession, published: Tables, question: str, sql: bool, limit: int
) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows that answer a question, and the columns to show."""
    from pyspark.errors import AnalysisException, ParseException, PySparkException

    from holdfast.pipeline.ask import ANSWER, answer_rows, ask, open_views

    names = open_views(session, published)
    if not sql:
        tables = [session.table(name) for name in ("path_health", "incidents", "path_hours")]
        return answer_rows(ask(question, *tables), limit), list(ANSWER[:10])
    try:
        frame = session.sql(question)
        rows = [row.asDict(recursive=True) for row in frame.limit(limit).collect()]
    except (ParseException, AnalysisException) as problem:
        said = str(problem).partition("JVM stacktrace")[0].strip()
        raise MisuseError(f"{said[:800]}\nTables: {', '.join(names)}") from None
    except PySparkException as problem:
        raise MisuseError(f"the query failed: {engine_words(problem)}") from None
    return rows, frame.columns


def _publish_advice(
    out: str, store: Store, settings: AdviceSettings | None = None
) -> tuple[str, Advice]:
    from holdfast.pipeline.advising import AdviceSettings, last_advice, make_advice, publish_advice

    root, now_us = to_uri(out), time.time_ns() // 1000
    tables = open_tables(root, store)
    advice = make_advice(tables, settings or AdviceSettings(), now_us, last_advice(store, root))
    return for_people(publish_advice(store, root, advice)), advice


@contextlib.contextmanager
def failures(console: Console) -> Iterator[None]:
    """Our errors become a line and an exit code."""
    try:
        yield
    except HoldfastError as problem:
        console.print(f"[red]pipeline:[/red] {escape(str(problem))}", soft_wrap=True)
        misused = isinstance(problem, MisuseError) and not isinstance(problem, SetupError)
        raise typer.Exit(MISUSED if misused else FAILED) from None
    except OSError as problem:
        console.print(f"[red]pipeline:[/red] {escape(_about_disk(problem))}", soft_wrap=True)
        raise typer.Exit(FAILED) from None


@contextlib.contextmanager
def progress_bar(console: Console, shown: bool) -> Iterator[Progress | None]:
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
        task = bar.add_task("listing", total=None)

        def show(step: Step) -> None:
            bar.update(task, description=step.text, completed=step.done, total=step.total)

        yield show


def messages() -> Console:
    return Console(stderr=True, highlight=False)


def print_json(value: Any) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(value, enc_hook=_json_value) + b"\n")
    sys.stdout.flush()


def _json_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return str(value)


def _about_disk(problem: OSError) -> str:
    where = f"{problem.filename}: " if problem.filename else ""
    return (
        f"{where}{problem.strerror or problem}. Published tables are unchanged. "
        "Free space or fix the permissions, then run again"
    )
