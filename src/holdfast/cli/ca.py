"""`holdfast ca`: makes the certificates with which the nodes of a domain know each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from holdfast.errors import HoldfastError, MisuseError

app = typer.Typer(
    name="ca",
    help="Make the certificates with which the nodes of a domain know each other.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Days = Annotated[int, typer.Option(help="How long it is valid.", min=1, max=36500)]
Force = Annotated[bool, typer.Option("--force", help="Replace files that exist.")]


@app.command()
def init(
    domain: Annotated[str, typer.Option(help="The domain whose nodes it will vouch for.")],
    folder: Annotated[Path, typer.Option("--dir", help="Where ca.pem and ca.key go.")],
    days: Days = 3650,
    force: Force = False,
) -> None:
    """Make the authority of a domain: ca.pem for every node, ca.key for nobody but you."""
    from holdfast.transports.authority import make_authority, write_pair

    with _plain_errors():
        pair = make_authority(domain, days)
        certificate, key = write_pair(folder, "ca", pair, force)
    typer.echo(f"authority of domain {domain}, valid until {_day(pair.valid_until)}")
    typer.echo(f"  {certificate}  copy it to every node")
    typer.echo(f"  {key}  keep it secret and off the nodes: it makes members")


@app.command("issue")
def issue_command(
    name: Annotated[str, typer.Argument(help="The node's name, as in its configuration.")],
    folder: Annotated[Path, typer.Option("--dir", help="Where ca.pem and ca.key are.")],
    out: Annotated[Path | None, typer.Option(help="Where the new files go; else --dir.")] = None,
    days: Days = 365,
    force: Force = False,
) -> None:
    """Make the certificate and the key of one node."""
    from holdfast.transports.authority import issue, load_authority, write_pair

    with _plain_errors():
        if name == "ca":
            raise MisuseError(
                "a node cannot be called 'ca': its files would replace the authority's"
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
    """Say who a certificate is for, and until when it is valid."""
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


@contextmanager
def _plain_errors() -> Iterator[None]:
    """One line instead of a traceback; 2 for misuse, 1 for failure."""
    try:
        yield
    except HoldfastError as error:
        typer.echo(f"holdfast ca: {error}", err=True)
        raise typer.Exit(2 if isinstance(error, MisuseError) else 1) from None


def _day(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M}"
