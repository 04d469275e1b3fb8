"""One flow of a link: whether it is established, what it carries, and what waits for it."""

from __future__ import annotations

from typing import Final

from holdfast.links.delivery_watch import DeliveryWatch
from holdfast.links.measuring import ALT, accepted, carries
from holdfast.links.ports import DATAGRAMS, FIT, HELD, UNFIT, Fitness, FlowOpened, FlowVerdict
from holdfast.types import DATA, NEVER, Nanos
from holdfast.wire.codec import Part
from holdfast.wire.packet import HEAD
from holdfast.wire.seal import TAG

IP_UDP: Final = 28
"""Size of the IP (without options) and UDP headers; sizes on the wire include them."""
STREAM_OVERHEAD: Final = 40 + 12 + 4 + 22
"""The overhead of a packet in a TCP segment: IP, TCP, timestamps, length prefix, TLS."""
STREAM_PACKET_MAX: Final = 128 << 10
STREAM_PACKET_MIN: Final = 96
DATAGRAM_START: Final = 1280
"""The packet size on a datagram flow until a larger one is known to pass: every IP network carries it."""
DATAGRAM_MIN: Final = 128
"""The approximate size of basic heartbeats, which pass wherever anything passes: smaller packets are never needed."""
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
        "apart",
        "arrival",
        "asked_at",
        "asked_sent",
        "authenticated",
        "body_max",
        "bytes_heard",
        "carries",
        "choked",
        "chunk_deficit",
        "chunk_heard",
        "chunk_sent",
        "close_at",
        "closing",
        "counter",
        "credit",
        "degraded",
        "delivery",
        "echo",
        "fitness",
        "flow",
        "heard_at",
        "hello_at",
        "hellos",
        "inbound",
        "info",
        "judged",
        "lost",
        "lost_at",
        "lost_received",
        "overhead",
        "own_seal",
        "parts",
        "piece_max",
        "proven",
        "rank",
        "raw_heard",
        "raw_last",
        "raw_sent",
        "ready",
        "remote_adapter",
        "retry_at",
        "shrunk_until",
        "shun_reason",
        "shunned_until",
        "size",
        "size_whole",
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
        """There is no TLS below: in a sealed domain the link seals its packets."""
        self.overhead = info.overhead or (0 if self.stream else IP_UDP)
        self.tag = tag
        self.counter = 0
        self.echo = (0, 0)
        """The incarnation and epoch that the peer last showed on this flow."""
        self.proven = True
        """Whether a packet of the peer was read on this flow; assumed if we opened it to a known peer."""
        self.ready = False
        self.alive = True
        """Whether the peer hears this flow; assumed until health reports otherwise."""
        self.judged = False
        """Whether health has reported anything about it."""
        self.degraded = False
        self.choked = False
        """A stream whose larger segments do not pass: whole writes must stay below `size`, one at a time."""
        self.chunk_sent = 0
        self.chunk_heard = 0
        """Bytes of channels that were sent here, and that arrived here from the peer."""
        self.chunk_deficit = 0
        """How many of the sent bytes are known to be lost."""
        self.raw_sent = 0
        self.raw_heard = 0
        """Packets with datagrams of applications that were sent here, and that arrived here from the peer."""
        self.raw_last = b""
        """The last datagram that was sent here."""
        self.lost = b""
        """One of those that do not arrive here: copies of it show when that is over."""
        self.lost_at: Nanos = 0
        self.lost_received = 0
        self.retry_at: Nanos = NEVER
        """Since when, how many packets had arrived by then, and when the next copy is sent."""
        self.asked_at: Nanos = 0
        self.asked_sent = 0
        """When the peer was last asked how many of them have arrived, and how many had been sent then."""
        self.delivery = DeliveryWatch()
        self.arrival = DeliveryWatch()
        """Whether what we send here arrives, and what the peer sends."""
        self.fitness: dict[int, Fitness] = {}
        self.use_size(STREAM_PACKET_MAX if self.stream else DATAGRAM_START)
        self.rank = 0
        self.credit = True
        self.heard_at: Nanos = 0
        self.bytes_heard = 0
        """When the last packet arrived here, and the bytes of all of them."""
        self.hello_at: Nanos = NEVER
        self.hellos = 0
        self.shunned_until: Nanos = 0
        self.shun_reason = ""
        self.shrunk_until: Nanos = NEVER
        self.size_whole = 0
        """Until when smaller packets are tried than health allows, and the size before that."""
        self.close_at: Nanos = NEVER
        """When it makes room for another flow of the same path."""
        self.closing = False
        self.parts: list[Part] = []
        """Frames that are sent on this flow at the end of the turn."""
        self.apart: list[Part] = []
        """The same, but each alone in its packet."""

    @property
    def path(self) -> str:
        use = f"+{self.use}" if self.use else ""
        return f"{self.adapter}/{self.remote_adapter or '?'}/{self.info.transport}{use}"

    @property
    def remote_path(self) -> str:
        """The name of this flow at the peer."""
        use = f"+{self.use}" if self.use else ""
        return f"{self.remote_adapter}/{self.adapter}/{self.info.transport}{use}"

    def same_path(self, other: FlowState) -> bool:
        """Whether another flow joins the same adapters."""
        here = (self.adapter, self.remote_adapter)
        return here == (other.adapter, other.remote_adapter)

    def take_use(self, use: str) -> bool:
        """The purpose of an inbound flow according to the peer; True if it is new. A stream outside TLS has shown it
        before with its first bytes."""
        use = self.info.use or accepted(use, self.stream)
        if use == self.use:
            return False
        self.use = use
        self.carries = carries(use)
        self.own_seal = not self.stream or bool(use)
        return True

    def use_size(self, size: int) -> None:
        """The maximum packet size on this flow."""
        self.size = size
        self.body_max = size - (HEAD if self.stream else IP_UDP + HEAD + TAG)
        """The maximum packet body on this flow."""
        self.piece_max = self.piece_in(size)
        """The largest piece of a channel in one packet on this flow."""

    def piece_in(self, size: int) -> int:
        """The largest piece of a channel in a packet of this size."""
        return size - CHUNK_OVERHEAD - (0 if self.stream else IP_UDP)

    def shun(self, until: Nanos, reason: str) -> None:
        """Avoid this flow for a while, because traffic fails here although health reports no fault."""
        self.shunned_until = max(self.shunned_until, until)
        self.shun_reason = reason

    def shrink(self, until: Nanos) -> bool:
        """Try packets of half the size, because nothing passes and no other flow is better. False if they already have
        the minimum size, or if the kernel chooses the segments."""
        if self.stream or self.size <= DATAGRAM_MIN:
            return False
        if self.shrunk_until == NEVER:
            self.size_whole = self.size
        self.shrunk_until = until
        self.use_size(max(DATAGRAM_MIN, self.size // 2))
        return True

    def restore(self) -> None:
        """Return to the size that health allows."""
        self.shrunk_until = NEVER
        self.use_size(self.size_whole)

    def number(self) -> int:
        """The number of the next packet, with the tag of the flow in the upper bits, so that each flow counts
        separately."""
        self.counter += 1
        return self.tag << TAG_SHIFT | self.counter

    def take(self, verdict: FlowVerdict) -> None:
        """Apply a report of health."""
        if verdict.alive and not self.alive:
            self.shunned_until = 0
        self.judged = True
        self.alive = verdict.alive
        self.degraded = verdict.degraded
        self.rank = verdict.rank
        self.fitness = {fitness.traffic: fitness for fitness in verdict.fitness}
        size = min(max(verdict.size, DATAGRAM_MIN), DATAGRAM_MAX)
        if self.stream:
            self.choked = verdict.size > 0
            narrow = max(size - STREAM_OVERHEAD, STREAM_PACKET_MIN)
            self.use_size(narrow if self.choked else STREAM_PACKET_MAX)
        elif verdict.size:
            self.shrunk_until = NEVER
            self.use_size(size)

    def fitness_for(self, traffic: int) -> Fitness:
        """The fitness of this flow for some traffic, by its own needs or those of its kind."""
        known = self.fitness
        if not known:
            state = UNFIT if self.degraded else FIT
            return Fitness(traffic, state, "its path has a soft error" if self.degraded else "")
        found = known.get(traffic) or known.get(DATAGRAMS if traffic > DATAGRAMS else DATA)
        return found or Fitness(traffic, FIT)

    @property
    def untried(self) -> bool:
        """A flow with another port, about which health has not reported: no better than the one it replaces, and used
        only if that is dead."""
        return bool(self.use) and not self.judged

    def good_for(self, traffic: int) -> bool:
        """Whether nothing speaks against it: it is alive and fit."""
        return self.alive and not self.untried and self.fitness_for(traffic).state == FIT

    def suits(self, traffic: int, now: Nanos) -> bool:
        """Whether this traffic may stay here, even if there are better flows."""
        usable = self.alive and self.shunned_until <= now and not self.untried
        return usable and self.fitness_for(traffic).state <= HELD

    def why_not(self, traffic: int, now: Nanos) -> str:
        """Why this traffic should not stay here, in words."""
        if not self.alive:
            return f"nothing arrives on {self.path}"
        if self.shunned_until > now:
            return self.shun_reason
        if self.untried:
            return f"nothing is known of {self.path} yet"
        fitness = self.fitness_for(traffic)
        return f"{self.path}: {fitness.reason}" if fitness.reason else ""

    def cost(self, now: Nanos, traffic: int, datagrams: bool = False) -> tuple[int, ...]:
        """The cost of this flow for some traffic; the cheapest is used. In order: whether it is broken (by health, by a
        recent stall, or unfit), whether only very small writes pass, the preference of the traffic, soft errors,
        streams before datagrams (or the reverse) and those before other ports, and the rank given by health."""
        fitness = self.fitness_for(traffic)
        doubtful = self.shunned_until > now or self.untried
        broken = 16 * (not self.alive) + 8 * doubtful + fitness.state
        kind = 2 * (self.stream == datagrams) + (self.use == ALT)
        return broken, self.choked, fitness.rank, self.degraded, kind, self.rank
