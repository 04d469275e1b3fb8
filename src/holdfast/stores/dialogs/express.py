"""The express store: state in the memory of a separate process, behind a Unix socket.

It survives the application's process. It does not survive its own, nor the machine. Requests are a length and a
msgpack array; each is answered in order. A commit carries the number that it makes: after a lost connection the
client asks for the daemon's number and knows whether the commit was made. A connection that is lost before a
transaction's commit request has arrived aborts it; one that is lost after is settled by the transaction's id.
"""

from __future__ import annotations

import contextlib
import os
import socket
import socketserver
import stat
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from holdfast.errors import (
    MisuseError,
    SetupError,
    StoreError,
    StoreFenced,
    StoreFull,
    TransactionConflict,
    TransactionInDoubt,
)
from holdfast.machine import Erase, Put, Write
from holdfast.stores.dialogs.memory import Shelf
from holdfast.stores.dialogs.port import DAEMON, Ownership

REQUEST_MAX: Final = 256 << 20
TIMEOUT_S: Final = 30.0
BYTES_MAX: Final = 1 << 34
_LENGTH: Final = struct.Struct("<I")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_ERRORS: Final[dict[str, type[StoreError]]] = {
    "fenced": StoreFenced,
    "conflict": TransactionConflict,
    "full": StoreFull,
    "error": StoreError,
}


class _ConnectionLost(StoreError):
    """The daemon is away, or went away during a request."""


