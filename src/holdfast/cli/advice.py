"""`holdfast advice`: what advice is in force for a node, and why."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from holdfast.errors import MisuseError
from holdfast.telemetry.advice import PPM, Advice, Follower


def advice(
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Output of the pipeline, or its advice/ directory."),
    ],
    node: Annotated[
        str, typer.Option(help="Only what concerns this node: its id, 32 hex digits.")
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show which advice is in force, which paths it avoids, and why. Without valid advice nodes work as before."""
    from holdfast.recording.advice import newest_advice

    folder = directory / "advice" if (directory / "advice").is_dir() else directory
    if not folder.is_dir():
        raise MisuseError(f"there is no directory {folder}; give the output of the pipeline")
    found = newest_advice(folder, node)
    now_us = time.time_ns() // 1000
    follower = Follower()
    if found.advice is not None:
        follower.take(found.advice, now_us)
    if json:
        typer.echo(msgspec.json.encode(_state(found.advice, follower, found.problems)).decode())
        return
    _show(Console(highlight=False), found.advice, follower, found.problems, found.path, now_us)


def _state(advice: Advice | None, follower: Follower, problems: tuple[str, ...]) -> dict[str, Any]:
    return {
        "in_force": advice is not None and not follower.problem,
        "problem": follower.problem,
        "damaged": problems,
        "avoided": follower.avoided(),
        "unsound": follower.unsound(),
        "advice": advice,
    }


def _show(
    console: Console,
    advice: Advice | None,
    follower: Follower,
    problems: tuple[str, ...],
    path: str,
    now_us: int,
) -> None:
    for problem in problems:
        console.print(f"[yellow]damaged[/yellow] {escape(problem)}", soft_wrap=True)
    if advice is None:
        console.print("No advice. Nodes work as before.")
        return
    if follower.problem:
        console.print(
            f"Not in force: {escape(follower.problem)}. Nodes work as before. {escape(path)}"
        )
        return
    left_s = (advice.valid_until_us - now_us) // 1_000_000
    console.print(
        f"Advice from snapshot {advice.snapshot}, valid for another {left_s} s. Paths are avoided from a risk of "
        f"{100 * advice.enter_ppm / PPM:.0f} % until it is below {100 * advice.leave_ppm / PPM:.0f} %, "
        f"at most {advice.moves_max} in the domain.",
        soft_wrap=True,
    )
    avoided = {item.path for item in follower.avoided()}
    table = Table("sender", "listener", "subnet", "transport", "risk", "avoided", "why")
    for risk in advice.risks:
        sender, _, listener, _, subnet, transport = risk.path
        table.add_row(
            sender[:8], listener[:8], escape(subnet), transport, f"{100 * risk.risk_ppm / PPM:.1f} %",
            "yes" if risk.path in avoided else "", escape(risk.why),
        )  # fmt: skip
    if advice.risks:
        console.print(table)
    for one in follower.unsound():
        share = 100 * one.bad_ppm / PPM
        console.print(f"Replicas should leave {one.node[:8]}: {share:.0f} % of its paths are bad")
    for window in advice.busy:
        if window.start_us <= now_us < window.end_us:
            share = 100 * window.probe_share_ppm / PPM
            console.print(
                f"Busy now: {window.node[:8]} {escape(window.adapter)}, {share:.0f} % of the probes"
            )
