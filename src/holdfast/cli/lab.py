"""`holdfast lab up | break | heal | status | exec | down`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from holdfast.cli.printing import terminal, words
from holdfast.errors import MisuseError

app = typer.Typer(
    name="lab",
    help="Run a small network on this machine and inject faults into it (root, Linux).",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Name = Annotated[str, typer.Option("--name", help="The lab; several can run at once.")]
AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]
RunDir = Annotated[
    Path, typer.Option("--run-dir", help="Directory for the state of labs.", show_default=True)
]
_RUN = Path("/run/holdfast-lab")


@app.command()
def up(
    name: Name = "lab",
    hosts: Annotated[int, typer.Option(help="Number of hosts: n1, n2, ...")] = 3,
    subnets: Annotated[int, typer.Option(help="Number of subnets: red, blue, ...")] = 2,
    mtu: Annotated[int, typer.Option(help="Of every cable.")] = 1500,
    nodes: Annotated[
        bool, typer.Option("--nodes", help="Run a Holdfast node on each host.")
    ] = False,
    as_json: AsJson = False,
    run_dir: RunDir = _RUN,
) -> None:
    """Create a lab: hosts, and a switch with a port per host on every subnet."""
    from holdfast.lab.lab import Lab

    lab = Lab.up(name, hosts, subnets, mtu, run_dir)
    if nodes:
        try:
            lab.start_nodes()
        except BaseException:
            Lab.down(name, run_dir)
            raise
    if as_json:
        typer.echo(json.dumps(lab.status()))
        return
    typer.echo(f"lab {name}: hosts {', '.join(lab.plan.hosts)} on {', '.join(lab.plan.subnets)}")
    if nodes:
        typer.echo(f"  nodes are running; their files and logs are in {lab.directory / 'nodes'}")
    typer.echo(f'  holdfast lab break --name {name} "red n1->n2 over 1000"')


@app.command("break")
def break_command(
    faults: Annotated[
        list[str], typer.Argument(help='The faults, each in quotes: "red n1->n2 over 1000".')
    ],
    name: Name = "lab",
    as_json: AsJson = False,
    run_dir: RunDir = _RUN,
) -> None:
    """Inject faults on some paths: all of them, or none.

    WHERE is a subnet and FROM->TO or FROM<->TO; each may be *. WHAT is blackout, loss 20%, over 1000, mtu 800, filter
    udp (tcp, multicast, frag), pattern 5555 (at 100), every 4, packets 50, rate 32000 queue 8000, slow 5ms jitter 2ms,
    reorder 5% by 3ms, duplicate 1%, corrupt 1%. It may be followed, in this order, by: only udp, share 25%, flap
    200ms/1s.
    """
    from holdfast.lab.lab import Lab

    lab = Lab.open(name, run_dir)
    names = lab.break_(*faults)
    made = {one["name"]: one["text"] for one in lab.status()["faults"] if one["name"] in names}
    if as_json:
        typer.echo(json.dumps({"faults": made}))
        return
    for fault, text in made.items():
        typer.echo(f"{fault}: {text}")


@app.command()
def heal(
    faults: Annotated[
        list[str] | None, typer.Argument(help="Names of faults; default: all.")
    ] = None,
    name: Name = "lab",
    as_json: AsJson = False,
    run_dir: RunDir = _RUN,
) -> None:
    """Remove faults."""
    from holdfast.lab.lab import Lab

    gone = Lab.open(name, run_dir).heal(*(faults or ()))
    if as_json:
        typer.echo(json.dumps({"healed": gone}))
    else:
        typer.echo(f"healed: {', '.join(gone) or 'nothing was broken'}")


@app.command()
def status(
    name: Annotated[str, typer.Option("--name", help="The lab; default: all.")] = "",
    as_json: AsJson = False,
    run_dir: RunDir = _RUN,
) -> None:
    """Show labs: hosts, faults with the number of matched packets, and nodes."""
    from holdfast.lab.lab import Lab
    from holdfast.lab.tools import need_root

    need_root()
    shown = [Lab.open(one, run_dir).status() for one in ([name] if name else Lab.names(run_dir))]
    if as_json:
        typer.echo(json.dumps({"labs": shown}))
        return
    if not shown:
        typer.echo("there is no lab; create one with `holdfast lab up`")
    console = terminal()
    for lab in shown:
        about = f", MTU {lab['mtu']}, state in {lab['directory']}"
        console.print(words((f"lab {lab['name']}", "bold"), about))
        console.print(_hosts(lab))
        console.print(_faults(lab) if lab["faults"] else "nothing is broken")


def _hosts(lab: dict[str, Any]) -> Table:
    table = Table("host", "addresses", "node")
    for host, one in lab["hosts"].items():
        addresses = ", ".join(f"{subnet} {address}" for subnet, address in one["addresses"].items())
        table.add_row(host, addresses, one["node"])
    return table


def _faults(lab: dict[str, Any]) -> Table:
    table = Table("fault", "what", "packets hit")
    for fault in lab["faults"]:
        table.add_row(fault["name"], fault["text"], str(fault["packets"]))
    return table


@app.command("exec", context_settings={"ignore_unknown_options": True})
def exec_command(
    host: Annotated[str, typer.Argument(help="The host to run it on.")],
    command: Annotated[list[str], typer.Argument(help="The program, after --.")],
    name: Name = "lab",
    run_dir: RunDir = _RUN,
) -> None:
    """Run a program on a host: `holdfast lab exec n1 -- ip addr`. Returns its exit code."""
    from holdfast.lab.lab import Lab

    lab = Lab.open(name, run_dir)
    process: subprocess.Popen[Any] = lab.popen(host, command)
    try:
        code = process.wait()
    except KeyboardInterrupt:
        code = process.wait()
    raise typer.Exit(code if code >= 0 else 128 - code)


@app.command()
def down(
    name: Name = "lab",
    every: Annotated[bool, typer.Option("--all", help="All labs.")] = False,
    as_json: AsJson = False,
    run_dir: RunDir = _RUN,
) -> None:
    """Remove a lab completely, including the remains of a crash."""
    from holdfast.lab.lab import Lab
    from holdfast.lab.tools import need_root

    need_root()
    names = Lab.names(run_dir) if every else [name]
    if every and not names:
        raise MisuseError("there is no lab; nothing was removed")
    gone = {one: Lab.down(one, run_dir) for one in names}
    if as_json:
        typer.echo(json.dumps({"removed": gone}))
        return
    for one, namespaces in gone.items():
        typer.echo(f"lab {one} was removed: {len(namespaces)} namespaces")
