"""`holdfast pipeline synth`: telemetry of a domain that does not exist, with the truth about it beside it."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from holdfast.pipeline.command import (
    Engine,
    Json,
    failures,
    messages,
    print_json,
    progress_bar,
)
from holdfast.pipeline.engine import DEFAULT_ENGINE
from holdfast.pipeline.jobs import Step
from holdfast.pipeline.words import count


def synth(
    out: Annotated[str, typer.Option("--out", metavar="DIR", help="Where the telemetry goes.")],
    nodes: Annotated[int, typer.Option(help="Nodes of the domain.", min=2)] = 8,
    adapters: Annotated[int, typer.Option(help="Adapters of each node.", min=1)] = 2,
    subnets: Annotated[int, typer.Option(help="Subnets; at most the adapters.", min=1)] = 2,
    realms: Annotated[int, typer.Option(help="Realms, such as sites.", min=1)] = 2,
    days: Annotated[float, typer.Option(help="Days of telemetry.", min=0.01)] = 2.0,
    start: Annotated[str, typer.Option(help="First day, as YYYY-MM-DD.")] = "2026-10-05",
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.", min=0)] = 1,
    neighbours: Annotated[str, typer.Option(help="all, ring or hypercube")] = "all",
    transports: Annotated[str, typer.Option(help="Kinds of packets, with commas.")] = "udp,tcp",
    sample_s: Annotated[float, typer.Option(help="Seconds between samples on a path.")] = 30.0,
    load_s: Annotated[float, typer.Option(help="Seconds between load facts.")] = 60.0,
    faults_per_day: Annotated[float, typer.Option(help="Faults at random times.", min=0)] = 6.0,
    pairs_per_day: Annotated[float, typer.Option(help="Two faults at once.", min=0)] = 1.0,
    nightly: Annotated[int, typer.Option(help="Faults that return every night.", min=0)] = 1,
    nightly_days: Annotated[
        float, typer.Option(help="Days until those are repaired; 0 for never.", min=0)
    ] = 0.0,
    noise: Annotated[
        float, typer.Option(help="Scale of lost facts, late files, skewed clocks.", min=0)
    ] = 1.0,
    restarts_per_day: Annotated[float, typer.Option(help="Restarts of each node.", min=0)] = 0.05,
    groups: Annotated[int, typer.Option(help="Replicated groups.", min=0)] = 1,
    replicas: Annotated[int, typer.Option(help="Replicas of each group.", min=1)] = 3,
    entries_per_s: Annotated[float, typer.Option(help="Entries of each group.")] = 0.2,
    violation: Annotated[
        list[str] | None, typer.Option(help="Plant a violation of this kind. May be repeated.")
    ] = None,
    segment_minutes: Annotated[float, typer.Option(help="Time that one segment covers.")] = 60.0,
    engine: Engine = DEFAULT_ENGINE,
    json: Json = False,
) -> None:
    """Generate telemetry of a domain with faults, and the truth about it beside it."""
    console = messages()
    with failures(console):
        from holdfast.pipeline.synth.options import SynthOptions
        from holdfast.pipeline.synth.run import synth as generate

        options = SynthOptions(
            nodes=nodes, adapters=adapters, subnets=subnets, realms=realms, days=days, start=start, seed=seed,
            neighbours=neighbours,  # type: ignore[arg-type]  # checked by the options
            transports=tuple(transports.split(",")), sample_s=sample_s, load_s=load_s,
            faults_per_day=faults_per_day, pairs_per_day=pairs_per_day, nightly=nightly,
            nightly_days=nightly_days, noise=noise, restarts_per_day=restarts_per_day, groups=groups,
            replicas=replicas, entries_per_s=entries_per_s, violations=tuple(violation or ()),
            segment_minutes=segment_minutes,
        )  # fmt: skip
        with progress_bar(console, shown=not json) as progress:
            show = progress or (lambda _: None)
            made = generate(out, options, engine, progress=lambda t, d, n: show(Step(t, d, n)))
    if json:
        print_json(msgspec.to_builtins(made))
        return
    Console(highlight=False).print(
        f"{count(made.facts, 'fact')} in {count(made.segments, 'segment')}, {count(made.faults, 'fault')} planted: "
        f"{escape(made.out)}",
        soft_wrap=True,
    )
