"""The `holdfast` command. Exit codes: 0 success, 1 failure, 2 misuse. Errors are one line, never a traceback."""

from __future__ import annotations

import sys

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
app.command("node")(node.run)
app.command("status")(node.status)
app.command("fault")(node.fault)
app.command("heal")(node.heal)
app.command("seal")(seal.seal)
app.command("stress")(stress.stress)
app.command("demo")(demo.demo)
app.command("roles")(roles.roles)
app.command("trees")(roles.trees)
app.command("find")(roles.find)
app.command("advice")(advice.advice)
app.add_typer(bench.app, name="bench")
app.add_typer(health.app, name="health")
app.add_typer(sim.app, name="sim")
app.add_typer(groups.app, name="groups")
app.add_typer(dialogs.app, name="dialogs")
app.add_typer(objects.app, name="objects")
app.add_typer(admin.app, name="admin")
app.add_typer(lab.app, name="lab")
app.add_typer(experiments.app, name="experiments")
pipeline.app.command("synth")(synth.synth)
pipeline.app.command("collect")(collect.collect)
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(ca.app, name="ca")


@app.command()
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
