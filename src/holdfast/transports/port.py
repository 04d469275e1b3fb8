"""What a transport is, and what it tells the driver. Anybody can add one.

A transport serves one adapter with one kind of flow. Flow numbers come from an allocator that all transports of a
node share. Everything happens on the thread of the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from holdfast.links.ports import FlowClosed, FlowOpened, OpenFailed, OpenFlow
from holdfast.types import FlowId, Nanos
from holdfast.wire.packet import AnyPacket

NextFlow = Callable[[], FlowId]
"""Gives the next flow number of this node; no number is given twice."""


class Events(Protocol):
    """What a transport calls.

    These may be called from within a call to the transport (`open`, `transmit`, `close_flow`), so they only queue.
    Every `opened` is followed by exactly one `closed`, also when the driver itself asked for that.
    """

    def opened(self, event: FlowOpened) -> None:
        """A flow is there. A UDP flow that exists is announced again, under its number, when it is asked for."""
        ...

    def open_failed(self, event: OpenFailed) -> None: ...

    def closed(self, event: FlowClosed) -> None:
        """The flow is gone; nothing more is said about it."""
        ...

    def arrived(self, flow: FlowId, packets: list[memoryview], at: Nanos) -> None:
        """Packets that came in together, in order. They stay valid; each keeps the block that it lies in alive."""
        ...

    def credit(self, flow: FlowId, is_open: bool) -> None:
        """Whether the flow takes more. A new flow does, until it says otherwise."""
        ...


class Counters(msgspec.Struct):
    """What a transport did since it was started, for people and for tests."""

    packets_in: int = 0
    packets_out: int = 0
    refused: int = 0
    """Connections that were turned away: no room, no certificate that we trust, nothing said in time."""
    evicted: int = 0
    """Flows that were closed to make room: their sender was never answered."""
    dropped: int = 0
    """Datagrams that found the send queue full, or no room for one more sender."""
    too_large: int = 0
    """Datagrams that the kernel refused as larger than the adapter takes."""
    send_errors: int = 0
    receive_errors: int = 0


class Transport(Protocol):
    """One adapter, one kind of flow."""

    counters: Counters

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens; known after `start`."""
        ...

    async def start(self) -> None:
        """Bind and listen. Raises `AddressInUse` or another `SetupError`; then nothing was started."""
        ...

    def open(self, request: OpenFlow) -> None:
        """Open a flow; answered by `opened` or `open_failed`, always one of them."""
        ...

    def transmit(self, flow: FlowId, packets: list[AnyPacket]) -> None:
        """Send packets, in order. On a flow that is gone it does nothing: its `closed` is on the way."""
        ...

    def close_flow(self, flow: FlowId, reason: str) -> None:
        """Close a flow; what was handed over before is still sent if that goes quickly."""
        ...

    def may_fragment(self, flow: FlowId) -> None:
        """From now on IP may fragment what is sent on this datagram flow."""
        ...

    def pause(self, flow: FlowId) -> None:
        """Stop reading, so that the sender feels it. What was read already still arrives."""
        ...

    def resume(self, flow: FlowId) -> None: ...

    async def stop(self) -> None:
        """Close everything. Takes a bounded time."""
        ...
