"""Real nodes with dialogs on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.conformance.worlds import free_port

from holdfast.node.config import parse_config
from holdfast.runtime.loop import loop_factory
from holdfast.runtime.node import Node


def config_text(name: str, number: int, port: int, data: Path, dialogs: str) -> str:
    return f"""
domain = "dialogs"
name = "{name}"
data = "{data / name}"
join = ["127.0.41.1:{port}"]
security.mode = "plain"
telemetry.enabled = false
[[adapter]]
name = "red"
address = "127.0.41.{number}:{port}"
{dialogs}
"""


SQLITE = """
[[dialogs.store]]
name = "default"
kind = "sqlite"
[[dialogs.store]]
name = "memory"
kind = "memory"
[[dialogs.route]]
service = "orders"
nodes = ["ben"]
[dialogs.profile.batch]
priority = 1
quota_messages = 5000
quota_bytes = 400000000
"""


@asynccontextmanager
async def nodes(
    directory: Path,
    *names: str,
    dialogs: str = SQLITE,
    port: int = 0,
    special: dict[str, str] | None = None,
) -> AsyncIterator[list[Node]]:
    """Start nodes that know each other; stop them at the end. `special` contains the sections of some of them."""
    port = port or free_port([f"127.0.41.{n + 1}" for n in range(len(names))])
    made: list[Node] = []
    try:
        for number, name in enumerate(names, 1):
            section = (special or {}).get(name, dialogs)
            node = Node(parse_config(config_text(name, number, port, directory, section)))
            await node.start()
            made.append(node)
        for node in made:
            await node.until_up(*[name for name in names if name != node.config.name])
        yield made
    finally:
        for node in made:
            await node.stop()


def run(work: Callable[[], Awaitable[Any]], timeout_s: float = 25.0) -> Any:
    """Run on the event loop that nodes use, with a time limit."""

    async def limited() -> Any:
        async with asyncio.timeout(timeout_s):
            return await work()

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(limited())
