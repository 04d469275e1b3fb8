"""Additional sockets of an adapter: each `alt` flow has its own, and all `frag` flows share one.

The transport of the adapter owns them; to the driver, their flows are flows of that transport.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Protocol

from holdfast.links.measuring import FRAG
from holdfast.links.ports import FlowClosed, FlowOpened, OpenFailed, OpenFlow
from holdfast.transports.port import Events, Transport
from holdfast.transports.sockets import SockAddr, why
from holdfast.types import FlowId
from holdfast.wire.packet import AnyPacket


class Limits(Protocol):
    @property
    def sides_max(self) -> int: ...


class Owner(Protocol):
    """The transport of the adapter."""

    events: Events

    @property
    def limits(self) -> Limits: ...

    def side(self, use: str, events: Events, local: SockAddr, family: int) -> Transport: ...


class Sides:
    """The measuring sockets of one adapter."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._flows: dict[FlowId, Transport] = {}
        self._sockets: dict[Transport, None] = {}
        self._fragmenting: Transport | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self, request: OpenFlow, beside: socket.socket) -> None:
        """Open a flow on a socket with the same address as `beside`."""
        try:
            side = self._socket_for(request, beside)
        except OSError as error:
            place = (request.adapter, request.transport, request.host, request.port)
            failed = OpenFailed(*place, request.unit, why(error), request.use)
            self._owner.events.open_failed(failed)
        else:
            side.open(request)

    def transmit(self, flow: FlowId, packets: list[AnyPacket]) -> None:
        side = self._flows.get(flow)
        if side is not None:
            side.transmit(flow, packets)

    def close_flow(self, flow: FlowId, reason: str) -> None:
        side = self._flows.get(flow)
        if side is not None:
            side.close_flow(flow, reason)

    def pause(self, flow: FlowId) -> None:
        side = self._flows.get(flow)
        if side is not None:
            side.pause(flow)

    def resume(self, flow: FlowId) -> None:
        side = self._flows.get(flow)
        if side is not None:
            side.resume(flow)

    async def stop(self) -> None:
        for side in list(self._sockets):
            await side.stop()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._sockets.clear()
        self._fragmenting = None

    # -- from the sockets ----------------------------------------------------------------------------------------

    def opened(self, side: Transport, event: FlowOpened) -> None:
        self._flows[event.flow] = side
        self._owner.events.opened(event)

    def closed(self, side: Transport, event: FlowClosed) -> None:
        self._flows.pop(event.flow, None)
        self._owner.events.closed(event)
        self._tidy(side)

    def failed(self, side: Transport, event: OpenFailed) -> None:
        self._owner.events.open_failed(event)
        self._tidy(side)

    # -- inside --------------------------------------------------------------------------------------------------

    def _socket_for(self, request: OpenFlow, beside: socket.socket) -> Transport:
        if request.use == FRAG and self._fragmenting is not None:
            return self._fragmenting
        if len(self._sockets) >= self._owner.limits.sides_max:
            raise OSError(f"there are already {self._owner.limits.sides_max} measuring sockets")
        events = _SideEvents(self)
        side = self._owner.side(request.use, events, beside.getsockname(), beside.family)
        events.side = side
        self._sockets[side] = None
        if request.use == FRAG:
            self._fragmenting = side
        return side

    def _tidy(self, side: Transport) -> None:
        """Close a socket when its only flow is gone."""
        if side is self._fragmenting or side not in self._sockets:
            return
        del self._sockets[side]
        task = asyncio.get_running_loop().create_task(side.stop())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _SideEvents:
    """Passes events of a socket to the driver through its owner, which keeps track of flows."""

    def __init__(self, sides: Sides) -> None:
        self.side: Transport
        self._sides = sides
        self.arrived = sides._owner.events.arrived
        self.credit = sides._owner.events.credit

    def opened(self, event: FlowOpened) -> None:
        self._sides.opened(self.side, event)

    def open_failed(self, event: OpenFailed) -> None:
        self._sides.failed(self.side, event)

    def closed(self, event: FlowClosed) -> None:
        self._sides.closed(self.side, event)
