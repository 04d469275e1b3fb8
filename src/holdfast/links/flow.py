"""One flow of a link, as the link sees it: agreed or not, what it carries, what waits for it."""

from __future__ import annotations

from typing import Final

from holdfast.links.measuring import ALT, accepted, carries
from holdfast.links.ports import DATAGRAMS, FIT, HELD, UNFIT, Fitness, FlowOpened, FlowVerdict
from holdfast.types import DATA, NEVER, Nanos
from holdfast.wire.codec import Part
from holdfast.wire.packet import HEAD
from holdfast.wire.seal import TAG

IP_UDP: Final = 28
"""Bytes that IP (without options) and UDP put before a packet; sizes on the wire include them."""
STREAM_OVERHEAD: Final = 40 + 12 + 4 + 22
"""What stands in a TCP segment beside a packet of ours: IP, TCP, its time stamps, the packet's length, TLS."""
STREAM_PACKET_MAX: Final = 128 << 10
STREAM_PACKET_MIN: Final = 96
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
        "apart",
        "authenticated",
        "body_max",
        "carries",
        "choked",
        "close_at",
        "closing",
        "counter",
        "credit",
        "degraded",
        "echo",
        "fitness",
        "flow",
        "heard_at",
        "hello_at",
        "hellos",
        "inbound",
        "info",
        "judged",
        "overhead",
        "own_seal",
        "parts",
        "piece_max",
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
        self.judged = False
        """Whether health has said anything of it yet."""
        self.degraded = False
        self.choked = False
        """A stream whose larger segments do not pass: whole writes must stay below `size`, one at a time."""
        self.fitness: dict[int, Fitness] = {}
        self.use_size(STREAM_PACKET_MAX if self.stream else DATAGRAM_START)
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
        self.apart: list[Part] = []
        """Likewise, but each alone in its packet."""

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
        self.own_seal = not self.stream or bool(use)
        return True

    def use_size(self, size: int) -> None:
        """Packets on this flow have at most so many bytes."""
        self.size = size
        self.body_max = size - (HEAD if self.stream else IP_UDP + HEAD + TAG)
        """The largest body of a packet on this flow."""
        self.piece_max = size - CHUNK_OVERHEAD - (0 if self.stream else IP_UDP)
        """The largest piece of a channel that one packet on this flow takes."""

    def number(self) -> int:
        """The number of the next packet: the flow's tag in the upper bits, so that each flow counts for itself."""
        self.counter += 1
        return self.tag << TAG_SHIFT | self.counter

    def take(self, verdict: FlowVerdict) -> None:
        """Believe what health says."""
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
            self.use_size(size)

    def fitness_for(self, traffic: int) -> Fitness:
        """What this flow is worth to some traffic, by its own need or else by that of its kind."""
        known = self.fitness
        if not known:
            state = UNFIT if self.degraded else FIT
            return Fitness(traffic, state, "its path has a soft error" if self.degraded else "")
        found = known.get(traffic) or known.get(DATAGRAMS if traffic > DATAGRAMS else DATA)
        return found or Fitness(traffic, FIT)

    @property
    def untried(self) -> bool:
        """Another port than the usual one, of which health has not said yet what it is worth: no better than the one
        that it stands in for, and used only when that is dead."""
        return bool(self.use) and not self.judged

    def good_for(self, traffic: int) -> bool:
        """Whether nothing speaks against it: health says that it is alive, and it just fits."""
        return self.alive and not self.untried and self.fitness_for(traffic).state == FIT

    def suits(self, traffic: int, now: Nanos) -> bool:
        """Whether this traffic may stay here, though there may be better."""
        usable = self.alive and self.shunned_until <= now and not self.untried
        return usable and self.fitness_for(traffic).state <= HELD

    def why_not(self, traffic: int, now: Nanos) -> str:
        """Why this traffic should not stay here, in plain words."""
        if not self.alive:
            return f"nothing arrives on {self.path}"
        if self.shunned_until > now:
            return f"no acknowledgements on {self.path}"
        if self.untried:
            return f"nothing is known of {self.path} yet"
        fitness = self.fitness_for(traffic)
        return f"{self.path}: {fitness.reason}" if fitness.reason else ""

    def cost(self, now: Nanos, traffic: int, datagrams: bool = False) -> tuple[int, ...]:
        """What choosing this flow costs some traffic; the cheapest is used. First whether it is broken (health says
        so, it has just failed a channel, it does not suit), then whether only very small writes pass, what the
        traffic would rather have, whether its path has a soft error, streams before datagrams (or the other way
        round) and those before other ports for datagrams, and health's rank."""
        fitness = self.fitness_for(traffic)
        doubtful = self.shunned_until > now or self.untried
        broken = 8 * (not self.alive) + 4 * doubtful + fitness.state
        kind = 2 * (self.stream == datagrams) + (self.use == ALT)
        return broken, self.choked, fitness.rank, self.degraded, kind, self.rank
