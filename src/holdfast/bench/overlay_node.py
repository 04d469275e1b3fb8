"""A node process of the overlay benchmark: serves a role, or only forwards messages."""

from __future__ import annotations

import asyncio
import sys

from holdfast.runtime.collector import calm_collector
from holdfast.runtime.loop import loop_factory
from holdfast.runtime.node import Node

ROLE = "echo"


async def main(config: str, serves: bool) -> None:
    async with Node(config) as node:
        if serves:
            await node.roles.serve(ROLE, lambda message: message.data)
        calm_collector()
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main(sys.argv[1], sys.argv[2] == "serve"))
