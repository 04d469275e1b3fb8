"""`holdfast node`, `status`, `fault`, `heal`: run a node, and control one that runs on this machine."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer
from rich.table import Table

from holdfast.cli.printing import exit_code, terminal, words
from holdfast.errors import HoldfastError, MisuseError

if TYPE_CHECKING:
    from holdfast.node.config import NodeConfig
    from holdfast.runtime.node import Node
    from holdfast.web.server import WebServer

STYLES: Final = {"ok": "", "dead": "red", "stale": "dim", "unknown": "dim"}
"""How the states of paths are shown; all others are yellow."""

Where = Annotated[
    Path,
    typer.Argument(help="The configuration file or the data directory of a node.", exists=True),
]


log = logging.getLogger("holdfast")


class LogFormat(StrEnum):
    text = "text"
    json = "json"


class LogLevel(StrEnum):
    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


def run(
    config: Annotated[Path, typer.Argument(help="The configuration file of the node.")],
    quiet: Annotated[bool, typer.Option("--quiet", help="Same as --log-level warning.")] = False,
    log_format: Annotated[
        LogFormat | None,
        typer.Option(
            help="Log text for people, or one JSON object per line. Default: log.format of the configuration."
        ),
    ] = None,
    log_level: Annotated[
        LogLevel | None,
        typer.Option(help="Log nothing below this level. Default: log.level of the configuration."),
    ] = None,
) -> None:
    """Run a node until Ctrl-C or SIGTERM."""
    # Imported here, because `holdfast --help` does not need it.
    from holdfast.node.config import LogConfig
    from holdfast.runtime.logs import install
    from holdfast.runtime.loop import run as run_loop
    from holdfast.runtime.parts import load_config

    if quiet and log_level is not None:
        raise MisuseError("--quiet and --log-level exclude each other; nothing was started")
    level = LogLevel.warning if quiet else log_level
    given = {key: value.value for key, value in (("format", log_format), ("level", level)) if value}
    settings = msgspec.structs.replace(LogConfig(), **given)
    try:
        node_config = load_config(config)
        settings = msgspec.structs.replace(node_config.log, **given)
        install(settings, {"node": node_config.name, "domain": node_config.domain})
        run_loop(_run(msgspec.structs.replace(node_config, log=settings)))
    except HoldfastError as error:
        if settings.format == "text":
            raise
        install(settings)  # the configuration could not be read
        extra = {"event": "node_ended", "subsystem": "node", "error": type(error).__name__}
        log.error("%s", error, extra=extra)
        raise typer.Exit(exit_code(error)) from None


async def _run(config: NodeConfig) -> None:
    from holdfast.node.config import split_address
    from holdfast.runtime.collector import calm_collector
    from holdfast.runtime.node import Node
    from holdfast.web.server import WebServer

    node = Node(config)
    page: WebServer | None = None
    try:
        async with node:
            told = _stop_signal()  # before the node is announced: it may be stopped at once
            if config.web.address:
                host, port = split_address(config.web.address, "[web] address")
                page = WebServer(
                    host,
                    port,
                    node.status,
                    config.web.token or None,
                    tree=node.roles.walk_tree,
                    results=_results(config.web.results),
                )
                await page.start()
                _say(config, f"page: {page.url}", "page_started", url=page.url)
            text = f"node {config.name} of domain {config.domain} is running, incarnation {node.incarnation}"
            _say(config, text, "node_running", incarnation=node.incarnation)
            calm_collector()
            await _until_told(node, told)
    finally:
        if page is not None:
            await page.close()


def _results(directory: str) -> Callable[[], dict[str, Any]] | None:
    """Reads what the pipeline published, if the page is to show it."""
    if not directory:
        return None
    from holdfast.pipeline.results import PublishedResults

    return PublishedResults(directory).read


def _say(config: NodeConfig, text: str, event: str, **known: Any) -> None:
    """A line for people. A program that reads the log gets it as a record, so that every line is JSON."""
    if config.log.format == "json":
        log.info("%s", text, extra={"event": event, "subsystem": "node", **known})
    else:
        typer.echo(text)


def _stop_signal() -> asyncio.Event:
    """Set by Ctrl-C and SIGTERM."""
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told.set)
    return told


async def _until_told(node: Node, told: asyncio.Event) -> None:
    stopped = asyncio.ensure_future(node.wait_stopped())
    waiting = asyncio.ensure_future(told.wait())
    done, pending = await asyncio.wait({stopped, waiting}, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    for task in done:
        task.result()


def control_socket(where: Path) -> Path:
    """The control socket of the node given by `where` (file or directory)."""
    from holdfast.runtime.parts import load_config

    if where.is_dir():
        return where / "control.sock"
    config = load_config(where)
    if not config.data:
        raise MisuseError(
            f"{where} has no data directory, so the node has no control socket; nothing was "
            "requested"
        )
    return Path(config.data) / "control.sock"


def status(
    where: Where,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, for programs.")] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Only report whether the domain is healthy; exit code 1 if it is not."
        ),
    ] = False,
) -> None:
    """Show whether the domain is healthy, and the members, paths, placement of traffic and groups that a node knows."""
    from holdfast.health.problems import headline, problems_of
    from holdfast.runtime.control import ask

    answer = ask(control_socket(where), {"do": "status"})
    problems = problems_of(answer)
    if as_json:
        typer.echo(json.dumps(answer | {"problems": [problem.text for problem in problems]}))
        raise typer.Exit(1 if check and problems else 0)
    console = terminal()
    style = "green" if not problems else "red" if problems[0].level == "dead" else "yellow"
    line = headline(answer)
    console.print(words((line, style)), soft_wrap=True)
    told = bool(problems) and problems[0].text in line and not check
    for problem in problems[1:] if told else problems:
        console.print(f"  {problem.text}", highlight=False, markup=False)
    if check:
        raise typer.Exit(1 if problems else 0)
    node = answer["node"]
    console.print(
        words(
            (node["name"], "bold"),
            f" of domain {node['domain']}, incarnation {node['incarnation']}, "
            f"up {node['uptime_s']:.0f} s, security {node['security']}",
        )
    )
    advice = answer.get("advice", {})
    if advice.get("source"):
        avoided = len(advice["avoided"])
        said = f"in force, {avoided} avoided" if advice["in_force"] else advice["problem"]
        console.print(words("advice: ", said))
    for table in (_members(answer), _paths(answer), _traffic(answer)):
        if table.rows:
            console.print(table)
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
    table = Table("path", "kind", "state", "size", "loss", "rtt")
    rank = {"dead": 0, "soft error": 1, "stale": 2, "unknown": 3, "ok": 4}
    for path in sorted(answer["paths"], key=lambda path: rank.get(path["state"], 1)):
        state = path["state"]
        size = f"{path['size']} of {path['size_max']}" if path["size_max"] else "-"
        table.add_row(
            f"{path['sender']} -> {path['listener']} ({path['subnet']})",
            path["transport"],
            state,
            size,
            f"{path['loss_ppm'] / 10_000:.1f} %",
            f"{path['rtt_us'] / 1000:.1f} ms",
            style=STYLES.get(state, "yellow"),
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
    what: Annotated[
        str,
        typer.Argument(help='The fault, in quotes: "over 1000", "loss 20% only udp", "blackout".'),
    ],
    adapter: Annotated[str, typer.Option(help="Only on this adapter.")] = "",
    to: Annotated[str, typer.Option(help="Only to this host.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Inject a fault into what a node sends (needs lab.faults = true in its configuration)."""
    from holdfast.runtime.control import ask

    request: dict[str, Any] = {"do": "fault", "fault": what}
    request |= {key: value for key, value in (("adapter", adapter), ("host", to)) if value}
    _print_faults(ask(control_socket(where), request), as_json)


def heal(
    where: Where, as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False
) -> None:
    """Remove all faults that `holdfast fault` injected at this node."""
    from holdfast.runtime.control import ask

    _print_faults(ask(control_socket(where), {"do": "heal"}), as_json)


def _print_faults(answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(answer))
        return
    for line in answer["faults"] or ["no faults are active"]:
        typer.echo(line)
