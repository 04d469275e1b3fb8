"""One TCP connection, from accept or connect until its socket is closed.

    NEW ──► SECURING ──► WAITING ──► OPEN ──► ENDING ──► GONE
     └───── plain, or it measures ───┘

In TLS 1.3, the handshake of the opener ends before the acceptor has verified its certificate. The acceptor therefore
confirms with an empty packet, and the opener stays in WAITING until that arrives.

A measuring connection (`mss:N`) does not use TLS, because its bytes must cross the wire unchanged. It is identified by
its first bytes, and its link seals what must be sealed.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from enum import Enum, auto
from time import monotonic_ns
from typing import Final, Protocol, cast

import msgspec

from holdfast.links.measuring import MSS, mss_of
from holdfast.links.ports import Identity
from holdfast.transports.faults import Faults, FaultyStream
from holdfast.transports.framing import EMPTY, Cutter, Lead, begin_measuring, frames
from holdfast.transports.port import Counters, Events
from holdfast.transports.secure import Pipe
from holdfast.transports.sockets import MSS_MAX, MSS_MIN, stream_heads, watch_closely, why
from holdfast.transports.tls import identity_of, why_tls
from holdfast.types import SECOND, FlowId, Nanos
from holdfast.wire.packet import PACKET_MAX, AnyPacket


class TcpLimits(msgspec.Struct, frozen=True):
    """Limits of a TCP transport."""

    connect_ns: Nanos = 5 * SECOND
    handshake_ns: Nanos = 5 * SECOND
    """For TLS, and for the first packet on an accepted connection."""
    linger_ns: Nanos = SECOND
    """How long a closed flow may take to send what was written before."""
    measure_ns: Nanos = 2 * SECOND
    """A measuring connection is closed if nothing that was sent arrives for this long: it is stalled, and only a new
    one quickly shows whether the path has recovered."""
    newcomers_max: int = 64
    """Accepted connections that have not sent anything yet. The oldest one makes room."""
    flows_max: int = 1024
    measuring_max: int = 512
    """Measuring connections among these, so that they never block data."""
    write_high_bytes: int = 1 << 20
    """A flow with this many queued bytes accepts no more..."""
    write_low_bytes: int = 256 * 1024
    """...until this few are left..."""
    write_max_bytes: int = 16 << 20
    """...and is closed above this."""


_NO_ANSWER: Final = "before its first packet: does the peer use TLS? This node is in plain mode"


class Stage(Enum):
    NEW = auto()
    SECURING = auto()
    WAITING = auto()
    OPEN = auto()
    ENDING = auto()
    """No longer used; written data is still flushed."""
    GONE = auto()


class Owner(Protocol):
    """The callbacks of a connection to its transport."""

    adapter: str
    domain: str
    """The domain whose nodes are accepted, with TLS."""
    events: Events
    counters: Counters
    limits: TcpLimits
    faults: Faults | None

    def admitted(self, connection: Connection) -> None:
        """The connection can carry packets now: assign its flow number and announce it."""
        ...

    def measures(self, connection: Connection) -> bool:
        """The connection is a measuring one. Returns False if there are too many."""
        ...

    def spoke(self, connection: Connection) -> None:
        """The first packet arrived."""
        ...

    def ended(self, connection: Connection, reason: str) -> None:
        """The connection is no longer usable. Called once."""
        ...

    def vanished(self, connection: Connection) -> None:
        """The socket is closed. Called once, after `ended`."""
        ...


class Connection(asyncio.BufferedProtocol):
    """Splits the input into packets, sends packets, and tracks its stage."""

    def __init__(
        self,
        owner: Owner,
        host: str,
        port: int,
        *,
        unit: str | None,
        pipe: Pipe | None,
        use: str = "",
    ) -> None:
        self.owner = owner
        self.host = host
        self.port = port
        self.unit = unit or ""
        self.inbound = unit is None
        self.use = use
        self.overhead = 0
        self.stage = Stage.NEW
        self.segment = 0
        """The largest segment that it may use; 0: any."""
        self.flow: FlowId | None = None
        self.identity: Identity | None = None
        self._pipe = pipe
        self._cutter = Cutter()
        self._lead = Lead() if self.inbound else None
        self._transport: asyncio.Transport | None = None
        self._line: FaultyStream | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._spoken = False
        self._write_paused = False
        self._credit = True
        self._trouble = ""

    # -- from asyncio --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self.stage is not Stage.NEW:
            self._transport.abort()  # closed while it was being opened
            return
        limits = self.owner.limits
        self._transport.set_write_buffer_limits(limits.write_high_bytes, limits.write_low_bytes)
        if self.owner.faults is not None:
            self._line = FaultyStream(
                self.owner.faults,
                self.owner.adapter,
                self.host,
                self.port,
                self._transport.write,
                self._tell_credit,
            )
        if self.inbound or self._pipe is not None:
            self._set_timer(limits.handshake_ns, self._too_slow)
        if self._pipe is None:
            if self.use:
                self._watch_closely()
                self._put(begin_measuring(mss_of(self.use)))
            self._open()
        else:
            self.stage = Stage.SECURING
            self._shake_hands()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._lead is not None:
            return self._lead.room()
        return self._cutter.room() if self._pipe is None else self._pipe.room()

    def buffer_updated(self, nbytes: int) -> None:
        if self._lead is not None:
            nbytes = self._find_out(self._lead, nbytes)
            if not nbytes:
                return
        if self._pipe is None:
            self._cutter.add(nbytes)
            packets = self._cutter.cut()
            if not packets and self._cutter.begins_as_tls():
                self._trouble = "the peer uses TLS and this node is in plain mode"
        else:
            packets = self._decrypt(nbytes)
        if packets and self.stage is Stage.OPEN:
            assert self.flow is not None
            if not self._spoken:
                self._first_packet()
            self.owner.counters.packets_in += len(packets)
            self.owner.events.arrived(self.flow, packets, monotonic_ns())
        trouble = self._cutter.damage or self._trouble
        if trouble:
            self.end(trouble)

    def pause_writing(self) -> None:
        self._write_paused = True
        self._tell_credit()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._tell_credit()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.stage is Stage.GONE:
            return
        self._cancel_timer()
        if self._line is not None:
            self._line.close()
        if self.stage is not Stage.ENDING:
            self.owner.ended(self, self._why_lost(exc))
        self.stage = Stage.GONE
        self.owner.vanished(self)

    # -- from the transport --------------------------------------------------------------------------------------

    def transmit(self, packets: list[AnyPacket]) -> None:
        if self.stage is not Stage.OPEN or self._transport is None or not packets:
            return
        largest = max(map(len, packets))
        if largest > PACKET_MAX:
            self.end(
                f"a packet of {largest} bytes was to be sent, but at most {PACKET_MAX} are allowed"
            )
            return
        size = sum(map(len, packets))
        waiting = self._transport.get_write_buffer_size() + self.held_bytes
        if waiting + size > self.owner.limits.write_max_bytes:
            self.end(
                f"{waiting} bytes wait for the peer to read and {size} more were added, above the "
                f"limit of {self.owner.limits.write_max_bytes}; queued data may be lost"
            )
            return
        self.owner.counters.packets_out += len(packets)
        for data in frames(packets):
            self._put(data if self._pipe is None else self._seal(data))

    @property
    def made(self) -> bool:
        """Whether TCP itself has connected."""
        return self._transport is not None

    def end(self, reason: str, at_once: bool = False) -> None:
        """Close the connection. Written data is still sent for a short time or, with `at_once`, not at all. On a
        measuring connection nothing is sent, because stuck data would keep the peer from seeing the end."""
        if self.stage in (Stage.ENDING, Stage.GONE):
            return
        self.stage = Stage.ENDING
        self._cancel_timer()
        self.owner.ended(self, reason)
        if self._transport is None:
            return
        if at_once or self.held_bytes or self.use:
            self._transport.abort()
            return
        if self._pipe is not None and self._pipe.ready:
            self._put(self._pipe.farewell())
        self._transport.close()
        self._set_timer(self.owner.limits.linger_ns, self._transport.abort)

    def pause_reading(self) -> None:
        if self.stage is Stage.OPEN and self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self.stage is Stage.OPEN and self._transport is not None:
            self._transport.resume_reading()

    def fault_healed(self) -> None:
        if self._line is not None and self.stage is not Stage.GONE:
            self._line.release()

    @property
    def held_bytes(self) -> int:
        """Bytes that a fault holds back."""
        return 0 if self._line is None else self._line.held_bytes

    # -- inside --------------------------------------------------------------------------------------------------

    def _find_out(self, lead: Lead, count: int) -> int:
        """The first bytes arrived. Returns how many of them belong to the regular stream."""
        lead.add(count)
        if not lead.decided:
            return 0
        self._lead = None
        if lead.mss:
            if not MSS_MIN <= lead.mss <= MSS_MAX:
                self.end(f"the peer wants to measure segments of {lead.mss} bytes")
                return 0
            if not self.owner.measures(self):
                self.end("there are too many measuring connections", at_once=True)
                return 0
            self._watch_closely()
            if self._pipe is not None:
                self._pipe = None
                self.use = f"{MSS}:{lead.mss}"
                self._open()
        rest = lead.rest()
        self.get_buffer(-1)[: len(rest)] = rest
        return len(rest)

    def _watch_closely(self) -> None:
        """It is a measuring connection: detect stalls soon. Both kernels have known the segment size since the
        connect."""
        assert self._transport is not None
        watch_closely(self._transport.get_extra_info("socket"), self.owner.limits.measure_ns)

    def _open(self) -> None:
        self.stage = Stage.OPEN
        if self._transport is not None:
            secure = self._pipe is not None
            self.overhead = stream_heads(self._transport.get_extra_info("socket"), secure)
        if not self.inbound:
            self._cancel_timer()
        self.owner.admitted(self)
        self._tell_credit()

    def _first_packet(self) -> None:
        self._spoken = True
        if self.inbound:
            self._cancel_timer()
            self.owner.spoke(self)

    def _shake_hands(self) -> bool:
        """Continue the TLS handshake. Returns True when it is complete and the peer is a node of the domain."""
        assert self._pipe is not None
        try:
            done = self._pipe.handshake()
        except ssl.SSLError as error:
            self._put(self._pipe.outgoing())  # the alert tells the peer the reason
            self.end(why_tls(error))
            return False
        self._put(self._pipe.outgoing())
        if not done:
            return False
        trouble = self._recognise()
        if trouble:
            self.end(trouble)
            return False
        if self.inbound:
            self._put(self._seal(EMPTY))
            self._open()
        else:
            self.stage = Stage.WAITING
        return True

    def _recognise(self) -> str:
        """Take the identity of the peer from its certificate. Returns the error, if any."""
        assert self._pipe is not None
        self.identity = identity_of(self._pipe.peer_certificate())
        if self.identity is None:
            return "the peer's certificate does not name a node"
        if self.identity.domain != self.owner.domain:
            return (
                f"the peer {self.identity.name!r} is a node of domain {self.identity.domain!r}, but "
                f"this is domain {self.owner.domain!r}"
            )
        return ""

    def _decrypt(self, count: int) -> list[memoryview]:
        assert self._pipe is not None
        pipe, cutter = self._pipe, self._cutter
        packets: list[memoryview] = []
        broken: ssl.SSLError | None = None
        pipe.feed(count)
        if not pipe.ready and not self._shake_hands():
            return packets
        try:
            while not cutter.damage and (got := pipe.read_into(cutter.room())):
                cutter.add(got)
                packets += cutter.cut()
        except ssl.SSLError as error:
            broken = error
        self._put(pipe.outgoing())
        if self.stage is Stage.WAITING and cutter.frames:
            self._open()
        if broken is not None:
            self._trouble = self._why_lost(broken)
        return packets

    def _seal(self, data: bytes | memoryview) -> bytes:
        assert self._pipe is not None
        try:
            return self._pipe.seal(data)
        except ssl.SSLError as error:
            self.end(why_tls(error))
            return b""

    def _put(self, data: bytes | memoryview) -> None:
        if not data or self._transport is None:
            return
        if self._line is None:
            self._transport.write(data)
        else:
            self._line.write(data)
            self._tell_credit()

    def _tell_credit(self) -> None:
        if self.flow is None or self.stage is not Stage.OPEN:
            return
        is_open = not self._write_paused and self.held_bytes <= self.owner.limits.write_high_bytes
        if is_open != self._credit:
            self._credit = is_open
            self.owner.events.credit(self.flow, is_open)

    def _too_slow(self) -> None:
        seconds = self.owner.limits.handshake_ns / SECOND
        what = "sent no packet" if self.stage is Stage.OPEN else "did not finish the handshake"
        self.end(f"the peer {what} within {seconds:g} s")

    def _why_lost(self, error: Exception | None) -> str:
        if error is None or isinstance(error, ssl.SSLZeroReturnError):
            reason = "the peer closed the connection"
        elif isinstance(error, ssl.SSLError):
            return why_tls(error)
        else:
            reason = why(error)
        if self.stage is Stage.OPEN:
            unanswered = self._pipe is None and not (self.inbound or self.use or self._spoken)
            return f"{reason} {_NO_ANSWER}" if unanswered else reason
        return (
            f"{reason}, before the handshake was complete; the log of the peer may give the reason"
        )

    def _set_timer(self, after: Nanos, then: Callable[[], None]) -> None:
        self._timer = asyncio.get_running_loop().call_later(after / SECOND, then)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
