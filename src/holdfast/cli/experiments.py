"""`holdfast experiments`: the stability paper's figures, and fault campaigns, over Spark executors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer
from rich.console import Console

from holdfast.errors import HoldfastError, MisuseError
from holdfast.types import SECOND

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.experiments.fault_campaign import CampaignReport
    from holdfast.experiments.journal import Record
    from holdfast.experiments.sets import AnyPoint
    from holdfast.experiments.sweep import Progress

app = typer.Typer(
    help="Repeat the experiments of the stability paper, and run fault campaigns, on Spark.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

JOURNAL: Final = "results.jsonl"
NO_ENGINE: Final = "none"
BIG_INPUT_BYTES: Final = 1 << 30
"""Sweeps run for minutes, so the engine need not start quickly."""
SHOWN_MAX: Final = 10

Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Directory for the results.")]
Engine = Annotated[
    str,
    typer.Option(help="local[*], local[N], spark://..., sc://...; none: in this process."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Again = Annotated[bool, typer.Option("--again", help="Repeat points that failed.")]


@app.callback()
def experiments() -> None:
    """Repeat the experiments of the stability paper, and run fault campaigns, on Spark."""


@app.command()
def stability(
    out: Out,
    engine: Engine = "local[*]",
    which: Annotated[
        str, typer.Option("--set", help="small, paper, variants, large, beyond; with commas.")
    ] = "small",
    protocol: Annotated[
        str, typer.Option(help="Only these: cube, coord, full, tree; with commas.")
    ] = "",
    sizes: Annotated[str, typer.Option(help="Only these numbers of nodes; with commas.")] = "",
    seeds: Annotated[str, typer.Option(help="Only topologies A..B.")] = "",
    model: Annotated[
        str, typer.Option(help="machines: the production code. compiled: a faster copy.")
    ] = "",
    again: Again = False,
    json: Json = False,
) -> None:
    """Measure rounds of the stability protocols on simulated networks. An interrupted sweep is resumed.

    Exit code 0: all points measured; 1: some have no result; 2: misuse.
    """
    from holdfast.experiments.journal import Journal
    from holdfast.experiments.sets import jobs_of, measure
    from holdfast.experiments.sweep import sweep

    points = _points(which, protocol, sizes, seeds, model)
    jobs = jobs_of(points)
    journal = Journal(out / JOURNAL)
    with _session(engine, out) as session:
        records = sweep(jobs, measure, journal, session, _show_progress, again)
    _finish_sweep(list(records.values()), out, json)


@app.command()
def campaign(
    out: Out,
    seeds: Annotated[str, typer.Option(help="Seeds A..B, inclusive.")] = "1..100",
    kind: Annotated[str, typer.Option(help="groups or domain.")] = "groups",
    seconds: Annotated[int, typer.Option(help="Virtual seconds of a run.", min=2, max=3600)] = 12,
    engine: Engine = "local[*]",
    audit: Annotated[
        bool,
        typer.Option("--audit", help="Record telemetry and run the audit of the pipeline on it."),
    ] = False,
    again: Again = False,
    json: Json = False,
) -> None:
    """Run a fault campaign of simulated runs on executors; each failing seed is printed with its replay command.

    Exit code 0: all invariants held; 1: not; 2: misuse.
    """
    from holdfast.cli.sim import seed_range
    from holdfast.experiments.fault_campaign import run_trial, summary, trials
    from holdfast.experiments.journal import Journal
    from holdfast.experiments.sweep import sweep

    if audit and engine == NO_ENGINE:
        raise MisuseError("the audit needs an engine; nothing was run")
    telemetry = out.resolve() / "telemetry" if audit else None
    jobs = trials(kind, seed_range(seeds), seconds, str(telemetry or ""))
    journal = Journal(out / f"campaign-{kind}.jsonl")
    with _session(engine, out) as session:
        found = sweep(jobs, run_trial, journal, session, _show_progress, again)
        records = list(found.values())
        report = summary(records)
        if telemetry is not None:
            report = _audited(report, records, telemetry, out, session)
    _finish_campaign(report, json)


@app.command()
def report(
    out: Out,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="DIR", help="Directory for the figures and the page."),
    ] = None,
    json: Json = False,
) -> None:
    """Draw figures 8 to 14 from the results and check the claims of the paper."""
    from holdfast.experiments.claims import check_claims
    from holdfast.experiments.figures import draw_figures
    from holdfast.experiments.journal import Journal
    from holdfast.experiments.report import report_text
    from holdfast.experiments.results import Results

    records = list(Journal(out / JOURNAL).read().values())
    if not records:
        raise MisuseError(
            f"no results in {out}; nothing was drawn. Run: holdfast experiments stability --out {out}"
        )
    target = to or out / "report"
    results = Results.of(records)
    drawn = draw_figures(results, target)
    page = target / "stability.md"
    target.mkdir(parents=True, exist_ok=True)
    page.write_text(report_text(records))
    verdicts = check_claims(results)
    if json:
        typer.echo(msgspec.json.encode({"claims": verdicts, "figures": list(map(str, drawn))}))
        return
    words = {True: "confirmed", False: "not confirmed", None: "no data"}
    for verdict in verdicts:
        typer.echo(
            f"figure {verdict.figure:<3}{words[verdict.confirmed]:<14} {verdict.claim} ({verdict.density}): "
            f"{verdict.measured}"
        )
    typer.echo(f"{len(drawn)} figures and {page}")


# -- shared code -------------------------------------------------------------------------------------------------


def _points(which: str, protocol: str, sizes: str, seeds: str, model: str) -> list[AnyPoint]:
    from holdfast.cli.sim import seed_range
    from holdfast.experiments.points import Point
    from holdfast.experiments.sets import points_of, with_model

    found = [point for name in which.split(",") for point in points_of(name)]
    protocols = [name for name in protocol.split(",") if name]
    wanted = _numbers(sizes)
    for name in protocols:
        Point(protocol=name, nodes=2, edge_probability=0.5).check()
    for nodes in wanted:
        Point(nodes=nodes, edge_probability=0.5).check()
    allowed = seed_range(seeds) if seeds else None
    kept = [
        point
        for point in found
        if (not protocols or getattr(point, "protocol", "cube") in protocols)
        and (not wanted or point.nodes in wanted)
        and (allowed is None or point.seed in allowed)
    ]
    if not kept:
        raise MisuseError(f"no point of the set {which!r} is left; nothing was run")
    if model:
        Point(nodes=2, edge_probability=0.5, model=model).check()
        kept = with_model(kept, model)
    return kept


def _numbers(text: str) -> list[int]:
    words = [word for word in text.split(",") if word]
    if not all(word.strip().lstrip("-").isdigit() for word in words):
        raise MisuseError(f"--sizes {text!r} is not a list of numbers; nothing was run")
    return [int(word) for word in words]


@contextlib.contextmanager
def _session(engine: str, out: Path) -> Iterator[SparkSession | None]:
    if engine == NO_ENGINE:
        yield None
        return
    from holdfast.pipeline.engine import open_engine

    with open_engine(engine, out / "spark.log", BIG_INPUT_BYTES) as session:
        yield session


def _show_progress(progress: Progress) -> None:
    failed = f", {progress.failed} without a result" if progress.failed else ""
    typer.echo(f"{progress.done} of {progress.total} done{failed}", err=True)


def _finish_sweep(records: Sequence[Record], out: Path, json: bool) -> None:
    failed = [record for record in records if record.result is None]
    if json:
        measured = [
            {"point": msgspec.json.decode(r.task), "result": r.result, "error": r.error}
            for r in records
        ]
        typer.echo(msgspec.json.encode({"results": str(out / JOURNAL), "points": measured}))
    else:
        typer.echo(f"{len(records) - len(failed)} of {len(records)} points: {out / JOURNAL}")
        for record in failed[:SHOWN_MAX]:
            typer.echo(f"no result: {record.task}\n  {record.error}")
        typer.echo(f"Figures: holdfast experiments report --out {out}")
    raise typer.Exit(1 if failed else 0)


def _audited(
    report: CampaignReport, records: list[Record], telemetry: Path, out: Path, session: Any
) -> CampaignReport:
    """Run the pipeline over the recorded telemetry, and compare. All runs begin at the same simulated time, which is in
    the future, so the pipeline gets a clock of that time."""
    from holdfast.experiments.fault_campaign import with_audit
    from holdfast.pipeline.command import find_landings
    from holdfast.pipeline.jobs import Settings, run_pipeline
    from holdfast.pipeline.reader import open_tables
    from holdfast.sim.host import EPOCH_NS

    tables = out / "tables"
    settings = Settings(reconcile=True, report=False)
    now = datetime.fromtimestamp(EPOCH_NS // SECOND, UTC) + timedelta(hours=1)
    landings = find_landings([str(telemetry)])
    run = run_pipeline(landings, tables, settings, session=session, now=now)
    if run.set_aside:
        first = run.set_aside[0]
        raise HoldfastError(
            f"{len(run.set_aside)} recorded segments could not be audited, the first one: {first.path}: {first.reason}"
        )
    return with_audit(report, records, open_tables(str(tables)).rows("delivery_audit"))


def _finish_campaign(report: CampaignReport, json: bool) -> None:
    bad = bool(report.failed or report.accused)
    if json:
        typer.echo(msgspec.json.encode(report))
        raise typer.Exit(1 if bad else 0)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    for event, count in report.coverage.items():
        console.print(f"  {event:<42}{count:>9}")
    for found in report.failed[:SHOWN_MAX]:
        console.print(f"seed {found['seed']} FAILED: {found['error']}\n  replay: {found['replay']}")
    for found in report.accused[:SHOWN_MAX]:
        console.print(f"audit, seed {found['seed']}: {found['error']}\n  replay: {found['replay']}")
    if report.audited:
        console.print("audit: " + ", ".join(f"{n} {what}" for what, n in report.audited.items()))
    if report.too_short:
        console.print(
            f"{report.too_short} runs were too short to show recovery; use more --seconds"
        )
    console.print(
        f"{report.runs} seeds, {len(report.failed)} failed; {report.deliveries} deliveries, {report.restarts} starts"
    )
    raise typer.Exit(1 if bad else 0)
