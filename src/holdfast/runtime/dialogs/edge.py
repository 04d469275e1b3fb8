"""`node.dialogs`: dialogs embedded in a node, and the carrying out of what dialog units ask for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from time import time_ns
from typing import Any, ClassVar, Final

from holdfast.dialog import ports
from holdfast.dialog.config import Profile
from holdfast.dialog.ids import dialog_name
from holdfast.dialog.ports import UNIT, OpenStore, dialog_unit
from holdfast.dialog.records import KEPT, after
from holdfast.dialog.router import ROUTER
from holdfast.dialog.routes import service_of, service_role
from holdfast.dialog.section import DIALOGS, DialogsConfig
from holdfast.dialog.subsystem import DialogService
from holdfast.errors import (
    DialogError,
    HoldfastError,
    MisuseError,
    NodeStopped,
    SetupError,
    StoreError,
)
from holdfast.links.ports import Received
from holdfast.runtime.dialogs.api import DialogApi, Look, Returned
from holdfast.runtime.dialogs.control import DialogControl
from holdfast.runtime.dialogs.daemon import DialogDaemon
from holdfast.runtime.dialogs.handles import Dialog
from holdfast.runtime.dialogs.opening import OpenStores
from holdfast.runtime.dialogs.resolving import Resolution, Resolver
from holdfast.runtime.dialogs.stores import Worker
from holdfast.runtime.dialogs.transaction import Transaction
from holdfast.runtime.roles import Roles
from holdfast.subsystem import Control, Edge, EffectHandler, Port
from holdfast.types import DATA, NodeId

log = logging.getLogger("holdfast")

CLOCK_EVERY_S: Final = 10.0
CLOCK_STEP_NS: Final = 50_000_000
"""A change of the wall clock that units learn of."""
RepairHandler = Callable[[Dialog, ports.RepairWanted], Awaitable[str]]
EventWatcher = Callable[[str, ports.Event], None]


class DialogEdge(DialogApi, Edge):
    """Dialogs of this node."""

    name: ClassVar[str] = "dialogs"

    def __init__(self) -> None:
        super().__init__()
        self.stores = OpenStores()
        self.config = DialogsConfig()
        self.watchers: list[EventWatcher] = []
        """Called with every event; the daemon hands them to its applications."""
        self._port: Port | None = None
        self._ended: HoldfastError = NodeStopped("the node is not running; nothing was sent")
        self._tokens = count(1)
        self._waiting: dict[int, tuple[asyncio.Future[Any], str, bytes, Returned]] = {}
        self._room = asyncio.Event()
        self._resolution = Resolution()
        self._repairs: dict[str, RepairHandler] = {}
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self.daemon: DialogDaemon | None = None
        self._clock: asyncio.TimerHandle | None = None
        self._wall_offset = 0
        self._instances: dict[str, Any] = {}
        """Roles that this node publishes for its services."""

    # -- the driver's side ---------------------------------------------------------------------------------------

    def meet(self, edges: Sequence[Edge]) -> None:
        self._resolution.roles = next((edge for edge in edges if isinstance(edge, Roles)), None)

    def effects(self) -> Mapping[type, EffectHandler]:
        return {
            ports.Answer: self._answered,
            ports.Event: self._event,
            ports.Resolve: self._resolve,
            ports.ReadRows: self._read,
            ports.Loopback: self._loop_back,
            ports.RepairWanted: self._repair_wanted,
            ports.UnitLost: self._unit_lost,
        }

    def control(self) -> Mapping[str, Control]:
        return DialogControl(self).handlers()

    def attach(self, port: Port) -> None:
        config = DIALOGS.of(port.config)
        self._port, self.config = port, config
        self._profiles: Mapping[str, Profile] = config.profiles
        stores = {store.name: store for store in config.store}
        if not stores:
            self.service.table.ready = True
            return
        self.default_store = next(iter(stores))
        self.stores.start(port, stores, self._begun, self.service.closed)
        self._wall_offset = port.core.wall_offset_ns
        self._clock = asyncio.get_running_loop().call_later(CLOCK_EVERY_S, self._watch_clock)
        if port.config.data and config.serve:
            self.daemon = DialogDaemon(self, Path(port.config.data) / "dialogs.sock")
            self._start(self._serve(self.daemon))
        for service in config.service:
            self._start(self._take_for_others(service.name, service.profile))

    async def _serve(self, daemon: DialogDaemon) -> None:
        try:
            await daemon.start()
        except SetupError as error:
            log.error(
                "applications cannot connect to this node's dialogs: %s",
                error,
                extra=_fields("daemon_not_started", error=str(error)),
            )

    async def _take_for_others(self, service: str, profile: str) -> None:
        try:
            await self.listen(service, profile=profile)
        except HoldfastError as error:
            extra = _fields("service_not_taken", service=service, error=str(error))
            log.error(
                "service %s of the configuration is not taken: %s", service, error, extra=extra
            )

    def halt(self, error: HoldfastError) -> None:
        self._port, self._ended = None, error
        if self._clock is not None:
            self._clock.cancel()
        if self.daemon is not None:
            self.daemon.close()
            self.daemon = None
        self.stores.halt()
        for future, *_ in self._waiting.values():
            if not future.done():
                future.set_exception(type(error)(*error.args))
        self._waiting.clear()
        for task in self._tasks:
            task.cancel()
        self._room.set()
        self._instances.clear()
        self.end_handles(error)

    def close(self) -> None:
        self.stores.close()

    def after_turn(self) -> None:
        if not self._room.is_set():
            self._room.set()

    def _watch_clock(self) -> None:
        """Tell the units when the wall clock was set."""
        if self._port is None:
            return
        offset = time_ns() - self._port.clock()
        if abs(offset - self._wall_offset) > CLOCK_STEP_NS:
            self._wall_offset = offset
            for name in self.stores.configs:
                self.tell(name, ports.WallClock(offset))
        self._clock = asyncio.get_running_loop().call_later(CLOCK_EVERY_S, self._watch_clock)

    @property
    def service(self) -> DialogService:
        return self.running().core.service(DialogService)

    @property
    def failures(self) -> Mapping[str, str]:
        """Why a store is not open, by name."""
        return self.stores.failures

    def running(self) -> Port:
        if self._port is None:
            raise type(self._ended)(*self._ended.args)
        return self._port

    # -- stores --------------------------------------------------------------------------------------------------

    def _begun(self, opened: OpenStore) -> bool:
        """A store is open: its unit begins. False if it cannot be made from what the store has."""
        try:
            self.service.opened(opened)
        except Exception as error:  # noqa: BLE001 whatever it raised, only this store may suffer
            self._unit_lost(
                self.service.lost(dialog_unit(opened.name), error, self.running().clock())
            )
            return False
        for request in self.listening.values():
            if request.settings.store == opened.name:
                self.tell(opened.name, request)
        remaining = [n for n, e in self.stores.ready.items() if n != opened.name and not e.is_set()]
        if not remaining:
            self.service.table.ready = True
        self.running().answer(ROUTER, None)
        return True

    def _unit_lost(self, effect: ports.UnitLost) -> None:
        name = effect.unit.removeprefix(UNIT)
        self.service.gone(effect)
        for token, (future, store, _, _) in list(self._waiting.items()):
            if store == name and not future.done():
                text = f"the dialog store failed ({effect.reason}); the request may have taken effect or not"
                future.set_exception(DialogError(text))
                del self._waiting[token]
        self.stores.lost(name, effect.wait_ns)
        self.look_again(name)

    def check_store(self, store: str) -> None:
        self.stores.check(store)

    def worker(self, store: str) -> Worker:
        return self.stores.worker(store)

    async def settle(self, store: str, tx: bytes) -> bool:
        return await self.stores.settle(store, tx)

    async def kept(self, store: str, tx: bytes) -> bool:
        """Whether the store has kept the outcome `committed` of a transaction. `StoreError`: it cannot say now."""
        try:
            await self.stores.until_open(store)
        except DialogError as error:
            raise StoreError(f"{error}") from error
        future = self.stores.read(store, lambda made: made.read(KEPT, tx, after(tx)))
        return bool(await asyncio.wrap_future(future))

    @property
    def stopped(self) -> bool:
        return self._port is None

    def epoch(self, store: str) -> int:
        """The epoch of this node's ownership of a store; it grows whenever the store is opened."""
        manager = self.service.manager(store)
        return manager.core.env.owner_epoch if manager is not None else 0

    def store_id(self, store: str = "") -> bytes:
        manager = self.service.manager(store or self.default_store)
        return bytes(manager.core.env.store) if manager is not None else b""

    # -- requests ------------------------------------------------------------------------------------------------

    async def exchange(
        self, store: str, request: Any, dialog: bytes, size: int, returned: Returned
    ) -> Any:
        self.running()
        self.stores.check(store)
        token = next(self._tokens)
        values = {name: getattr(request, name) for name in request.__struct_fields__}
        values["token"] = token
        item = type(request)(**values)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        unit = dialog_unit(store)
        while True:
            # Again after each wait: the store may have failed meanwhile, and its unit with it.
            await self.stores.until_open(store)
            if self.running().offer(unit, item, size + 64, DATA):
                break
            self._room.clear()
            await self._room.wait()
        self._waiting[token] = (future, store, dialog, returned)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                # The answer was there when the task was cancelled.
                returned(future.result())
            elif self._port is not None:
                self.tell(store, ports.Cancel(token, dialog))
            raise

    def tell(self, store: str, item: Any) -> None:
        if self._port is not None:
            self._port.answer(dialog_unit(store), item)

    def _answered(self, answer: ports.Answer) -> None:
        found = self._waiting.pop(answer.token, None)
        if found is None:
            return
        future, _, _, returned = found
        if not future.done():
            future.set_result(answer.value)
        else:
            returned(answer.value)

    def wake_receivers(self, dialog: Dialog) -> None:
        for token, (future, store, waiting, _) in self._waiting.items():
            if store == dialog.store and waiting in (dialog.id, b"") and not future.done():
                self.tell(store, ports.Cancel(token, waiting, receives_only=True))

    # -- what applications use -----------------------------------------------------------------------------------

    def transaction(
        self, connection: Any = None, store: str = "", tx: bytes = b"", keep: bool = False
    ) -> Transaction:
        """A transaction over sends and receives, and the application's own tables. `connection` is one of the
        application's own to the database of a postgres store; `store` names the store that it begins with.

        The outcome of one with `keep` stays in the store until it is confirmed; the daemon uses it."""
        if connection is not None and not store:
            kinds = self.stores.configs.values()
            store = next((s.name for s in kinds if s.kind == "postgres"), "")
            if not store:
                raise MisuseError("a connection needs a postgres store; this node has none")
        return Transaction(self, connection, store, tx, keep)

    async def start_listening(self, request: ports.Listen) -> None:
        self.service.table.services[request.service] = dialog_unit(request.settings.store)
        await super().start_listening(request)
        if self.config.roles:
            self._start(self._publish(request.service))

    async def stop_listening(self, request: ports.Listen) -> None:
        self.service.table.services.pop(request.service, None)
        instance = self._instances.pop(request.service, None)
        if instance is not None:
            self._start(instance.unpublish())
        await super().stop_listening(request)

    async def _publish(self, service: str) -> None:
        """Make the service known by its role. A node without others to tell is found by its routes."""
        try:
            instance = await self._resolution.publish(service_role(service))
        except HoldfastError as error:
            extra = _fields("service_without_role", service=service, error=str(error))
            log.warning("service %s has no role: %s", service, error, extra=extra)
            return
        if service in self.listening:
            self._instances[service] = instance
        elif instance is not None:
            await instance.unpublish()

    def repair_with(self, code: str, handler: RepairHandler) -> None:
        """Call `await handler(dialog, fault)` when a dialog faults with `code`. It gives what to do: `resume`,
        `reroute`, `terminate`, or nothing, to leave it to an operator."""
        self._repairs[code] = handler

    def resolve_with(self, resolver: Resolver) -> None:
        """Ask `await resolver(uri, key)` for the nodes of a service before the routes of the configuration."""
        self._resolution.resolver = resolver

    # -- state ---------------------------------------------------------------------------------------------------

    async def look(self, dialog: Dialog) -> Look:
        return self.look_at(dialog.store, dialog.id)

    def look_at(self, store: str, dialog: bytes) -> Look:
        """State of an end that is in memory."""
        manager = self.service.manager(store)
        end = manager.inspect(dialog) if manager is not None else None
        return Look(end.state, end.fault, end.detail) if end is not None else Look()

    # -- effects -------------------------------------------------------------------------------------------------

    def _event(self, event: ports.Event) -> None:
        store = event.unit.removeprefix(UNIT)
        self.deliver_event(store, event)
        if event.kind == "requested" or (event.kind == "opened" and event.accepted):
            self.announce(service_of(event.uri), event.kind, event.dialog, event.uri)
        for watch in self.watchers:
            watch(store, event)

    def _resolve(self, effect: ports.Resolve) -> None:
        at_once = self._resolution.at_once(self.running(), self.config, effect)
        if at_once is not None:
            self._answer_resolve(effect, *at_once)
        else:
            self._start(self._resolve_later(effect))

    async def _resolve_later(self, effect: ports.Resolve) -> None:
        found = await self._resolution.resolve(self.running(), self.config, effect)
        self._answer_resolve(effect, *found)

    def _answer_resolve(self, effect: ports.Resolve, nodes: list[bytes], error: str) -> None:
        if self._port is not None:
            self._port.answer(
                effect.unit, ports.Resolved(effect.dialog, effect.attempt, nodes, error)
            )

    def _read(self, effect: ports.ReadRows) -> None:
        port = self.running()

        def read(store: Any) -> None:
            tables = {t: store.read(t, first, stop) for t, first, stop in effect.wanted}
            port.answer_from_thread(effect.unit, ports.Rows(effect.token, tables))

        self.stores.read(effect.unit.removeprefix(UNIT), read)

    def _loop_back(self, effect: ports.Loopback) -> None:
        port = self.running()
        port.answer(ROUTER, Received(NodeId(effect.node), effect.frames, port.clock()))

    def _repair_wanted(self, effect: ports.RepairWanted) -> None:
        handler = self._repairs.get(effect.code)
        if handler is not None:
            store = effect.unit.removeprefix(UNIT)
            self._start(
                self._repair(handler, self.handle(store, effect.dialog, effect.uri), effect)
            )

    async def _repair(
        self, handler: RepairHandler, dialog: Dialog, effect: ports.RepairWanted
    ) -> None:
        try:
            action = await handler(dialog, effect)
            if action:
                await dialog.repair(action)
        except HoldfastError as error:
            name = dialog_name(dialog.id)
            extra = _fields("repair_failed", dialog=name, error=str(error))
            log.warning("dialog %s was not repaired: %s", name, error, extra=extra)
        except Exception:
            extra = _fields(
                "repair_handler_failed", dialog=dialog_name(dialog.id), fault=effect.code
            )
            log.exception("the repair handler of %s failed", effect.code, extra=extra)

    def _start(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))


def _fields(event: str, **known: str) -> dict[str, str]:
    """What the log knows about an event."""
    return {"event": event, "subsystem": "dialog", **known}