class ExpressDialogStore:
    """A `DialogStore` in the daemon at a Unix socket."""

    durability = DAEMON

    def __init__(self, path: Path, name: str = "default", timeout_s: float = TIMEOUT_S) -> None:
        self.path = path
        self.name = name
        self._timeout_s = timeout_s
        self._epoch = 0
        self._seq = 0
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        self._closed = False

    def open(self) -> Ownership:
        store, epoch, seq = self._ask("open", self.name)
        self._epoch, self._seq = epoch, seq
        return Ownership(store, epoch)

    def load(self, table: str) -> list[tuple[bytes, bytes]]:
        return self._rows(table, b"", None)

    def read(self, table: str, first: bytes, stop: bytes) -> list[tuple[bytes, bytes]]:
        return self._rows(table, first, stop)

    def _rows(self, table: str, first: bytes, stop: bytes | None) -> list[tuple[bytes, bytes]]:
        try:
            rows = self._ask("read", self.name, table, first, stop)
        except _ConnectionLost:
            rows = self._ask("read", self.name, table, first, stop)
        return [(key, value) for key, value in rows]

    def commit(self, writes: Sequence[Write]) -> None:
        batch = [_packed(write) for write in writes]
        try:
            self._seq = self._ask("commit", self.name, self._epoch, self._seq, batch)
        except _ConnectionLost:
            self._after_loss(batch)

    def _after_loss(self, batch: list[Any]) -> None:
        """The connection was lost with a commit under way: it was made, or it is repeated."""
        try:
            _, epoch, seq = self._ask("where", self.name)
            # rule: D-12e
            if seq == self._seq + 1 and epoch == self._epoch:
                self._seq = seq
            elif seq == self._seq and epoch == self._epoch:
                self._seq = self._ask("commit", self.name, self._epoch, self._seq, batch)
            else:
                raise StoreError(
                    f"the express daemon at {self.path} was restarted or taken over: state of store {self.name!r} is "
                    "lost; partners will find out what is missing"
                )
        except _ConnectionLost as error:
            raise StoreError(
                f"the express daemon at {self.path} does not answer ({error}); the last commit may be there or not"
            ) from error

    def begin(self) -> ExpressTransaction:
        return ExpressTransaction(self)

    def insert(self, inserts: Sequence[Put], epoch: int) -> None:
        """Commit a transaction's rows in one request."""
        rows = [_packed(row) for row in inserts]
        try:
            self._ask("insert", self.name, epoch, rows)
        except _ConnectionLost as error:
            raise TransactionInDoubt(
                f"the connection to the express daemon at {self.path} was lost during a commit ({error}); ask for the "
                "outcome"
            ) from error

    def settle(self, tx: bytes) -> bool:
        return bool(self._ask("settle", self.name, tx))

    def close(self) -> None:
        self._closed = True
        with self._lock:
            self._drop()

    # -- the connection ------------------------------------------------------------------------------------------

    def _ask(self, *request: Any) -> Any:
        if self._closed:
            raise StoreError("the store is closed; nothing was done")
        with self._lock:
            try:
                answer = self._exchange(_encode(request))
            except OSError as error:
                self._drop()
                raise _ConnectionLost(
                    f"the express daemon at {self.path} does not answer ({error}); start it, or check the path"
                ) from error
        if answer[0] == "ok":
            return answer[1]
        raise _ERRORS[answer[0]](answer[1])

    def _exchange(self, request: bytes) -> Any:
        if self._socket is None:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(self._timeout_s)
            connection.connect(str(self.path))
            self._socket = connection
        self._socket.sendall(_LENGTH.pack(len(request)) + request)
        return _decode(_receive(self._socket))

    def _drop(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None


class ExpressTransaction:
    def __init__(self, store: ExpressDialogStore) -> None:
        self._store = store

    def run(self, act: Callable[[Any], Any]) -> Any:
        raise MisuseError("this store has no tables of the application; use SQLite or PostgreSQL")

    def commit(self, inserts: Sequence[Put], epoch: int) -> None:
        self._store.insert(inserts, epoch)

    def abort(self) -> None:
        """The daemon knows nothing of it yet."""


def _packed(write: Write) -> tuple[str, str, bytes, bytes]:
    if isinstance(write, Put):
        return "p", write.table, write.key, bytes(write.value)
    return "e", write.table, write.first, write.stop


def _unpacked(rows: list[Any]) -> list[Write]:
    return [Put(t, a, b) if kind == "p" else Erase(t, a, b) for kind, t, a, b in rows]


def _receive(connection: socket.socket) -> bytes:
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    if length > REQUEST_MAX:
        raise ConnectionError(f"a message of {length} bytes is above the limit")
    return _exactly(connection, length)


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = bytearray(count)
    view = memoryview(data)
    while count:
        got = connection.recv_into(view, count)
        if not got:
            raise ConnectionError("the connection was closed")
        view, count = view[got:], count - got
    return bytes(data)


# -- the daemon --------------------------------------------------------------------------------------------------


class ExpressDaemon:
    """Serves stores by name at a Unix socket."""

    def __init__(self, path: Path, bytes_max: int = BYTES_MAX) -> None:
        self._shelves: dict[str, Shelf] = {}
        self._guard = threading.Lock()
        self._bytes_max = bytes_max
        _remove_socket(path)
        daemon = self

        class Connection(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(OSError, msgspec.DecodeError):
                    while True:
                        answer = daemon.answer(_decode(_receive(self.request)))
                        self.request.sendall(_LENGTH.pack(len(answer)) + answer)

        class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
            daemon_threads = True

        before = os.umask(0o077)  # Only the owner's processes may connect.
        try:
            self._server = Server(str(path), Connection)
        finally:
            os.umask(before)

    def serve(self) -> None:
        self._server.serve_forever(0.05)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def shelf(self, name: str) -> Shelf:
        with self._guard:
            if name not in self._shelves:
                self._shelves[name] = Shelf(os.urandom(8))
            return self._shelves[name]

    def answer(self, request: Any) -> bytes:
        """Carry one request out. Whatever it is, the daemon goes on."""
        try:
            return _encode(("ok", self._carry_out(*request)))
        except StoreFenced as error:
            return _encode(("fenced", str(error)))
        except TransactionConflict as error:
            return _encode(("conflict", str(error)))
        except StoreFull as error:
            return _encode(("full", str(error)))
        except (StoreError, TypeError, ValueError, KeyError) as error:
            return _encode(("error", f"the request was refused ({error}); nothing took effect"))

    def _carry_out(self, what: str, name: str, *more: Any) -> Any:
        shelf = self.shelf(name)
        if what == "open":
            ownership = shelf.open()
            return ownership.store, ownership.epoch, shelf.seq
        if what == "where":
            return shelf.store, shelf.epoch, shelf.seq
        if what == "read":
            return shelf.read(*more)
        if what == "commit":
            epoch, seq, rows = more
            if epoch == shelf.epoch and seq != shelf.seq:
                raise StoreError(f"commit {seq + 1} does not follow {shelf.seq}")
            shelf.commit(_unpacked(rows), epoch, self._bytes_max)
            return shelf.seq
        if what == "insert":
            epoch, rows = more
            inserts = [write for write in _unpacked(rows) if isinstance(write, Put)]
            return shelf.insert(inserts, epoch)
        if what == "settle":
            return shelf.settle(*more)
        raise StoreError(f"unknown request {what!r}")


def _remove_socket(path: Path) -> None:
    """A socket that an earlier daemon left behind. Raises `SetupError` if that daemon still runs: it has the state."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.stat().st_mode):
            return
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(path)) == 0:
                raise SetupError(
                    f"an express store already runs at {path}; this one was not started; stop that one, or choose "
                    "another socket"
                )
        path.unlink()


def main(arguments: Sequence[str]) -> int:
    """Run the daemon: `python -m holdfast.stores.dialogs.express SOCKET`."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m holdfast.stores.dialogs.express SOCKET\n")
        return 2
    try:
        daemon = ExpressDaemon(Path(arguments[0]))
    except (SetupError, OSError) as error:
        sys.stderr.write(f"the express store was not started: {error}\n")
        return 1
    with contextlib.suppress(KeyboardInterrupt):
        daemon.serve()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
