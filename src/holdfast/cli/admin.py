"""`holdfast admin`: move instances away from a node, on request or by policy.

A plan is shown before it is carried out. Each step adds a replica before one is removed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from holdfast.cli.group_requests import group_now, unknown_name, view_of
from holdfast.cli.node import Where
from holdfast.cli.object_jobs import ask_node, run_job
from holdfast.cli.printing import terminal
from holdfast.errors import HoldfastError, MisuseError

app = typer.Typer(
    name="admin",
    help="Move instances away from a node: drain, move, policy, advised.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show the plan.")]
KINDS = ("object", "group", "dialog")


@app.command()
def drain(
    where: Where,
    node: Annotated[str, typer.Argument(help="The name of the node to empty.")],
    dry_run: DryRun = False,
    skip_blocked: Annotated[
        bool, typer.Option("--skip-blocked", help="Leave out what cannot be moved.")
    ] = False,
    dialogs_to: Annotated[
        str, typer.Option(help="The node that gets dialogs which an application there has opened.")
    ] = "",
    undo: Annotated[bool, typer.Option("--undo", help="The node takes replicas again.")] = False,
    as_json: AsJson = False,
) -> None:
    """Move groups, dialogs and objects off a node. Ctrl-C stops it between two steps; the same command continues."""
    request = {"node": node, "skip_blocked": skip_blocked, "dialogs_to": dialogs_to}
    if not dry_run and not undo and not as_json:
        _show(run_job(where, "drain", "plan", True, dry_run=True, **request), False)
    title = f"drain {node}"
    done = run_job(where, "drain", title, as_json, dry_run=dry_run, undo=undo, **request)
    if undo:
        typer.echo(json.dumps(done) if as_json else f"{node} takes replicas again")
        return
    _finish(done, as_json, dry_run)


@app.command()
def move(
    where: Where,
    kind: Annotated[str, typer.Argument(help="`object`, `group` or `dialog`.")],
    name: Annotated[str, typer.Argument(help="The path of the object, the group, or the dialog.")],
    source: Annotated[str, typer.Option("--from", help="The node that it leaves.")] = "",
    target: Annotated[
        str, typer.Option("--to", help="The node that it goes to; empty: the best.")
    ] = "",
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Move one instance to another node."""
    if kind not in KINDS:
        raise MisuseError(f"{kind!r} cannot be moved; give one of {', '.join(KINDS)}")
    if kind == "dialog":
        _move_dialog(where, name, target, dry_run, as_json)
        return
    if not source:
        raise MisuseError("name the node that the replica leaves with --from; nothing was moved")
    if kind == "group":
        _move_group(where, name, source, target, dry_run, as_json)
        return
    done = run_job(
        where, "move-replica", f"move {name}", as_json, path=name, source=source, target=target, dry_run=dry_run
    )  # fmt: skip
    _finish(done, as_json, dry_run)


def _move_group(
    where: Path, group: str, source: str, target: str, dry_run: bool, as_json: bool
) -> None:
    """Names are checked here, so that a mistyped one is refused before another node is asked."""
    now = group_now(where, group)
    why = unknown_name(now, source, members=False)
    if target and not why:
        why = unknown_name(now, target, members=True)
        if not why and view_of(now).get(target) == "voter":
            why = f"{target} has a replica of {group} already."
    if why:
        raise MisuseError(f"{why} Nothing was moved.")
    done = _move_off(where, source, "group", group, target, dry_run, as_json)
    _finish(done, as_json, dry_run)


def _move_dialog(where: Path, dialog: str, target: str, dry_run: bool, as_json: bool) -> None:
    """Move the end that the node at `where` has to another node: a member of the domain by its name, or a node on this
    machine by its configuration file or data directory. An interrupted move continues when it is requested again."""
    there = Path(target)
    if not target or (not there.exists() and "/" in target):
        raise MisuseError("name the other node with --to; nothing was moved")
    if not there.exists():
        me = ask_node(where, do="status")["node"]["name"]
        done = _move_off(where, me, "dialog", dialog, target, dry_run, as_json)
        _finish(done, as_json, dry_run)
        return
    step = {"kind": "dialog", "name": dialog, "add": target, "remove": str(where)}
    step |= {"state": "planned", "reason": ""}
    if not dry_run:
        node = ask_node(there, do="status")["node"]["id"]
        store = ask_node(there, do="dialog-store")["store"]
        out = ask_node(where, do="dialog-move-out", dialog=dialog, node=node, store=store)
        ask_node(there, do="dialog-move-in", state=out["state"])
        ask_node(where, do="dialog-moved", dialog=out["dialog"])
        step["state"] = "done"
    _finish({"steps": [step]}, as_json, dry_run)


def _move_off(
    where: Path, source: str, kind: str, name: str, target: str, dry_run: bool, quiet: bool
) -> dict[str, Any]:
    """Have the node that loses an instance move it."""
    return run_job(
        where, "move-off", f"move {name}", quiet, node=source, kind=kind, name=name, target=target, dry_run=dry_run
    )  # fmt: skip


@app.command()
def policy(
    where: Where,
    on: Annotated[bool | None, typer.Option("--on/--off", help="Switch it.")] = None,
    as_json: AsJson = False,
) -> None:
    """What the policy of a node sees: the nodes with bad paths, and whether it acts on that."""
    request = {"do": "object-policy"} | ({"on": on} if on is not None else {})
    answer = ask_node(where, **request)
    if as_json:
        typer.echo(json.dumps(answer))
        return
    typer.echo(f"policy: {'on' if answer['on'] else 'off'}")
    for node, others in sorted(answer["bad_paths"].items()):
        typer.echo(f"{node}: bad paths to {others} nodes")


@app.command()
def advised(
    where: Where,
    apply: Annotated[bool, typer.Option("--apply", help="Carry the plan out.")] = False,
    as_json: AsJson = False,
) -> None:
    """Replicas of groups on nodes that the pipeline advises to leave, and where they should go."""
    from holdfast.cli.placing import leaving

    status = ask_node(where, do="status")
    if problem := status["advice"]["problem"]:
        raise MisuseError(f"no advice is in force: {problem}; nothing was moved")
    steps: list[dict[str, Any]] = []
    for one in leaving(status):
        try:
            done = _move_off(where, one.node, "group", one.group, "", not apply, as_json)
        except HoldfastError as error:
            step = {"kind": "group", "name": one.group, "add": "", "remove": one.node}
            steps.append(step | {"state": "failed", "reason": str(error)})
        else:
            steps += [step | {"reason": step["reason"] or one.why} for step in done["steps"]]
    _finish({"steps": steps}, as_json, not apply)


def _finish(done: dict[str, Any], as_json: bool, dry_run: bool) -> None:
    _show(done, as_json)
    bad = [step for step in done["steps"] if step["state"] in ("failed", "blocked")]
    if bad and not dry_run:
        raise typer.Exit(1)


def _show(done: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(done))
        return
    table = Table("kind", "name", "add", "remove", "state", "", box=None)
    for step in done["steps"]:
        row = (
            step["kind"],
            step["name"],
            step["add"],
            step["remove"],
            step["state"],
            step["reason"],
        )
        table.add_row(*[Text(str(value)) for value in row])
    terminal().print(table)
    if not done["steps"]:
        typer.echo("nothing to move")
