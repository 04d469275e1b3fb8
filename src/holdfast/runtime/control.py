"""How a program on the same machine talks to a running node: `<data dir>/control.sock`.

One request is one line of JSON, `{"do": "status"}`; so is its answer. An answer with `error` says what was wrong and,
in `kind`, which of the errors in `holdfast.errors` it is. The socket belongs to the node's user (mode 0600): who can
open it may do everything, so there is no other check.
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
"""A client that says nothing, or does not take its answer, for this long makes room for another."""

RETURN_S: Final = 5.0
"""How long the end waits for requests that are cancelled."""

SOCKET_PATH_BYTES_MAX: Final = 107
"""What fits into `sockaddr_un` on Linux, without the zero at the end."""

Answer = dict[str, Any]
Handler = Callable[[dict[str, Any]], Awaitable[Answer] | Answer]

_logger = logging.getLogger(__name__)


class ControlServer:
    """The node's side. A handler gets the whole request and returns the answer, at once or as a coroutine.

    Requests of one client are answered one after the other. Two nodes with the same data directory are kept apart by
    the lock of the store, which is taken before; here only what a killed node left behind is told from a live one.
    """

    def __init__(self, path: str | Path, handlers: Mapping[str, Handler]) -> None:
        self.path = Path(path)
        self._handlers = dict(handlers)
        self._clients: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._inode = 0
        self._closed = False

    def add(self, handlers: Mapping[str, Handler]) -> None:
        """Answer more kinds of requests, or some of them in another way."""
        self._handlers.update(handlers)

    async def start(self) -> None:
        """Listen. Raises `AddressInUse` when a live node has the socket, `SetupError` when it cannot be made."""
        assert self._server is None, "started twice"
        listener = _listen(self.path)
        self._inode = self.path.stat().st_ino
        self._closed = False
        self._server = await asyncio.start_unix_server(
            self._welcome, sock=listener, limit=REQUEST_BYTES_MAX
        )

    async def close(self) -> None:
        """Stop: requests that are running are cancelled, the socket file is removed. A handler that does not care is
        left to itself: others wait for the node to end."""
        if self._server is None:
            return
        # The file goes first: who comes now is told that no node is there, and does not wait.
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
            _logger.error("a control request has not ended within %g s; it is left alone", RETURN_S)

    async def __aenter__(self) -> ControlServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._closed:
            writer.transport.abort()  # it came while the node went
            return
        task = asyncio.current_task()
        assert task is not None
        full = len(self._clients) >= CLIENTS_MAX
        self._clients.add(task)
        # A drain then waits until all is gone, so an answer is never cut off by the end of the connection.
        writer.transport.set_write_buffer_limits(high=0)
        try:
            if full:
                await _tell(writer, _refusal(HoldfastError(_TOO_MANY)))
            else:
                await self._serve(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # The client is gone or idle, or the node stops: there is nobody to tell.
        finally:
            self._clients.discard(task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                async with asyncio.timeout(IDLE_S_MAX):
                    line = await reader.readline()
            except ValueError:
                # What follows is the rest of that line, so this client cannot be understood any more.
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
            _logger.exception("control request failed: %r", line[:200])
            return _refusal(
                HoldfastError(
                    f"a fault in the node, not in the request: {failure!r}; it may have taken effect "
                    "in part; the node's log has the details"
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
            raise MisuseError(
                f"this node does not know how to do {str(do)[:80]!r}; it knows: {known}; nothing was done"
            )
        return handler, request


def ask(path: str | Path, request: Mapping[str, Any], timeout_s: float = 5.0) -> Answer:
    """Send one request to the node behind `path` and wait for its answer.

    Raises `NodeStopped` when no node is there, `SetupError` when this user may not ask, and what the node answered
    with when it refused. A node that does not answer in time raises `HoldfastError`.
    """
    path = Path(path)
    deadline_ns = monotonic_ns() + int(timeout_s * SECOND)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            _connect(connection, path, deadline_ns)
            line = _exchange(connection, msgspec.json.encode(request) + b"\n", deadline_ns)
        except TimeoutError:
            raise HoldfastError(
                f"the node at {path} did not answer within {timeout_s:g} s; it is busy or stuck, and may still do "
                "what it was asked"
            ) from None
        except OSError as failure:
            raise HoldfastError(
                f"the node at {path} ended the conversation ({failure.strerror}); it may have done what it was asked"
            ) from None
    return _understand_answer(path, line)


def _connect(connection: socket.socket, path: Path, deadline_ns: int) -> None:
    try:
        with _address(path) as address:
            connection.settimeout(_remaining_s(deadline_ns))
            connection.connect(address)
    except FileNotFoundError:
        raise NodeStopped(
            f"no node runs here: {path} does not exist; nothing was asked. Start the node, or name its data directory"
        ) from None
    except ConnectionRefusedError:
        raise NodeStopped(
            f"no node runs here: the one that made {path} was killed; nothing was asked. Start the node again"
        ) from None
    except PermissionError:
        raise SetupError(
            f"{path} belongs to another user; nothing was asked. Ask as the user that runs the node"
        ) from None
    except BlockingIOError:
        raise HoldfastError(
            f"the node at {path} is busy: more clients wait than it takes; nothing was asked. Try again"
        ) from None
    except NotADirectoryError:
        raise NodeStopped(
            f"no node runs here: {path.parent} is no directory; nothing was asked"
        ) from None


def _exchange(connection: socket.socket, request: bytes, deadline_ns: int) -> bytes:
    # A node that refuses a request that is too long stops reading, but it has said why.
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
            raise HoldfastError(f"the node's answer is longer than {ANSWER_BYTES_MAX} bytes")
    return b"".join(parts)


def _understand_answer(path: Path, line: bytes) -> Answer:
    if not line.endswith(b"\n"):
        raise HoldfastError(
            f"the node at {path} stopped before it had answered; it may have done what it was asked"
        )
    try:
        answer = msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.DecodeError as reason:
        raise HoldfastError(
            f"what answered at {path} is not a Holdfast node of this version ({reason})"
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


_TOO_MANY: Final = f"{CLIENTS_MAX} clients talk to this node already; nothing was done; try again"
_TOO_LONG: Final = f"the request is longer than {REQUEST_BYTES_MAX} bytes; nothing was done"


def _refusal(failure: HoldfastError) -> bytes:
    return msgspec.json.encode({"error": str(failure), "kind": type(failure).__name__})


async def _tell(writer: asyncio.StreamWriter, answer: bytes) -> None:
    writer.write(answer + b"\n")
    async with asyncio.timeout(IDLE_S_MAX):
        await writer.drain()


def _listen(path: Path) -> socket.socket:
    """A listening socket at `path`, in the place of one that nobody listens to any more."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Before the bind, so that there is no moment at which others could connect.
        os.fchmod(listener.fileno(), 0o600)
        with _address(path) as address:
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
            f"the control socket {path} cannot be made ({failure.strerror}); the node was not started"
        ) from None
    except BaseException:
        listener.close()
        raise
    return listener


def _remove_stale(path: Path, address: str) -> None:
    if not path.is_socket():
        raise SetupError(
            f"{path} is in the way and not a socket; move it; the node was not started"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(address)
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except BlockingIOError:
            pass  # Its queue of clients is full: alive, and busy.
    raise _in_use(path)


def _in_use(path: Path) -> AddressInUse:
    return AddressInUse(
        f"a node that is running has {path}; this one was not started. Stop that one, or use another data directory"
    )


@contextmanager
def _address(path: Path) -> Iterator[str]:
    """What to bind or connect to. A path that is too long for a socket is named through its open directory."""
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
