"""The baseline of `holdfast bench dialog`: the minimum cost of exactly-once in-order delivery between two stores.

Two processes, one TCP connection, batches. The sender stores a batch, sends it, and deletes it when it is acknowledged;
the receiver stores it, acknowledges it, and deletes it with the next. Every commit is as durable as one of the dialog
store of that kind. There are no windows, no transactions of applications, no retransmission and no second dialog.

`queue_rate` is a second baseline for PostgreSQL: a queue in one table, so that each message is written once.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from typing import Final

from holdfast.bench.dialog_tables import open_table

_HEAD: Final = struct.Struct("<II")
AHEAD: Final = 8
"""The maximum number of unacknowledged batches."""
STARTED_S: Final = 30.0
"""How long the receiving process may take to start."""


def exactly(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionError("the other process has ended")
        data += part
    return bytes(data)


def receive(port: int, kind: str, place: str) -> None:
    """The receiving process."""
    table = open_table(kind, place, "far")
    connection = socket.create_connection(("127.0.0.1", port))
    done = at = 0
    while True:
        count, size = _HEAD.unpack(exactly(connection, _HEAD.size))
        if not count:
            table.close()
            return
        body = exactly(connection, count * size)
        table.commit([(at + i, body[i * size : (i + 1) * size]) for i in range(count)], done)
        done, at = at, at + count
        connection.sendall(_HEAD.pack(at, 0))


def bare_rate(kind: str, place: str, size: int, messages: int, batch: int = 1000) -> float:
    """Messages per second, pipelined. `place` is a directory, the socket of an express daemon, or a database."""
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(STARTED_S)
    port = server.getsockname()[1]
    child = subprocess.Popen(
        [sys.executable, "-m", "holdfast.bench.dialog_bare", str(port), kind, place]
    )
    try:
        connection, _ = server.accept()
        connection.settimeout(None)
        took = _send(connection, kind, place, size, messages, batch)
        child.wait(30)
    finally:
        child.kill()
        server.close()
    return messages * 1e9 / took


def _send(
    connection: socket.socket, kind: str, place: str, size: int, messages: int, batch: int
) -> int:
    """Send everything and wait until it is acknowledged; gives the time in nanoseconds."""
    table = open_table(kind, place, "near")
    acked = 0
    changed = threading.Condition()

    def listen() -> None:
        nonlocal acked
        try:
            while acked < messages:
                number, _ = _HEAD.unpack(exactly(connection, _HEAD.size))
                with changed:
                    acked = number
                    changed.notify()
        except OSError:
            return

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    body = os.urandom(size)
    begin = time.perf_counter_ns()
    for at in range(0, messages, batch):
        with changed:
            while at - acked > AHEAD * batch and thread.is_alive():
                changed.wait(1.0)
            free = acked
        table.commit([(at + i, body) for i in range(batch)], free)
        connection.sendall(_HEAD.pack(batch, size) + body * batch)
    thread.join()
    took = time.perf_counter_ns() - begin
    connection.sendall(_HEAD.pack(0, 0))
    table.close()
    return took


async def queue_rate(dsn: str, size: int, messages: int, batch: int = 1000) -> float:
    """Messages per second through a queue in one table of PostgreSQL: a batch is inserted, then deleted, each in one
    commit."""
    import asyncpg

    near, far = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    await near.execute("CREATE TABLE IF NOT EXISTS bare_bench (n bigint PRIMARY KEY, body bytea)")
    await near.execute("TRUNCATE bare_bench")
    body = os.urandom(size)
    arrived: asyncio.Queue[int] = asyncio.Queue()

    async def insert() -> None:
        for at in range(0, messages, batch):
            await near.copy_records_to_table(
                "bare_bench", records=[(at + i, body) for i in range(batch)]
            )
            arrived.put_nowait(at)

    async def take() -> None:
        for _ in range(0, messages, batch):
            at = await arrived.get()
            await far.fetch(
                "DELETE FROM bare_bench WHERE n >= $1 AND n < $2 RETURNING n, body", at, at + batch
            )

    begin = time.perf_counter_ns()
    await asyncio.gather(insert(), take())
    took = time.perf_counter_ns() - begin
    await near.execute("DROP TABLE bare_bench")
    await near.close()
    await far.close()
    return messages * 1e9 / took


if __name__ == "__main__":
    receive(int(sys.argv[1]), sys.argv[2], sys.argv[3])
