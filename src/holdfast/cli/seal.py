"""`holdfast seal`: close the open telemetry segments of a running node, so that the pipeline can read them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated

import typer

from holdfast.cli.node import Where, control_socket

SEAL_S: float = 30.0


def seal(
    where: Where,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Seal the telemetry of a running node, so that the pipeline can read everything recorded until now."""
    from holdfast.runtime.control import ask

    answer = ask(control_socket(where), {"do": "seal"}, SEAL_S)
    if as_json:
        typer.echo(json.dumps(answer))
        return
    until = datetime.fromtimestamp(answer["until_ns"] / 1e9, UTC)
    typer.echo(f"the telemetry of {answer['name']} is sealed up to {until:%Y-%m-%d %H:%M:%S} UTC")
    if answer["problem"]:
        typer.echo(f"not everything could be written: {answer['problem']}", err=True)
        raise typer.Exit(1)
