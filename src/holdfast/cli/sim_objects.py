"""`holdfast sim objects`: random runs of storage objects, with faults and a checker."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer


def objects(
    seed: Annotated[int, typer.Option(help="The first seed.", min=0)] = 1,
    runs: Annotated[int, typer.Option(help="Number of seeds to run.", min=1, max=100_000)] = 1,
    seconds: Annotated[int, typer.Option(help="Simulated seconds.", min=2, max=3600)] = 20,
    count: Annotated[int, typer.Option("--objects", help="Objects.", min=1, max=64)] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per run.")] = False,
) -> None:
    """Run writers, readers and movers under crashes, partitions and disk corruption; exit code 1 if a check fails."""
    from holdfast.sim.checkers import CheckFailed
    from holdfast.sim.objects_campaign import run_campaign

    for number in range(seed, seed + runs):
        try:
            run = run_campaign(number, seconds=seconds, objects=count)
        except CheckFailed as failed:
            _say({"seed": number, "failed": str(failed)}, as_json)
            raise typer.Exit(1) from None
        histories = run.histories.values()
        _say(
            {
                "seed": number,
                "writes": sum(history.writes for history in histories),
                "reads": sum(history.reads for history in histories),
                "conflicts": sum(history.conflicts for history in histories),
                "outcomes": run.outcomes,
                "faults": run.troubles,
            },
            as_json,
        )


def _say(outcome: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(outcome))
    elif "failed" in outcome:
        typer.echo(f"seed {outcome['seed']}: {outcome['failed']}")
    else:
        typer.echo(
            f"seed {outcome['seed']}: ok, {outcome['writes']} writes, {outcome['reads']} reads, "
            f"{outcome['conflicts']} conflicts"
        )
