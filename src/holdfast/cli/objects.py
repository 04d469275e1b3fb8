"""`holdfast objects`: put, get, list, move, remove, locate and repair objects through a node on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from holdfast.cli.node import Where
from holdfast.cli.object_jobs import ask_node, run_job
from holdfast.cli.printing import terminal

app = typer.Typer(
    name="objects",
    help="Storage objects with replicas on several nodes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

ObjectPath = Annotated[str, typer.Argument(help="The object, as /directory/name.", metavar="PATH")]
AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]
MARKS = {"sound": "green", "repaired": "green", "late": "yellow"}


@app.command()
def put(
    where: Where,
    file: Annotated[Path, typer.Argument(help="The file to store.", exists=True, dir_okay=False)],
    path: ObjectPath,
    replicas: Annotated[int, typer.Option(help="Replicas; 0: as configured.", min=0, max=9)] = 0,
    mode: Annotated[str, typer.Option(help="`strict` or `loose`.")] = "strict",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Change an object that exists.")
    ] = False,
    resume: Annotated[
        str,
        typer.Option(
            help="32 hex digits of your choice; a second put with the same ones sends only what is missing."
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Store a file as an object."""
    done = run_job(
        where, "put", f"put {path}", as_json, path=path, file=str(file.absolute()), replicas=replicas, mode=mode,
        overwrite=overwrite, resume=resume,
    )  # fmt: skip
    _say(done, as_json, f"{path}: edition {done['edition']}, {done['size']} bytes")


@app.command()
def get(
    where: Where,
    path: ObjectPath,
    file: Annotated[Path, typer.Argument(help="Where to write it.", dir_okay=False)],
    near: Annotated[
        bool, typer.Option("--near", help="From the nearest replica, which may be old.")
    ] = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="After a failure, keep what was read; the same command resumes there."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Read an object into a file; every chunk is verified."""
    target = str(file.absolute())
    done = run_job(
        where, "get", f"get {path}", as_json, path=path, file=target, near=near, resume=resume
    )
    _say(done, as_json, f"{file}: edition {done['edition']}, {done['size']} bytes")


@app.command("ls")
def list_names(
    where: Where,
    path: Annotated[str, typer.Argument(help="The directory.")] = "/",
    as_json: AsJson = False,
) -> None:
    """The names in a directory; directories end with a slash."""
    answer = ask_node(where, do="object-list", path=path)
    if as_json:
        typer.echo(json.dumps(answer))
        return
    for name in answer["names"]:
        typer.echo(name)


@app.command()
def mkdir(where: Where, path: ObjectPath) -> None:
    """Create a directory."""
    run_job(where, "mkdir", f"mkdir {path}", path=path)
    typer.echo(f"{path}: created")


@app.command()
def mv(
    where: Where,
    source: Annotated[str, typer.Argument(help="The object.")],
    target: Annotated[str, typer.Argument(help="Its new path.")],
) -> None:
    """Move or rename an object or a directory, atomically."""
    run_job(where, "move", f"mv {source}", source=source, target=target)
    typer.echo(f"{source} is now {target}")


@app.command()
def rm(where: Where, path: ObjectPath) -> None:
    """Delete an object, or a directory that is empty."""
    run_job(where, "delete", f"rm {path}", path=path)
    typer.echo(f"{path}: deleted")


@app.command("where")
def where_is(where: Where, path: ObjectPath, as_json: AsJson = False) -> None:
    """Where the replicas of an object are, and how they are."""
    _show(ask_node(where, do="object-where", path=path), as_json)


@app.command()
def repair(where: Where, path: ObjectPath, as_json: AsJson = False) -> None:
    """Verify every byte of every replica, and repair what is late or damaged."""
    found = run_job(where, "repair", f"repair {path}", as_json, path=path)
    _show(found, as_json)
    if any(replica["state"] not in ("sound", "repaired") for replica in found["replicas"]):
        raise typer.Exit(1)


def _say(done: dict[str, Any], as_json: bool, text: str) -> None:
    typer.echo(json.dumps(done) if as_json else text)


def _show(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(found))
        return
    console = terminal()
    kind = "directory" if found["directory"] else found["mode"]
    console.print(
        Text(f"{found['path']}: {kind}, edition {found['edition']}, {found['size']} bytes")
    )
    if found["conflicts"]:
        console.print(Text(f"{found['conflicts'] + 1} versions wait to be merged", style="yellow"))
    table = Table("node", "state", "version", box=None)
    for replica in found["replicas"]:
        style = MARKS.get(replica["state"], "red")
        state = Text(replica["state"], style=style)
        table.add_row(Text(replica["node"]), state, Text(str(replica["version"])))
    console.print(table)
    if len(found["replicas"]) < found["wanted"]:
        console.print(Text(f"{found['wanted']} replicas are wanted", style="yellow"))
