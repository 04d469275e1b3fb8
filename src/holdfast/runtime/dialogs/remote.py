"""Dialogs of a node in another process of the same machine: the same API as `node.dialogs`, through a Unix socket.

async with connect_dialogs("ann.toml") as dialogs:
    dialog = await dialogs.open("orders", wait=False)
    await dialog.send(b"an order")

The application may exit after a send: the daemon has stored the message and delivers it. A lost connection is made
again. Requests that were not answered are repeated, and take effect once while the daemon runs. After a restart of the
daemon, a commit is settled by asking; a plain send that was under way raises `DialogError`, because its outcome is
unknown.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Final

import msgspec

from holdfast import errors
from holdfast.dialog import ports
from holdfast.dialog.config import read_profile
from holdfast.errors import DialogError, HoldfastError, MisuseError, NodeStopped, SetupError
from holdfast.runtime.control import socket_address
from holdfast.runtime.dialogs.api import DialogApi, Look, Returned
from holdfast.runtime.dialogs.daemon_frames import (
    COMMIT,
    LISTEN,
    LOOK,
    OUTCOME,
    UNLISTEN,
    Announced,
    Answered,
    Ask,
    Bye,
    Failed,
    GiveUp,
    Happened,
    Hello,
    Known,
    Tell,
    Welcome,
    encode,
    framed,
    from_daemon,
    read_frame,
    unwrap,
    wrap,
)
from holdfast.runtime.dialogs.handles import Dialog
from holdfast.runtime.dialogs.remote_transaction import RemoteTransaction
from holdfast.runtime.dialogs.stores import PostgresWorker
from holdfast.runtime.tracing import find_tracing

RETRY_S: Final = 0.05
RETRY_S_MAX: Final = 2.0
KNOWN_EVERY: Final = 32
PENDING_MAX: Final = 1024
"""Requests under way, receives apart; more wait."""
RECEIVES_MAX: Final = 768
"""Receives under way. One more is refused: if it waited, it could wait for a message that is there."""
REPEATABLE: Final = frozenset(
    (LOOK, LISTEN, UNLISTEN, OUTCOME, "Take", "Reactivate", "Complete", "Deactivate")
)
"""Requests that may be asked again of a daemon that was restarted."""


class Pending:
    """A request that was not answered yet."""

    __slots__ = ("ask", "future", "returned")

    def __init__(self, ask: Ask, future: asyncio.Future[Any], returned: Returned) -> None:
        self.ask = ask
        self.future = future
        self.returned = returned


class RemoteDialogs(DialogApi):
    """Dialogs that a daemon hosts. Use it as an async context manager."""

    def __init__(self, path: Path, timeout_s: float = 10.0) -> None:
        super().__init__()
        self.path = path
        self.welcome = Welcome(b"", b"", "", [], {})
        self._application = secrets.token_bytes(16)
        self._timeout_s = timeout_s
        self._ids = count(1)
        self._pending: dict[int, Pending] = {}
        self._slots = asyncio.Semaphore(PENDING_MAX)
        self._receives = 0
        self._known = 0
        self._last = 0
        self._writer: asyncio.StreamWriter | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._welcomed = asyncio.Event()
        self._closed: HoldfastError | None = None
        self._workers: dict[str, PostgresWorker] = {}
        self.connections = 0
        """How often the daemon was connected to. A transaction does not outlive its connection."""

    # -- life ----------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> RemoteDialogs:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Connect. Raises `NodeStopped` when there is no daemon within the time limit."""
        self.tracing = find_tracing()
        self._keeper = asyncio.ensure_future(self._keep_connected())
        welcomed = asyncio.ensure_future(self._welcomed.wait())
        try:
            await asyncio.wait(
                {self._keeper, welcomed},
                timeout=self._timeout_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            welcomed.cancel()
        if self._keeper.done() or not self._welcomed.is_set():
            error = self._closed or NodeStopped(
                f"no node hosts dialogs at {self.path}; nothing was done; start it, or give its data directory"
            )
            await self.close()
            raise error

    async def close(self) -> None:
        """Leave. What was sent is in the daemon's stores."""
        keeper, self._keeper = self._keeper, None
        for worker in self._workers.values():
            worker.close()
        self._end(NodeStopped("the connection to the daemon was closed; nothing was sent"))
        if self._writer is not None:
            writer = self._writer
            self._send(Bye())
            with suppress(OSError, RuntimeError):
                await writer.drain()
                writer.close()
                await writer.wait_closed()
            self._writer = None
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait([keeper])

    def _end(self, error: HoldfastError) -> None:
        self._closed = self._closed or error
        for pending in self._pending.values():
            if not pending.future.done():
                pending.future.set_exception(type(error)(*error.args))
        self._pending.clear()
        self.end_handles(error)

    async def _keep_connected(self) -> None:
        delay_s = RETRY_S
        while self._closed is None:
            try:
                with socket_address(self.path) as address:
                    reader, writer = await asyncio.open_unix_connection(address)
            except PermissionError:
                self._end(
                    SetupError(f"{self.path} belongs to another user; run this as the node's user")
                )
                return
            except OSError:
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, RETRY_S_MAX)
                continue
            delay_s = RETRY_S
            try:
                await self._converse(reader, writer)
            except (OSError, ValueError, msgspec.DecodeError):
                await asyncio.sleep(RETRY_S)
            finally:
                self._writer = None
                writer.transport.abort()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(framed(Hello(self._application)))
        data = await read_frame(reader)
        welcome = from_daemon(data) if data is not None else None
        if not isinstance(welcome, Welcome):
            raise OSError("the daemon closed the connection")
        restarted = bool(self.welcome.instance) and welcome.instance != self.welcome.instance
        self.welcome = welcome
        self.connections += 1
        self.default_store = welcome.default_store
        self._profiles = {n: read_profile(n, table) for n, table in welcome.profiles.items()}
        self._writer = writer
        self._repeat(restarted)
        self._welcomed.set()
        while True:
            data = await read_frame(reader)
            if data is None:
                return
            self._take(from_daemon(data))

    def _repeat(self, restarted: bool) -> None:
        """After a lost connection: ask again what was not answered."""
        if restarted:
            for request in self.listening.values():
                ask = Ask(self._next(), LISTEN, request.settings.store, b"", encode(request))
                self._send(ask)
        for number, pending in list(self._pending.items()):
            if not restarted or pending.ask.what in REPEATABLE:
                self._send(pending.ask)
            elif not pending.future.done():
                del self._pending[number]
                pending.future.set_exception(
                    DaemonRestarted(
                        f"the daemon was restarted during {pending.ask.what}; it may have taken effect or not"
                    )
                )

    # -- frames --------------------------------------------------------------------------------------------------

    def _send(self, frame: Any) -> None:
        self._put(framed(frame))

    def _put(self, data: bytes) -> None:
        """Write, unless the connection is lost: what must arrive is repeated on the next one."""
        if self._writer is not None and not self._writer.is_closing():
            with suppress(OSError, RuntimeError):  # uvloop raises the latter on a closed transport
                self._writer.write(data)

    def _take(self, frame: Any) -> None:
        if isinstance(frame, (Answered, Failed)):
            self._answered(frame)
        elif isinstance(frame, Happened):
            self.deliver_event(frame.store, frame.event)
        elif isinstance(frame, Announced):
            self.announce(frame.service, frame.kind, frame.dialog, frame.uri)

    def _answered(self, frame: Answered | Failed) -> None:
        pending = self._pending.pop(frame.id, None)
        lowest = min(self._pending, default=self._last + 1)
        if lowest - self._known >= KNOWN_EVERY or not self._pending:
            self._known = lowest
            self._send(Known(lowest))
        if pending is None:
            return
        if isinstance(frame, Failed):
            if not pending.future.done():
                pending.future.set_exception(_error(frame))
            return
        value = unwrap(frame.what, frame.body)
        if pending.future.done():
            pending.returned(value)
        else:
            pending.future.set_result(value)

    def _next(self) -> int:
        self._last = next(self._ids)
        return self._last

    async def call(
        self,
        what: str,
        store: str = "",
        dialog: bytes = b"",
        body: bytes = b"",
        returned: Callable[[Any], None] = lambda _: None,
    ) -> Any:
        """Ask the daemon something and wait for its answer."""
        if what != "Take":
            async with self._slots:
                return await self._call(what, store, dialog, body, returned)
        # Apart from the others, so that a send is never held up by receives that wait for its answer.
        if self._receives >= RECEIVES_MAX:
            raise DialogError(
                f"{RECEIVES_MAX} receives of this application wait already; nothing was received; use receive_any"
            )
        self._receives += 1
        try:
            return await self._call(what, store, dialog, body, returned)
        finally:
            self._receives -= 1

    async def _call(
        self, what: str, store: str, dialog: bytes, body: bytes, returned: Callable[[Any], None]
    ) -> Any:
        if self._closed is not None:
            raise type(self._closed)(*self._closed.args)
        ask = Ask(self._next(), what, store, dialog, body)
        frame = framed(ask)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending[ask.id] = Pending(ask, future, returned)
        self._put(frame)
        try:
            if self._writer is not None:
                with suppress(OSError, RuntimeError):
                    await self._writer.drain()
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                returned(future.result())
            elif ask.id in self._pending:
                future.cancel()  # What still comes is given back.
                self._send(GiveUp(ask.id))
            raise

    # -- the API's side ------------------------------------------------------------------------------------------

    async def exchange(
        self, store: str, request: Any, dialog: bytes, size: int, returned: Returned
    ) -> Any:
        what, body = wrap(request)
        return await self.call(what, store, dialog, body, returned)

    def tell(self, store: str, item: Any) -> None:
        what, body = wrap(item)
        if what in ("HandedOver", "Terminate"):
            # Must arrive: a message that stays leased holds up its dialog.
            self._ask_unattended(Ask(self._next(), what, store, b"", body))
        else:
            self._send(Tell(what, store, body))

    def _ask_unattended(self, ask: Ask) -> None:
        """Ask until it is answered; the answer interests no task."""
        if self._closed is None:
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._pending[ask.id] = Pending(ask, future, lambda _: None)
            self._send(ask)

    async def look(self, dialog: Dialog) -> Look:
        return Look(*await self.call(LOOK, dialog.store, dialog.id))

    def check_store(self, store: str) -> None:
        names = [name for name, *_ in self.welcome.stores]
        if store not in names:
            raise MisuseError(
                f"the daemon has no dialog store {store!r}; it has {', '.join(names)}"
            )

    def wake_receivers(self, dialog: Dialog) -> None:
        for number, pending in self._pending.items():
            ask = pending.ask
            receives = ask.what == "Take" and ask.dialog in (dialog.id, b"")
            if receives and ask.store == dialog.store:
                self._send(GiveUp(number))

    def transaction(self, connection: Any = None, store: str = "") -> RemoteTransaction:
        """As `node.dialogs.transaction`. The application's own tables take part with a postgres store."""
        return RemoteTransaction(self, connection, store)

    async def commit(self, tx: bytes, durable: str) -> None:
        """Commit a transaction at the daemon, and learn the outcome whatever happens to the connection."""
        try:
            await self.call(COMMIT, body=tx)
        except DaemonRestarted:
            if not durable or not await self.outcome(durable, tx):
                raise errors.TransactionAborted(
                    "the daemon was restarted before the commit; nothing took effect"
                ) from None
        if durable:
            self.tell(durable, ports.Forget(tx))

    async def outcome(self, store: str, tx: bytes) -> bool:
        """Whether a transaction of an earlier connection was committed."""
        return bool(await self.call(OUTCOME, store, body=tx))

    async def start_listening(self, request: ports.Listen) -> None:
        await self.call(LISTEN, request.settings.store, body=encode(request))

    async def stop_listening(self, request: ports.Listen) -> None:
        await self.call(UNLISTEN, body=request.service.encode())

    def postgres(self, store: str, dsn: str) -> PostgresWorker:
        """Transactions on this application's own connections to the database of a store."""
        if store not in self._workers:
            self._workers[store] = PostgresWorker(dsn, store)
        return self._workers[store]

    def store_id(self, store: str = "") -> bytes:
        wanted = store or self.default_store
        return next((id_ for name, _, _, id_ in self.welcome.stores if name == wanted), b"")


class DaemonRestarted(DialogError):
    """The daemon that a request was made of is gone; the request may have taken effect or not."""


def connect_dialogs(where: str | Path, timeout_s: float = 10.0) -> RemoteDialogs:
    """Dialogs of the node whose data directory, configuration file or socket `where` is."""
    path = Path(where)
    if path.suffix == ".toml":
        from holdfast.runtime.parts import load_config

        config = load_config(path)
        if not config.data:
            raise MisuseError(f"{path} has no data directory, so its node hosts no dialogs")
        path = Path(config.data)
    if path.suffix != ".sock":
        path = path / "dialogs.sock"
    return RemoteDialogs(path, timeout_s)


def _error(frame: Failed) -> HoldfastError:
    kind = getattr(errors, frame.kind, DialogError)
    known = isinstance(kind, type) and issubclass(kind, HoldfastError)
    made: HoldfastError = (kind if known else DialogError)(frame.text)
    return made
