"""`holdfast demo`: a domain on this machine, hurt and healed before your eyes, then the pipeline's report.

`orderbook` is the application, `member` one node process, `domain` all of them, `story` what happens and what is
checked.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import mkdtemp
from typing import Annotated

import typer


def demo(
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir", help="Where to put everything; a new temporary directory if not given."
        ),
    ] = None,
    keep: Annotated[
        bool,
        typer.Option("--keep", help="Leave the nodes and the page up at the end, until Ctrl-C."),
    ] = False,
    rate: Annotated[int, typer.Option(help="Orders per second and node.", min=1, max=2000)] = 100,
    pipeline: Annotated[
        bool, typer.Option("--pipeline/--no-pipeline", help="Run the Spark pipeline at the end.")
    ] = True,
) -> None:
    """Five nodes, two subnets, a replicated order book; one path is broken, one node is killed; nothing is lost.

    Takes about two minutes, checks its own claims, exits 0 if all of them hold and 1 if not.
    """
    from holdfast.cli.demo.story import Story

    where = directory or Path(mkdtemp(prefix="holdfast-demo-"))
    sys.exit(0 if Story(where, rate, keep, pipeline).tell() else 1)
