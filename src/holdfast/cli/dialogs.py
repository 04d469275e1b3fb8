"""`holdfast dialogs`: what the dialogs of a node are doing, and what an operator can do about them."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from holdfast.cli.default_command import by_default
from holdfast.cli.node import Where, control_socket
from holdfast.cli.printing import terminal

app = typer.Typer(
    name="dialogs",
    cls=by_default("list"),
    help="Show the dialogs of a node, and act on those that need help.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Id = Annotated[
    str, typer.Argument(help="The dialog: its id, the beginning of it, or its short name.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Everything, for programs.")]


def _ask(where: Any, **request: Any) -> dict[str, Any]:
    from holdfast.runtime.control import ask

    return ask(control_socket(where), request)


@app.command("list")
def list_dialogs(where: Where, as_json: AsJson = False) -> None:
    """All active dialogs of a node, and its dialog stores."""
    answer = _ask(where, do="dialogs")
    if as_json:
        typer.echo(json.dumps(answer))
        return
    console = terminal()
    for store in answer["stores"]:
        if "error" in store:
            console.print(Text(f"store {store['name']} is not open: {store['error']}", style="red"))
        else:
            console.print(
                Text(f"store {store['name']}: {store['dialogs']} dialogs, {store['blocks']} blocks")
            )
    daemon = answer.get("daemon") or {}
    if daemon.get("applications"):
        console.print(
            Text(f"{daemon['connected']} applications connected, {daemon['leases']} dialogs in use")
        )
    table = Table(box=None)
    for column in ("dialog", "uri", "state", "sent", "unacked", "received", "unread"):
        # The next command needs the name and the fault, which is below the state; a long URI takes more lines.
        table.add_column(column, no_wrap=column != "uri", overflow="fold")
    for dialog in answer["dialogs"]:
        unacked = dialog["queued"] + dialog["in_flight"]
        fault = dialog["fault"] or ("poison" if dialog["poison"] else "")
        row = (
            dialog["name"], dialog["uri"], f"{dialog['state']}\n{fault}".rstrip(), dialog["sent"], unacked,
            dialog["received"], dialog["available"],
        )  # fmt: skip
        table.add_row(*[Text(str(value)) for value in row])
    console.print(table)


_SEARCHES = "the dialog searches again by itself; to search at once: repair --action reroute"
ADVICE = {
    "unknown-service": f"start the service or add a route; {_SEARCHES}",
    "no-partner": f"start an instance that accepts; {_SEARCHES}",
    "partner-silent": "look at the partner's node; the dialog continues when it answers, or: repair",
    "partner-lost": "restore the partner's store; the dialog continues when it answers, or: terminate",
    "position": "restore the right store at the end that lost commits, then: repair; or: terminate",
    "session-ttl": "extend the session from the application, then: repair; or: terminate",
    "credentials": "renew the certificate that the detail names; the dialog continues by itself",
    "internal": "see the node's log, then: repair; or: terminate",
}


@app.command()
def faults(where: Where, as_json: AsJson = False) -> None:
    """Dialogs that need an operator: what is wrong with each, and what can be done about it. Stores that are not open
    come first: their dialogs are not known until they are."""
    answer = _ask(where, do="dialogs")
    found = [
        {"id": "", "name": f"store {store['name']}", "uri": "", "fault": "not open"}
        | {"detail": store["error"], "advice": "its dialogs continue when it is open"}
        for store in answer["stores"]
        if "error" in store
    ]
    for dialog in answer["dialogs"]:
        code = dialog["fault"]
        if code:
            advice = ADVICE.get(code.removeprefix("partner:"), "look at the partner's node")
            found.append(
                {key: dialog[key] for key in ("id", "name", "uri", "fault", "detail")}
                | {"advice": advice}
            )
        elif dialog["poison"]:
            numbers = ", ".join(map(str, dialog["poison"]))
            found.append(
                {key: dialog[key] for key in ("id", "name", "uri")}
                | {"fault": "poison", "detail": f"messages {numbers}"}
                | {"advice": "look at it with show, then: poison NUMBER retry, or discard"}
            )
    if as_json:
        typer.echo(json.dumps(found))
        return
    console = terminal()
    if not found:
        console.print("no dialog needs help")
    for fault in found:
        name = f"{fault['name']} {fault['uri']}".rstrip()
        console.print(Text(f"{name}: {fault['fault']}", style="bold"))
        console.print(Text(f"  {fault['detail']}"))
        console.print(Text(f"  {fault['advice']}"))


@app.command()
def send(
    where: Where,
    uri: Annotated[str, typer.Argument(help="The service, or holdfast://NODE/SERVICE.")],
    message: Annotated[str, typer.Argument(help="The message; - reads it from standard input.")],
    timeout_s: Annotated[float, typer.Option(help="How long to wait for the node.")] = 10.0,
) -> None:
    """Send one message in a dialog of its own, and exit: the node delivers it."""
    import asyncio
    import sys

    from holdfast.runtime.dialogs.remote import connect_dialogs

    body = sys.stdin.buffer.read() if message == "-" else message.encode()

    async def work() -> str:
        async with connect_dialogs(where, timeout_s) as dialogs:
            dialog = await dialogs.open(uri, wait=False, message_bytes_max=max(1, len(body)))
            await dialog.send(body)
            await dialog.complete()
            return dialog.id.hex()

    typer.echo(f"stored; dialog {asyncio.run(work())}")


@app.command()
def show(where: Where, dialog: Id, as_json: AsJson = False) -> None:
    """Everything about one dialog, with its poison messages."""
    answer = _ask(where, do="dialog", dialog=dialog)
    if as_json:
        typer.echo(json.dumps(answer))
        return
    console = terminal()
    for key, value in answer.items():
        if key != "poison_bodies":
            name = key.replace("_", " ")
            console.print(Text(f"{name}: {value}"))
    for number, body in answer["poison_bodies"].items():
        console.print(Text(f"poison message {number}: {bytes.fromhex(body)[:200]!r}"))


@app.command()
def poison(
    where: Where,
    dialog: Id,
    number: Annotated[int, typer.Argument(help="The message.")],
    action: Annotated[str, typer.Argument(help="`retry` or `discard`.")],
) -> None:
    """Try a poison message again in its place, or discard it."""
    _ask(where, do="dialog-poison", dialog=dialog, number=number, action=action)
    typer.echo(f"message {number}: {action}")


@app.command()
def repair(
    where: Where,
    dialog: Id,
    action: Annotated[
        str, typer.Option(help="`resume` (the cause is gone) or `reroute` (find a partner again).")
    ] = "resume",
) -> None:
    """Put a faulted dialog back into service."""
    _ask(where, do="dialog-repair", dialog=dialog, action=action)
    typer.echo(f"{dialog}: {action}")


@app.command()
def terminate(
    where: Where,
    dialog: Id,
    reason: Annotated[str, typer.Option(help="Told to the partner.")] = "by an operator",
) -> None:
    """End a dialog. What was not acknowledged is lost; the partner gets a notice."""
    _ask(where, do="dialog-terminate", dialog=dialog, reason=reason)
    typer.echo(f"{dialog}: terminated")
