"""`holdfast groups`: show the groups of a node, and send operator requests to them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.cli.default_command import by_default
from holdfast.cli.group_requests import WAIT_S, ask_group, group_now, happens, unknown_name, view_of
from holdfast.cli.node import Where, control_socket
from holdfast.cli.printing import terminal, words
from holdfast.errors import MisuseError

app = typer.Typer(
    name="groups",
    cls=by_default("show"),
    help="Show and change the replicated groups of a node.",
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
    """Show leader, term, positions, lag, members, losses and decisions of the groups of a node."""
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
        typer.echo("this node has no replica of any group")
    console = terminal()
    names = {member.get("id", ""): member["name"] for member in status["members"]}
    for one in groups:
        _show(console, one, names)


@app.command()
def locks(
    where: Where,
    group: Annotated[str, typer.Argument(help="Only this group.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Everything, for programs.")] = False,
) -> None:
    """Show held locks, waiting nodes, and barriers of the groups of a node."""
    from holdfast.runtime.control import ask

    groups = ask(control_socket(where), {"do": "status"})["groups"]
    if group:
        groups = [one for one in groups if one["name"] == group]
        if not groups:
            raise MisuseError(f"that node has no replica of a group {group!r}")
    found = {one["name"]: one.get("services") or {} for one in groups}
    if as_json:
        typer.echo(json.dumps(found))
        return
    console = terminal()
    for name, services in found.items():
        _line(
            console,
            words((name, "bold"), f": {_count(services, 'lock')}, {_count(services, 'barrier')}"),
        )
        _show_services(console, services)


def _count(services: dict[str, Any], what: str) -> str:
    count = len(services.get(f"{what}s", []))
    return f"{count} {what}{'' if count == 1 else 's'}"


def _show_services(console: Console, services: dict[str, Any]) -> None:
    """Locks and barriers, one per line."""
    for lock in services.get("locks", []):
        waiting = f", waiting: {', '.join(lock['waiting'])}" if lock["waiting"] else ""
        text = f" held by {lock['holder']}, token {lock['token']}, lease {lock['lease_s']:g} s{waiting}"
        _line(console, words("  lock ", (lock["name"], "bold"), text))
    for barrier in services.get("barriers", []):
        names = f" ({', '.join(barrier['arrived'])})" if barrier["arrived"] else ""
        arrived = f"{len(barrier['arrived'])} of {barrier['parties']} arrived{names}"
        phase = (
            f" in phase {barrier['phase']} of {barrier['phases']}" if barrier["phases"] > 1 else ""
        )
        text = f"{phase}: {arrived}, generation {barrier['generation']}"
        _line(console, words("  barrier ", (barrier["name"], "bold"), text))


def _stream(label: str, names: dict[str, str]) -> str:
    """A stream for display: the name of its source if known, its incarnation, and its number."""
    source, _, rest = label.partition("/")
    return f"{names.get(source, source[:8])}/{rest}"


def _line(console: Console, text: str | Text) -> None:
    """Do not wrap the line, however narrow the terminal is, so that it can be searched."""
    console.print(text, soft_wrap=True)


def _show(console: Console, group: dict[str, Any], names: dict[str, str]) -> None:
    why = f" ({group['why']})" if group.get("why") else ""
    _line(console, words((group["name"], "bold"), f": this replica is {group['state']}{why}"))
    leader = group.get("leader") or "none"
    _line(
        console,
        f"  leader {leader}, term {group['term']}, position {group['position']}, entries "
        f"{group['last']} (committed {group['commit']}, applied {group['applied']}), lag "
        f"{group['lag']}",
    )
    _line(console, f"  digest {group['digest']}, state {group['memory']}")
    _show_stability(console, group.get("stability") or {})
    _show_services(console, group.get("services") or {})
    if group.get("no_state"):
        _line(console, words("  ", ("gives no state:", "red"), f" {group['no_state']}"))
    for title, table in (("members", _members(group)), ("streams", _streams(group, names))):
        if table.row_count:
            _line(console, f"  {title}")
            console.print(table)
    _show_losses(console, group, names)


def _show_stability(console: Console, stability: dict[str, Any]) -> None:
    """The progress of all replicas, and which of them prevent the others from freeing buffers."""
    if not stability.get("protocol"):
        return
    _line(
        console,
        f"  stability by {stability['protocol']}: all have applied up to entry {stability['stable']}, "
        f"lag {stability['lag_ms']} ms, {stability['held']} bytes held",
    )
    for blocker in stability["blockers"]:
        text = f" {blocker['name']} has been {blocker['why']} for {blocker['since_ms']} ms"
        _line(console, words("  ", ("blocked:", "yellow"), text))


def _members(group: dict[str, Any]) -> Table:
    """The view with the progress of the members, as far as this replica knows it (the leader knows all)."""
    table = Table("name", "part", "has", "applied", "behind", "held bytes", "")
    peers = {peer["name"]: peer for peer in group["peers"]}
    known = {
        peer["name"]: (peer["match"], peer["applied"], peer["held"]) for peer in group["peers"]
    }
    if group["state"] == "leading":
        own_bytes = sum(stream["held"] for stream in group["streams"].values())
        known[group["leader"]] = (group["last"], group["applied"], own_bytes)
    names = [member["name"] for member in group.get("view", [])] or list(known)
    view = {member["name"]: member for member in group.get("view", [])}
    for name in names:
        member = view.get(name, {})
        notes = [word for word in ("suspended",) if member.get(word)]
        if name == group.get("leader"):
            notes.append("leads")
        elif member.get("may_lead") is False:
            notes.append("not to lead")
        has, applied, held = known.get(name, ("", "", ""))
        gone = peers.get(name, {}).get("heard") is False
        behind = "not heard" if gone else "" if applied == "" else max(0, group["last"] - applied)
        table.add_row(
            name, member.get("part", "replica"), str(has), str(applied), str(behind), str(held),
            ", ".join(notes),
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
    _line(console, f"  gaps now {group['gaps']}, retransmission requests {group['nacks']}")
    counts = ", ".join(f"{name} {count}" for name, count in group["losses"].items())
    _line(console, f"  lost messages since the start: {counts}")
    for row in group.get("ignoring", []):
        left = f", {row['left']} more" if row["left"] else ""
        _line(console, f"  ignores (criterion {row['id']}): {_named(row['what'], names)}{left}")
    for decision in list(group.get("decisions", []))[-DECISIONS_SHOWN:]:
        _line(console, f"  decided: {_said(decision, names)}")


def _named(what: str, names: dict[str, str]) -> str:
    """What is ignored, with names in place of abbreviated ids."""
    for source, name in names.items():
        for word in ("source", "stream") if source else ():
            what = what.replace(f"{word} {source[:8]}", f"{word} {name}")
    return what


def _said(decision: dict[str, Any], names: dict[str, str]) -> str:
    lost = f"{decision['lost']} of {_stream(decision['stream'], names)} from {decision['first']}"
    again = f", question {decision['attempt']}" if decision["attempt"] > 1 else ""
    how = f"by {decision['by']}, {decision['leader']} led, entry {decision['index']}{again}"
    return f"{decision['action']}: {lost} ({how})"


# -- operator requests -------------------------------------------------------------------------------------------


@app.command()
def add(
    where: Where,
    group: Group,
    name: Name,
    learner: Annotated[
        bool, typer.Option("--learner", help="Add it as a learner, without a vote.")
    ] = False,
) -> None:
    """Add a replica to a group, also after it was removed, or change whether it votes."""
    _check_name(where, group, name, members=True)
    _ask(where, group, "add", name, voter=not learner)
    part = "learner" if learner else "voter"
    _wait(where, group, f"{name} is a {part}", lambda now: view_of(now).get(name) == part)


@app.command()
def remove(where: Where, group: Group, name: Name) -> None:
    """Remove a replica from a group until it is added again."""
    _check_name(where, group, name, members=False)
    _ask(where, group, "remove", name)
    _wait(where, group, f"{name} is no longer a replica", lambda now: name not in view_of(now))


@app.command("hand-over")
def hand_over(
    where: Where,
    group: Group,
    name: Annotated[str, typer.Argument(help="The new leader; any replica by default.")] = "",
) -> None:
    """Hand leadership to another replica. WHERE is the current leader."""
    before = group_now(where, group).get("leader")
    if name:
        _check_name(where, group, name, members=False)
    _ask(where, group, "hand-over", name)
    if name and name == before:
        return
    _wait(
        where,
        group,
        f"{name or 'another replica'} leads",
        lambda now: (
            now.get("leader") == name if name else now.get("leader") not in (None, "", before)
        ),
    )


@app.command("end-ignoring")
def end_ignoring(
    where: Where,
    group: Group,
    criterion: Annotated[int, typer.Argument(help="The id, as shown by `holdfast groups`.")],
) -> None:
    """End an ignore criterion, so that matching messages are delivered again."""
    _ask(where, group, "end-ignoring", str(criterion))


@app.command()
def recover(
    where: Where,
    group: Group,
    sure: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Restart even if the others are only unreachable; use it only if they are "
            "permanently gone.",
        ),
    ] = False,
) -> None:
    """Last resort after a majority lost its state: restart the group from this replica alone.

    Messages that only the other replicas had are lost. The others must be restarted to join.
    """
    if not sure:
        typer.confirm(
            f"Messages that this replica of {group!r} lacks will be lost permanently. Restart the "
            "group from it?",
            abort=True,
        )
    _ask(where, group, "recover", force=force)


def _check_name(where: Path, group: str, name: str, members: bool) -> None:
    why = unknown_name(group_now(where, group), name, members)
    if why:
        typer.echo(f"{why} Nothing was requested.", err=True)
        raise typer.Exit(1)


def _wait(where: Path, group: str, what: str, done: Callable[[dict[str, Any]], bool]) -> None:
    """Wait until the request is done, and report it; exit 1 on timeout."""
    if happens(where, group, done):
        typer.echo(f"done: {what}")
        return
    typer.echo(
        f"not done within {WAIT_S:g} s: {what}. The request was accepted and may still take effect; "
        "`holdfast groups show` shows the state of the group.",
        err=True,
    )
    raise typer.Exit(1)


def _ask(where: Path, group: str, verb: str, name: str = "", **values: Any) -> None:
    typer.echo(f"requested from {group}: {ask_group(where, group, verb, name, **values)}")
