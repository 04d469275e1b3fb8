"""The baseline of `holdfast bench dialog`: the minimum cost of exactly-once in-order delivery between SQLite files.

Two processes, one TCP connection, batches. The sender stores a batch, sends it, and deletes it when it is acknowledged;
the receiver stores it, acknowledges it, and deletes it with the next. Every commit is synced. There are no windows, no
transactions of applications, no retransmission and no second dialog.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final

_HEAD: Final = struct.Struct("<II")
AHEAD: Final = 8
"""The maximum number of unacknowledged batches."""


def connect(path: str) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA secure_delete = FAST")  # As the dialog store.
    db.execute("CREATE TABLE IF NOT EXISTS m (n INTEGER PRIMARY KEY, body BLOB)")
    return db


def exactly(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionError("the other process has ended")
        data += part
    return bytes(data)


def receive(port: int, path: str) -> None:
    """The receiving process."""
    db = connect(path)
    connection = socket.create_connection(("127.0.0.1", port))
    done = at = 0
    while True:
        count, size = _HEAD.unpack(exactly(connection, _HEAD.size))
        if not count:
            return
        body = exactly(connection, count * size)
        rows = [(at + i, body[i * size : (i + 1) * size]) for i in range(count)]
        db.execute("BEGIN IMMEDIATE")
        db.executemany("INSERT INTO m VALUES (?, ?)", rows)
        db.execute("DELETE FROM m WHERE n < ?", (done,))
        db.execute("COMMIT")
        done, at = at, at + count
        connection.sendall(_HEAD.pack(at, 0))


def bare_rate(directory: Path, size: int, messages: int, batch: int = 1000) -> float:
    """Messages per second, pipelined."""
    server = socket.create_server(("127.0.0.1", 0))
    child = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "holdfast.bench.dialog_bare",
            str(server.getsockname()[1]),
            str(directory / "far"),
        ]
    )
    connection, _ = server.accept()
    db = connect(str(directory / "near"))
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
            while at - acked > AHEAD * batch:
                changed.wait()
            free = acked
        db.execute("BEGIN IMMEDIATE")
        db.executemany("INSERT INTO m VALUES (?, ?)", [(at + i, body) for i in range(batch)])
        db.execute("DELETE FROM m WHERE n < ?", (free,))
        db.execute("COMMIT")
        connection.sendall(_HEAD.pack(batch, size) + body * batch)
    thread.join()
    took = time.perf_counter_ns() - begin
    connection.sendall(_HEAD.pack(0, 0))
    child.wait()
    return messages * 1e9 / took


async def bare_postgres_rate(dsn: str, size: int, messages: int, batch: int = 1000) -> float:
    """Messages per second through a table of one PostgreSQL: a batch is inserted, then deleted, each in one commit."""
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
    receive(int(sys.argv[1]), sys.argv[2])
