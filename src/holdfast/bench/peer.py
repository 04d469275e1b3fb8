"""The receiving process of `holdfast bench links`, which starts it. It writes JSON lines to standard output.

It counts messages in a callback, one call each, and reports when the first and the last arrived (all processes of a
machine share the monotonic clock).
"""

from __future__ import annotations

import asyncio
import json
import sys
from time import monotonic_ns
from typing import Any

from holdfast.bench.raw import DatagramReceiver, PackedReceiver, SingleReceiver, Take
from holdfast.node.config import parse_config
from holdfast.runtime.collector import calm_collector
from holdfast.runtime.node import Node

PORT = 16


class Count:
    """The callback."""

    def __init__(self) -> None:
        self.messages = 0
        self.first_ns = 0

    def take(self, message: bytes | memoryview) -> None:
        self.messages += 1


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


async def settled(count: Count) -> tuple[int, int]:
    """Wait until nothing has arrived for a while; returns the number and the time of the last one."""
    last, last_ns = -1, 0
    idle = 0
    while idle < 10:
        await asyncio.sleep(0.02)
        if count.messages != last:
            last, last_ns, idle = count.messages, monotonic_ns(), 0
        elif last > 0:
            idle += 1
    return last, last_ns


async def serve(kind: str, config: str) -> None:
    count = Count()
    loop = asyncio.get_running_loop()
    if kind == "node":
        node = Node(parse_config(config))
        take: Take = count.take

        def took(_: Any, messages: list[memoryview]) -> None:
            for message in messages:
                take(message)

        async with node:
            node.listen(PORT, took, channel=True)
            node.listen(PORT, took, channel=False)
            calm_collector()
            say(ready=0)
            await conclude(count)
        return
    transport, packed = kind.split("-")
    if transport == "tcp":
        receiver = PackedReceiver if packed == "packed" else SingleReceiver
        server = await loop.create_server(lambda: receiver(count.take), "127.0.0.1", 0)
        say(ready=server.sockets[0].getsockname()[1])
        await conclude(count)
        server.close()
    else:
        endpoint, _ = await loop.create_datagram_endpoint(
            lambda: DatagramReceiver(count.take, packed == "packed"), ("127.0.0.1", 0)
        )
        say(ready=endpoint.get_extra_info("sockname")[1])
        await conclude(count)
        endpoint.close()


async def conclude(count: Count) -> None:
    """Answer each line on standard input (`count`) until it ends."""
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        messages, last_ns = await settled(count)
        say(messages=messages, last_ns=last_ns)
        count.messages = 0


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""))
