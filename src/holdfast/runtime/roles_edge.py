"""The part of `node.roles` that faces the node: inputs to the overlay, and its effects."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from inspect import isawaitable
from itertools import count
from typing import Any, Final, TypeVar

import msgspec

from holdfast.errors import HoldfastError, MisuseError, QueueFull, RoleError
from holdfast.links.subsystem import LinkService
from holdfast.machine import Failure
from holdfast.overlay.ids import TREE_SIZE, TreeId, is_role, node_of, tree_id
from holdfast.overlay.ports import (
    OVERLAY,
    AnswerMany,
    AnswerMessage,
    Connected,
    Delivered,
    Ended,
    FoundInstances,
    OpenPort,
    OverlayEvent,
    Published,
    PublishRole,
    Replied,
    RoleGained,
    RoleLost,
    SearchResult,
    SendMany,
    SendToRole,
    Snooped,
    SnoopVerdict,
    TreeNodes,
    Unpublished,
    UnpublishRole,
    Withdrawn,
)
from holdfast.overlay.subsystem import OverlayService
from holdfast.runtime.roles_handles import (
    Instance,
    PassingMessage,
    Request,
    RoleMessage,
    RoleReply,
    stopped,
)
from holdfast.runtime.tracing import SERVER, Traced
from holdfast.subsystem import Edge, EffectHandler, Port
from holdfast.types import DATA

DEFAULT_TREE: Final = "default"
PROTOCOL: Final = 1
"""The protocol id that is used when an application names none."""
EVENTS_KEPT: Final = 256
BATCH_BYTES: Final = 16 << 10
"""Requests that are handed to the overlay in one piece."""
REQUEST_BYTES: Final = 64
NEIGHBOURHOOD: Final = 2
"""Direct connections of applications; 0 and 1 are those of the meshes within and between realms."""

T = TypeVar("T")
Handler = Callable[[RoleMessage], Any]
log = logging.getLogger("holdfast")


class RolesEdge(Edge, Traced):
    """Hands requests to the overlay, and what it says to those that wait for it."""

    def __init__(self) -> None:
        self._port: Port | None = None
        self._service: OverlayService
        self._links: LinkService
        self._loop: asyncio.AbstractEventLoop
        self._ops = count(1)
        self._requests: dict[int, Request] = {}
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._instances: dict[bytes, Instance] = {}
        self._listeners: dict[int, Handler] = {}
        self._served: dict[tuple[bytes, str], Handler] = {}
        self._snoopers: dict[int, Callable[[PassingMessage], object]] = {}
        self._ports: dict[int, OpenPort] = {}
        self._messages: dict[int, RoleMessage] = {}
        self._delivering = False
        """A handler runs within a turn: what it answers at once is handed over in one piece after the turn."""
        self._answers: list[AnswerMessage] = []
        self._batch: list[SendToRole] = []
        """Requests since the last turn, which the overlay has not been given yet."""
        self._batch_room = -1
        """Bytes of requests that still fit; negative: a new batch begins."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._watchers: list[asyncio.Queue[OverlayEvent]] = []
        self._stopped: RoleError | None = None
        """Why the overlay of this node does nothing any more, until the node is started again."""
        self.gained: Callable[[Instance], object] | None = None
        """Called when a reply granted a role to this node."""

    # -- life ----------------------------------------------------------------------------------------------------

    def effects(self) -> Mapping[type, EffectHandler]:
        return {
            Published: self._published,
            Unpublished: self._resolve,
            RoleLost: self._lost,
            RoleGained: self._gained,
            Delivered: self._delivered,
            Withdrawn: self._withdrawn,
            Snooped: self._snooped,
            Replied: self._replied,
            Ended: self._ended,
            FoundInstances: self._resolve,
            Connected: self._resolve,
            SearchResult: self._resolve,
            TreeNodes: self._resolve,
            OverlayEvent: self._event,
        }

    def attach(self, port: Port) -> None:
        self._port, self._stopped = port, None
        self._service = port.core.service(OverlayService)
        self._links = port.core.service(LinkService)
        self._loop = asyncio.get_running_loop()
        for open_port in self._ports.values():
            port.answer(OVERLAY, open_port)

    def unit_failed(self, failure: Failure) -> None:
        """The overlay has forgotten its requests, ports and instances: those that wait are told. Shared instances are
        published again."""
        if failure.unit != OVERLAY or self._port is None:
            return
        what = "restart the node" if failure.stopped else "send again what must not be lost"
        error = RoleError(
            f"the overlay of this node failed: {failure.error!r}; instances may have received requests; {what}"
        )
        self._end_waiting(error)
        for message in self._messages.values():
            message.withdrawn = "the overlay of this node failed"
        self._messages.clear()
        self._answers.clear()
        instances, self._instances = list(self._instances.values()), {}
        if failure.stopped:
            self._stopped = error
        for open_port in self._ports.values():
            self._port.answer(OVERLAY, open_port)
        for instance in instances:
            if failure.stopped or instance.made is None or instance.made.exclusive:
                instance.end("the overlay of this node failed")
            else:
                self._begin(self._publish_again(instance, instance.made))

    async def _publish_again(self, instance: Instance, made: PublishRole) -> None:
        try:
            again = msgspec.structs.replace(made, op=self._op())
            done: Published = await self._ask(again.op, again)
        except HoldfastError as error:
            instance.end(str(error))
            return
        if not done.ok:
            instance.end(done.reason)
        elif instance.lost.is_set():  # unpublished meanwhile
            op = self._op()
            await self._ask(op, UnpublishRole(op, made.tree, made.role))
        else:
            instance.id = done.instance
            self._instances[done.instance] = instance

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _end_waiting(self, error: HoldfastError) -> None:
        for request in self._requests.values():
            request.halt(error)
        self._requests.clear()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()

    def halt(self, error: HoldfastError) -> None:
        self._port = None
        self._end_waiting(error)
        for instance in self._instances.values():
            instance.end("the node has stopped")
        self._instances.clear()
        self._messages.clear()
        self._answers.clear()
        for task in self._tasks:
            task.cancel()

    # -- names ---------------------------------------------------------------------------------------------------

    @property
    def service(self) -> OverlayService:
        if self._port is None:
            raise stopped()
        return self._service

    def name_of(self, node: bytes) -> str:
        return self._links.directory.name_of(node)

    def reply_of(self, instance: bytes, data: bytes, granted: str = "") -> RoleReply:
        name = self._links.directory.name_of(node_of(instance))
        return RoleReply(data, instance, name, granted)

    # -- plumbing ------------------------------------------------------------------------------------------------

    def _op(self) -> int:
        return next(self._ops)

    def _offer(self, item: Any, size: int = 64) -> None:
        if self._port is None:
            raise stopped()
        if self._stopped is not None:
            raise self._stopped
        if not self._port.offer(OVERLAY, item, size + 64, DATA):
            raise QueueFull("too much waits for the overlay; nothing was sent; try again")

    def _submit(self, request: SendToRole) -> None:
        """Hand over a request; those of one turn of the event loop travel together."""
        if self._port is None:
            raise stopped()
        size = len(request.data)
        if size <= self._batch_room and self._stopped is None:
            self._batch_room -= size + REQUEST_BYTES
            self._batch.append(request)
            return
        batch = [request]
        if size > BATCH_BYTES:
            self._offer(request, size)
            return
        # Charged as a whole, because it is filled later.
        self._offer(SendMany(batch), BATCH_BYTES)
        self._batch, self._batch_room = batch, BATCH_BYTES - size - REQUEST_BYTES

    def before_turn(self) -> None:
        self._batch_room = -1

    def future(self) -> asyncio.Future[Any]:
        """Of the node's loop. Looking the loop up costs a system call (`getpid`), at each of many thousand requests."""
        if self._port is None:
            raise stopped()
        return self._loop.create_future()

    async def _ask(self, op: int, item: Any) -> Any:
        future = self.future()
        self._waiting[op] = future
        try:
            self._offer(item)
            return await future
        finally:
            self._waiting.pop(op, None)

    async def _ask_many(self, ops: list[int], item: Any) -> list[Any]:
        futures = {op: self.future() for op in ops}
        self._waiting.update(futures)
        try:
            if ops:
                self._offer(item)
            return [await future for future in futures.values()]
        finally:
            for op in ops:
                self._waiting.pop(op, None)

    def answer(self, item: AnswerMessage | SnoopVerdict) -> None:
        if isinstance(item, AnswerMessage):
            if item.last:
                self._messages.pop(item.token, None)
            if self._delivering:
                self._answers.append(item)
                return
        if self._port is not None:
            self._port.answer(OVERLAY, item)

    def after_turn(self) -> None:
        if self._answers:
            answers, self._answers = self._answers, []
            if self._port is not None:
                self._port.answer(OVERLAY, AnswerMany(tuple(answers)))

    # -- effects -------------------------------------------------------------------------------------------------

    def _resolve(self, effect: Any) -> None:
        future = self._waiting.get(effect.op)
        if future is not None and not future.done():
            future.set_result(effect)

    def _published(self, effect: Published) -> None:
        self._resolve(effect)

    def _lost(self, effect: RoleLost) -> None:
        instance = self._instances.pop(effect.instance, None)
        if instance is not None:
            instance.end(effect.reason)

    def _instance(self, tree: bytes, role: str, instance: bytes) -> Instance:
        raise NotImplementedError

    def _gained(self, effect: RoleGained) -> None:
        instance = self._instance(effect.tree, effect.role, effect.instance)
        self._instances[effect.instance] = instance
        if self.gained is not None:
            self._call(self.gained, instance)

    def _replied(self, effect: Replied) -> None:
        request = self._requests.get(effect.op)
        if request is not None:
            request.give(effect)

    def _ended(self, effect: Ended) -> None:
        request = self._requests.pop(effect.op, None)
        if request is not None:
            request.end(effect)

    def _delivered(self, effect: Delivered) -> None:
        message = RoleMessage(self, effect)
        served = self._served.get((effect.tree, effect.role))
        handler = served if effect.port == PROTOCOL and served else self._listeners.get(effect.port)
        if not effect.one_way:
            self._messages[effect.token] = message
        if self.tracing is None:
            self._handle(message, handler)
            return
        message.span = self.tracing.begin("role.handle", SERVER, effect.trace, role=effect.role)
        with self.tracing.use(message.span):
            self._handle(message, handler)

    def _handle(self, message: RoleMessage, handler: Handler | None) -> None:
        ends_later = False
        self._delivering = True
        try:
            result = handler(message) if handler is not None else b""
            if type(result) is bytes:
                message.reply(result)
            elif isawaitable(result):
                ends_later = True
                self._begin(self._finish(message, result))
            elif result is not None:
                message.reply(result)
        except Exception as error:  # noqa: BLE001 the handler is the application's: its error is logged
            self._handler_failed(message, error)
            message.fail()
        finally:
            self._delivering = False
            if message.span is not None and not ends_later:
                message.span.end()

    async def _finish(self, message: RoleMessage, result: Awaitable[Any]) -> None:
        try:
            data = await result
        except Exception as error:  # noqa: BLE001 the handler is the application's: its error is logged
            self._handler_failed(message, error)
            message.fail()
            return
        finally:
            if message.span is not None:
                message.span.end()
        if data is not None:
            message.reply(data)

    def _handler_failed(self, message: RoleMessage, error: Exception) -> None:
        log.error(
            "the handler of role %s failed",
            message.role,
            exc_info=error,
            extra={"event": "handler_failed", "subsystem": "overlay", "role": message.role},
        )
        if self.tracing is not None and message.span is not None:
            self.tracing.fail(message.span, error)

    def _withdrawn(self, effect: Withdrawn) -> None:
        message = self._messages.pop(effect.token, None)
        if message is not None:
            message.withdrawn = effect.reason

    def _snooped(self, effect: Snooped) -> None:
        passing = PassingMessage(self, effect)
        handler = self._snoopers.get(effect.port)
        if handler is None:
            passing.resume()
        else:
            self._call(handler, passing)

    def _call(self, handler: Callable[[Any], object], argument: object) -> None:
        try:
            handler(argument)
        except Exception:
            log.exception(
                "a callback of the overlay failed",
                extra={"event": "callback_failed", "subsystem": "overlay"},
            )

    def _event(self, effect: OverlayEvent) -> None:
        for queue in self._watchers:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(effect)


def as_role(role: str) -> str:
    if not is_role(role):
        raise MisuseError("a role name has 1 to 255 bytes in UTF-8; nothing was sent")
    return role


def as_tree(tree: str | bytes) -> TreeId:
    """A tree is called by a name, or by the 16 bytes of its id."""
    if isinstance(tree, str):
        try:
            return tree_id(tree)
        except UnicodeEncodeError:
            raise MisuseError("a tree is named in UTF-8; nothing was sent") from None
    if len(tree) != TREE_SIZE:
        raise MisuseError("a tree id has 16 bytes; nothing was sent")
    return TreeId(bytes(tree))
