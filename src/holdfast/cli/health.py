"""`holdfast health`: query path health, incidents and history, and tune heartbeats."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from holdfast.cli.default_command import by_default
from holdfast.cli.node import STYLES, Where, control_socket
from holdfast.cli.printing import terminal, words
from holdfast.errors import MisuseError

app = typer.Typer(
    cls=by_default("table"),
    no_args_is_help=True,
    help="Show what every path carries, and its errors.",
)

AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def _ask(where: Path, what: str, **fields: Any) -> dict[str, Any]:
    from holdfast.runtime.control import ask

    request = {"do": "health", "what": what, **fields}
    return ask(control_socket(where), request, timeout_s=30.0)


def _show(answer: Any, as_json: bool, draw: Callable[[Console], None]) -> None:
    if as_json:
        typer.echo(json.dumps(answer))
    else:
        draw(terminal())


@app.command("table")
def table(where: Where, as_json: AsJson = False) -> None:
    """Show the whole table: one row per path and packet kind."""
    answer = _ask(where, "table")
    _show(answer["paths"], as_json, lambda console: console.print(_paths(answer["paths"])))


def _paths(paths: list[dict[str, Any]]) -> Table:
    drawn = Table()
    drawn.add_column("path", no_wrap=True)  # must not be wrapped
    for title in ("kind", "state", "size", "patterns", "loss", "rtt"):
        drawn.add_column(title)
    for path in paths:
        state, style = _state(path)
        bad = path["bad_patterns"]
        size = f"{path['size']} of {path['size_max']}" if path["size_max"] else "-"
        holes = f", not {' '.join(map(str, path['holes']))}" if path["holes"] else ""
        drawn.add_row(
            _ends(path),
            path["transport"],
            state,
            size + holes,
            f"not {' '.join(bad)}" if bad else "all" if path["patterns"] else "-",
            f"{path['loss_ppm'] / 10_000:.1f} %",
            f"{path['rtt_us'] / 1000:.1f} ms",
            style=style,
        )
    return drawn


def _ends(path: dict[str, Any]) -> str:
    """Both adapters, and the subnet where their names do not say it."""
    sender, listener, subnet = path["sender_adapter"], path["listener_adapter"], path["subnet"]
    text = f"{path['sender']}/{sender} -> {path['listener']}/{listener}"
    return text if sender == listener == subnet else f"{text} ({subnet})"


def _state(path: dict[str, Any]) -> tuple[str, str]:
    verdict = path["verdict"]
    state = path["state"] if path["state"] != "ok" else verdict["state"]
    classes = ", ".join(verdict["classes"])
    return (classes if state == "soft error" else state), STYLES.get(state, "yellow")


@app.command("incidents")
def incidents(where: Where, as_json: AsJson = False) -> None:
    """Show current errors in words, with their likely causes. The exit code is 0 even if there are errors."""
    found = _ask(where, "incidents")["incidents"]

    def draw(console: Console) -> None:
        if not found:
            console.print("nothing is wrong")
        for incident in found:
            repeats = f", {incident['count']} times" if incident["count"] > 1 else ""
            style = "red" if incident["error_class"] == "dead" else "yellow"
            since = f" since {incident['since_s']:.0f} s{repeats}: "
            console.print(words((incident["error_class"], style), since, incident["text"]))

    _show(found, as_json, draw)


@app.command("find")
def find(
    where: Where,
    size: Annotated[int, typer.Option(help="Packets of at least this many bytes.")] = 0,
    protocol: Annotated[str, typer.Option(help="udp, tcp, frag or multicast.")] = "",
    pattern: Annotated[str, typer.Option(help="Fill pattern in hexadecimal.")] = "",
    subnet: Annotated[str, typer.Option(help="Only on this subnet.")] = "",
    as_json: AsJson = False,
) -> None:
    """Find adapters that can exchange such packets in both directions."""
    fields = {"size": size, "protocol": protocol, "pattern": pattern, "subnet": subnet}
    found = _ask(where, "find", **fields)["found"]

    def draw(console: Console) -> None:
        if not found["pairs"]:
            console.print("no two adapters can exchange such packets")
        for one, two in found["pairs"]:
            console.print(
                f"{one['member']}/{one['adapter']} <-> {two['member']}/{two['adapter']} ({one['subnet']})"
            )
        if found["everyone"]:
            console.print("full mesh")

    _show(found, as_json, draw)


@app.command("values")
def values(
    where: Where,
    subnet: Annotated[str, typer.Argument(help="The subnet.")],
    as_json: AsJson = False,
) -> None:
    """Show what passes in a subnet: the sizes and patterns that pass on all paths, or not on some."""
    answer = _ask(where, "values", subnet=subnet)["values"]

    def draw(console: Console) -> None:
        drawn = Table(
            "kind",
            "paths",
            "alive",
            "size everywhere",
            "best",
            "probed to",
            "patterns",
            "not everywhere",
            "loss",
        )
        for kind in answer["kinds"]:
            drawn.add_row(
                kind["transport"],
                str(kind["paths"]),
                str(kind["alive"]),
                str(kind["size_all"] or "-"),
                str(kind["size_best"] or "-"),
                str(kind["size_max"] or "-"),
                " ".join(kind["patterns"]) or "-",
                " ".join(kind["bad_patterns"]) or "-",
                f"{kind['loss_ppm_worst'] / 10_000:.1f} %",
            )
        adapters = ", ".join(f"{a['member']}/{a['adapter']}" for a in answer["adapters"])
        console.print(f"subnet {answer['subnet']}: {adapters}")
        console.print(drawn)

    _show(answer, as_json, draw)


@app.command("report")
def report(
    where: Where,
    adapter: Annotated[str, typer.Argument(help="member/adapter")],
    as_json: AsJson = False,
) -> None:
    """Print the raw report of an adapter: what its listeners receive from it."""
    answer = _ask(where, "report", adapter=adapter)
    typer.echo(json.dumps(answer) if as_json else answer["report"], nl=as_json)


@app.command("explain")
def explain(
    where: Where,
    one: Annotated[str, typer.Argument(help="A member, or member/adapter.")],
    two: Annotated[str, typer.Argument(help="Another.")],
    as_json: AsJson = False,
) -> None:
    """Explain the paths between two members in words, in both directions."""
    paths = _ask(where, "explain", sender=one, listener=two)["paths"]

    def draw(console: Console) -> None:
        for path in paths:
            ends = [
                f"{end['member']}/{end['adapter']}" for end in (path["sender"], path["listener"])
            ]
            style = {"ok": "green", "dead": "red"}.get(path["state"], "yellow")
            console.print(words(f"{ends[0]} -> {ends[1]}: ", (path["state"], style)))
            for line in (*path["findings"], *path["kinds"]):
                console.print(f"  {line}", highlight=False)
            for error_class, at_ns in path["last_errors"]:
                at = datetime.fromtimestamp(at_ns / 1e9).astimezone()
                console.print(f"  last {error_class} error: {at:%Y-%m-%d %H:%M:%S}")

    _show(paths, as_json, draw)


@app.command("history")
def history(
    where: Where,
    sender: Annotated[str, typer.Option("--from", help="A member, or member/adapter.")] = "",
    listener: Annotated[str, typer.Option("--to", help="A member, or member/adapter.")] = "",
    error_class: Annotated[str, typer.Option("--class", help="Only this error class.")] = "",
    since: Annotated[
        str, typer.Option(help="Only changes since then, such as 30m, 12h or 30d.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Show past changes of the paths from and to this node."""
    fields: dict[str, Any] = {"sender": sender, "listener": listener, "error_class": error_class}
    entries = _ask(where, "history", since_s=_seconds(since), **fields)["history"]

    def draw(console: Console) -> None:
        if not entries:
            console.print("nothing")
        for entry in entries:
            at = datetime.fromisoformat(entry["at"]).astimezone()
            console.print(f"{at:%Y-%m-%d %H:%M:%S} {entry['text']}", highlight=False)

    _show(entries, as_json, draw)


