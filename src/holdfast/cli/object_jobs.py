"""Following a job of a node: a progress bar, and a clean stop with Ctrl-C."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from holdfast.cli.node import control_socket
from holdfast.cli.printing import terminal
from holdfast.errors import HoldfastError

POLL_S: Final = 0.1


def ask_node(where: Path, **request: Any) -> dict[str, Any]:
    from holdfast.runtime.control import ask

    return ask(control_socket(where), request, 30.0)


def run_job(
    where: Path, what: str, title: str, quiet: bool = False, **request: Any
) -> dict[str, Any]:
    """Start a job, show its progress, and return its result. Ctrl-C and SIGTERM stop the job."""
    with _interrupted_by_sigterm():
        job = ask_node(where, do="object-start", what=what, **request)["job"]
        return _follow(where, job, title, quiet)


def _follow(where: Path, job: int, title: str, quiet: bool) -> dict[str, Any]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
    )
    console = terminal(errors=True)
    with Progress(
        *columns, TimeRemainingColumn(), console=console, disable=quiet or not console.is_terminal
    ) as bar:
        shown = bar.add_task(title, total=None)
        try:
            while True:
                state = ask_node(where, do="object-job", job=job)
                if state["state"] == "done":
                    result: dict[str, Any] = state["result"]
                    return result
                if state["state"] == "stopped":
                    raise HoldfastError(f"{title}: stopped; the steps that were done stay")
                total = state["total"] if state["total"] > 0 else None
                text = f"{title} {state['text']}".strip()
                bar.update(shown, completed=state["done"], total=total, description=text)
                time.sleep(POLL_S)
        except KeyboardInterrupt:
            ask_node(where, do="object-stop", job=job)
            raise HoldfastError(f"{title}: stopped; the steps that were done stay") from None


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """The job runs on the node. A command that is terminated, for example by `timeout`, must not leave it behind."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
