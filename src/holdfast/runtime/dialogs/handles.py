"""Handles for applications: dialog, listener, message."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.dialog import ports
from holdfast.dialog.ids import dialog_name
from holdfast.errors import (
    DialogEnded,
    DialogFaulted,
    DialogUnknown,
    HoldfastError,
    MisuseError,
    NodeStopped,
)
from holdfast.runtime.dialogs.checking import TIME_OF_DAY_MAX, bytes_of, deadline, nanoseconds
from holdfast.runtime.tracing import CONSUMER, PRODUCER, set_attributes

if TYPE_CHECKING:
    from holdfast.runtime.dialogs.api import DialogApi, OpenTransaction

log = logging.getLogger("holdfast")

EVENTS_MAX: Final = 1024
RECEIVE_AGAIN_S: Final = 0.5
"""How long a message handler waits after an error before it receives again."""


class Message(msgspec.Struct, frozen=True):
    """A message that was received."""

    body: bytes
    number: int
    attempt: int = 1
    """Which delivery of the message this is; above 1 after aborted transactions."""


class Dialog:
    """One end of a dialog. Every method may be called from any task of the node's event loop."""

    def __init__(self, edge: DialogApi, store: str, dialog: bytes, uri: str) -> None:
        self.id = dialog
        self.uri = uri
        self.store = store
        self._edge = edge
        self._returned: deque[Message] = deque()
        """Messages that came for a receive that was cancelled."""
        self._events: deque[ports.Event] = deque(maxlen=EVENTS_MAX)
        self._changed = asyncio.Event()
        self._outcome: ports.Event | None = None
        self._handler: asyncio.Task[None] | None = None
        self._error: HoldfastError | None = None

    def __repr__(self) -> str:
        return f"<Dialog {dialog_name(self.id)} {self.uri}>"

    # -- sending -------------------------------------------------------------------------------------------------

    async def send(
        self,
        body: bytes,
        *,
        tx: OpenTransaction | None = None,
        timeout_s: float | None = None,
        ttl_s: float | None = None,
        after: float = 0.0,
    ) -> int:
        """Send one message; returns its number when the store has it (-1 in a transaction).

        Waits for room in the buffer: for `timeout_s`, or as the dialog's settings say. `ttl_s` is the message's time
        to live. `after` is a time of day (seconds) before which it is not transmitted. Raises `SendTimeout`,
        `QuotaExceeded`, `MessageTooLarge` or `DialogEnded`; nothing was sent then.
        """
        return await self.send_many([body], tx=tx, timeout_s=timeout_s, ttl_s=ttl_s, after=after)

    async def send_many(
        self,
        bodies: Sequence[bytes],
        *,
        tx: OpenTransaction | None = None,
        timeout_s: float | None = None,
        ttl_s: float | None = None,
        after: float = 0.0,
    ) -> int:
        """Send messages, all or none; returns the number of the first. Each is `bytes`, or a copy of a `bytearray` or
        `memoryview` is sent."""
        tracing = self._edge.tracing
        if tracing is None:
            return await self._send_many(bodies, tx, timeout_s, ttl_s, after)
        name = dialog_name(self.id)
        with tracing.span("dialog.send", PRODUCER, dialog=name, uri=self.uri) as span:
            first = await self._send_many(bodies, tx, timeout_s, ttl_s, after)
            set_attributes(span, count=len(bodies), first=first)
            return first

    async def _send_many(
        self,
        bodies: Sequence[bytes],
        tx: OpenTransaction | None,
        timeout_s: float | None,
        ttl_s: float | None,
        after: float,
    ) -> int:
        if timeout_s is None:
            timeout_s = self._edge.send_timeout_s(self)
        checked = bytes_of(bodies)
        ttl_ns = -1 if ttl_s is None else nanoseconds("ttl_s", ttl_s)
        after_wall = nanoseconds("after", after, TIME_OF_DAY_MAX)
        if tx is not None:
            await tx.join(self.store)
        request = ports.Send(
            token=0,
            dialog=self.id,
            bodies=checked,
            tx=tx.id if tx is not None else b"",
            deadline=deadline(timeout_s, monotonic_ns()),
            ttl_ns=ttl_ns,
            after_wall=after_wall,
        )
        answer = await self._edge.ask(self.store, request, self.id, sum(map(len, checked)))
        return int(answer.first)

    async def try_send(self, body: bytes) -> bool:
        """Send one message if there is room now; False when there is none, and then nothing was sent."""
        from holdfast.errors import SendTimeout

        try:
            await self.send(body, timeout_s=0)
        except SendTimeout:
            return False
        return True

    # -- receiving -----------------------------------------------------------------------------------------------

    async def receive(
        self, *, tx: OpenTransaction | None = None, timeout_s: float | None = None
    ) -> Message:
        """The next message. Raises `DialogEnded` when none will come, `TimeoutError` when none came in time."""
        messages = await self.receive_many(1, tx=tx, timeout_s=timeout_s)
        if not messages:
            raise TimeoutError(f"no message on {self!r} within {timeout_s:g} s")
        return messages[0]

    async def receive_many(
        self, count: int, *, tx: OpenTransaction | None = None, timeout_s: float | None = None
    ) -> list[Message]:
        """Up to `count` messages; waits for the first. Empty when none came in time."""
        tracing = self._edge.tracing
        if tracing is None:
            return await self._receive_many(count, tx, timeout_s)
        name = dialog_name(self.id)
        with tracing.span("dialog.receive", CONSUMER, dialog=name, uri=self.uri) as span:
            messages = await self._receive_many(count, tx, timeout_s)
            set_attributes(span, count=len(messages))
            if messages:
                set_attributes(span, first=messages[0].number)
            return messages

    async def _receive_many(
        self, count: int, tx: OpenTransaction | None, timeout_s: float | None
    ) -> list[Message]:
        until = deadline(timeout_s, monotonic_ns())
        while True:
            if self._returned:
                if tx is not None:
                    await tx.join(self.store)
                messages = self.take_given_back(count)
                if tx is not None:
                    tx.lend(self, messages)
                return messages
            messages = await self._edge.take(self, count, tx, until, discard=False)
            if tx is None and self._returned:
                # Those that came for a receive that was cancelled are older.
                self.give_back(messages)
                return self.take_given_back(count)
            if messages or until <= monotonic_ns():
                return messages

    def take_given_back(self, count: int) -> list[Message]:
        """Messages that came for a receive that was cancelled."""
        messages = [self._returned.popleft() for _ in range(min(count, len(self._returned)))]
        if not self._returned:
            self._edge.given_back.pop(self, None)
        return messages

    async def delete(self, count: int = 1, *, tx: OpenTransaction | None = None) -> None:
        """Remove up to `count` messages that are available, without receiving them."""
        await self._edge.take(self, count, tx, 0, discard=True)

    async def request(self, body: bytes, timeout_s: float | None = None) -> Message:
        """Send one message and receive the next one: request and response."""
        await self.send(body)
        return await self.receive(timeout_s=timeout_s)

    def __aiter__(self) -> AsyncIterator[Message]:
        return self._messages()

    async def _messages(self) -> AsyncIterator[Message]:
        while True:
            # One at a time: what is received is gone from the store, and a loop may end before it has seen the rest.
            try:
                message = await self.receive()
            except DialogEnded:
                return
            yield message

    def on_message(self, handler: Callable[[Message], Any]) -> None:
        """Call `handler(message)` for each message, and await it if it is a coroutine function. The next call follows
        when it has returned. What it raises is logged, and the next message follows."""
        if self._handler is not None and not self._handler.done():
            raise MisuseError(f"{self!r} has a handler already; nothing was changed")
        self._handler = asyncio.ensure_future(self._serve(handler))

    async def _serve(self, handler: Callable[[Message], Any]) -> None:
        while True:
            try:
                message = await self.receive()
            except (DialogEnded, DialogUnknown, MisuseError, NodeStopped):
                return
            except HoldfastError as error:
                # Its store failed, and is opened again.
                fields = _fields("receive_failed", self.id, error=str(error))
                log.warning("dialog %s: %s; receiving again", fields["dialog"], error, extra=fields)
                await asyncio.sleep(RECEIVE_AGAIN_S)
                continue
            try:
                done = handler(message)
                if inspect.isawaitable(done):
                    await done
            except Exception:
                fields = _fields("message_handler_failed", self.id, number=message.number)
                log.exception(
                    "the message handler of dialog %s failed on message %d; use a transaction to receive a message "
                    "again after an error",
                    fields["dialog"],
                    message.number,
                    extra=fields,
                )

    # -- its life ------------------------------------------------------------------------------------------------

    async def paired(self, timeout_s: float | None = None) -> None:
        """Wait until both ends have confirmed each other. Raises `DialogFaulted` or `DialogEnded`."""
        async with asyncio.timeout(timeout_s):
            while True:
                self._changed.clear()
                self._check_alive()
                state, fault, detail = await self._edge.look(self)
                if state == "open":
                    return
                if self._outcome is not None and self._outcome.kind in ("completed", "terminated"):
                    raise DialogEnded(f"{self!r} ended: {self._outcome.detail}")
                if state == "faulted":
                    raise DialogFaulted(f"{self!r}: {fault}: {detail}")
                await self._changed.wait()

    async def complete(self) -> None:
        """This end has sent all it will. `completed` says when both ends have everything."""
        await self._edge.ask(self.store, ports.Complete(token=0, dialog=self.id), self.id)

    async def completed(self, timeout_s: float | None = None) -> None:
        """Wait until both ends have completed and everything was taken. Raises `DialogEnded` if it ended otherwise."""
        async with asyncio.timeout(timeout_s):
            while self._outcome is None or self._outcome.kind not in ("completed", "terminated"):
                self._check_alive()
                self._changed.clear()
                await self._changed.wait()
        if self._outcome.kind != "completed":
            raise DialogEnded(
                f"{self!r} was terminated: {self._outcome.detail}; {self._outcome.count} messages were not acknowledged"
            )

    async def terminate(self, reason: str = "") -> None:
        request = ports.Terminate(token=0, dialog=self.id, reason=reason)
        await self._edge.ask(self.store, request, self.id)

    async def deactivate(self) -> None:
        """Free the memory of the dialog; it comes back when it is used, or when a message arrives."""
        await self._edge.ask(self.store, ports.Deactivate(token=0, dialog=self.id), self.id)

    async def extend_messages(self, ttl_s: float) -> None:
        """Give everything unacknowledged a new time to live."""
        request = ports.ExtendMessages(token=0, dialog=self.id, ttl_ns=nanoseconds("ttl_s", ttl_s))
        await self._edge.ask(self.store, request, self.id)

    async def extend_session(self, ttl_s: float, timeout_s: float = 30.0) -> None:
        """Agree with the partner on a new time to live of the session."""
        request = ports.ExtendSession(
            token=0,
            dialog=self.id,
            ttl_ns=nanoseconds("ttl_s", ttl_s),
            deadline=deadline(timeout_s, monotonic_ns()),
        )
        await self._edge.ask(self.store, request, self.id)

    async def repair(self, action: str = "resume", reason: str = "") -> None:
        request = ports.Repair(token=0, dialog=self.id, action=action, reason=reason)
        await self._edge.ask(self.store, request, self.id)

    async def settle_poison(self, number: int, action: str) -> None:
        """`retry` or `discard` a poison message."""
        request = ports.Settle(token=0, dialog=self.id, number=number, action=action)
        await self._edge.ask(self.store, request, self.id)

    async def next_event(self) -> ports.Event:
        """The next event of this dialog: `faulted`, `repaired`, `expired`, `poison`, `terminated`, ..."""
        while not self._events:
            self._check_alive()
            self._changed.clear()
            await self._changed.wait()
        return self._events.popleft()

    # -- the edge's side -----------------------------------------------------------------------------------------

    def take_event(self, event: ports.Event) -> None:
        if event.kind != "available":
            self._events.append(event)
            if event.kind in ("completed", "terminated", "faulted"):
                self._outcome = event
        self._changed.set()

    def give_back(self, messages: list[Message], first: bool = False) -> None:
        """Keep messages for the next receive; `first`: before those that are kept already."""
        if first:
            self._returned.extendleft(reversed(messages))
        else:
            self._returned.extend(messages)
        if self._returned:
            self._edge.given_back[self] = None

    def end(self, error: HoldfastError) -> None:
        """Nothing answers any more."""
        self._error = error
        self._changed.set()

    def look_again(self) -> None:
        """Its store failed: what waits for the dialog may have to be refused."""
        self._changed.set()

    def _check_alive(self) -> None:
        if self._error is not None:
            raise type(self._error)(*self._error.args)
        self._edge.check_store(self.store)


