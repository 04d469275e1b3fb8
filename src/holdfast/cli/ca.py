"""`holdfast ca`: create the certificates with which the nodes of a domain authenticate each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.node import Where, control_socket
from holdfast.errors import HoldfastError, MisuseError

app = typer.Typer(
    name="ca",
    help="Create the certificates with which the nodes of a domain authenticate each other.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Days = Annotated[int, typer.Option(help="Validity in days.", min=1, max=36500)]
Force = Annotated[bool, typer.Option("--force", help="Replace existing files.")]


@app.command()
def init(
    domain: Annotated[str, typer.Option(help="The domain of the nodes that it certifies.")],
    folder: Annotated[Path, typer.Option("--dir", help="Directory for ca.pem and ca.key.")],
    days: Days = 3650,
    force: Force = False,
) -> None:
    """Create the authority of a domain: ca.pem for every node, and ca.key, which must stay secret."""
    from holdfast.transports.authority import make_authority, write_pair

    with _plain_errors():
        pair = make_authority(domain, days)
        certificate, key = write_pair(folder, "ca", pair, force)
    typer.echo(f"authority of domain {domain}, valid until {_day(pair.valid_until)}")
    typer.echo(f"  {certificate}  copy it to every node")
    typer.echo(f"  {key}  keep it secret and off the nodes: it can issue certificates")


@app.command("issue")
def issue_command(
    name: Annotated[str, typer.Argument(help="The name of the node, as in its configuration.")],
    folder: Annotated[Path, typer.Option("--dir", help="Directory of ca.pem and ca.key.")],
    out: Annotated[
        Path | None, typer.Option(help="Directory for the new files; default: --dir.")
    ] = None,
    days: Days = 365,
    force: Force = False,
) -> None:
    """Issue the certificate and key of one node."""
    from holdfast.transports.authority import issue, load_authority, write_pair

    with _plain_errors():
        if name == "ca":
            raise MisuseError(
                "a node cannot be named 'ca': its files would replace those of the authority"
            )
        authority = load_authority(folder)
        pair = issue(authority, name, days)
        certificate, key = write_pair(out or folder, name, pair, force)
    typer.echo(f"node {name} of domain {authority.domain}, valid until {_day(pair.valid_until)}")
    typer.echo(f"  {certificate}")
    typer.echo(f"  {key}  for this node only")


@app.command()
def show(
    file: Annotated[Path, typer.Argument(help="A certificate: ca.pem or NAME.pem.")],
) -> None:
    """Show the owner and the validity of a certificate."""
    from holdfast.transports.authority import look_at

    with _plain_errors():
        seen = look_at(file)
    now = datetime.now(UTC)
    for one in seen:
        kind = "authority" if one.is_authority else "node"
        who = one.domain if one.is_authority else f"{one.name} of domain {one.domain or '(none)'}"
        left = (one.valid_until - now).days
        state = f"{left} days left" if now <= one.valid_until else "EXPIRED"
        if now < one.valid_from:
            state = "NOT VALID YET"
        typer.echo(f"{kind} {who}")
        typer.echo(f"  valid   {_day(one.valid_from)} to {_day(one.valid_until)} UTC, {state}")
        typer.echo(f"  serial  {one.serial}")


@app.command("reload")
def reload_certificate(where: Where) -> None:
    """Make a running node read its certificate files again; new connections use them."""
    from holdfast.runtime.control import ask

    with _plain_errors():
        ask(control_socket(where), {"do": "renew-credentials"})
    typer.echo("reloaded; existing connections continue")


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Print one line instead of a traceback; exit code 2 for misuse, 1 for failure."""
    try:
        yield
    except HoldfastError as error:
        typer.echo(f"holdfast ca: {error}", err=True)
        raise typer.Exit(2 if isinstance(error, MisuseError) else 1) from None


def _day(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M}"
