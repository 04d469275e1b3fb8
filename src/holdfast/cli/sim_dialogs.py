"""`holdfast sim dialogs`: simulated runs of applications that use dialogs, under crashes, bad disks and partitions."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from holdfast.errors import MisuseError


def dialogs(
    seed: Annotated[int, typer.Option(help="The seed that determines load and faults.")] = 1,
    seeds: Annotated[str, typer.Option(help="Run all seeds from A to B instead, inclusive.")] = "",
    messages: Annotated[int, typer.Option(help="Messages of each dialog.", min=1)] = 60,
    seconds: Annotated[int, typer.Option(help="Virtual seconds.", min=26, max=3600)] = 30,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per seed.")
    ] = False,
) -> None:
    """Run applications with dialogs, one run per seed, and check that the assurances hold.

    Exit code 0: every check held; 1: not; 2: misuse.
    """
    from holdfast.cli.sim import seed_range
    from holdfast.sim.checkers import CheckFailed
    from holdfast.sim.dialog_load import DialogLoad

    try:
        numbers = seed_range(seeds) if seeds else range(seed, seed + 1)
    except MisuseError as error:
        typer.echo(f"holdfast sim dialogs: {error}", err=True)
        raise typer.Exit(2) from None
    failed = 0
    for number in numbers:
        try:
            result = DialogLoad(number, messages=messages, seconds=seconds).run()
        except CheckFailed as error:
            failed += 1
            typer.echo(f"seed {number}: {error}", err=True)
            continue
        typer.echo(
            json.dumps(result)
            if as_json
            else f"seed {number}: {result['captured']} captured, {result['delivered']} delivered, "
            f"{result['aborted']} aborted, {result['starts']} starts, {result['moved']} moved"
        )
    if failed:
        raise typer.Exit(1)
