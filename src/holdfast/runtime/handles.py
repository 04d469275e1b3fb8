"""What an application holds in its hand to send with. Sends gather here until the next turn takes them all.

A handle is bounded: `try_send` says False, `send` waits. What was accepted is counted until the node reports that it
has left the queue; what is still on its way to the unit that it is for counts as well.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

import msgspec

from holdfast.errors import HoldfastError, MisuseError
from holdfast.group.config import GroupConfig, source_unit
from holdfast.group.metadata import NAME_MAX, REQUEST_MAX, Note
from holdfast.group.ports import Flush, Multicast, is_text
from holdfast.health.monitor import HEALTH
from holdfast.health.needs import Needs, SetNeeds
from holdfast.links.channel_in import MESSAGE_MAX
from holdfast.links.datagrams import BOUNDS
from holdfast.links.ports import DATAGRAMS, SendChannel, SendRaw, link_unit
from holdfast.runtime.driver import ITEM_BYTES, Driver
from holdfast.runtime.operating import ask_group, ignoring
from holdfast.types import DATA, SYNC, NodeId

QUEUE_BYTES: Final = 8 << 20


def _as_bytes(message: object) -> bytes:
    if isinstance(message, bytes | bytearray | memoryview):
        return bytes(message)
    raise MisuseError(f"a message is bytes, not {type(message).__name__}; nothing was sent")


def _again(error: HoldfastError) -> HoldfastError:
    """The same for one more: an error that is raised twice keeps alive what each of those who got it had in hand."""
    return type(error)(*error.args)


class _Handle:
    """Messages that wait for the next turn, and senders that wait for room."""

    def __init__(self, driver: Driver, unit: str, bound: int, largest: int = MESSAGE_MAX) -> None:
        self._driver = driver
        self._unit = unit
        self._bound = bound
        self._largest = largest
        """Bytes of the largest message that is taken."""
        self._messages: list[bytes] = []
        self._bytes = 0
        """What the messages count for: four bytes more than they have, so that an empty one counts as well."""
        self._handed = 0
        """Bytes of everything that was ever handed over."""
        self._taken = 0
        """How many of them the unit has taken."""
        self._queued = 0
        """Bytes that were handed over and still wait: on their way to the unit, or there."""
        self._room = -1
        """How far `_bytes` may grow without a further look; below zero before the first message of a turn."""
        self._waiters: deque[tuple[asyncio.Future[None], int]] = deque()
        """Who waits for room, for how many bytes: in the order in which they came, and so they are set free."""
        self._open = False
        """It is the turn of the one who waited longest: it may send as much as fits, although others wait."""
        self._full = False
        """Something did not fit since the unit last spoke; until it speaks again there is no use in trying."""
        self._ended: HoldfastError | None = None

    def try_send(self, message: bytes) -> bool:
        """Queue a message; False when the queue is full or others wait for it, and then nothing was sent."""
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
            raise _again(self._ended)
        if size > self._largest:
            raise MisuseError(
                f"a message has at most {self._largest} bytes here, this one {size}; nothing was sent"
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
        """Queue a message; waits while the queue is full, behind those who wait already."""
        if type(message) is not bytes:
            message = _as_bytes(message)  # once, and its length in bytes from here on
        while not self.try_send(message):
            await self.writable(len(message))

    async def writable(self, size: int = 0) -> None:
        """Wait until the queue has room, for a message of `size` bytes and for some more, and until it is this
        caller's turn: `try_send` then takes what fits, if it is called before anything else is awaited."""
        if self._ended is not None:
            raise _again(self._ended)
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
        """The first of those who wait, if there is room. It keeps its place until it goes on: nobody overtakes it."""
        if self._waiters and not self._full:
            waiter, size = self._waiters[0]
            if not waiter.done() and self._is_roomy(size):
                self._open = False
                waiter.set_result(None)
                waiter.get_loop().call_soon(self._next)  # right after it has gone on

    def _next(self) -> None:
        self._open = False
        self._room = -1
        self._set_free()

    def queued(self, held: int, taken: int) -> None:
        """The unit says how many bytes it holds, out of all that it has taken so far."""
        self._taken = taken
        self._queued = held + self._handed - taken
        self._room = -1
        self._full = False
        self._set_free()

    def end(self, error: HoldfastError) -> None:
        """The node has stopped, or the unit: whoever waits is told."""
        self._ended = error
        self._room = -1
        waiters, self._waiters = self._waiters, deque()
        for waiter, _ in waiters:
            if not waiter.done():
                waiter.set_exception(_again(error))

    @property
    def pending(self) -> int:
        """Bytes that were accepted and have not left the queue."""
        return self._bytes + self._queued

    @property
    def unseen(self) -> int:
        """Bytes that were accepted and have not come to the unit."""
        return self._bytes + self._handed - self._taken

    def hand_over(self) -> None:
        """Before a turn: what was sent since the last one becomes one input."""
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
    """Where some traffic goes now: `own adapter/the peer's adapter/transport`, and why there."""

    path: str
    """Empty before anything was sent, and while nothing may be used."""
    reason: str


