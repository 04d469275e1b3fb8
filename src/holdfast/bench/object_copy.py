"""The baseline of the object benchmark: a plain TCP copy to and from a file of another process.

P <size>    size bytes follow; they are written and synced, then acknowledged
G <size>    size bytes of the file are sent back
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from pathlib import Path
from time import monotonic_ns
from typing import Final

from holdfast.types import SECOND

_HEAD: Final = struct.Struct(">cQ")
PIECE: Final = 256 << 10


def serve(path: str) -> None:
    """The other process: one connection, until it is closed."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        connection, _ = server.accept()
        with connection:
            while len(head := connection.recv(_HEAD.size, socket.MSG_WAITALL)) == _HEAD.size:
                verb, size = _HEAD.unpack(head)
                if verb == b"P":
                    _receive(connection, path, size)
                else:
                    _send(connection, path, size)


def _receive(connection: socket.socket, path: str, size: int) -> None:
    buffer = memoryview(bytearray(PIECE))
    with Path(path).open("wb") as out:
        while size:
            count = connection.recv_into(buffer[: min(PIECE, size)])
            out.write(buffer[:count])
            size -= count
        out.flush()
        os.fdatasync(out.fileno())
    connection.sendall(b"k")


def _send(connection: socket.socket, path: str, size: int) -> None:
    with Path(path).open("rb") as source:
        while size:
            piece = source.read(min(PIECE, size))
            connection.sendall(piece)
            size -= len(piece)


class PlainCopy:
    """The client side, in the benchmark process."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))

    def put(self, data: bytes) -> float:
        """Bytes per second until they are on the disk of the other process."""
        begun = monotonic_ns()
        self._socket.sendall(_HEAD.pack(b"P", len(data)))
        self._socket.sendall(data)
        self._socket.recv(1)
        return len(data) * SECOND / (monotonic_ns() - begun)

    def get(self, size: int) -> float:
        begun = monotonic_ns()
        self._socket.sendall(_HEAD.pack(b"G", size))
        buffer = memoryview(bytearray(size))
        at = 0
        while at < size:
            at += self._socket.recv_into(buffer[at:])
        return size * SECOND / (monotonic_ns() - begun)

    def close(self) -> None:
        self._socket.close()


if __name__ == "__main__":
    serve(sys.argv[1])
