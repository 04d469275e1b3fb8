"""`holdfast stress A B ...`: send every combination of attributes between nodes, and show what passes."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from holdfast.cli.node import control_socket
from holdfast.cli.printing import terminal
from holdfast.errors import MisuseError

_POLL_S: Final = 0.2

Cell = dict[str, Any]


def stress(
    nodes: Annotated[
        list[str],
        typer.Argument(
            help="Members, by name, or by the file or data directory of one on this machine."
        ),
    ],
    at: Annotated[
        Path | None,
        typer.Option(
            help="The file or data directory of the node to contact, if none of NODES is one."
        ),
    ] = None,
    rounds: Annotated[
        int, typer.Option(help="How many times each combination is sent.", min=1, max=200)
    ] = 10,
    rate: Annotated[
        int, typer.Option(help="Bytes per second of each sender.", min=1000, max=100_000_000)
    ] = 1_000_000,
    size: Annotated[
        list[int] | None,
        typer.Option(help="An IP packet size; repeatable. Default: the probed sizes."),
    ] = None,
    every: Annotated[
        int,
        typer.Option(help="Test sizes at this interval, from 100 up to 9000; 0: do not.", min=0),
    ] = 0,
    pattern: Annotated[
        list[str] | None,
        typer.Option(help="Bytes in hexadecimal; repeatable. Default: 00, ff, 55 and aa."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Output file of the matrix; default: in the data directory of the node."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the matrix as JSON.")] = False,
) -> None:
    """Test all sizes, packet kinds and patterns between nodes, in both directions. Exit code 1 if anything fails."""
    asked, names = _who(nodes, at)
    request: dict[str, Any] = {"nodes": names, "rounds": rounds, "bytes_per_s": rate}
    sizes = sorted({*(size or ()), *(range(100, 9001, every) if every else ())})
    request |= {"sizes": sizes} if sizes else {}
    request |= {"patterns": pattern} if pattern else {}
    report = _run(control_socket(asked), request)
    report |= {"at": datetime.now(UTC).isoformat(timespec="seconds"), "asked": request}
    stored = _store(report, out or control_socket(asked).parent / "stress")
    if as_json:
        typer.echo(json.dumps(report))
    else:
        _show(report)
        typer.echo(f"stored in {stored}")
    if not all(_is_sound(pair) for pair in report["pairs"]):
        raise typer.Exit(1)


def _who(nodes: list[str], at: Path | None) -> tuple[Path, list[str]]:
    """The node to contact, and the names of all."""
    from holdfast.runtime.control import ask
    from holdfast.runtime.parts import load_config

    names = []
    for one in nodes:
        path = Path(one)
        if path.is_file():
            names.append(load_config(path).name)
        elif path.is_dir():
            names.append(ask(control_socket(path), {"do": "status"})["node"]["name"])
        else:
            names.append(one)
            continue
        at = at or path
    if at is None:
        raise MisuseError(
            "which node on this machine should be contacted? Name one of the nodes by its file "
            "or data directory, or use --at; nothing was sent"
        )
    return at, names


def _run(socket: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Start a run and wait for its end, with a progress bar per pair."""
    from holdfast.runtime.control import ask

    run = ask(socket, {"do": "stress", **request})["run"]
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=terminal(errors=True), transient=True) as progress:
        tasks: dict[str, Any] = {}
        while True:
            report = ask(socket, {"do": "stress_report", "run": run})
            for pair in report["pairs"]:
                name = f"{pair['sender']} -> {pair['listener']}"
                task = tasks.get(name) or tasks.setdefault(
                    name, progress.add_task(name, total=None)
                )
                progress.update(task, completed=pair["done"], total=pair["total"] or None)
            if report["over"]:
                return report
            time.sleep(_POLL_S)


def _store(report: dict[str, Any], where: Path) -> Path:
    path = where
    if where.suffix != ".json":
        where.mkdir(parents=True, exist_ok=True)
        path = where / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    path.write_text(json.dumps(report, indent=1))
    return path


def _is_sound(pair: dict[str, Any]) -> bool:
    return not pair["failure"] and all(cell["heard"] == cell["sent"] > 0 for cell in pair["cells"])


# -- the matrix --------------------------------------------------------------------------------------------------


def _show(report: dict[str, Any]) -> None:
    """One table per direction: a row per pair of adapters and kind, a column per size."""
    console = terminal()
    for pair in report["pairs"]:
        title = f"{pair['sender']} -> {pair['listener']}"
        if pair["failure"]:
            console.print(f"{title}: {pair['failure']}", style="red")
        if pair["cells"]:
            console.print(_matrix(title, pair["cells"]))
    if any(pair["cells"] for pair in report["pairs"]):
        console.print(
            "ok: every packet arrived; no: none did. Otherwise, the patterns that did not all arrive, with the "
            "share that did; - stands for packets without a pattern."
        )


def _matrix(title: str, cells: list[Cell]) -> Table:
    sizes = sorted({cell["size"] for cell in cells})
    table = Table("path", "kind", *map(str, sizes), title=title, title_justify="left")
    rows: dict[tuple[str, str], dict[int, list[Cell]]] = {}
    for cell in cells:
        near, far = cell["adapter"], cell["listener_adapter"]
        path = near if near == far else f"{near} -> {far}"
        rows.setdefault((path, cell["kind"]), {}).setdefault(cell["size"], []).append(cell)
    for (path, kind), by_size in sorted(rows.items()):
        table.add_row(path, kind, *(_mark(by_size.get(size, [])) for size in sizes))
    return table


def _mark(cells: list[Cell]) -> Text:
    """The result of one size over all fills."""
    if not cells:
        return Text()
    tried = [cell for cell in cells if cell["sent"]]
    bad = [cell for cell in tried if cell["heard"] < cell["sent"]]
    if not tried:
        return Text("not tried", "dim")
    if not bad:
        return Text("ok", "green")
    if all(cell["heard"] == 0 for cell in tried):
        return Text("no", "red")
    parts = [f"{cell['pattern'] or '-'} {100 * cell['heard'] // cell['sent']}%" for cell in bad]
    return Text(", ".join(parts), "yellow")
