"""`holdfast demo`: a domain on this machine with injected faults, followed by the report of the pipeline.

`orderbook` is the application, `member` one node process, `domain` all of them, and `scenario` the steps and checks.
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
        typer.Option("--dir", help="Directory for all files; default: a new temporary directory."),
    ] = None,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep", help="Keep the nodes and the page running at the end, until Ctrl-C."
        ),
    ] = False,
    rate: Annotated[int, typer.Option(help="Orders per second and node.", min=1, max=2000)] = 100,
    pipeline: Annotated[
        bool, typer.Option("--pipeline/--no-pipeline", help="Run the Spark pipeline at the end.")
    ] = True,
) -> None:
    """Run five nodes with a replicated order book, break a path, kill a node, and check that nothing is lost.

    Takes about two minutes. The exit code is 0 if all checks pass and 1 if not.
    """
    from holdfast.demo.scenario import Scenario

    where = directory or Path(mkdtemp(prefix="holdfast-demo-"))
    sys.exit(0 if Scenario(where, rate, keep, pipeline).run() else 1)
