"""`holdfast bench`: repeatable benchmarks. Every figure has a ratio to a baseline.

`report` defines the output, `raw`, `fanout` and `majority` are the baselines, and `link_speed`, `group_speed`,
`sim_speed`, `stability_bench` and `health_bench` the benchmarks; `peer` and `group_member` are processes that they
start, and `member_processes` starts those of a group.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from holdfast.bench.report import Aim, Report, new_report, show
from holdfast.errors import MisuseError

app = typer.Typer(
    help="Measure this machine; each figure has a ratio to a baseline.", no_args_is_help=True
)

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object.")]


def _finish(report: Report, as_json: bool) -> None:
    show(report, as_json)


@app.command()
def links(
    as_json: AsJson = False,
    seconds: Annotated[
        float, typer.Option(help="Duration of each measurement in seconds.", min=0.2, max=60)
    ] = 2.0,
    rounds: Annotated[int, typer.Option(help="Rounds; the best result counts.", min=1, max=20)] = 3,
) -> None:
    """Messages per second between two processes on loopback: channels and datagrams, compared with raw asyncio."""
    from holdfast.bench.link_speed import bench_links

    _finish(bench_links(seconds, rounds), as_json)


@app.command()
def overlay(
    as_json: AsJson = False,
    nodes: Annotated[
        str, typer.Option(help="Sizes of the simulated domains, with commas; empty: none.")
    ] = "50,200",
    seconds: Annotated[
        float, typer.Option(help="Duration of each measurement in seconds.", min=0.2, max=60)
    ] = 3.0,
    sockets: Annotated[bool, typer.Option(help="Also measure over sockets.")] = True,
) -> None:
    """Messages per publish, recovery and find, compared with flooding; requests per second to a role over sockets."""
    from holdfast.bench.overlay_bench import bench_overlay

    sizes = [size.strip() for size in nodes.split(",") if size.strip()]
    if not all(size.isdigit() and 32 <= int(size) <= 2000 for size in sizes):
        raise MisuseError("a simulated domain has 32 to 2000 nodes; nothing was measured")
    _finish(bench_overlay(seconds, tuple(int(size) for size in sizes), sockets), as_json)


@app.command()
def objects(
    as_json: AsJson = False,
    megabytes: Annotated[int, typer.Option(help="Size of the large object.", min=1, max=1024)] = 64,
    rounds: Annotated[int, typer.Option(help="Rounds; the best result counts.", min=1, max=20)] = 3,
    small: Annotated[int, typer.Option(help="Small objects to create.", min=1, max=10_000)] = 200,
) -> None:
    """Put and get with three replicas, compared with a plain TCP copy; small objects; messages per access;
    restoration."""
    from holdfast.bench.object_bench import bench_objects

    _finish(bench_objects(megabytes, rounds, small), as_json)


@app.command("sim")
def simulator(
    as_json: AsJson = False,
    nodes: Annotated[int, typer.Option(min=9, max=2000, help="Nodes of the domain.")] = 100,
    seconds: Annotated[float, typer.Option(help="Virtual seconds.", min=0.5, max=600)] = 5.0,
) -> None:
    """Events per second of the simulator: nodes with two subnets that exchange heartbeats with eight neighbours."""
    from holdfast.bench.sim_speed import bench_sim

    _finish(bench_sim(nodes, seconds), as_json)


@app.command()
def group(
    as_json: AsJson = False,
    only: Annotated[
        str, typer.Option(help="Some of throughput, leader, loss, memory, telemetry; with commas.")
    ] = "",
    seconds: Annotated[
        float, typer.Option(help="Duration of each measurement in seconds.", min=0.2, max=60)
    ] = 3.0,
    rounds: Annotated[int, typer.Option(help="Rounds; the best result counts.", min=1, max=20)] = 2,
    loss_rate: Annotated[
        float, typer.Option(help="Messages per second for the measurement of loss.", min=125)
    ] = 1000.0,
    slow_messages: Annotated[
        int,
        typer.Option(
            help="Messages with one slow replica; 10000000 for the full measurement.", min=16
        ),
    ] = 400_000,
) -> None:
    """Ordered deliveries per second of four replicas on loopback compared with raw fan-out; failover, loss, memory,
    and the share of telemetry."""
    from holdfast.bench.group_speed import PARTS, Plan, bench_group

    parts = tuple(only.split(",")) if only else PARTS
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise MisuseError(f"{unknown[0]!r} is not a part: {', '.join(PARTS)}; nothing was measured")
    _finish(bench_group(Plan(parts, seconds, rounds, loss_rate, slow_messages)), as_json)


@app.command()
def stability(
    as_json: AsJson = False,
    only: Annotated[
        str, typer.Option(help="Some of rounds, throughput, held, services; separated by commas.")
    ] = "",
    seconds: Annotated[
        float, typer.Option(help="Duration of each measurement in seconds.", min=0.2, max=60)
    ] = 3.0,
    rounds: Annotated[int, typer.Option(help="Rounds; the best result counts.", min=1, max=20)] = 2,
    sizes: Annotated[
        str, typer.Option(help="Members of the simulated rounds, with commas.")
    ] = "8,32,128,512,2000",
) -> None:
    """Rounds of the stability protocols, compared with the paper's formulas; their cost to a group; locks and
    barriers."""
    from holdfast.bench.stability_bench import PARTS, StabilityPlan, bench_stability

    parts = tuple(only.split(",")) if only else PARTS
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise MisuseError(f"{unknown[0]!r} is not a part: {', '.join(PARTS)}; nothing was measured")
    members = [size.strip() for size in sizes.split(",") if size.strip()]
    if not members or not all(size.isdigit() and 2 <= int(size) <= 2000 for size in members):
        raise MisuseError("a round has 2 to 2000 members; nothing was measured")
    plan = StabilityPlan(parts, seconds, rounds, tuple(int(size) for size in members))
    _finish(bench_stability(plan), as_json)


@app.command()
def health(
    as_json: AsJson = False,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Only this class of faults; repeatable.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(help="Duration of each fault; 0: skip.", min=0, max=600)
    ] = 5.0,
    cost_seconds: Annotated[
        float, typer.Option(help="Duration of the cost measurement; 0: skip.", min=0, max=600)
    ] = 20.0,
    minutes: Annotated[
        float, typer.Option(help="Virtual minutes for false alarms; 0: skip.", min=0, max=6000)
    ] = 60.0,
    seed: Annotated[int, typer.Option(help="The first seed of the random faults.", min=0)] = 1,
    random: Annotated[
        int, typer.Option(help="Number of random faults in the lab; 0: skip.", min=0)
    ] = 48,
) -> None:
    """Faults under a message flow: time to detection and stall; cost; false alarms (the lab needs root)."""
    from holdfast.bench.health_bench import bench_health
    from holdfast.lab.trial import CLASSES

    for name in only or ():
        if name not in CLASSES:
            raise MisuseError(f"{name!r} is not a class of faults: {', '.join(CLASSES)}")
    with Console(stderr=True).status("health") as shown:
        report = bench_health(
            shown.update, tuple(only or CLASSES), seconds, cost_seconds, minutes, seed, random
        )
    _finish(report, as_json)


@app.command()
def dialog(
    as_json: AsJson = False,
    stores: Annotated[
        str, typer.Option(help="Some of memory, express, sqlite, postgres; with commas.")
    ] = "memory,sqlite",
    messages: Annotated[
        int, typer.Option(help="Number of 100-byte messages; a fifth as many of 4 KB.", min=10_000)
    ] = 50_000,
    dsn: Annotated[str, typer.Option(help="The database for postgres.")] = "",
    open_dialogs: Annotated[
        int,
        typer.Option(
            "--open", help="Number of open dialogs for the memory measurement; 0: none.", min=0
        ),
    ] = 2_000,
    deactivated: Annotated[
        int,
        typer.Option(
            help="Number of deactivated dialogs in the store at the start of a node; 0: none.",
            min=0,
        ),
    ] = 20_000,
) -> None:
    """Exactly-once in-order messages per second between two processes, by store, compared with the bare store."""
    from holdfast.bench.dialog_speed import bench_dialog

    wanted = [store for store in stores.split(",") if store]
    known = ("memory", "express", "sqlite", "postgres")
    unknown = [store for store in wanted if store not in known]
    if unknown or not wanted:
        raise MisuseError(f"no such store: {', '.join(unknown)}; choose from {', '.join(known)}")
    if "postgres" in wanted and not dsn:
        raise MisuseError("postgres needs --dsn, for example postgresql://user@/database")
    _finish(bench_dialog(wanted, messages, dsn, open_dialogs, deactivated), as_json)


@app.command()
def pipeline(
    as_json: AsJson = False,
    only: Annotated[
        str,
        typer.Option(
            help="Some of telemetry, scale, incremental, duckdb, files, scores, executors; with commas."
        ),
    ] = "",
    scales: Annotated[str, typer.Option(help="Multiples of the facts, with commas.")] = "1,4,16",
    facts: Annotated[int, typer.Option(help="Facts at scale 1.", min=10_000)] = 200_000,
    days: Annotated[int, typer.Option(help="Days of history of the incremental run.", min=3)] = 30,
    small_files: Annotated[int, typer.Option(help="Small files.", min=10)] = 2_000,
    part_seconds: Annotated[
        float, typer.Option(help="Time of each part; a part that takes longer is ended.", min=1)
    ] = 600.0,
    engine: Annotated[str, typer.Option(help="local[*], local[N], spark://host:port")] = "local[*]",
) -> None:
    """Facts per second of ingest, incidents and audit; the incremental run; the audit compared with DuckDB; scores."""
    from tempfile import TemporaryDirectory

    from holdfast.pipeline.bench.cluster import bench_executors
    from holdfast.pipeline.bench.measures import (
        PARTS,
        Measured,
        Plan,
        bench_pipeline,
        bench_telemetry,
    )
    from holdfast.pipeline.engine import open_engine

    parts = tuple(only.split(",")) if only else PARTS
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise MisuseError(f"{unknown[0]!r} is not a part: {', '.join(PARTS)}; nothing was measured")
    factors = scales.split(",")
    if not all(factor.isdigit() and int(factor) for factor in factors):
        raise MisuseError(
            "--scales must be whole numbers with commas, such as 1,4; nothing was measured"
        )
    wanted = tuple(sorted(map(int, factors)))
    plan = Plan(
        parts=parts,
        scales=wanted,
        facts=facts,
        days=days,
        small_files=small_files,
        part_s=part_seconds,
    )
    with TemporaryDirectory(prefix="holdfast-bench-") as folder:
        measured = Measured()
        with Console(stderr=True).status("pipeline") as shown:

            def tell(text: str) -> None:
                shown.update(f"pipeline: {text}")

            if set(parts) - {"executors", "telemetry"}:
                with open_engine(engine, input_bytes=1 << 28) as session:
                    measured = bench_pipeline(Path(folder), session, plan, tell)
            if "telemetry" in parts:
                tell("telemetry")
                bench_telemetry(Path(folder) / "telemetry", measured)
            if "executors" in parts:
                tell("two executors against one")
                bench_executors(Path(folder) / "executors", facts, part_seconds, measured)
    _finish(_report(measured), as_json)


def _report(measured: Any) -> Report:
    report = new_report("pipeline")
    report.figures, report.ratios = measured.figures, measured.ratios
    report.not_measured, report.notes = measured.not_measured, measured.notes
    report.aims = {name: Aim(*found) for name, found in measured.aims.items()}
    return report
