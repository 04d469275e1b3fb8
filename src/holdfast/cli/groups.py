"""`holdfast groups`: what the groups of a node are doing, and what an operator can ask of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from holdfast.cli.node import Where, control_socket
from holdfast.cli.printing import terminal, words
from holdfast.errors import MisuseError


class _ShowByDefault(TyperGroup):
    """`holdfast groups WHERE` is `holdfast groups show WHERE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            args = ["show", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    name="groups",
    cls=_ShowByDefault,
    help="Show the replicated groups of a node, and change them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

DECISIONS_SHOWN: Final = 10
Group = Annotated[str, typer.Argument(help="The group.")]
Name = Annotated[str, typer.Argument(help="The node.")]


@app.command()
def show(
    where: Where,
    group: Annotated[str, typer.Option(help="Only this group.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Everything, for programs.")] = False,
) -> None:
    """Leader, term, positions, lag, members, losses and decisions of the groups that a node has a replica of."""
    from holdfast.runtime.control import ask

    status = ask(control_socket(where), {"do": "status"})
    groups = status["groups"]
    if group:
        groups = [one for one in groups if one["name"] == group]
        if not groups:
            raise MisuseError(f"that node has no replica of a group {group!r}")
    if as_json:
        typer.echo(json.dumps(groups))
        return
    if not groups:
        typer.echo("no replica of any group runs on this node")
    console = terminal()
    names = {member.get("id", ""): member["name"] for member in status["members"]}
    for one in groups:
        _show(console, one, names)


def _stream(label: str, names: dict[str, str]) -> str:
    """A stream as people know it: by the name of its source, if that was met, its life, and which stream of it."""
    source, _, rest = label.partition("/")
    return f"{names.get(source, source[:8])}/{rest}"


def _line(console: Console, text: str | Text) -> None:
    """One line stays one, however narrow the terminal is: it is searched for words, too."""
    console.print(text, soft_wrap=True)


def _show(console: Console, group: dict[str, Any], names: dict[str, str]) -> None:
    why = f" ({group['why']})" if group.get("why") else ""
    _line(console, words((group["name"], "bold"), f": this replica is {group['state']}{why}"))
    leader = group.get("leader") or "nobody"
    _line(
        console,
        f"  leader {leader}, term {group['term']}, position {group['position']}, "
        f"entries {group['last']} (decided {group['commit']}, applied {group['applied']}), lag {group['lag']}",
    )
    _line(console, f"  digest {group['digest']}, memory {group['memory']}")
    if group.get("no_state"):
        _line(console, words("  ", ("gives no state:", "red"), f" {group['no_state']}"))
    for title, table in (("members", _members(group)), ("streams", _streams(group, names))):
        if table.row_count:
            _line(console, f"  {title}")
            console.print(table)
    _show_losses(console, group, names)


def _members(group: dict[str, Any]) -> Table:
    """The view, with how far everybody is as far as this replica knows (the leader knows it of all)."""
    table = Table("name", "part", "has", "applied", "behind", "")
    known = {peer["name"]: (peer["match"], peer["applied"]) for peer in group["peers"]}
    if group["state"] == "leading":
        known[group["leader"]] = (group["last"], group["applied"])
    names = [member["name"] for member in group.get("view", [])] or list(known)
    view = {member["name"]: member for member in group.get("view", [])}
    for name in names:
        member = view.get(name, {})
        notes = [word for word in ("suspended",) if member.get(word)]
        if name == group.get("leader"):
            notes.append("leads")
        elif member.get("may_lead") is False:
            notes.append("not to lead")
        has, applied = known.get(name, ("", ""))
        behind = "" if applied == "" else max(0, group["last"] - applied)
        table.add_row(
            name, member.get("part", "replica"), str(has), str(applied), str(behind), ", ".join(notes),
            style="yellow" if member.get("suspended") else "",
        )  # fmt: skip
    return table


def _streams(group: dict[str, Any], names: dict[str, str]) -> Table:
    table = Table("stream", "next", "lag", "held bytes")
    for label, stream in group["streams"].items():
        row = (_stream(label, names), stream["next"], stream["lag"], stream["held"])
        table.add_row(*map(str, row))
    return table


def _show_losses(console: Console, group: dict[str, Any], names: dict[str, str]) -> None:
    _line(console, f"  gaps now {group['gaps']}, asked again {group['nacks']} times")
    counts = ", ".join(f"{name} {count}" for name, count in group["losses"].items())
    _line(console, f"  lost messages since it started: {counts}")
    for row in group.get("ignoring", []):
        left = f", {row['left']} more" if row["left"] else ""
        _line(console, f"  ignores (criterion {row['id']}): {_named(row['what'], names)}{left}")
    for decision in list(group.get("decisions", []))[-DECISIONS_SHOWN:]:
        _line(console, f"  decided: {_said(decision, names)}")


def _named(what: str, names: dict[str, str]) -> str:
    """What is ignored, with names where it has the beginnings of ids."""
    for source, name in names.items():
        for word in ("source", "stream") if source else ():
            what = what.replace(f"{word} {source[:8]}", f"{word} {name}")
    return what


def _said(decision: dict[str, Any], names: dict[str, str]) -> str:
    lost = f"{decision['lost']} of {_stream(decision['stream'], names)} from {decision['first']}"
    again = f", question {decision['attempt']}" if decision["attempt"] > 1 else ""
    how = f"by {decision['by']}, {decision['leader']} led, entry {decision['index']}{again}"
    return f"{decision['action']}: {lost} ({how})"


# -- what an operator asks ---------------------------------------------------------------------------------------


@app.command()
def add(
    where: Where,
    group: Group,
    name: Name,
    learner: Annotated[
        bool, typer.Option("--learner", help="It gets everything, and does not vote.")
    ] = False,
) -> None:
    """Let a replica into a group, or in again; or change whether it votes."""
    _ask(where, group, "add", name, voter=not learner)


@app.command()
def remove(where: Where, group: Group, name: Name) -> None:
    """Take a replica out of a group for good: only `add` lets it in again."""
    _ask(where, group, "remove", name)


@app.command("hand-over")
def hand_over(
    where: Where,
    group: Group,
    name: Annotated[str, typer.Argument(help="Who is to lead; anybody when left out.")] = "",
) -> None:
    """Let another replica lead. WHERE is the node that leads now."""
    _ask(where, group, "hand-over", name)


@app.command("end-ignoring")
def end_ignoring(
    where: Where,
    group: Group,
    criterion: Annotated[int, typer.Argument(help="The id, as `holdfast groups` shows it.")],
) -> None:
    """Ignore no more by a criterion that a decision about lost messages began."""
    _ask(where, group, "end-ignoring", str(criterion))


@app.command()
def recover(
    where: Where,
    group: Group,
    sure: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Also if the others are only missing: they are gone for good."
        ),
    ] = False,
) -> None:
    """The last resort when the memory of a majority is lost: this replica goes on alone with what it has.

    What the others had and it has not is lost. The others must be restarted to join it.
    """
    if not sure:
        typer.confirm(
            f"What this replica of {group!r} lacks will be lost for good. Go on with it alone?",
            abort=True,
        )
    _ask(where, group, "recover", force=force)


def _ask(where: Path, group: str, verb: str, name: str = "", **values: Any) -> None:
    from holdfast.runtime.control import ask

    request = {"do": "group", "group": group, "verb": verb, "name": name, **values}
    answer = ask(control_socket(where), request)
    typer.echo(
        f"asked {answer['group']}: {answer['asked']}; `holdfast groups` shows what came of it"
    )
