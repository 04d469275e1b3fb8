"""`holdfast bench`: measures, so that users can repeat them. Every figure has a ratio to something known.

`report` is the shape of the output, `raw` and `fanout` are the opponents, `link_speed`, `group_speed`, `sim_speed` and
`health_bench` the benchmarks; `peer` and `group_member` are processes that they start, `crew` starts those of a group.
"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from holdfast.cli.bench.report import Report, show
from holdfast.errors import MisuseError

app = typer.Typer(
    help="Measure this machine; each figure with a ratio to something known.", no_args_is_help=True
)

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object.")]


def _finish(report: Report, as_json: bool) -> None:
    show(report, as_json)


@app.command()
def links(
    as_json: AsJson = False,
    seconds: Annotated[
        float, typer.Option(help="How long each measurement sends.", min=0.2, max=60)
    ] = 2.0,
    rounds: Annotated[
        int, typer.Option(help="Rounds; the best of each is taken.", min=1, max=20)
    ] = 3,
) -> None:
    """Messages per second between two processes on loopback: channels and datagrams against raw asyncio."""
    from holdfast.cli.bench.link_speed import bench_links

    _finish(bench_links(seconds, rounds), as_json)


@app.command("sim")
def simulator(
    as_json: AsJson = False,
    nodes: Annotated[int, typer.Option(min=9, max=2000)] = 100,
    seconds: Annotated[float, typer.Option(help="Virtual seconds.", min=0.5, max=600)] = 5.0,
) -> None:
    """Events per second of the simulator: nodes with two subnets, each heartbeating to eight neighbours."""
    from holdfast.cli.bench.sim_speed import bench_sim

    _finish(bench_sim(nodes, seconds), as_json)


@app.command()
def group(
    as_json: AsJson = False,
    only: Annotated[
        str, typer.Option(help="Some of throughput, leader, loss, memory; with commas.")
    ] = "",
    seconds: Annotated[
        float, typer.Option(help="How long each measurement sends.", min=0.2, max=60)
    ] = 3.0,
    rounds: Annotated[
        int, typer.Option(help="Rounds; the best of each is taken.", min=1, max=20)
    ] = 2,
    loss_rate: Annotated[
        float, typer.Option(help="Messages per second under which loss is measured.", min=125)
    ] = 1000.0,
    slow_messages: Annotated[
        int,
        typer.Option(
            help="Messages with one slow replica; 10000000 for the whole measure.", min=16
        ),
    ] = 400_000,
) -> None:
    """Ordered deliveries per second of four replicas on loopback against raw fan-out, gaps, loss, memory."""
    from holdfast.cli.bench.group_speed import PARTS, Plan, bench_group

    parts = tuple(only.split(",")) if only else PARTS
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise MisuseError(f"{unknown[0]!r} is not a part: {', '.join(PARTS)}; nothing was measured")
    _finish(bench_group(Plan(parts, seconds, rounds, loss_rate, slow_messages)), as_json)


@app.command()
def health(
    as_json: AsJson = False,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Only this class of faults; repeat it.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(help="How long each fault lasts; 0 for none.", min=0, max=600)
    ] = 5.0,
    cost_seconds: Annotated[
        float, typer.Option(help="How long the cost is measured; 0 for not.", min=0, max=600)
    ] = 20.0,
    minutes: Annotated[
        float, typer.Option(help="Virtual minutes for false alarms; 0 for none.", min=0, max=6000)
    ] = 60.0,
    seed: Annotated[int, typer.Option(help="The first seed of the virtual part.", min=0)] = 1,
) -> None:
    """Faults under a flow of messages: when noticed, how long it stalls; cost; false alarms (root for the lab)."""
    from holdfast.cli.bench.health_bench import bench_health
    from holdfast.cli.lab.trial import CLASSES

    for name in only or ():
        if name not in CLASSES:
            raise MisuseError(f"{name!r} is not a class of faults: {', '.join(CLASSES)}")
    with Console(stderr=True).status("health") as shown:
        report = bench_health(
            shown.update, tuple(only or CLASSES), seconds, cost_seconds, minutes, seed
        )
    _finish(report, as_json)