@app.command("reset")
def reset(
    where: Where,
    sender: Annotated[str, typer.Argument(help="From this member, or member/adapter.")],
    listener: Annotated[str, typer.Argument(help="To this one.")],
    by: Annotated[str, typer.Option(help="Your name; it is recorded.")],
    note: Annotated[str, typer.Option(help="What was repaired.")] = "",
    as_json: AsJson = False,
) -> None:
    """Clear the history of a path after a repair, so that traffic that requires a clean path can use it again."""
    paths = _ask(where, "reset", sender=sender, listener=listener, by=by, note=note)["reset"]
    text = "\n".join(f"reset: {path}" for path in paths)
    _show(paths, as_json, lambda console: console.print(text, highlight=False))


@app.command("tune")
def tune(
    where: Where,
    signature: Annotated[
        str, typer.Argument(help="basic_active, basic_retry, diag_active or diag_retry.")
    ],
    subnet: Annotated[str, typer.Option(help="Only on this subnet.")] = "",
    period_ms: Annotated[int, typer.Option(help="How often.")] = 0,
    grace: Annotated[int, typer.Option(help="Number of missing heartbeats to tolerate.")] = 0,
    retry_ms: Annotated[int, typer.Option(help="Period while a fault is being confirmed.")] = 0,
) -> None:
    """Change the heartbeat settings of a running node."""
    fields = {"subnet": subnet, "period_ms": period_ms, "grace": grace, "retry_ms": retry_ms}
    _ask(where, "tune", signature=signature, **fields)
    typer.echo("tuned")


