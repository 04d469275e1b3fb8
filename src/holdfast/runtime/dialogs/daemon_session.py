"""One application at the daemon: its requests, their outcomes, its transactions."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.dialog import ports
from holdfast.errors import HoldfastError, MisuseError, StoreError, TransactionAborted
from holdfast.runtime.dialogs.daemon_frames import (
    ABORT,
    COMMIT,
    FRAME_BYTES_MAX,
    LISTEN,
    LOOK,
    OUTCOME,
    REQUESTS,
    TOLD,
    UNLISTEN,
    Announced,
    Answered,
    Ask,
    Bye,
    Failed,
    FromDaemon,
    GiveUp,
    Happened,
    Known,
    Tell,
    framed,
    from_application,
    read_frame,
    unwrap,
    wrap,
)
from holdfast.runtime.dialogs.transaction import Transaction

if TYPE_CHECKING:
    from holdfast.runtime.dialogs.daemon import DialogDaemon

log = logging.getLogger("holdfast")

RUNNING_MAX: Final = 2048
"""Requests under way; no more are read from the connection until one has ended."""
OUTCOMES_MAX: Final = 4096
EVENTS_MAX: Final = 4096
"""Events that wait for an application that does not read; the oldest are dropped and counted."""
WRITE_BYTES_MAX: Final = 16 << 20
SETTLE_EVERY_S: Final = 0.5
HEAD_BYTES: Final = 256
"""Room for the rest of a frame beside its body."""


class Session:
    def __init__(self, daemon: DialogDaemon, application: bytes) -> None:
        self.application = application
        self.connections = 0
        self.finished = False
        self._daemon = daemon
        self._edge = daemon.edge
        self._writer: asyncio.StreamWriter | None = None
        self._running: dict[int, asyncio.Task[None]] = {}
        self._outcomes: dict[int, Answered | Failed] = {}
        self._receiving: dict[int, asyncio.Task[None]] = {}
        self._given_up: dict[int, None] = {}
        self._known = 0
        self._transactions: dict[bytes, Transaction] = {}
        self._committing: dict[bytes, None] = {}
        self._own: dict[bytes, tuple[str, int]] = {}
        """Transactions that the application commits on a connection of its own: store and epoch of its owner."""
        self._lent: dict[bytes, list[tuple[str, ports.Taken]]] = {}
        """Messages of a receive that was given up, received again in a transaction."""
        self._prepared: dict[bytes, None] = {}
        self._settling = 0
        self._settled = asyncio.Event()
        self._settled.set()
        self._leased: dict[tuple[str, bytes, bytes], None] = {}
        """Messages handed out that stay until `HandedOver`."""
        self._events: list[Happened | Announced] = []
        self._room = asyncio.Event()

    @property
    def connected(self) -> bool:
        return self._writer is not None

    # -- the connection ------------------------------------------------------------------------------------------

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        old, self._writer = self._writer, writer
        if old is not None:
            old.transport.abort()  # a second connection of the same application: the newer one counts
        self.connections += 1
        self.finished = False
        for event in self._events:
            self._write(event)
        self._events.clear()
        while self._writer is writer:
            data = await read_frame(reader)
            if data is None:
                return
            await self._take(from_application(data))
            if writer.transport.get_write_buffer_size() > WRITE_BYTES_MAX:
                await writer.drain()  # an application that does not read its answers may not ask
            while len(self._running) >= RUNNING_MAX:
                self._room.clear()
                await self._room.wait()

    def lost(self, writer: asyncio.StreamWriter) -> bool:
        """The connection ended. Transactions without a request to commit are aborted. True if it was the present."""
        if self._writer is not writer:
            return False
        self._writer = None
        self._room.set()
        # rule: D-12b
        for tx in [t for t in self._transactions if t not in self._committing]:
            transaction = self._transactions.pop(tx)
            self._settle_lent(tx, committed=False)
            self._spawn(transaction.abort(counts=False))
        for tx, (store, _) in list(self._own.items()):
            del self._own[tx]
            self._spawn(self._settle_own(tx, store))
        for task in self._receiving.values():
            # Asked again by an application that comes back; the messages wait until then.
            task.cancel()
        return True

    def drop(self) -> None:
        """The node stops."""
        if self._writer is not None:
            self._writer.transport.abort()
        for task in self._running.values():
            task.cancel()

    def end(self) -> None:
        """The application does not come back: what it received and did not confirm is available again."""
        for task in self._running.values():
            task.cancel()
        for store, dialog, lease in self._leased:
            self._edge.tell(store, ports.HandedOver(dialog, lease, taken=False))
        self._leased.clear()
        self._outcomes.clear()

    def _spawn(self, work: Any) -> None:
        async def quiet() -> None:
            try:
                await work
            except HoldfastError as error:
                log.info(
                    "an application is gone: %s",
                    error,
                    extra={
                        "event": "application_gone",
                        "subsystem": "dialog",
                        "error": str(error),
                    },
                )

        task = asyncio.ensure_future(quiet())
        self._running[-id(task)] = task
        task.add_done_callback(lambda done: self._running.pop(-id(done), None))

    async def _settle_own(self, tx: bytes, store: str) -> None:
        """The application was lost while it committed on its own connection: the database knows the outcome."""
        committed = False
        self._settling += 1
        self._settled.clear()
        while tx in self._prepared:
            try:
                committed = await self._edge.settle(store, tx)
                break
            except StoreError:
                await asyncio.sleep(SETTLE_EVERY_S)
        self._prepared.pop(tx, None)
        self._settle_lent(tx, committed)
        self._edge.tell(store, ports.Outcome(tx, committed, counts=False))
        self._settling -= 1
        if not self._settling:
            self._settled.set()

    def push(self, event: Happened | Announced) -> None:
        """Tell the application of something it did not ask for."""
        if isinstance(event, Announced):
            store = self._edge.listening[event.service].settings.store
            self._daemon.leases.setdefault((store, event.dialog), self)
        if self._writer is None:
            self._events.append(event)
            del self._events[:-EVENTS_MAX]
        else:
            self._write(event)

    def _write(self, frame: FromDaemon) -> None:
        if self._writer is not None and not self._writer.is_closing():
            with suppress(OSError, RuntimeError):  # uvloop raises the latter on a closed transport
                self._writer.write(framed(frame))

    # -- frames --------------------------------------------------------------------------------------------------

    async def _take(self, frame: Any) -> None:
        if isinstance(frame, Ask):
            self._ask(frame)
        elif isinstance(frame, Tell):
            self._tell(frame)
        elif isinstance(frame, Known):
            self._forget(frame.upto)
        elif isinstance(frame, GiveUp):
            task = self._running.get(frame.id)
            if task is not None:
                self._given_up[frame.id] = None
                task.cancel()
        elif isinstance(frame, Bye):
            self.finished = True

    def _ask(self, ask: Ask) -> None:
        if ask.id < self._known or ask.id in self._running:
            return
        # rule: D-12a
        outcome = self._outcomes.get(ask.id)
        if outcome is not None:
            self._write(outcome)
            return
        if len(self._outcomes) >= OUTCOMES_MAX:
            raise ValueError("the application does not confirm the answers that it gets")
        task = asyncio.ensure_future(self._answer(ask))
        self._running[ask.id] = task
        if ask.what == "Take":
            self._receiving[ask.id] = task

    async def _answer(self, ask: Ask) -> None:
        answer: Answered | Failed
        value: Any = None
        try:
            value = await self._carry_out(ask)
            self._note(ask.store, value)
            answer = Answered(ask.id, *wrap(value))
        except asyncio.CancelledError:
            if ask.id not in self._given_up:
                raise
            answer = Answered(ask.id, *wrap(ports.Taken(ask.dialog, [])))
        except HoldfastError as error:
            answer = Failed(ask.id, type(error).__name__, str(error))
        except msgspec.DecodeError as error:
            answer = Failed(ask.id, "MisuseError", f"the request cannot be read: {error}")
        except Exception as error:
            log.exception(
                "a request of an application failed: %s",
                ask.what,
                extra={"event": "request_failed", "subsystem": "dialog", "request": ask.what},
            )
            answer = Failed(ask.id, "DialogError", f"internal error: {error!r}; see the node's log")
        finally:
            self._running.pop(ask.id, None)
            self._receiving.pop(ask.id, None)
            self._given_up.pop(ask.id, None)
            self._room.set()
        if isinstance(answer, Answered) and len(answer.body) > FRAME_BYTES_MAX - HEAD_BYTES:
            # Too much for one frame: the messages stay here, and the application learns why it does not get them.
            if not getattr(unwrap(ask.what, ask.body), "tx", b""):
                self._returned(ask, value)
            size = len(answer.body)
            text = f"the answer has {size} bytes, above the limit of {FRAME_BYTES_MAX}; run the node in the application"
            answer = Failed(ask.id, "DialogError", text)
        self._outcomes[ask.id] = answer
        self._write(answer)

    def _note(self, store: str, value: Any) -> None:
        if isinstance(value, ports.Taken):
            if value.lease:
                self._leased[store, value.dialog, value.lease] = None
            if value.messages:
                self._daemon.lease(self, store, value.dialog)
        elif isinstance(value, ports.Opened):
            self._daemon.lease(self, store, value.dialog)

    def _forget(self, upto: int) -> None:
        self._known = max(self._known, upto)
        for number in [n for n in self._outcomes if n < upto]:
            del self._outcomes[number]

    def _tell(self, frame: Tell) -> None:
        if frame.what not in TOLD:
            raise ValueError(f"unknown notice {frame.what[:40]!r}")
        item = unwrap(frame.what, frame.body)
        if isinstance(item, ports.HandedOver):
            key = (frame.store, item.dialog, item.lease)
            if key not in self._leased:
                return
            del self._leased[key]
        elif isinstance(item, ports.Outcome):
            if self._own.pop(item.tx, None) is None:
                return
            self._prepared.pop(item.tx, None)
            self._settle_lent(item.tx, item.committed)
        self._edge.tell(frame.store, item)

    # -- requests ------------------------------------------------------------------------------------------------

    async def _carry_out(self, ask: Ask) -> Any:
        if ask.what in TOLD:
            self._tell(Tell(ask.what, ask.store, ask.body))
            return None
        if ask.what in REQUESTS:
            return await self._request(ask, unwrap(ask.what, ask.body))
        if ask.what == LOOK:
            return list(self._edge.look_at(ask.store, ask.dialog))
        if ask.what == COMMIT:
            return await self._commit(ask.body)
        if ask.what == ABORT:
            counts, tx = ask.body[:1] == b"1", ask.body[1:]
            transaction = self._transactions.pop(tx, None)
            if transaction is not None:
                self._settle_lent(tx, committed=False)
                await transaction.abort(counts=counts)
            return None
        if ask.what == OUTCOME:
            return await self._outcome(ask.store, ask.body)
        if ask.what == LISTEN:
            request = unwrap("Listen", ask.body)
            await self._daemon.listen(self, request)
            return None
        if ask.what == UNLISTEN:
            await self._daemon.unlisten(self, ask.body.decode())
            return None
        raise MisuseError(f"unknown request {ask.what[:40]!r}; nothing was done")

    async def _request(self, ask: Ask, request: Any) -> Any:
        edge, store = self._edge, ask.store
        edge.check_store(store)
        if ask.dialog:
            self._daemon.lease(self, store, ask.dialog)
        tx = getattr(request, "tx", b"")
        if isinstance(request, ports.Prepare):
            await self._settled.wait()  # what an earlier one sent is numbered first
            # It may have used its own tables only. If it was aborted with a connection, the unit refuses.
            await self._join(tx, store, receives=False)
            self._prepared[tx] = None
        elif tx:
            await self._join(tx, store, isinstance(request, ports.Take))
        if isinstance(request, ports.Take):
            orphans = self._daemon.take_orphans(self, store, request.dialog, request.count)
            if orphans is not None:
                if tx:
                    self._lent.setdefault(tx, []).append((store, orphans))
                return orphans

        def returned(value: Any) -> None:
            if not tx:  # A transaction has its own messages.
                self._returned(ask, value)

        value = await edge.exchange(store, request, ask.dialog, len(ask.body), returned)
        if isinstance(value, ports.Prepared) and value.epoch != self._own[tx][1]:
            raise TransactionAborted(
                f"dialog store {store!r} was opened again during the transaction; nothing took effect"
            )
        return value

    def _settle_lent(self, tx: bytes, committed: bool) -> None:
        for store, taken in reversed(self._lent.pop(tx, [])):
            if not committed:
                self._daemon.keep_orphans(store, taken, first=True)

    def _returned(self, ask: Ask, value: Any) -> None:
        """The answer came after the request was given up."""
        if isinstance(value, ports.Opened) and ask.what == "Open":
            reason = "the application that opened it gave up"
            self._edge.tell(ask.store, ports.Terminate(token=0, dialog=value.dialog, reason=reason))
        if not isinstance(value, ports.Taken) or not value.messages:
            return
        if value.lease:
            self._edge.tell(ask.store, ports.HandedOver(value.dialog, value.lease, taken=False))
        else:
            self._daemon.keep_orphans(ask.store, value)

    # -- transactions --------------------------------------------------------------------------------------------

    async def _join(self, tx: bytes, store: str, receives: bool) -> None:
        if tx[:1] == OWN:
            # The application commits it on a connection of its own.
            self._own.setdefault(tx, (store, self._edge.epoch(store)))
            return
        transaction = self._transactions.get(tx)
        if transaction is None:
            transaction = self._transactions[tx] = self._edge.transaction(tx=tx, keep=True)
        await transaction.join(store)
        if receives:
            transaction.check_may_receive(store)

    async def _commit(self, tx: bytes) -> bool:
        transaction = self._transactions.get(tx)
        if transaction is None:
            raise TransactionAborted(
                "the connection to the daemon was lost before the commit, or nothing was done; nothing took effect"
            )
        self._committing[tx] = None
        committed = False
        try:
            await transaction.commit()
            committed = True
        finally:
            self._committing.pop(tx, None)
            self._transactions.pop(tx, None)
            self._settle_lent(tx, committed)
        return True

    async def _outcome(self, store: str, tx: bytes) -> bool:
        """How a transaction ended whose commit an earlier run of the daemon was asked for."""
        if await self._edge.kept(store, tx):
            return True
        return await self._edge.settle(store, tx)


OWN: Final = b"\xff"
"""The first byte of the id of a transaction that the application commits itself."""
