"""One flow of a link, as the link sees it: agreed or not, what it carries, what waits for it."""

from __future__ import annotations

from typing import Final

from holdfast.links.measuring import ALT, accepted, carries
from holdfast.links.ports import FlowOpened
from holdfast.types import NEVER, Nanos
from holdfast.wire.codec import Part
from holdfast.wire.packet import HEAD
from holdfast.wire.seal import TAG

IP_UDP: Final = 28
"""Bytes that IP (without options) and UDP put before a packet; sizes on the wire include them."""
STREAM_PACKET_MAX: Final = 128 << 10
DATAGRAM_START: Final = 1280
"""The packet that is used on a datagram flow until a larger one is known to pass: every IP network carries it."""
DATAGRAM_MIN: Final = 128
"""Basics pass wherever anything passes, and they are about this large: smaller packets are never needed."""
DATAGRAM_MAX: Final = 65_535
CHUNK_OVERHEAD: Final = HEAD + TAG + 32
TAG_SHIFT: Final = 48
TAG_MAX: Final = (1 << 16) - 1
"""Datagram flows that one link can number. The number is the nonce of the seal, so no tag is used twice."""


class FlowState:
    """A flow that belongs to a link."""

    __slots__ = (
        "adapter",
        "alive",
        "authenticated",
        "carries",
        "close_at",
        "closing",
        "counter",
        "credit",
        "degraded",
        "echo",
        "flow",
        "heard_at",
        "hello_at",
        "hellos",
        "inbound",
        "info",
        "overhead",
        "own_seal",
        "parts",
        "proven",
        "rank",
        "ready",
        "remote_adapter",
        "shunned_until",
        "size",
        "stream",
        "tag",
        "use",
    )

    def __init__(self, info: FlowOpened, tag: int) -> None:
        self.info = info
        self.flow = info.flow
        self.adapter = info.adapter
        self.remote_adapter = ""
        self.stream = info.transport == "tcp"
        self.inbound = info.inbound
        self.authenticated = info.identity is not None
        self.use = info.use
        self.carries = carries(info.use)
        """Whether data may use it; otherwise it only measures."""
        self.own_seal = not self.stream or bool(info.use)
        """There is no TLS below: in a sealed domain the link seals what goes here."""
        self.overhead = info.overhead or (0 if self.stream else IP_UDP)
        self.tag = tag
        self.counter = 0
        self.echo = (0, 0)
        """The incarnation and epoch that the peer has last shown on this flow."""
        self.proven = True
        """Whether a packet of the peer was read on this flow; taken to be so where we know whom we called."""
        self.ready = False
        self.alive = True
        """Whether the peer hears this flow; taken to be so until health says otherwise."""
        self.degraded = False
        self.size = STREAM_PACKET_MAX if self.stream else DATAGRAM_START
        self.rank = 0
        self.credit = True
        self.heard_at: Nanos = 0
        self.hello_at: Nanos = NEVER
        self.hellos = 0
        self.shunned_until: Nanos = 0
        self.close_at: Nanos = NEVER
        """When it makes room for another flow that serves the same path."""
        self.closing = False
        self.parts: list[Part] = []
        """Frames that go out on this flow at the end of the turn."""

    @property
    def path(self) -> str:
        use = f"+{self.use}" if self.use else ""
        return f"{self.adapter}/{self.remote_adapter or '?'}/{self.info.transport}{use}"

    def take_use(self, use: str) -> bool:
        """What the peer says that an inbound flow is for; True when that is news. A stream outside TLS has shown
        it before, by what it began with."""
        use = self.info.use or accepted(use, self.stream)
        if use == self.use:
            return False
        self.use = use
        self.carries = carries(use)
        return True

    @property
    def body_max(self) -> int:
        """The largest body of a packet on this flow."""
        return self.size - (HEAD if self.stream else IP_UDP + HEAD + TAG)

    @property
    def piece_max(self) -> int:
        """The largest piece of a channel that one packet on this flow takes."""
        return self.size - CHUNK_OVERHEAD - (0 if self.stream else IP_UDP)

    def number(self) -> int:
        """The number of the next packet: the flow's tag in the upper bits, so that each flow counts for itself."""
        self.counter += 1
        return self.tag << TAG_SHIFT | self.counter

    def cost(self, now: Nanos) -> tuple[int, int, int]:
        """What choosing this flow costs a channel; the cheapest is used. First whether it is broken (health says so,
        it has just failed a channel, its path has a soft error), then streams before datagrams, and those before
        other ports for datagrams, then health's rank."""
        broken = 4 * (not self.alive) + 2 * (self.shunned_until > now) + self.degraded
        return broken, 0 if self.stream else 1 + (self.use == ALT), self.rank
