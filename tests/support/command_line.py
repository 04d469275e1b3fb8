"""A domain of real processes with a group `book`, and the command line, for tests from the outside."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic_ns, sleep
from typing import Any

from tests.conformance.worlds import free_port

from holdfast.runtime.control import ask

PATIENCE_S = 120
NAMES = ("n1", "n2", "n3")


def holdfast(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *map(str, arguments)],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip


@contextmanager
def book_domain(
    directory: Path, extra: str = "", names: Sequence[str] = NAMES
) -> Iterator[dict[str, Path]]:
    """Nodes with a replica each. Returns their configuration files; their data is next to them."""
    ports = {name: free_port(["127.0.0.1"]) for name in names}
    files = {name: directory / f"{name}.toml" for name in names}
    for name, file in files.items():
        file.write_text(
            f"""
domain = "book"
name = "{name}"
data = "{directory / name}"
join = ["127.0.0.1:{ports[names[0]]}"]
[security]
mode = "plain"
{extra}
[[adapter]]
name = "lo"
address = "127.0.0.1:{ports[name]}"
[[group]]
name = "book"
voters = {json.dumps(list(names))}
application = "holdfast.sim.ledger:Ledger"
"""
        )
    with ExitStack() as stack:
        for file in files.values():
            process = subprocess.Popen(
                [sys.executable, "-m", "holdfast", "node", str(file), "--quiet"],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            stack.callback(process.wait)
            stack.callback(process.terminate)
        until(files[names[0]], lambda now: len(parts(now)) == len(names) and leader(now))
        agreed(files)
        yield files


def until(where: Path, holds: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """Poll the status of a node until a condition holds; returns that status."""
    deadline_ns = monotonic_ns() + PATIENCE_S * 1_000_000_000
    while monotonic_ns() < deadline_ns:
        now = status(where)
        if now["groups"] and holds(now):
            return now
        sleep(0.05)
    raise AssertionError(now)


def status(where: Path) -> dict[str, Any]:
    """The status of a node; without groups while it starts."""
    try:
        now: dict[str, Any] = ask(where.with_suffix("") / "control.sock", {"do": "status"})
    except Exception:  # noqa: BLE001 the node is starting
        return {"groups": []}
    return now


def agreed(files: dict[str, Path]) -> dict[str, Any]:
    """Wait until every node knows the leader, itself included; returns the status of the first node."""

    def holds(now: dict[str, Any]) -> bool:
        name = leader(now)
        others = [status(file) for file in files.values()]
        known = [leader(other) for other in others if other["groups"]]
        return bool(name) and known == [name] * len(files)

    return until(next(iter(files.values())), holds)


def parts(now: dict[str, Any]) -> dict[str, str]:
    """The members of the group, each as voter or learner, from a status."""
    return {member["name"]: member["part"] for member in now["groups"][0]["view"]}


def leader(now: dict[str, Any]) -> str:
    """The leader of the group; empty while there is none."""
    return str(now["groups"][0]["leader"])
