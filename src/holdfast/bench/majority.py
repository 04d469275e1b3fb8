"""A bare majority round trip: the baseline of locks and barriers.

A process sends a small request to three others, which send it back, and continues when two of them have answered:
together with itself, that is a majority of four. Several callers in the process do so concurrently. Nothing is stored,
checked or repeated.
"""

from __future__ import annotations

import asyncio
import sys
from time import monotonic_ns
from typing import Final

from holdfast.types import SECOND

OTHERS: Final = 3
NEEDED: Final = 2
REQUEST_BYTES: Final = 100
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


async def majority_trips_per_s(seconds: float, callers: int = 1) -> float:
    """Round trips per second of all callers together. Each makes one after the other."""
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
        return await _measure(ends, [Caller(number) for number in range(callers)], seconds)
    finally:
        for process in processes:
            process.kill()
            await process.wait()


class Caller:
    """One of several callers of a process. Its requests begin with its number."""

    def __init__(self, number: int) -> None:
        self.request = bytes([number]) + bytes(REQUEST_BYTES - 1)
        self.trips = 0
        self._answered = [0] * OTHERS
        self._wake = asyncio.Event()

    def heard(self, place: int) -> None:
        self._answered[place] += 1
        self._wake.set()

    async def call(self, writers: list[asyncio.StreamWriter], end_ns: int) -> None:
        while monotonic_ns() < end_ns:
            for writer in writers:
                writer.write(self.request)
            while sum(count > self.trips for count in self._answered) < NEEDED:
                self._wake.clear()
                await self._wake.wait()
            self.trips += 1


async def _measure(
    ends: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]],
    callers: list[Caller],
    seconds: float,
) -> float:
    async def listen(place: int, reader: asyncio.StreamReader) -> None:
        while answer := await reader.readexactly(REQUEST_BYTES):
            callers[answer[0]].heard(place)

    tasks = [asyncio.ensure_future(listen(k, reader)) for k, (reader, _) in enumerate(ends)]
    writers, start_ns = [writer for _, writer in ends], monotonic_ns()
    end_ns = start_ns + int(seconds * SECOND)
    await asyncio.gather(*(caller.call(writers, end_ns) for caller in callers))
    elapsed_ns = monotonic_ns() - start_ns
    for task in tasks:
        task.cancel()
    return sum(caller.trips for caller in callers) * SECOND / elapsed_ns


if __name__ == "__main__":
    asyncio.run(serve())
