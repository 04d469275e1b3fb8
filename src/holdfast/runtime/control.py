"""The control socket of a running node, for programs on the same machine: `<data dir>/control.sock`.

A request is one line of JSON, `{"do": "status"}`; so is its answer. In an answer with `error`, `kind` names the
exception class in `holdfast.errors`. The socket belongs to the user of the node (mode 0600): a process that can open it
may do everything, so there is no other check.
"""

from __future__ import annotations

import asyncio
import errno
import inspect
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic_ns
from typing import Any, Final

import msgspec

from holdfast import errors
from holdfast.errors import AddressInUse, HoldfastError, MisuseError, NodeStopped, SetupError
from holdfast.types import SECOND

REQUEST_BYTES_MAX: Final = 64 << 10
ANSWER_BYTES_MAX: Final = 64 << 20
CLIENTS_MAX: Final = 32
IDLE_S_MAX: Final = 60.0
"""A client that is idle, or does not read its answer, for this long is disconnected."""

RETURN_S: Final = 5.0
"""How long a stop waits for cancelled requests."""

SOCKET_PATH_BYTES_MAX: Final = 107
"""The maximum length in `sockaddr_un` on Linux, without the terminating zero."""

Answer = dict[str, Any]
Handler = Callable[[dict[str, Any]], Awaitable[Answer] | Answer]

_logger = logging.getLogger(__name__)


