"""`holdfast node`, `status`, `fault`, `heal`: run a node, and talk to one that runs on this machine."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from holdfast.cli.printing import terminal, words
from holdfast.errors import MisuseError

if TYPE_CHECKING:
    from holdfast.runtime.node import Node
    from holdfast.web.server import WebServer

Where = Annotated[
    Path, typer.Argument(help="The node's configuration file, or its data directory.", exists=True)
]


def run(
    config: Annotated[Path, typer.Argument(help="The node's TOML file.")],
    quiet: Annotated[bool, typer.Option("--quiet", help="Log warnings only.")] = False,
) -> None:
    """Run a node until it is told to stop (Ctrl-C, SIGTERM)."""
    logging.basicConfig(
        level=logging.WARNING if quiet else logging.INFO,
        format="%(asctime)s %(levelname)s %(message)s",
    )
    from holdfast.runtime.loop import run as run_loop

    run_loop(_run(config))


async def _run(path: Path) -> None:
    # Imported here: a node needs much that `holdfast --help` does not.
    from holdfast.node.config import split_address
    from holdfast.runtime.collector import calm_collector
    from holdfast.runtime.node import Node
    from holdfast.runtime.parts import load_config
    from holdfast.web.server import WebServer

    config = load_config(path)
    node = Node(config)
    page: WebServer | None = None
    try:
        async with node:
            if config.web.address:
                host, port = split_address(config.web.address, "[web] address")
                page = WebServer(host, port, node.status, config.web.token or None)
                await page.start()
                typer.echo(f"page: {page.url}")
            typer.echo(
                f"node {config.name} of domain {config.domain} runs, incarnation {node.incarnation}"
            )
            calm_collector()
            await _until_told(node)
    finally:
        if page is not None:
            await page.close()


async def _until_told(node: Node) -> None:
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told.set)
    stopped = asyncio.ensure_future(node.wait_stopped())
    waiting = asyncio.ensure_future(told.wait())
    done, pending = await asyncio.wait({stopped, waiting}, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    for task in done:
        task.result()


def control_socket(where: Path) -> Path:
    """The control socket of the node that `where` (file or directory) describes."""
    from holdfast.runtime.parts import load_config

    if where.is_dir():
        return where / "control.sock"
    config = load_config(where)
    if not config.data:
        raise MisuseError(
            f"{where} names no data directory, so there is no socket to ask; nothing was asked"
        )
    return Path(config.data) / "control.sock"


def status(
    where: Where,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, for programs.")] = False,
) -> None:
    """Show what a node on this machine knows: members, paths, where its traffic goes and why, groups."""
    from holdfast.runtime.control import ask

    answer = ask(control_socket(where), {"do": "status"})
    if as_json:
        typer.echo(json.dumps(answer))
        return
    console = terminal()
    node = answer["node"]
    console.print(
        words(
            (node["name"], "bold"),
            f" of domain {node['domain']}, incarnation {node['incarnation']}, "
            f"up {node['uptime_s']:.0f} s, security {node['security']}",
        )
    )
    console.print(_members(answer))
    console.print(_paths(answer))
    console.print(_traffic(answer))
    for group in answer["groups"]:
        console.print(
            words(
                "group ",
                (group["name"], "bold"),
                f": {group['state']}, leader {group.get('leader')}, "
                f"term {group.get('term')}, position {group.get('position')}",
            )
        )


def _members(answer: dict[str, Any]) -> Table:
    table = Table("member", "state", "incarnation", "adapters")
    for member in answer["members"]:
        adapters = ", ".join(f"{a['subnet']} {a['address']}" for a in member["adapters"])
        table.add_row(member["name"], member["state"], str(member["incarnation"]), adapters)
    return table


def _paths(answer: dict[str, Any]) -> Table:
    table = Table("path", "transport", "state", "size", "loss", "round trip")
    for path in answer["paths"]:
        soft = path["alive"] and path["size"] < path["size_max"]
        state = "soft error" if soft else "ok" if path["alive"] else "dead"
        size = f"{path['size']} of {path['size_max']}" if path["size_max"] else "-"
        table.add_row(
            f"{path['sender']} -> {path['listener']} ({path['subnet']})",
            path["transport"],
            state,
            size,
            f"{path['loss_ppm'] / 10_000:.1f} %",
            f"{path['rtt_us']} µs",
            style="yellow" if soft else "" if path["alive"] else "red",
        )
    return table


def _traffic(answer: dict[str, Any]) -> Table:
    table = Table("traffic", "path in use", "moves", "why")
    for link in answer["links"]:
        placed = [(f"channel {row['channel']}", row) for row in link["channels"]]
        placed += [(f"datagrams {row['port']}", row) for row in link.get("datagrams", ())]
        for name, row in placed:
            refused = f"; {row['refused']} refused: {row['refusal']}" if row.get("refused") else ""
            why = row.get("reason", "") + refused
            table.add_row(f"{name} to {link['peer']}", row["path"] or "-", str(row["moves"]), why)
    return table


def fault(
    where: Where,
    kind: Annotated[str, typer.Argument(help="over_size, drop_all or loss.")],
    size: Annotated[int, typer.Option(help="over_size: the largest packet that passes.")] = 0,
    loss_ppm: Annotated[int, typer.Option(help="loss: how many of a million are lost.")] = 0,
    adapter: Annotated[str, typer.Option(help="Only on this adapter.")] = "",
    to: Annotated[str, typer.Option(help="Only to this host.")] = "",
    transport: Annotated[str, typer.Option(help="Only tcp, udp, frag or multicast.")] = "",
) -> None:
    """Break what a node sends, on purpose (its configuration must allow it: lab.faults = true)."""
    from holdfast.runtime.control import ask

    request: dict[str, Any] = {"do": "fault", "kind": kind, "size": size, "loss_ppm": loss_ppm}
    request |= {
        k: v for k, v in (("adapter", adapter), ("host", to), ("transport", transport)) if v
    }
    typer.echo(json.dumps(ask(control_socket(where), request)))


def heal(where: Where) -> None:
    """Take back every fault that `holdfast fault` made at this node."""
    from holdfast.runtime.control import ask

    typer.echo(json.dumps(ask(control_socket(where), {"do": "heal"})))
