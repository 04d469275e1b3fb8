"""The interface between a transport and the driver. Third parties can add transports.

A transport serves one adapter with one kind of flow. Flow numbers come from an allocator shared by all transports of a
node. Everything runs on the thread of the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from holdfast.links.ports import FlowClosed, FlowOpened, OpenFailed, OpenFlow
from holdfast.types import FlowId, Nanos
from holdfast.wire.packet import AnyPacket

NextFlow = Callable[[], FlowId]
"""Allocates flow numbers of this node; none is used twice."""


class Events(Protocol):
    """The callbacks of a transport.

    They may be called from within a call to the transport (`open`, `transmit`, `close_flow`), so they must only queue.
    Every `opened` is followed by exactly one `closed`, even if the driver requested it.
    """

    def opened(self, event: FlowOpened) -> None:
        """A flow is available. An existing UDP flow is announced again, with its number, when it is requested."""
        ...

    def open_failed(self, event: OpenFailed) -> None: ...

    def closed(self, event: FlowClosed) -> None:
        """The flow has ended; no more events follow."""
        ...

    def arrived(self, flow: FlowId, packets: list[memoryview], at: Nanos) -> None:
        """Packets that arrived together, in order. They stay valid; each keeps its block alive."""
        ...

    def credit(self, flow: FlowId, is_open: bool) -> None:
        """Whether the flow accepts more data. A new flow does until it reports otherwise."""
        ...


class Counters(msgspec.Struct):
    """Counters of a transport since its start."""

    packets_in: int = 0
    packets_out: int = 0
    refused: int = 0
    """Refused connections: no room, no trusted certificate, or nothing sent in time."""
    evicted: int = 0
    """Flows that were closed to make room, because their sender was never answered."""
    dropped: int = 0
    """Datagrams that found the send queue full, or no room for one more sender."""
    queued_bytes_max: int = 0
    """The longest send queue since the driver last checked."""
    too_large: int = 0
    """Datagrams that the kernel refused as too large for the adapter."""
    send_errors: int = 0
    receive_errors: int = 0


class Transport(Protocol):
    """One adapter, one kind of flow."""

    counters: Counters

    @property
    def address(self) -> tuple[str, int]:
        """The listening address; known after `start`."""
        ...

    async def start(self) -> None:
        """Bind and listen. Raises `AddressInUse` or another `SetupError`; nothing was started then."""
        ...

    def open(self, request: OpenFlow) -> None:
        """Open a flow. Exactly one of `opened` or `open_failed` follows."""
        ...

    def transmit(self, flow: FlowId, packets: list[AnyPacket]) -> None:
        """Send packets, in order. Does nothing on a flow that has ended: its `closed` follows."""
        ...

    def close_flow(self, flow: FlowId, reason: str) -> None:
        """Close a flow; data written before is still sent if that is quick."""
        ...

    def may_fragment(self, flow: FlowId) -> None:
        """From now on, IP may fragment what is sent on this datagram flow."""
        ...

    def pause(self, flow: FlowId) -> None:
        """Stop reading, so that the sender experiences back-pressure. Data already read is still delivered."""
        ...

    def resume(self, flow: FlowId) -> None: ...

    async def stop(self) -> None:
        """Close everything, within a bounded time."""
        ...
