"""The baseline: bare asyncio protocols that send messages and pass each one to a callback. No checksum, no
acknowledgement, no second path.

Both one write per message and many messages per write are measured; the better one counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from struct import Struct
from typing import Final, cast

from holdfast.wire.blocks import block_size, pack_block, unpack_block

_LENGTH: Final = Struct("<I")
PACK: Final = 64
BURST: Final = 1024
"""Messages between two yields to the event loop, for all measurements."""
DATAGRAM: Final = 1472

Take = Callable[[bytes | memoryview], None]


class SingleReceiver(asyncio.Protocol):
    """Length, message, length, message ..."""

    def __init__(self, take: Take) -> None:
        self._take = take
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        at, end, take, unpack = 0, len(data), self._take, _LENGTH.unpack_from
        while at + 4 <= end:
            stop = at + 4 + unpack(data, at)[0]
            if stop > end:
                break
            take(data[at + 4 : stop])
            at = stop
        self._rest = data[at:]


class PackedReceiver(asyncio.Protocol):
    """Blocks of messages: all lengths first."""

    def __init__(self, take: Take) -> None:
        self._take = take
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        at, end, take = 0, len(data), self._take
        while True:
            size = block_size(data, at)
            if not size or at + size > end:
                break
            for message in unpack_block(data, at):  # type: ignore[union-attr]  # our own blocks are whole
                take(message)
            at += size
        self._rest = data[at:]


class Sender(asyncio.Protocol):
    """Writes until `stop`, with the flow control of asyncio."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Those of uvloop are not of the class, but have the same methods.
        self.transport = cast(asyncio.Transport, transport)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def run(self, message: bytes, packed: bool, more: Callable[[], bool]) -> int:
        assert self.transport is not None
        write, framed = self.transport.write, _LENGTH.pack(len(message)) + message
        sent = 0
        while more():
            for _ in range(BURST // PACK):
                if packed:
                    write(pack_block([message] * PACK))
                else:
                    for _ in range(PACK):
                        write(framed)
                sent += PACK
            if not self._writable.is_set():
                await self._writable.wait()
            else:
                await asyncio.sleep(0)
        return sent


class DatagramReceiver(asyncio.DatagramProtocol):
    """One message per datagram, or a block of them."""

    def __init__(self, take: Take, packed: bool) -> None:
        self._take = take
        self._packed = packed

    def datagram_received(self, data: bytes, addr: object) -> None:
        if not self._packed:
            self._take(data)
            return
        for message in unpack_block(data):  # type: ignore[union-attr]  # our own blocks are whole
            self._take(message)


async def send_datagrams(
    transport: asyncio.DatagramTransport, message: bytes, packed: bool, more: Callable[[], bool]
) -> int:
    """As fast as the loop runs; what the receiver cannot keep up with is lost."""
    each = max(1, (DATAGRAM - 8) // (4 + len(message))) if packed else 1
    sent = 0
    while more():
        for _ in range(max(1, BURST // each)):
            transport.sendto(pack_block([message] * each) if packed else message)
            sent += each
        await asyncio.sleep(0)
    return sent