@app.command("watch")
def watch(
    where: Where,
    member: Annotated[list[str] | None, typer.Option(help="Paths from or to this member.")] = None,
    subnet: Annotated[list[str] | None, typer.Option(help="Only this subnet.")] = None,
    kind: Annotated[list[str] | None, typer.Option(help="udp, tcp, frag, multicast.")] = None,
    attribute: Annotated[
        list[str] | None, typer.Option(help="Only changes of this attribute.")
    ] = None,
    size_below: Annotated[int, typer.Option(help="Only paths that do not pass this size.")] = 0,
    changes: Annotated[int, typer.Option(help="Stop after this many changes; 0: never.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Print the table, then every change, until Ctrl-C."""
    fields: dict[str, Any] = {
        "members": member or [],
        "subnets": subnet or [],
        "kinds": kind or [],
        "attributes": attribute or [],
        "size_below": size_below,
    }
    answer = _ask(where, "watch", **fields)
    console, seen = terminal(), 0
    while True:
        for news in answer["news"]:
            seen += news["kind"] == "change"
            if as_json:
                typer.echo(json.dumps(news))
            elif news["kind"] == "snapshot":
                if news["lagged"]:
                    console.print("too slow: some changes were skipped; this is the current state")
                console.print(_paths(news["paths"]))
            else:
                console.print(_change(news), highlight=False)
            if changes and seen >= changes:
                return
        answer = _ask(where, "watch", watcher=answer["watcher"])


def _change(news: dict[str, Any]) -> str:
    path = news["after"] or news["before"]
    where = (
        f"{path['sender']}/{path['sender_adapter']} -> {path['listener']}/{path['listener_adapter']} "
        f"({path['transport']})"
    )
    if news["after"] is None:
        return f"{where}: gone"
    state, _ = _state(path)
    size = f", size {path['size']} of {path['size_max']}" if path["size_max"] else ""
    return f"{where}: {state}{size}, loss {path['loss_ppm'] / 10_000:.1f} %, round trip {path['rtt_us']} µs"


def _seconds(text: str) -> float:
    if not text:
        return 0
    number, unit = text[:-1], text[-1]
    try:
        return float(number) * _UNITS[unit]
    except (KeyError, ValueError):
        raise MisuseError(f"{text!r} is not a duration; write it as 30m, 12h or 30d") from None