class ControlServer:
    """The server side. A handler gets the whole request and returns the answer, directly or as a coroutine.

    Requests of one client are answered in order. Two nodes with the same data directory are prevented by the lock of
    the store, which is taken before; here a socket left by a killed node is distinguished from a live one.
    """

    def __init__(self, path: str | Path, handlers: Mapping[str, Handler]) -> None:
        self.path = Path(path)
        self._handlers = dict(handlers)
        self._clients: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._inode = 0
        self._closed = False

    def add(self, handlers: Mapping[str, Handler]) -> None:
        """Add or replace handlers."""
        self._handlers.update(handlers)

    async def start(self) -> None:
        """Listen. Raises `AddressInUse` if a live node has the socket, `SetupError` if it cannot be created."""
        assert self._server is None, "started twice"
        listener = listen_at(self.path)
        self._inode = self.path.stat().st_ino
        self._closed = False
        self._server = await asyncio.start_unix_server(
            self._welcome, sock=listener, limit=REQUEST_BYTES_MAX
        )

    async def close(self) -> None:
        """Stop: running requests are cancelled, and the socket file is removed. A handler that ignores the cancellation
        is abandoned, because the node must stop."""
        if self._server is None:
            return
        # The file first: a new client then sees that there is no node, and does not wait.
        with suppress(OSError):
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()
        self._server.close()
        self._closed = True
        clients = list(self._clients)
        for client in clients:
            client.cancel()
        self._server = None
        if clients and (await asyncio.wait(clients, timeout=RETURN_S))[1]:
            _logger.error(
                "a control request did not end within %g s and is abandoned",
                RETURN_S,
                extra={"event": "request_abandoned", "subsystem": "control"},
            )

    async def __aenter__(self) -> ControlServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._closed:
            writer.transport.abort()  # it arrived while the node stopped
            return
        task = asyncio.current_task()
        assert task is not None
        full = len(self._clients) >= CLIENTS_MAX
        self._clients.add(task)
        # A drain then waits until all is sent, so an answer is never truncated by the end of the connection.
        writer.transport.set_write_buffer_limits(high=0)
        try:
            if full:
                await _tell(writer, _refusal(HoldfastError(_TOO_MANY)))
            else:
                await self._serve(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # the client has disconnected or is idle, or the node stops: no client can be informed
        finally:
            self._clients.discard(task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                async with asyncio.timeout(IDLE_S_MAX):
                    line = await reader.readline()
            except ValueError:
                # The rest of that line follows, so further requests of this client cannot be parsed.
                await _tell(writer, _refusal(MisuseError(_TOO_LONG)))
                return
            if not line:
                return
            await _tell(writer, await self._answer(line))

    async def _answer(self, line: bytes) -> bytes:
        try:
            handler, request = self._understand(line)
            answer = handler(request)
            if inspect.isawaitable(answer):
                answer = await answer
            return msgspec.json.encode(answer)
        except HoldfastError as failure:
            return _refusal(failure)
        except Exception as failure:
            _logger.exception(
                "control request failed: %r",
                line[:200],
                extra={"event": "request_failed", "subsystem": "control"},
            )
            return _refusal(
                HoldfastError(
                    f"internal error in the node: {failure!r}; the request may have taken effect in part; "
                    "see the log of the node"
                )
            )

    def _understand(self, line: bytes) -> tuple[Handler, dict[str, Any]]:
        try:
            request = msgspec.json.decode(line, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as reason:
            raise MisuseError(
                f"the request is not a JSON object on one line ({reason}); nothing was done"
            ) from None
        do = request.get("do")
        handler = self._handlers.get(do) if isinstance(do, str) else None
        if handler is None:
            known = ", ".join(sorted(self._handlers)) or "nothing"
            raise MisuseError(f"unknown request {str(do)[:80]!r}; known: {known}; nothing was done")
        return handler, request


def ask(path: str | Path, request: Mapping[str, Any], timeout_s: float = 5.0) -> Answer:
    """Send one request to the node behind `path` and wait for its answer.

    Raises `NodeStopped` if there is no node, `SetupError` if this user may not ask, and the error of the node if it
    refused. A node that does not answer in time raises `HoldfastError`.
    """
    path = Path(path)
    deadline_ns = monotonic_ns() + int(timeout_s * SECOND)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            _connect(connection, path, deadline_ns)
            line = _exchange(connection, msgspec.json.encode(request) + b"\n", deadline_ns)
        except TimeoutError:
            raise HoldfastError(
                f"the node at {path} did not answer within {timeout_s:g} s; it is busy or hangs, and "
                "may still execute the request"
            ) from None
        except OSError as failure:
            raise HoldfastError(
                f"the node at {path} closed the connection ({failure.strerror}); the request may have "
                "taken effect"
            ) from None
    return _understand_answer(path, line)


def _connect(connection: socket.socket, path: Path, deadline_ns: int) -> None:
    try:
        with socket_address(path) as address:
            connection.settimeout(_remaining_s(deadline_ns))
            connection.connect(address)
    except FileNotFoundError:
        raise NodeStopped(
            f"no node is running here: {path} does not exist; nothing was requested. Start the "
            "node, or give its data directory"
        ) from None
    except ConnectionRefusedError:
        raise NodeStopped(
            f"no node is running here: the one that created {path} was killed; nothing was "
            "requested. Restart the node"
        ) from None
    except PermissionError:
        raise SetupError(
            f"{path} belongs to another user; nothing was requested. Run this as the user of the "
            "node"
        ) from None
    except BlockingIOError:
        raise HoldfastError(
            f"the node at {path} is busy: too many clients are waiting; nothing was requested. "
            "Try again"
        ) from None
    except NotADirectoryError:
        raise NodeStopped(
            f"no node is running here: {path.parent} is not a directory; nothing was requested"
        ) from None


def _exchange(connection: socket.socket, request: bytes, deadline_ns: int) -> bytes:
    # A node that refuses a request that is too long stops reading, but has sent the reason.
    with suppress(BrokenPipeError, ConnectionResetError):
        connection.settimeout(_remaining_s(deadline_ns))
        connection.sendall(request)
    parts: list[bytes] = []
    size = 0
    while not parts or not parts[-1].endswith(b"\n"):
        connection.settimeout(_remaining_s(deadline_ns))
        part = connection.recv(1 << 20)
        if not part:
            break
        parts.append(part)
        size += len(part)
        if size > ANSWER_BYTES_MAX:
            raise HoldfastError(f"the answer of the node is longer than {ANSWER_BYTES_MAX} bytes")
    return b"".join(parts)


def _understand_answer(path: Path, line: bytes) -> Answer:
    if not line.endswith(b"\n"):
        raise HoldfastError(
            f"the node at {path} stopped before it answered; the request may have taken effect"
        )
    try:
        answer = msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.DecodeError as reason:
        raise HoldfastError(
            f"the program that answered at {path} is not a Holdfast node of this version ({reason})"
        ) from None
    if "error" in answer:
        kind = getattr(errors, str(answer.get("kind")), HoldfastError)
        known = isinstance(kind, type) and issubclass(kind, HoldfastError)
        raise (kind if known else HoldfastError)(str(answer["error"]))
    return answer


def _remaining_s(deadline_ns: int) -> float:
    remaining_ns = deadline_ns - monotonic_ns()
    if remaining_ns <= 0:
        raise TimeoutError
    return remaining_ns / SECOND


_TOO_MANY: Final = (
    f"{CLIENTS_MAX} clients are already connected to this node; nothing was done; try again"
)
_TOO_LONG: Final = f"the request is longer than {REQUEST_BYTES_MAX} bytes; nothing was done"


def _refusal(failure: HoldfastError) -> bytes:
    return msgspec.json.encode({"error": str(failure), "kind": type(failure).__name__})


async def _tell(writer: asyncio.StreamWriter, answer: bytes) -> None:
    writer.write(answer + b"\n")
    async with asyncio.timeout(IDLE_S_MAX):
        await writer.drain()


def listen_at(path: Path) -> socket.socket:
    """A listening socket at `path` that belongs to this user alone, replacing one without a listener."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Before the bind, so that others can never connect.
        os.fchmod(listener.fileno(), 0o600)
        with socket_address(path) as address:
            try:
                listener.bind(address)
            except OSError as failure:
                if failure.errno != errno.EADDRINUSE:
                    raise
                _remove_stale(path, address)
                listener.bind(address)
        listener.listen(CLIENTS_MAX)
        listener.setblocking(False)
    except OSError as failure:
        listener.close()
        if failure.errno == errno.EADDRINUSE:
            raise _in_use(path) from None
        raise SetupError(
            f"the control socket {path} cannot be created ({failure.strerror}); the node was not "
            "started"
        ) from None
    except BaseException:
        listener.close()
        raise
    return listener


def _remove_stale(path: Path, address: str) -> None:
    if not path.is_socket():
        raise SetupError(
            f"{path} exists and is not a socket; move it away; the node was not started"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(address)
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except BlockingIOError:
            pass  # its queue of clients is full: alive and busy
    raise _in_use(path)


def _in_use(path: Path) -> AddressInUse:
    return AddressInUse(
        f"a running node uses {path}; this one was not started. Stop that one, or use another "
        "data directory"
    )


@contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """The address to bind or connect to. A path that is too long for a socket is given through its open directory."""
    whole = os.fspath(path)
    if len(os.fsencode(whole)) <= SOCKET_PATH_BYTES_MAX:
        yield whole
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        short = f"/proc/self/fd/{directory}/{path.name}"
        if len(os.fsencode(short)) > SOCKET_PATH_BYTES_MAX:
            raise SetupError(
                f"the name {path.name!r} is too long for a socket ({SOCKET_PATH_BYTES_MAX} bytes at most)"
            )
        yield short
    finally:
        os.close(directory)
