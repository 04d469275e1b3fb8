"""A relay between an application and a Unix socket that can be cut, and can swallow answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path


class Relay:
    def __init__(self, target: Path) -> None:
        self.target = target
        self.connections = 0
        self.swallow_answers = False
        self.swallowed = asyncio.Event()
        """Data arrived from the daemon and was not passed on."""
        self._writers: list[asyncio.StreamWriter] = []

    def cut(self) -> None:
        """Close all current connections."""
        self.swallow_answers = False
        self.swallowed.clear()
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_unix_connection(self.target)
        except OSError:
            writer.transport.abort()
            return
        self.connections += 1
        self._writers += [writer, far_writer]
        await asyncio.gather(
            self._pass(reader, far_writer, False), self._pass(far_reader, writer, True)
        )
        for each in (writer, far_writer):
            each.transport.abort()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: bool
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                if answers and self.swallow_answers:
                    self.swallowed.set()
                    continue
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


@asynccontextmanager
async def cut_relay(target: Path, path: Path) -> AsyncIterator[Relay]:
    relay = Relay(target)
    server = await asyncio.start_unix_server(relay.serve, path)
    try:
        yield relay
    finally:
        relay.cut()
        server.close()
