"""The handles with which an application sends. Messages collect here until the next turn takes them.

A handle is bounded: `try_send` returns False, `send` waits. Accepted messages count until the node reports that they
have left the queue, including those on their way to their unit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

import msgspec

from holdfast.errors import HoldfastError, MisuseError
from holdfast.group.config import GroupConfig, source_unit
from holdfast.group.ports import Flush, Multicast, is_text
from holdfast.group.streams.message_metadata import NAME_MAX, REQUEST_MAX, ZONE_MARK, zone_topic
from holdfast.group.streams.values import Note
from holdfast.health.monitor import HEALTH
from holdfast.health.placement.needs import Needs, SetNeeds
from holdfast.links.channel_in import MESSAGE_MAX
from holdfast.links.datagrams import BOUNDS
from holdfast.links.ports import DATAGRAMS, SendChannel, SendRaw, link_unit
from holdfast.links.subsystem import LinkService
from holdfast.runtime.driver import ITEM_BYTES, Driver
from holdfast.runtime.operating import ask_group, ignoring
from holdfast.runtime.services import LEASE_S, Barrier, Lock, ServiceBook, SubGroup
from holdfast.types import DATA, SYNC, NodeId

QUEUE_BYTES: Final = 8 << 20


def _as_bytes(message: object) -> bytes:
    if isinstance(message, bytes | bytearray | memoryview):
        return bytes(message)
    raise MisuseError(f"a message must be bytes, not {type(message).__name__}; nothing was sent")


def again(error: HoldfastError) -> HoldfastError:
    """A copy for another caller: an exception raised twice would keep the frames of both callers alive."""
    return type(error)(*error.args)


class _Handle:
    """Messages that wait for the next turn, and senders that wait for room."""

    def __init__(self, driver: Driver, unit: str, bound: int, largest: int = MESSAGE_MAX) -> None:
        self._driver = driver
        self._unit = unit
        self._bound = bound
        self._largest = largest
        """Size of the largest accepted message."""
        self._messages: list[bytes] = []
        self._bytes = 0
        """The size of the messages plus four bytes each, so that an empty one counts as well."""
        self._handed = 0
        """Total bytes that were handed over."""
        self._taken = 0
        """How many of them the unit has taken."""
        self._queued = 0
        """Bytes that were handed over and still wait, at the unit or on the way to it."""
        self._room = -1
        """How far `_bytes` may grow without another check; negative before the first message of a turn."""
        self._waiters: deque[tuple[asyncio.Future[None], int]] = deque()
        """Tasks that wait for room, with the size; they are released in order of arrival."""
        self._open = False
        """It is the turn of the task that waited longest: it may send as much as fits, although others wait."""
        self._full = False
        """Something did not fit since the last report of the unit; until the next one, trying is useless."""
        self._ended: HoldfastError | None = None

    def try_send(self, message: bytes) -> bool:
        """Queue a message. Returns False if the queue is full or other tasks wait for it; nothing was sent then."""
        if type(message) is not bytes:
            message = _as_bytes(message)
        total = self._bytes + len(message) + 4
        if total > self._room and not self._admit(len(message)):
            return False
        self._messages.append(message)
        self._bytes = total
        return True

    def _admit(self, size: int) -> bool:
        """The first message of a turn, or one that does not fit: alone in an empty queue, any size fits."""
        if self._ended is not None:
            raise again(self._ended)
        if size > self._largest:
            raise MisuseError(
                f"a message can have at most {self._largest} bytes here, but this one has {size}; "
                "nothing was sent"
            )
        if self._waiters and not self._open:
            return False
        if not self._fits(size):
            self._full = True
            return False
        if not self._bytes:
            self._driver.wake()
        self._room = min(self._bound - self._queued, self._bytes + self._largest)
        return True

    def _fits(self, size: int) -> bool:
        waiting = self._bytes + self._queued
        return not waiting or waiting + size <= self._bound

    async def send(self, message: bytes) -> None:
        """Queue a message; waits while the queue is full, after tasks that already wait."""
        if type(message) is not bytes:
            message = _as_bytes(message)  # once; its length is in bytes from here on
        while not self.try_send(message):
            await self.writable(len(message))

    async def writable(self, size: int = 0) -> None:
        """Wait until the queue has room for a message of `size` bytes and some more, and until it is the turn of this
        task: `try_send` then takes what fits, if it is called before anything else is awaited."""
        if self._ended is not None:
            raise again(self._ended)
        if self._waiters or self._full or not self._is_roomy(size):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            place = (waiter, size)
            self._waiters.append(place)
            self._room = -1
            try:
                await waiter
            finally:
                if place in self._waiters:
                    self._waiters.remove(place)
                if waiter.cancelled():
                    self._set_free()
                else:
                    self._open = True

    def _is_roomy(self, size: int) -> bool:
        return self._bytes + self._queued < self._bound // 2 and self._fits(size)

    def _set_free(self) -> None:
        """Release the first waiting task if there is room. It keeps its place until it runs, so no task overtakes
        it."""
        if self._waiters and not self._full:
            waiter, size = self._waiters[0]
            if not waiter.done() and self._is_roomy(size):
                self._open = False
                waiter.set_result(None)
                waiter.get_loop().call_soon(self._next)  # right after it has continued

    def _next(self) -> None:
        self._open = False
        self._room = -1
        self._set_free()

    def queued(self, held: int, taken: int) -> None:
        """The unit reports how many bytes it holds, and how many it has taken so far."""
        self._taken = taken
        self._queued = held + self._handed - taken
        self._room = -1
        self._full = False
        self._set_free()

    def end(self, error: HoldfastError) -> None:
        """The node or the unit has stopped: inform all waiting tasks."""
        self._ended = error
        self._room = -1
        waiters, self._waiters = self._waiters, deque()
        for waiter, _ in waiters:
            if not waiter.done():
                waiter.set_exception(again(error))

    @property
    def pending(self) -> int:
        """Bytes that were accepted and have not left the queue."""
        return self._bytes + self._queued

    @property
    def unseen(self) -> int:
        """Bytes that were accepted and have not reached the unit."""
        return self._bytes + self._handed - self._taken

    def hand_over(self) -> None:
        """Before a turn: the messages since the last one become one input."""
        if self._messages:
            messages, self._messages = self._messages, []
            size, self._bytes = self._bytes, 0
            self._room = -1
            self._handed += size
            self._queued += size
            self._driver.intake.force(DATA, self._unit, self._request(messages), size)

    def _request(self, messages: list[bytes]) -> object:
        raise AssertionError("a handle is one of the kinds below")


class Place(msgspec.Struct, frozen=True, gc=False):
    """The current path of some traffic: `local adapter/remote adapter/transport`, and the reason."""

    path: str
    """Empty before anything was sent, and while no path may be used."""
    reason: str


class _PeerHandle(_Handle):
    """Traffic to one port of one peer, placed on one of the paths to that peer."""

    def __init__(
        self, driver: Driver, peer: NodeId, port: int, traffic: int, needs: Needs | None, bound: int
    ) -> None:
        super().__init__(driver, link_unit(peer), bound)
        self._links = driver.core.service(LinkService)
        self.peer = peer
        self.port = port
        self._traffic = traffic
        self._needs: Needs | None = None
        if needs is not None:
            self.needs = needs

    @property
    def needs(self) -> Needs | None:
        """The needs of this traffic; can be set at any time, and None removes them."""
        return self._needs

    @needs.setter
    def needs(self, needs: Needs | None) -> None:
        if self._ended is not None:
            raise again(self._ended)
        if needs is not None and not isinstance(needs, Needs):
            raise MisuseError(
                f"needs must be given as holdfast.Needs(...), not {needs!r}; nothing was changed"
            )
        self._needs = needs
        item = SetNeeds("application", self._traffic, needs, self.peer)
        self._driver.intake.force(SYNC, HEALTH, item, ITEM_BYTES)
        self._driver.wake()

    @property
    def placement(self) -> Place:
        """The path that this traffic uses now, and why."""
        link = self._links.link(self.peer)
        return Place(*link.placement(self._traffic)) if link is not None else Place("", "")


class Channel(_PeerHandle):
    """Reliable and ordered over any working path, until the peer restarts or all paths are dead."""

    def __init__(self, driver: Driver, peer: NodeId, port: int, needs: Needs | None = None) -> None:
        super().__init__(driver, peer, port, port, needs, QUEUE_BYTES)

    def _request(self, messages: list[bytes]) -> object:
        return SendChannel(self.port, messages)


class Datagrams(_PeerHandle):
    """Messages that may be lost, duplicated or reordered, packed into as few packets as possible."""

    def __init__(self, driver: Driver, peer: NodeId, port: int, needs: Needs | None = None) -> None:
        super().__init__(driver, peer, port, DATAGRAMS + port, needs, BOUNDS[DATA])
        self.refused = 0
        """Messages that were accepted here but could not be sent: no path can carry them, or too much was queued."""
        self.refusal = ""
        """Why the last of them was refused."""

    def refuse(self, count: int, reason: str) -> None:
        """The node reports that messages were not sent."""
        self.refused += count
        self.refusal = reason

    def hand_over(self) -> None:
        """They count as sent then, without a further report, so they stay here, and count, while much is queued."""
        if not self._driver.crowded:
            if self._messages and self._links.link(self.peer) is None:
                self.refuse(len(self._messages), "there is no link to the peer")
                self._messages, self._bytes = [], 0
            super().hand_over()
            self.queued(0, self._handed)
        elif self._messages:
            self._driver.wake()

    def _request(self, messages: list[bytes]) -> object:
        return SendRaw(self.port, messages)


class Group(_Handle):
    """Messages to all replicas of a group, in one order for all. The bound is half of the window of the group: messages
    that wait to be numbered may fill the other half before the source refuses anything."""

    def __init__(
        self, driver: Driver, config: GroupConfig, stream: int = -1, book: ServiceBook | None = None
    ) -> None:
        """`stream` is the current stream of the source; a handle does not outlive it. `book` contains the requests of
        this node for locks and barriers."""
        bound = config.window_bytes // 2
        super().__init__(driver, source_unit(config.name), bound, config.message_bytes)
        self.name = config.name
        self._stream = stream
        self._count = 0
        """Messages that were handed over; their numbers in the stream are 1 to this one."""
        self._settled = 0
        self._flushes: list[tuple[asyncio.Future[None], int]] = []
        """Tasks that wait until everything up to a number is committed."""
        self._priorities = config.priorities
        self._notes: list[tuple[int, Note]] = []
        self._zones = dict(config.zones)
        self._book = book if book is not None else ServiceBook(driver, config)

    def lock(self, name: str, *, lease: float = LEASE_S) -> Lock:
        """A lock of the group: `async with group.lock("till") as token`. One node holds it at a time.

        If this node is unreachable or stops, the lock is released after `lease` seconds without a renewal.
        """
        return Lock(self._book, name, lease)

    def barrier(
        self, name: str, *, parties: int, phases: int = 1, lease: float = LEASE_S
    ) -> Barrier:
        """A barrier for `parties` nodes: `await group.barrier("loaded", parties=3)`. With several `phases`, await the
        same object once per phase; all phases are for the same nodes."""
        return Barrier(self._book, name, parties, phases, lease)

    def subgroup(self, zone: str) -> SubGroup:
        """The replicas of a zone of the configuration. Messages to it are ordered with all others, and delivered there
        only."""
        return SubGroup(self, zone, self._zones)

    def try_send(
        self,
        message: bytes,
        *,
        priority: int | None = None,
        topic: str = "",
        request: bytes = b"",
        resync: bool = False,
        zone: str = "",
    ) -> bool:
        """Queue a message. Returns False if the queue is full or other tasks wait for it; nothing was sent then.

        `priority` 0 is the most urgent. A message with a `request` id that the group has seen is not delivered again,
        whichever node sends it. `resync` ends the ignore criteria of this source that last until a resync. A message
        with a `zone` is delivered by the replicas of that zone only.
        """
        if priority is None and not topic and not request and not resync and not zone:
            return super().try_send(message)
        note = self._note(priority, topic, request, resync, zone)
        if not super().try_send(message):
            return False
        self._notes.append((len(self._messages) - 1, note))
        return True

    async def send(
        self,
        message: bytes,
        *,
        priority: int | None = None,
        topic: str = "",
        request: bytes = b"",
        resync: bool = False,
        zone: str = "",
    ) -> None:
        """Queue a message like `try_send`; waits while the queue is full, after tasks that already wait."""
        if type(message) is not bytes:
            message = _as_bytes(message)  # once; its length is in bytes from here on
        while not self.try_send(
            message, priority=priority, topic=topic, request=request, resync=resync, zone=zone
        ):
            await self.writable(len(message))

    async def flush(self) -> None:
        """Wait until everything that was accepted here before is committed (in `durable` groups, on the disks of a
        majority) or dropped by a decision. Applications may not have applied it yet.

        There is no timeout: it waits while there is no leader. Raises like `send` if the node stops or the source
        fails, and states how many messages may be lost.
        """
        last = self._count + len(self._messages)
        if last <= self._settled:
            return
        if self._ended is not None:
            raise self._unflushed(self._ended, last)
        place = (asyncio.get_running_loop().create_future(), last)
        self._flushes.append(place)
        self._driver.answer(self._unit, Flush(last))
        try:
            await place[0]
        finally:
            if place in self._flushes:
                self._flushes.remove(place)

    def settled(self, upto: int) -> None:
        """The source reports that every message up to this number is committed or dropped."""
        if upto == self._settled:
            return
        self._settled = upto
        for waiter, last in self._flushes:
            if last <= upto and not waiter.done():
                waiter.set_result(None)

    def end(self, error: HoldfastError) -> None:
        super().end(error)
        for waiter, last in self._flushes:
            if not waiter.done():
                waiter.set_exception(self._unflushed(error, last))

    def _unflushed(self, error: HoldfastError, last: int) -> HoldfastError:
        lost = last - self._settled
        why = str(error).removesuffix(
            "; nothing was sent"
        )  # about refused messages, not about these
        return type(error)(f"up to {lost} messages that were accepted before may be lost: {why}")

    @property
    def ignoring(self) -> list[dict[str, Any]]:
        """The active ignore criteria, as known to the replica on this node: `id`, `what`, and how many are `left` (0:
        not counted)."""
        return ignoring(self._driver, self.name)

    def end_ignoring(self, criterion: int) -> None:
        """End the ignore criterion with this id (see `ignoring`) on all replicas at the same position. The replica on
        this node asks the leader; the status shows the result."""
        request = {"group": self.name, "verb": "end-ignoring", "name": str(criterion)}
        ask_group(self._driver, request)

    def _note(
        self, priority: int | None, topic: str, request: bytes, resync: bool, zone: str
    ) -> Note:
        lowest = self._priorities - 1
        if priority is not None and not (type(priority) is int and 0 <= priority <= lowest):
            raise MisuseError(
                f"priority {priority!r} is invalid: this group has the integers 0 (most urgent) to "
                f"{lowest}; nothing was sent"
            )
        if not (is_text(topic) and type(request) is bytes):
            raise MisuseError(
                f"a topic must be text and a request id bytes, not {topic!r} and {request!r}; nothing "
                "was sent"
            )
        if type(resync) is not bool:
            raise MisuseError(f"resync must be True or False, not {resync!r}; nothing was sent")
        if topic.startswith(ZONE_MARK) or (zone and zone not in self._zones):
            raise MisuseError(
                f"a topic must not start with {ZONE_MARK!r}, and a zone must be one of the group ("
                f"{', '.join(self._zones) or 'it has none'}), not {topic!r} and {zone!r}; nothing was sent"
            )
        topic = zone_topic(zone, topic)
        if len(topic) > NAME_MAX or len(request) > REQUEST_MAX:
            raise MisuseError(
                f"a topic can have at most {NAME_MAX} letters, a request id {REQUEST_MAX} bytes; "
                "nothing was sent"
            )
        return Note(-1 if priority is None else priority, topic, request, resync)

    def _request(self, messages: list[bytes]) -> object:
        notes, self._notes = tuple(self._notes), []
        self._count += len(messages)
        return Multicast(messages, notes, self._stream)
