"""The `holdfast` command. Exit codes: 0 success, 1 failure, 2 misuse. Errors are one line, never a traceback."""

from __future__ import annotations

import sys
from typing import Final

import typer

from holdfast import __version__, accelerator
from holdfast.cli import (
    admin,
    advice,
    bench,
    ca,
    collect,
    demo,
    dialogs,
    experiments,
    groups,
    health,
    lab,
    node,
    objects,
    roles,
    seal,
    sim,
    stress,
    synth,
)
from holdfast.cli.printing import exit_code
from holdfast.errors import HoldfastError
from holdfast.pipeline import command as pipeline

app = typer.Typer(
    name="holdfast",
    help="Keep a cluster of Python services communicating when the network is only partly working.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
RUN: Final = "Run"
OBSERVE: Final = "Observe a running node"
OPERATE: Final = "Operate a domain"
ANALYSE: Final = "Analyse recorded telemetry"
TEST: Final = "Test, simulate and measure"

app.command("demo", rich_help_panel=RUN)(demo.demo)
app.command("node", rich_help_panel=RUN)(node.run)
app.add_typer(ca.app, name="ca", rich_help_panel=RUN)

app.command("status", rich_help_panel=OBSERVE)(node.status)
app.add_typer(health.app, name="health", rich_help_panel=OBSERVE)
app.command("roles", rich_help_panel=OBSERVE)(roles.roles)
app.command("trees", rich_help_panel=OBSERVE)(roles.trees)
app.command("find", rich_help_panel=OBSERVE)(roles.find)

app.add_typer(groups.app, name="groups", rich_help_panel=OPERATE)
app.add_typer(dialogs.app, name="dialogs", rich_help_panel=OPERATE)
app.add_typer(objects.app, name="objects", rich_help_panel=OPERATE)
app.add_typer(admin.app, name="admin", rich_help_panel=OPERATE)
app.command("seal", rich_help_panel=OPERATE)(seal.seal)

pipeline.app.command("synth")(synth.synth)
pipeline.app.command("collect")(collect.collect)
app.add_typer(pipeline.app, name="pipeline", rich_help_panel=ANALYSE)
app.command("advice", rich_help_panel=ANALYSE)(advice.advice)

app.command("stress", rich_help_panel=TEST)(stress.stress)
app.command("fault", rich_help_panel=TEST)(node.fault)
app.command("heal", rich_help_panel=TEST)(node.heal)
app.add_typer(lab.app, name="lab", rich_help_panel=TEST)
app.add_typer(sim.app, name="sim", rich_help_panel=TEST)
app.add_typer(experiments.app, name="experiments", rich_help_panel=TEST)
app.add_typer(bench.app, name="bench", rich_help_panel=TEST)


@app.command(rich_help_panel=RUN)
def version() -> None:
    """Print the version, and which core runs."""
    why = f" ({accelerator.reason()})" if accelerator.reason() else ""
    typer.echo(f"{__version__}, {accelerator.core()} core{why}")


def main() -> None:
    """The entry point: converts our exceptions to an error line and an exit code."""
    try:
        app()
    except HoldfastError as error:
        typer.secho(f"holdfast: {error}", fg="red", err=True)
        sys.exit(exit_code(error))
    except KeyboardInterrupt:
        sys.exit(130)