class Listener:
    """Dialogs that others open with a service of this node: `async for dialog in listener`."""

    def __init__(self, edge: DialogApi, store: str, service: str, automatic: bool) -> None:
        self.service = service
        self.store = store
        self.automatic = automatic
        self._edge = edge
        self._queue: asyncio.Queue[Dialog | None] = asyncio.Queue()
        self._error: HoldfastError | None = None

    async def next(self) -> Dialog:
        """The next dialog. With `automatic=False` it is a request: `accept` or `reject` it."""
        dialog = None if self._error is not None else await self._queue.get()
        if dialog is None:
            assert self._error is not None
            raise type(self._error)(*self._error.args)
        return dialog

    def __aiter__(self) -> AsyncIterator[Dialog]:
        return self._dialogs()

    async def _dialogs(self) -> AsyncIterator[Dialog]:
        while True:
            yield await self.next()

    async def accept(self, dialog: Dialog) -> None:
        request = ports.Accept(
            token=0, dialog=dialog.id, settings=self._edge.listening[self.service].settings
        )
        await self._edge.ask(self.store, request, dialog.id)

    async def reject(self, dialog: Dialog, reason: str = "") -> None:
        request = ports.Reject(token=0, dialog=dialog.id, reason=reason)
        await self._edge.ask(self.store, request, dialog.id)

    async def close(self) -> None:
        """Take no more dialogs; those that exist go on."""
        await self._edge.unlisten(self.service)

    def put(self, dialog: Dialog) -> None:
        self._queue.put_nowait(dialog)

    def end(self, error: HoldfastError) -> None:
        """Nothing answers any more."""
        self._error = error
        self._queue.put_nowait(None)


def _fields(event: str, dialog: bytes, **more: Any) -> dict[str, Any]:
    """What the log knows about an event of a dialog."""
    return {"event": event, "subsystem": "dialog", "dialog": dialog_name(dialog), **more}