class _PeerHandle(_Handle):
    """Traffic to one port of one peer, which has a place among the paths to that peer."""

    def __init__(
        self, driver: Driver, peer: NodeId, port: int, traffic: int, needs: Needs | None, bound: int
    ) -> None:
        super().__init__(driver, link_unit(peer), bound)
        self.peer = peer
        self.port = port
        self._traffic = traffic
        self._needs: Needs | None = None
        if needs is not None:
            self.needs = needs

    @property
    def needs(self) -> Needs | None:
        """What this traffic needs of its path; may be set at any time, and None takes it back."""
        return self._needs

    @needs.setter
    def needs(self, needs: Needs | None) -> None:
        if self._ended is not None:
            raise _again(self._ended)
        if needs is not None and not isinstance(needs, Needs):
            raise MisuseError(
                f"what traffic needs is said with holdfast.Needs(...), not {needs!r}; nothing has changed"
            )
        self._needs = needs
        item = SetNeeds("application", self._traffic, needs, self.peer)
        self._driver.intake.force(SYNC, HEALTH, item, ITEM_BYTES)
        self._driver.wake()

    @property
    def placement(self) -> Place:
        """The path that this traffic uses now, and why."""
        link = self._driver.core.link(self.peer)
        return Place(*link.placement(self._traffic)) if link is not None else Place("", "")


class Channel(_PeerHandle):
    """Reliable and in order, over whichever path works, until the peer restarts or every path is dead."""

    def __init__(self, driver: Driver, peer: NodeId, port: int, needs: Needs | None = None) -> None:
        super().__init__(driver, peer, port, port, needs, QUEUE_BYTES)

    def _request(self, messages: list[bytes]) -> object:
        return SendChannel(self.port, messages)


class Datagrams(_PeerHandle):
    """Messages that may be lost, doubled or overtaken: packed into as few packets as fit."""

    def __init__(self, driver: Driver, peer: NodeId, port: int, needs: Needs | None = None) -> None:
        super().__init__(driver, peer, port, DATAGRAMS + port, needs, BOUNDS[DATA])
        self.refused = 0
        """Messages that were accepted here but could not be sent: no path carries them, or too much waited."""
        self.refusal = ""
        """Why the last of them was refused."""

    def refuse(self, count: int, reason: str) -> None:
        """The node says that messages were not sent."""
        self.refused += count
        self.refusal = reason

    def hand_over(self) -> None:
        """They count as gone then, and nobody says when they are: so they stay here, and count, while much waits."""
        if not self._driver.crowded:
            if self._messages and self._driver.core.link(self.peer) is None:
                self.refuse(len(self._messages), "there is no link to the peer")
                self._messages, self._bytes = [], 0
            super().hand_over()
            self.queued(0, self._handed)
        elif self._messages:
            self._driver.wake()

    def _request(self, messages: list[bytes]) -> object:
        return SendRaw(self.port, messages)


