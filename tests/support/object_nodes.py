"""Real nodes that hold objects, in one process or in separate processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

from tests.conformance.worlds import free_port

from holdfast import Node, parse_config
from holdfast.errors import HoldfastError

T = TypeVar("T")


def config_text(
    directory: Path,
    name: str,
    number: int,
    port: int,
    root: Sequence[str],
    extra: str = "",
    objects: str = "",
) -> str:
    names = ", ".join(f'"{one}"' for one in root)
    return f"""
domain = "objects"
name = "{name}"
data = "{directory}/{name}"
join = ["127.0.83.1:{port}"]
security.mode = "plain"
telemetry.enabled = false
{extra}
[objects]
root = [{names}]
space_reserve_mb = 1
replace_after_s = 2.0
{objects}
[[adapter]]
name = "red"
address = "127.0.83.{number}:{port}"
measure = []
"""


class Process:
    """A node in a separate process, which can be killed."""

    def __init__(self, directory: Path, name: str, config: str) -> None:
        self._file = directory / f"{name}.toml"
        self._file.write_text(config)
        self._log = directory / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "holdfast", "node", str(self._file), "--quiet"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ.copy())

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None


@asynccontextmanager
async def object_nodes(
    directory: Path, names: str = "abc", root: str = "abc", extra: str = "", objects: str = ""
) -> AsyncIterator[list[Node]]:
    """Nodes that know each other and can create objects."""
    port = object_port()
    nodes = [
        Node(parse_config(config_text(directory, name, number, port, root, extra, objects)))
        for number, name in enumerate(names, 1)
    ]
    for node in nodes:
        await node.start()
    try:
        for node in nodes:
            await node.until_up(*[n for n in names if n != node.config.name], timeout_s=30)
        await ready(nodes)
        yield nodes
    finally:
        for node in nodes:
            await node.stop()


def object_port() -> int:
    return free_port([f"127.0.83.{number}" for number in range(1, 7)])


async def ready(nodes: Sequence[Node]) -> None:
    """Wait until every node knows the capacity of every other one."""
    await until(
        lambda: all(
            len(node.objects.service.machine.members.offers) == len(nodes) for node in nodes
        )
    )


async def eventually(attempt: Callable[[], Awaitable[T]], limit_s: float = 30.0) -> T:
    """Repeat a request until it returns something. Refusals are retried, because nodes start and stop."""
    async with asyncio.timeout(limit_s):
        while True:
            with suppress(HoldfastError):
                found = await attempt()
                if found:
                    return found
            await asyncio.sleep(0.02)


async def until(condition: Callable[[], object], limit_s: float = 60.0) -> None:
    """Poll until a condition holds that no event announces."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 it has no event
            await asyncio.sleep(0.02)
