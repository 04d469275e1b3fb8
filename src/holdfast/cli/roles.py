"""`holdfast roles`, `holdfast trees`, `holdfast find`: what a node knows of roles, and where they are."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.tree import Tree

from holdfast.cli.node import Where, control_socket
from holdfast.cli.printing import terminal

AsJson = Annotated[bool, typer.Option("--json", help="Everything, for programs.")]
TreeName = Annotated[str, typer.Option("--tree", help="The tree, by name or as id:HEX.")]


def roles(where: Where, as_json: AsJson = False) -> None:
    """The roles that a node holds, and those that it has routes to."""
    from holdfast.runtime.control import ask

    answer = ask(control_socket(where), {"do": "roles"})
    if as_json:
        typer.echo(json.dumps(answer))
        return
    console = terminal()
    held = Table("role", "tree", "kind", "epoch", "state", title="held by this node")
    for role in answer["local"]:
        kind = "exclusive" if role["exclusive"] else "shared"
        state = ("first, " if role["first"] else "") + ("linked" if role["linked"] else "linking")
        held.add_row(role["role"], role["tree"][:8], kind, str(role["epoch"]), state)
    known = Table("role", "tree", "built", "instances", title="known")
    for row in answer["known"]:
        routes = ", ".join(f"{r['node']} via {r['via']}" for r in row["routes"])
        known.add_row(row["role"], row["tree"][:8], "yes" if row["built"] else "no", routes)
    console.print(held)
    console.print(known)


def trees(
    where: Where,
    tree: TreeName = "default",
    as_json: AsJson = False,
) -> None:
    """Draw a tree: its nodes, and the edges between them, as seen from a node."""
    from holdfast.runtime.control import ask

    answer = ask(control_socket(where), {"do": "tree", "tree": tree}, timeout_s=30.0)
    if as_json:
        typer.echo(json.dumps(answer))
        return
    nodes: dict[str, list[str]] = answer["nodes"]
    root = next(iter(nodes), "")
    drawn = Tree(root)
    _draw(drawn, root, nodes, {root: True})
    terminal().print(drawn)
    if not answer["complete"]:
        typer.echo("some nodes did not answer: parts of the tree may be missing", err=True)


def _draw(branch: Tree, node: str, nodes: dict[str, list[str]], drawn: dict[str, bool]) -> None:
    for peer in nodes.get(node, []):
        if peer in drawn:
            continue
        drawn[peer] = True
        _draw(branch.add(peer), peer, nodes, drawn)


def find(
    where: Where,
    role: Annotated[str, typer.Argument(help="The role.")],
    tree: TreeName = "default",
    realm: Annotated[bool, typer.Option(help="Only in the node's own realm.")] = False,
    as_json: AsJson = False,
) -> None:
    """All instances of a role: where they are, and which is registered as the first."""
    from holdfast.runtime.control import ask

    request: dict[str, Any] = {"do": "find", "role": role, "tree": tree, "realm_only": realm}
    answer = ask(control_socket(where), request, timeout_s=30.0)
    if as_json:
        typer.echo(json.dumps(answer))
        return
    if not answer["instances"] and answer["complete"]:
        typer.echo(f"no node has role {role}")
        raise typer.Exit(1)
    table = Table("node", "realm", "instance", "")
    for place in answer["instances"]:
        first = "first" if place["node"] == answer["first"] else ""
        table.add_row(place["node"], place["realm"], place["instance"][:16], first)
    if answer["instances"]:
        terminal().print(table)
    if not answer["complete"]:
        typer.echo(f"instances may be missing: {answer['reason']}; ask again", err=True)
        raise typer.Exit(1)
