"""The API for applications, the same embedded in a node (`node.dialogs`) and through its daemon (`connect_dialogs`).

A subclass reaches the unit of a store: `exchange` asks it something, `tell` gives it something without an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from time import monotonic_ns
from typing import Any, Final, NamedTuple, Protocol

from holdfast.dialog import ports
from holdfast.dialog.config import NONE, Assurances, Profile, Settings, merged
from holdfast.dialog.ids import dialog_name
from holdfast.errors import (
    DialogEnded,
    DialogError,
    DialogFaulted,
    DialogUnknown,
    HoldfastError,
    MessageTooLarge,
    MisuseError,
    QuotaExceeded,
    SendTimeout,
    TransactionAborted,
)
from holdfast.runtime.dialogs.checking import check_request, deadline
from holdfast.runtime.dialogs.handles import Dialog, Listener, Message
from holdfast.runtime.tracing import CONSUMER, Traced, set_attributes
from holdfast.types import SECOND

_ERRORS: Final[dict[str, type[HoldfastError]]] = {
    "ended": DialogEnded,
    "send-timeout": SendTimeout,
    "quota": QuotaExceeded,
    "too-large": MessageTooLarge,
    "unknown": DialogUnknown,
    "aborted": TransactionAborted,
    "misuse": MisuseError,
    "state": DialogFaulted,
}
TAKE_BYTES_MAX: Final = 16 << 20
SERVICE_MAX: Final = 1024
Returned = Callable[[Any], None]


class Look(NamedTuple):
    """State of one end of a dialog."""

    state: str = ""
    fault: str = ""
    detail: str = ""


class OpenTransaction(Protocol):
    """A transaction, as handles use it."""

    id: bytes

    async def join(self, store: str) -> None: ...
    def lend(self, dialog: Dialog, messages: list[Message]) -> None: ...
    def check_may_receive(self, store: str) -> None: ...


class DialogApi(Traced):
    """Opens, accepts and finds dialogs. Subclasses carry the requests."""

    def __init__(self) -> None:
        self.default_store = "default"
        self.listening: dict[str, ports.Listen] = {}
        self._profiles: Mapping[str, Profile] = {}
        self._dialogs: dict[tuple[str, bytes], Dialog] = {}
        self._settings: dict[bytes, Settings] = {}
        self._listeners: dict[str, Listener] = {}
        self.given_back: dict[Dialog, None] = {}
        """Dialogs with messages that came for a receive that was cancelled."""

    # -- what a subclass does ------------------------------------------------------------------------------------

    async def exchange(
        self, store: str, request: Any, dialog: bytes, size: int, returned: Returned
    ) -> Any:
        """Give a request to the unit of a store and wait for its answer. An answer that comes after this task was
        cancelled is given to `returned`."""
        raise NotImplementedError

    def tell(self, store: str, item: Any) -> None:
        """Give something to the unit of a store that it does not answer."""
        raise NotImplementedError

    async def look(self, dialog: Dialog) -> Look:
        """The present state of an end."""
        raise NotImplementedError

    def check_store(self, store: str) -> None:
        """Raises `MisuseError` when there is no such store."""
        raise NotImplementedError

    def wake_receivers(self, dialog: Dialog) -> None:
        """Receives that wait in the unit come back and find the messages that were given back."""
        raise NotImplementedError

    def transaction(self, connection: Any = None, store: str = "") -> Any:
        """A transaction over sends and receives, and the application's own tables. `connection` is one of the
        application's own to the database of a postgres store; `store` names the store that it begins with."""
        raise NotImplementedError

    async def start_listening(self, request: ports.Listen) -> None:
        await self.ask(request.settings.store, request)

    async def stop_listening(self, request: ports.Listen) -> None:
        await self.ask(request.settings.store, ports.Unlisten(token=0, service=request.service))

    # -- requests ------------------------------------------------------------------------------------------------

    async def ask(
        self,
        store: str,
        request: Any,
        dialog: bytes = b"",
        size: int = 0,
        handle: Dialog | None = None,
    ) -> Any:
        """Give a request to the unit of a store and wait for its answer; a refusal is raised."""
        check_request(request)

        def returned(value: Any) -> None:
            if getattr(request, "tx", b""):
                return  # A transaction keeps its messages until its end.
            if isinstance(request, (ports.Open, ports.Take)):
                self.take_back(store, value, handle)

        value = await self.exchange(store, request, dialog, size, returned)
        if isinstance(value, ports.Taken) and value.lease:
            self.tell(store, ports.HandedOver(value.dialog, value.lease))
        if isinstance(value, ports.Refused):
            raise _ERRORS.get(value.code, DialogError)(value.text)
        return value

    def take_back(self, store: str, value: Any, handle: Dialog | None = None) -> None:
        """The task was cancelled when its answer was on its way: the next receive gets the messages, and a dialog
        that no task knows is ended."""
        if isinstance(value, ports.Opened):
            reason = "the task that opened it was cancelled"
            self.tell(store, ports.Terminate(token=0, dialog=value.dialog, reason=reason))
        if not isinstance(value, ports.Taken) or not value.messages:
            return
        if value.lease:
            self.tell(store, ports.HandedOver(value.dialog, value.lease, taken=False))
        else:
            dialog = handle or self.handle(store, value.dialog, "")
            dialog.give_back(messages_of(value))
            self.wake_receivers(dialog)

    async def take(
        self,
        dialog: Dialog,
        number: int,
        tx: OpenTransaction | None,
        deadline: int,
        discard: bool,
    ) -> list[Message]:
        if tx is not None:
            await tx.join(dialog.store)
            tx.check_may_receive(dialog.store)
        request = ports.Take(
            token=0,
            dialog=dialog.id,
            count=number,
            tx=tx.id if tx is not None else b"",
            deadline=deadline,
            discard=discard,
            bytes_max=TAKE_BYTES_MAX,
        )
        return messages_of(await self.ask(dialog.store, request, dialog.id, handle=dialog))

    # -- what applications use -----------------------------------------------------------------------------------

    async def open(
        self,
        uri: str,
        *,
        profile: str = "",
        minimum: Assurances = NONE,
        key: bytes = b"",
        wait: bool = True,
        timeout_s: float = 30.0,
        **settings: Any,
    ) -> Dialog:
        """Open a dialog with the service that `uri` names. Settings given here win over those of the profile; a
        profile can raise `minimum`. With `wait` it returns when both ends have confirmed each other, and raises
        `DialogFaulted` if that fails; without, messages can be sent at once and go when there is a partner."""
        chosen = self.choose(profile, minimum, settings)
        opened = await self.ask(
            chosen.store, ports.Open(token=0, uri=uri, settings=chosen, key=key)
        )
        dialog = self.handle(chosen.store, opened.dialog, uri)
        self._settings[dialog.id] = chosen
        if wait:
            try:
                await dialog.paired(timeout_s)
            except TimeoutError:
                raise DialogFaulted(
                    f"no partner for {uri!r} within {timeout_s:g} s; the dialog {dialog_name(dialog.id)} goes on trying"
                ) from None
        return dialog

    async def listen(
        self,
        service: str,
        *,
        profile: str = "",
        minimum: Assurances = NONE,
        automatic: bool = True,
        **settings: Any,
    ) -> Listener:
        """Take dialogs that others open with `service`. With `automatic=False` each waits for `accept` or `reject`."""
        chosen = self.choose(profile, minimum, settings)
        if service in self.listening:
            raise MisuseError(
                f"this node already listens to {service!r}; nothing was changed; close the other listener first"
            )
        request = ports.Listen(token=0, service=service, settings=chosen, automatic=automatic)
        check_request(request)
        if not 0 < len(service) <= SERVICE_MAX:
            raise MisuseError(
                f"the name of a service has 1 to {SERVICE_MAX} characters; nothing was changed"
            )
        listener = Listener(self, chosen.store, service, automatic)
        self.listening[service], self._listeners[service] = request, listener
        try:
            await self.start_listening(request)
        except BaseException:
            del self.listening[service], self._listeners[service]
            raise
        return listener

    async def unlisten(self, service: str) -> None:
        request = self.listening.pop(service, None)
        self._listeners.pop(service, None)
        if request is not None:
            await self.stop_listening(request)

    async def reactivate(self, dialog: bytes, store: str = "") -> Dialog:
        """The handle of a dialog by its id, after a restart or a deactivation."""
        where = store or self.default_store
        await self.ask(where, ports.Reactivate(token=0, dialog=dialog), dialog)
        return self.handle(where, dialog, "")

    async def receive_any(
        self,
        number: int = 1,
        *,
        store: str = "",
        tx: OpenTransaction | None = None,
        timeout_s: float | None = None,
    ) -> tuple[Dialog | None, list[Message]]:
        """Messages of whichever dialog of a store is due, by priority; of one dialog at a time."""
        if self.tracing is None:
            return await self._receive_any(number, store, tx, timeout_s)
        with self.tracing.span("dialog.receive", CONSUMER) as span:
            dialog, messages = await self._receive_any(number, store, tx, timeout_s)
            if dialog is not None:
                set_attributes(span, dialog=dialog_name(dialog.id), first=messages[0].number)
            set_attributes(span, count=len(messages))
            return dialog, messages

    async def _receive_any(
        self, number: int, store: str, tx: OpenTransaction | None, timeout_s: float | None
    ) -> tuple[Dialog | None, list[Message]]:
        where = store or self.default_store
        if tx is not None:
            await tx.join(where)
            tx.check_may_receive(where)
        until = deadline(timeout_s, monotonic_ns())
        request = ports.Take(
            token=0,
            dialog=b"",
            count=number,
            tx=tx.id if tx is not None else b"",
            deadline=until,
        )
        while True:
            for dialog in self.given_back if tx is None else ():
                if dialog.store == where:
                    return dialog, dialog.take_given_back(number)
            taken = await self.ask(where, request)
            if taken.messages:
                found = self.handle(where, taken.dialog, "")
                if tx is not None or found not in self.given_back:
                    return found, messages_of(taken)
                found.give_back(messages_of(taken))  # Those that are there already are older.
            elif until <= monotonic_ns():
                return None, []

    async def move_out(self, dialog: Dialog, node: bytes, store: bytes) -> bytes:
        """End this end here and give its state, for `move_in` on another node. The state is kept here until
        `move_done`: asked again, also after a restart, this gives it again."""
        request = ports.MoveOut(token=0, dialog=dialog.id, node=node, store=store)
        return bytes((await self.ask(dialog.store, request, dialog.id)).state)

    async def move_in(self, state: bytes, store: str = "") -> Dialog:
        where = store or self.default_store
        opened = await self.ask(where, ports.MoveIn(token=0, state=state))
        return self.handle(where, opened.dialog, "")

    async def move_done(self, dialog: Dialog) -> None:
        """The other node has taken the end over: forget its state here."""
        await self.ask(dialog.store, ports.MoveDone(token=0, dialog=dialog.id))

    # -- handles -------------------------------------------------------------------------------------------------

    def choose(self, profile: str, minimum: Assurances, settings: dict[str, Any]) -> Settings:
        """Merge what code sets, the profile and the defaults."""
        found = None
        if profile:
            found = self._profiles.get(profile)
            if found is None:
                known = ", ".join(self._profiles) or "none"
                raise MisuseError(
                    f"there is no dialog profile {profile!r}; known: {known}; nothing was opened"
                )
        values = dict(settings)
        if "store" not in values and (found is None or "store" not in found.values):
            values["store"] = self.default_store
        chosen = merged(values, found, minimum)
        self.check_store(chosen.store)
        return chosen

    def handle(self, store: str, dialog: bytes, uri: str) -> Dialog:
        """The one handle of a dialog."""
        key = (store, dialog)
        handle = self._dialogs.get(key)
        if handle is None:
            handle = self._dialogs[key] = Dialog(self, store, dialog, uri)
        return handle

    def send_timeout_s(self, dialog: Dialog) -> float:
        settings = self._settings.get(dialog.id)
        return settings.send_timeout_ns / SECOND if settings is not None else 30.0

    def deliver_event(self, store: str, event: ports.Event) -> None:
        """Hand an event to the handle of its dialog."""
        handle = self._dialogs.get((store, event.dialog))
        if handle is not None:
            handle.take_event(event)
        if event.kind in ("completed", "terminated"):
            # What an application holds goes on working; nothing more happens to the dialog.
            self._settings.pop(event.dialog, None)
            self._dialogs.pop((store, event.dialog), None)

    def look_again(self, store: str) -> None:
        """A store failed: its handles check whether waiting makes sense."""
        for dialog in self._dialogs.values():
            if dialog.store == store:
                dialog.look_again()

    def announce(self, service: str, kind: str, dialog: bytes, uri: str) -> None:
        """Give a dialog that another node opened to the listener of its service."""
        listener = self._listeners.get(service)
        if listener is not None and listener.automatic == (kind == "opened"):
            listener.put(self.handle(listener.store, dialog, uri))

    def end_handles(self, error: HoldfastError) -> None:
        """Nothing answers any more: listeners and dialogs end."""
        for listener in self._listeners.values():
            listener.end(error)
        for dialog in self._dialogs.values():
            dialog.end(error)
        self._dialogs.clear()
        self._listeners.clear()
        self.listening.clear()


def messages_of(taken: Any) -> list[Message]:
    assert isinstance(taken, ports.Taken)
    return [Message(bytes(m.body), m.number, m.attempt) for m in taken.messages]


async def shielded(work: Any) -> None:
    """Finish the work even if this task is cancelled meanwhile; the cancellation is raised afterwards."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            await asyncio.wait([task])
        raise
