"""A bare majority round trip: the baseline of locks and barriers.

A process sends a small request to three others, which send it back, and continues when two of them have answered:
together with itself, that is a majority of four. Nothing is stored, checked or repeated.
"""

from __future__ import annotations

import asyncio
import sys
from time import monotonic_ns
from typing import Final

from holdfast.types import SECOND

OTHERS: Final = 3
NEEDED: Final = 2
REQUEST: Final = bytes(100)
"""About the size of an entry for a lock."""


async def serve() -> None:
    """Echo everything; the port is printed."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(
        None, sys.stdin.read
    )  # until the benchmark ends


async def majority_trips_per_s(seconds: float) -> float:
    """Round trips per second, one after the other."""
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-m", "holdfast.bench.majority",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )
        for _ in range(OTHERS)
    ]  # fmt: skip
    try:
        ends = []
        for process in processes:
            assert process.stdout is not None
            port = int(await process.stdout.readline())
            ends.append(await asyncio.open_connection("127.0.0.1", port))
        return await _measure(ends, seconds)
    finally:
        for process in processes:
            process.kill()
            await process.wait()


async def _measure(
    ends: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]], seconds: float
) -> float:
    answered: dict[int, int] = {}
    wake = asyncio.Event()

    async def listen(place: int, reader: asyncio.StreamReader) -> None:
        while await reader.readexactly(len(REQUEST)):
            answered[place] = answered.get(place, 0) + 1
            wake.set()

    tasks = [asyncio.ensure_future(listen(k, reader)) for k, (reader, _) in enumerate(ends)]
    trips, start_ns = 0, monotonic_ns()
    while monotonic_ns() - start_ns < seconds * SECOND:
        trips += 1
        for _, writer in ends:
            writer.write(REQUEST)
        while sum(count >= trips for count in answered.values()) < NEEDED:
            wake.clear()
            await wake.wait()
    elapsed_ns = monotonic_ns() - start_ns
    for task in tasks:
        task.cancel()
    return trips * SECOND / elapsed_ns


if __name__ == "__main__":
    asyncio.run(serve())
