"""The edge of links: channels and datagrams for applications."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, cast

from holdfast.errors import (
    ChannelEnded,
    HoldfastError,
    MisuseError,
    NodeStopped,
    NotAccepted,
    PeerUnknown,
)
from holdfast.health.placement.needs import Needs
from holdfast.links.directory import DIRECTORY
from holdfast.links.ports import (
    DATAGRAMS,
    PORT_MIN,
    NeedLink,
    PortReady,
    PortRefused,
    PortRoom,
    SessionBegun,
    SessionEnded,
)
from holdfast.links.receiver import CHANNELS_MAX
from holdfast.links.subsystem import LinkService
from holdfast.runtime.awaiting import is_async, refuse_awaitable
from holdfast.runtime.driver import Driver
from holdfast.runtime.handles import Channel, Datagrams, again
from holdfast.subsystem import Edge, EffectHandler, Port
from holdfast.types import CLASSES, NodeId

PORTS_MAX: Final = CHANNELS_MAX - len(CLASSES)
"""Application channels to one peer; those of Holdfast are not included."""

log = logging.getLogger("holdfast")

Callback = Callable[[NodeId, list[memoryview]], object]


class LinkEdge(Edge):
    """The ports of a node: the callback of each, and the handles that send to ports of peers."""

    def __init__(self) -> None:
        self._driver: Driver | None = None
        self._links: LinkService
        self._domain = ""
        self._ended: HoldfastError = NodeStopped("the node is not running; nothing was sent")
        self._handles: deque[Channel | Datagrams] = deque()
        self._channels: dict[tuple[NodeId, int], Channel] = {}
        self._datagrams: dict[tuple[NodeId, int], Datagrams] = {}
        self._callbacks: dict[tuple[int, bool], Callback] = {}
        self._link_changed = asyncio.Event()
        """A session has begun or ended, or the node has stopped."""

    # -- for the driver ------------------------------------------------------------------------------------------

    def effects(self) -> Mapping[type, EffectHandler]:
        return {
            PortReady: self._deliver,
            PortRoom: self._room,
            PortRefused: self._refused,
            SessionBegun: lambda _: self._link_changed.set(),
            SessionEnded: self._session_ended,
        }

    def attach(self, port: Port) -> None:
        driver = self._driver = cast("Driver", port)
        self._links = driver.core.service(LinkService)
        self._domain = driver.config.domain
        self._link_changed = asyncio.Event()

    def before_turn(self) -> None:
        for handle in self._handles:
            handle.hand_over()
        self._handles.rotate()  # if there is no room for all, each is first in turn

    def halt(self, error: HoldfastError) -> None:
        self._driver, self._ended = None, error
        self._link_changed.set()
        for handle in self._handles:
            handle.end(again(error))
        self._handles.clear()
        self._channels.clear()
        self._datagrams.clear()

    def _deliver(self, ready: PortReady) -> None:
        callback = self._callbacks.get((ready.port, ready.channel))
        if callback is None:
            return
        try:
            refuse_awaitable(callback(ready.peer, ready.messages))
        except (Exception, asyncio.CancelledError):
            log.exception(
                "the callback of port %d failed with %d messages",
                ready.port,
                len(ready.messages),
                extra={
                    "event": "callback_failed",
                    "subsystem": "links",
                    "port": ready.port,
                    "peer": ready.peer.hex(),
                    "count": len(ready.messages),
                },
            )

    def _room(self, room: PortRoom) -> None:
        channel = self._channels.get((room.peer, room.port))
        if channel is not None:
            channel.queued(room.queued, room.taken)

    def _refused(self, refused: PortRefused) -> None:
        datagrams = self._datagrams.get((refused.peer, refused.port))
        if datagrams is not None:
            datagrams.refuse(refused.count, refused.reason)

    def _session_ended(self, ended: SessionEnded) -> None:
        """All channels to that peer are over; their holders are informed at the next send."""
        self._link_changed.set()
        for key, channel in list(self._channels.items()):
            if key[0] == ended.peer:
                del self._channels[key]
                self._handles.remove(channel)
                channel.end(
                    ChannelEnded(
                        f"the channel to {self._links.name_of(ended.peer)}, port {channel.port}, ended: "
                        f"{ended.reason}; up to {ended.unacked + channel.unseen} bytes may not have arrived; ask the "
                        "node for a new channel when the peer is back"
                    )
                )

    # -- for applications ----------------------------------------------------------------------------------------

    async def until_up(self, *names: str, timeout_s: float = 10.0) -> None:
        """Wait until there is a session with each of these members; raises `NotAccepted` on timeout, and `NodeStopped`
        if this node stops."""
        missing: list[str] = []
        asked: dict[str, bool] = {}
        try:
            async with asyncio.timeout(timeout_s):
                while missing := [name for name in names if not self._is_up(name)]:
                    self._drive()
                    self._ask_for_links(missing, asked)
                    self._link_changed.clear()
                    await self._link_changed.wait()
        except TimeoutError:
            raise NotAccepted(
                f"no session with {', '.join(missing)} within {timeout_s:g} s"
            ) from None

    def _ask_for_links(self, names: list[str], asked: dict[str, bool]) -> None:
        """In a large domain there are only links to neighbours, unless others are requested."""
        for node, member in self._links.directory.members.items():
            if member.name in names and member.name not in asked:
                asked[member.name] = True
                self._need(node)

    def _need(self, node: NodeId) -> None:
        if self._links.mesh is not None and self._links.mesh.sparse:
            self._drive().offer(DIRECTORY, NeedLink(node))

    def _is_up(self, name: str) -> bool:
        self._drive()
        for node, member in self._links.directory.members.items():
            link = self._links.link(node)
            if member.name == name and link is not None and link.up_since is not None:
                return True
        return False

    def peer(self, name: str) -> NodeId:
        """The id of the member `name`."""
        self._drive()
        for node, member in self._links.directory.members.items():
            if member.name == name:
                return node
        raise PeerUnknown(
            f"no member of domain {self._domain!r} is called {name!r}; nothing was sent"
        )

    def channel(
        self, peer: NodeId | str, port: int = PORT_MIN, needs: Needs | None = None
    ) -> Channel:
        """A reliable, ordered stream of messages to a port of `peer`, on a path that meets its `needs`."""
        _check_port(port)
        node = self.peer(peer) if isinstance(peer, str) else peer
        driver = self._drive()
        self._need(node)
        link = self._links.link(node)
        if link is None or link.up_since is None:
            raise NotAccepted(
                f"there is no session with {peer!r} now; nothing was sent; wait with until_up()"
            )
        key = (node, port)
        if key not in self._channels:
            if sum(1 for other, _ in self._channels if other == node) >= PORTS_MAX:
                raise MisuseError(
                    f"there are already {PORTS_MAX} channels to {peer!r}, which is the maximum; nothing "
                    "was opened"
                )
            channel = self._channels[key] = Channel(driver, node, port, needs)
            self._handles.append(channel)
        elif needs is not None:
            self._channels[key].needs = needs
        return self._channels[key]

    def datagrams(
        self, peer: NodeId | str, port: int = PORT_MIN, needs: Needs | None = None
    ) -> Datagrams:
        """Messages to a port of `peer` that may be lost, on a path that meets their needs."""
        _check_port(port)
        node = self.peer(peer) if isinstance(peer, str) else peer
        driver = self._drive()
        self._need(node)
        key = (node, port)
        if key not in self._datagrams:
            datagrams = self._datagrams[key] = Datagrams(driver, node, port, needs)
            self._handles.append(datagrams)
        elif needs is not None:
            self._datagrams[key].needs = needs
        return self._datagrams[key]

    def listen(self, port: int, callback: Callback, channel: bool = True) -> None:
        """Call `callback(peer, messages)`, a plain function, with messages for `port`, on the event loop."""
        _check_port(port)
        if is_async(callback):
            raise MisuseError(
                f"the callback for port {port} must not be a coroutine function; it was not registered. Let it put "
                "messages into an `asyncio.Queue`, or start a task."
            )
        self._callbacks[(port, channel)] = callback

    def _drive(self) -> Driver:
        if self._driver is None:
            raise again(self._ended)
        return self._driver


def _check_port(port: object) -> None:
    """Other numbers mean something else on the wire, or cannot be encoded."""
    if type(port) is not int or not PORT_MIN <= port < DATAGRAMS:
        raise MisuseError(
            f"port {port!r} is invalid: applications use the integers {PORT_MIN} to "
            f"{DATAGRAMS - 1}; lower ones are reserved for Holdfast; nothing was opened"
        )
