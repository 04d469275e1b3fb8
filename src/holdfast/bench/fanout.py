"""The baseline of a group: every member sends every message to every other over bare asyncio streams, and passes each
arriving message, and its own, to a callback. No order, no acknowledgement, no retransmission.

Both one write per message and many messages per write are measured; the better one counts.
"""

from __future__ import annotations

import asyncio
from struct import Struct
from time import monotonic_ns
from typing import Any, Final, cast

from holdfast.bench.raw import BURST, PACK, PackedReceiver, SingleReceiver
from holdfast.types import SECOND
from holdfast.wire.blocks import pack_block

_LENGTH: Final = Struct("<I")


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.writable = asyncio.Event()
        self.writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Those of uvloop are not of the class, but have the same methods.
        self.transport = cast(asyncio.Transport, transport)

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()


class FanOut:
    """One member. `ports` are those of all members, `place` is the index of this one."""

    def __init__(self, ports: list[int], place: int, packed: bool) -> None:
        self._ports = ports
        self._place = place
        self._packed = packed
        self._connections: list[_Connection] = []
        self._count = 0

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        receiver = PackedReceiver if self._packed else SingleReceiver
        await loop.create_server(
            lambda: receiver(self._take), "127.0.0.1", self._ports[self._place]
        )

    def _take(self, message: bytes | memoryview) -> None:
        self._count += 1

    async def connect(self, _request: dict[str, Any]) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        for place, port in enumerate(self._ports):
            if place != self._place:
                _transport, connection = await loop.create_connection(
                    _Connection, "127.0.0.1", port
                )
                self._connections.append(connection)
        return {}

    async def send(self, request: dict[str, Any]) -> dict[str, Any]:
        message = bytes(int(request["size"]))
        framed = _LENGTH.pack(len(message)) + message
        end_ns = monotonic_ns() + int(float(request["seconds"]) * SECOND)
        sent, take = 0, self._take
        while monotonic_ns() < end_ns:
            for _ in range(BURST // PACK):
                if self._packed:
                    block = pack_block([message] * PACK)
                    for connection in self._connections:
                        connection.transport.write(block)  # type: ignore[union-attr]  # connected
                else:
                    for connection in self._connections:
                        write = connection.transport.write  # type: ignore[union-attr]  # connected
                        for _ in range(PACK):
                            write(framed)
                for _ in range(PACK):
                    take(message)
                sent += PACK
            await asyncio.sleep(0)
            for connection in self._connections:
                await connection.writable.wait()
        return {"sent": sent}

    async def settled(self, _: dict[str, Any]) -> dict[str, Any]:
        seen, last_ns = -1, monotonic_ns()
        while self._count != seen:
            seen, last_ns = self._count, monotonic_ns()
            await asyncio.sleep(0.1)
        return {"count": self._count, "last_ns": last_ns}