class Group(_Handle):
    """Messages to all replicas of a group, in one order for all. The bound is half of the group's window: what waits to
    be numbered may fill the other half before the source refuses anything."""

    def __init__(self, driver: Driver, config: GroupConfig, stream: int = -1) -> None:
        """`stream` is the one that the source has begun; a handle does not outlive it."""
        bound = config.window_bytes // 2
        super().__init__(driver, source_unit(config.name), bound, config.message_bytes)
        self.name = config.name
        self._stream = stream
        self._count = 0
        """Messages that were handed over; their numbers in the stream are 1 to this one."""
        self._settled = 0
        self._flushes: list[tuple[asyncio.Future[None], int]] = []
        """Who waits until everything up to a number is decided."""
        self._priorities = config.priorities
        self._notes: list[tuple[int, Note]] = []

    def try_send(
        self,
        message: bytes,
        *,
        priority: int | None = None,
        topic: str = "",
        request: bytes = b"",
        resync: bool = False,
    ) -> bool:
        """Queue a message; False when the queue is full or others wait for it, and then nothing was sent.

        `priority` is 0 for the most urgent. A message with a `request` id that the group has seen is not delivered
        again, whoever sends it. `resync` ends what the group ignores of this source until it is in step again.
        """
        if priority is None and not topic and not request and not resync:
            return super().try_send(message)
        note = self._note(priority, topic, request, resync)
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
    ) -> None:
        """Queue a message, as `try_send`; waits while the queue is full, behind those who wait already."""
        if type(message) is not bytes:
            message = _as_bytes(message)  # once, and its length in bytes from here on
        while not self.try_send(
            message, priority=priority, topic=topic, request=request, resync=resync
        ):
            await self.writable(len(message))

    async def flush(self) -> None:
        """Wait until it is decided what becomes of everything that was accepted here before: it has its place in the
        order, which a majority has (in `durable` groups on disk), or a decision has dropped it. Applications may
        not have come to it yet.

        There is no time limit: while nobody leads it waits. Raises as `send` does when the node stops or the source
        fails, and says how many messages may be lost."""
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
        """The source says that it is decided what becomes of every message up to this number."""
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
        why = str(error).removesuffix("; nothing was sent")  # said of what is refused, not of these
        return type(error)(f"up to {lost} messages that were accepted before may be lost: {why}")

    @property
    def ignoring(self) -> list[dict[str, Any]]:
        """What the group ignores now, as far as the replica on this node knows: `id`, `what`, and how many are `left`
        (0: not counted)."""
        return ignoring(self._driver, self.name)

    def end_ignoring(self, criterion: int) -> None:
        """Ignore no more by the criterion of this id (see `ignoring`), on all replicas from one place in the order on.
        The replica on this node asks the leader; the status shows what came of it."""
        request = {"group": self.name, "verb": "end-ignoring", "name": str(criterion)}
        ask_group(self._driver, request)

    def _note(self, priority: int | None, topic: str, request: bytes, resync: bool) -> Note:
        lowest = self._priorities - 1
        if priority is not None and not (type(priority) is int and 0 <= priority <= lowest):
            raise MisuseError(
                f"priority {priority!r}: this group has the integers 0 (most urgent) to {lowest}; nothing was sent"
            )
        if not (is_text(topic) and type(request) is bytes):
            raise MisuseError(
                f"a topic is a text and a request id bytes, not {topic!r} and {request!r}; nothing was sent"
            )
        if type(resync) is not bool:
            raise MisuseError(f"resync is True or False, not {resync!r}; nothing was sent")
        if len(topic) > NAME_MAX or len(request) > REQUEST_MAX:
            raise MisuseError(
                f"a topic has at most {NAME_MAX} letters, a request id {REQUEST_MAX} bytes; nothing was sent"
            )
        return Note(-1 if priority is None else priority, topic, request, resync)

    def _request(self, messages: list[bytes]) -> object:
        notes, self._notes = tuple(self._notes), []
        self._count += len(messages)
        return Multicast(messages, notes, self._stream)
