"""`holdfast pipeline collect`: telemetry of all members to one machine, and advice to them, over the domain itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from holdfast.cli.node import Where, control_socket
from holdfast.cli.printing import terminal
from holdfast.errors import MisuseError

ROUND_S: float = 600.0
SEGMENTS_PER_ROUND: int = 50


def collect(
    where: Where,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="DIR", help="Segments go to DIR/<node>/landing."),
    ] = None,
    advice: Annotated[
        Path | None,
        typer.Option(
            "--advice",
            metavar="DIR",
            help="Hand out the newest advice in DIR (output of the pipeline).",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Fetch new segments of every member through a running node, and give them the newest advice.

    Segments that are in DIR already are not fetched again. Members that cannot be reached are named; the command then
    exits with 1, and the next call fetches the rest.
    """
    if to is None and advice is None:
        raise MisuseError("give --to, --advice or both; nothing was done")
    edition = _newest(advice) if advice is not None else ""
    totals: dict[str, dict[str, Any]] = {}
    more = True
    while more:
        more = _round(where, to, edition, totals)
        edition = ""
    if as_json:
        typer.echo(json.dumps({"members": list(totals.values())}))
    else:
        _show(totals)
    if any(row["problem"] for row in totals.values()):
        raise typer.Exit(1)


def _round(where: Path, to: Path | None, edition: str, totals: dict[str, dict[str, Any]]) -> bool:
    from holdfast.runtime.control import ask

    target = str(to.absolute()) if to is not None else ""
    if not target and not edition:
        return False
    request = {"do": "collect", "to": target, "advice": edition, "limit": SEGMENTS_PER_ROUND}
    answer = ask(control_socket(where), request, timeout_s=ROUND_S)
    for row in answer["members"]:
        known = totals.setdefault(
            row["node"],
            {"name": row["name"], "node": row["node"], "segments": 0, "bytes": 0, "advice": ""},
        )
        known["segments"] += row.get("segments", 0)
        known["bytes"] += row.get("bytes", 0)
        known["advice"] = row.get("advice", known["advice"])
        known["problem"] = row.get("problem", "")
    return bool(answer["more"])


def _newest(directory: Path) -> str:
    folder = directory / "advice" if (directory / "advice").is_dir() else directory
    editions = sorted(path for path in folder.glob("*.parquet") if path.stem.isdecimal())
    if not editions:
        raise MisuseError(
            f"there is no advice in {folder}; run `holdfast pipeline advise` first. Nothing was done"
        )
    return str(editions[-1].absolute())


def _show(totals: dict[str, dict[str, Any]]) -> None:
    table = Table("member", "segments", "bytes", "advice", "problem")
    for row in totals.values():
        table.add_row(
            escape(row["name"]), str(row["segments"]), f"{row['bytes']:,}", row["advice"],
            escape(row["problem"]),
        )  # fmt: skip
    terminal().print(table)
