"""The `holdfast` command. Exit codes: 0 fine, 1 failed, 2 misuse. Errors are one line, never a traceback."""

from __future__ import annotations

import sys

import typer

from holdfast import __version__
from holdfast.cli import bench, ca, demo, groups, health, node, sim, stress
from holdfast.cli.lab import commands as lab
from holdfast.errors import HoldfastError, MisuseError, SetupError
from holdfast.pipeline import command as pipeline

app = typer.Typer(
    name="holdfast",
    help="Keeps a cluster of Python services talking when the network only half works.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("node")(node.run)
app.command("status")(node.status)
app.command("fault")(node.fault)
app.command("heal")(node.heal)
app.command("stress")(stress.stress)
app.command("demo")(demo.demo)
app.add_typer(bench.app, name="bench")
app.add_typer(health.app, name="health")
app.add_typer(sim.app, name="sim")
app.add_typer(groups.app, name="groups")
app.add_typer(lab.app, name="lab")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(ca.app, name="ca")


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def main() -> None:
    """The entry point: turns our own errors into a line and an exit code."""
    try:
        app()
    except (MisuseError, SetupError) as error:
        typer.secho(f"holdfast: {error}", fg="red", err=True)
        sys.exit(2)
    except HoldfastError as error:
        typer.secho(f"holdfast: {error}", fg="red", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
