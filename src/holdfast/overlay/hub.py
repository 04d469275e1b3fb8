"""What the parts of the overlay share: who we are, the neighbours, timers, counters, and the way out.

Parts do not call the link layer. They put frames into the hub, which sends one batch per neighbour and channel at the
end of each call of the machine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from random import Random
from typing import Any, Final

from holdfast.links.ports import SendChannel, link_unit
from holdfast.machine import Outbox
from holdfast.overlay.config import OverlayConfig
from holdfast.overlay.facts import OverlayFact
from holdfast.overlay.frames import Bulk, Message, OverlayFrame, OverlayHello, Wave
from holdfast.overlay.ids import numbered
from holdfast.overlay.ports import OverlayEvent
from holdfast.types import DATA, NEVER, SECOND, Nanos, NodeId
from holdfast.wire.frames import Frame

BULK_MAX: Final = 256
HELLO_NS: Final = 5 * SECOND
"""A neighbour that has not said hello by then has no overlay."""


class Neighbour:
    """One session with a neighbouring overlay unit."""

    __slots__ = (
        "credit",
        "echoed",
        "epoch",
        "given_trees",
        "hello",
        "hop_ns",
        "incarnation",
        "owed",
        "peer",
        "pending",
        "pinged_at",
        "queue",
        "realm",
        "since",
        "waves",
    )

    def __init__(self, peer: NodeId, credit: int, now: Nanos) -> None:
        self.peer = peer
        self.since = now
        self.epoch = 0
        """The peer's unit; 0 until its hello came."""
        self.hello: OverlayHello | None = None
        """The last one that came; it comes on both channels."""
        self.echoed = False
        """The peer knows our epoch: what it sends from now on is meant for this unit."""
        self.realm = ""
        self.incarnation = 0
        self.hop_ns: Nanos = 0
        self.pinged_at: Nanos = 0
        self.given_trees = False
        """It has asked for the trees that we know, and got them; a node asks once in a session."""
        self.credit = credit
        """Messages that we may still send to it."""
        self.owed = 0
        """Messages that it sent and for which it has not got credit back."""
        self.queue: deque[Message] = deque()
        self.pending = 0
        """Its messages that wait for replies here."""
        self.waves = 0
        """Its waves that are not answered yet."""

    @property
    def open(self) -> bool:
        return self.echoed and self.epoch != 0


class Timer:
    __slots__ = ("at", "call")

    def __init__(self, at: Nanos, call: Callable[[], None] | None) -> None:
        self.at = at
        self.call = call

    def cancel(self) -> None:
        self.call = None


class Hub:
    def __init__(
        self, me: NodeId, incarnation: int, epoch: int, config: OverlayConfig, rng: Random
    ) -> None:
        self.me = me
        self.incarnation = incarnation
        self.epoch = epoch
        self.config = config
        self.realm = config.realm
        self.rng = rng
        self.now: Nanos = 0
        self.neighbours: dict[NodeId, Neighbour] = {}
        self.open_peers: tuple[NodeId, ...] = ()
        """Neighbours whose session is open, in the order of their ids."""
        self.changed_at: Nanos = -HELLO_NS
        """When a session last began, opened or ended."""
        self.counters: dict[str, int] = {}
        self._out: dict[tuple[bytes, int], list[OverlayFrame]] = {}
        self._effects: list[Any] = []
        self._facts: list[OverlayFact] = []
        self._downs: list[tuple[str, Any]] = []
        self._timers: list[tuple[Nanos, int, Timer]] = []
        self._ticket = 0
        self._number = 0

    def settling(self) -> bool:
        """Whether neighbours are being met or the map is catching up: what is not found now may be found soon."""
        return self.now - self.changed_at < self.config.settle_ns or self.meeting()

    def meeting(self) -> bool:
        """Whether a neighbour has not said hello yet, and may still do so."""
        young = self.now - HELLO_NS
        return any(not n.open and n.since > young for n in self.neighbours.values())

    # -- ids, counters -------------------------------------------------------------------------------------------

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def new_id(self) -> bytes:
        """An instance, request or wave id. The epoch keeps ids of a rebuilt unit apart."""
        return numbered(self.me, self.incarnation, self.epoch << 40 | self.next_number())

    def count(self, name: str, by: int = 1) -> None:
        self.counters[name] = self.counters.get(name, 0) + by

    # -- way out -------------------------------------------------------------------------------------------------

    def is_open(self, peer: bytes) -> bool:
        neighbour = self.neighbours.get(peer)  # type: ignore[call-overload] # any id may be asked for
        return neighbour is not None and neighbour.echoed and neighbour.epoch != 0

    def inside(self, peer: bytes) -> bool:
        """Whether the link to this neighbour stays in our realm."""
        neighbour = self.neighbours.get(NodeId(peer))
        return neighbour is not None and neighbour.realm == self.realm

    def send(self, peer: bytes, frame: OverlayFrame, channel: int = DATA) -> None:
        """Put a frame on the way to a neighbour."""
        frames = self._out.get((peer, channel))
        if frames is None:
            self._out[NodeId(peer), channel] = [frame]
        else:
            frames.append(frame)

    def effect(self, item: Any) -> None:
        self._effects.append(item)

    def event(self, event: str, **details: Any) -> None:
        self._effects.append(OverlayEvent(event, **details))

    def down(self, unit: str, item: Any) -> None:
        self._downs.append((unit, item))

    def fact(self, event: str, tree: bytes = b"", role: str = "", **details: Any) -> None:
        self._facts.append(OverlayFact(self.now, event, tree.hex(), role, **details))

    def drop_frames_to(self, peer: NodeId) -> None:
        """The session ended: what was to be sent in it must not reach the next one."""
        for key in [key for key in self._out if key[0] == peer]:
            del self._out[key]

    def flush(self, out: Outbox, encode: Callable[[Frame], bytes]) -> None:
        pending, self._out = self._out, {}
        for (peer, channel), frames in pending.items():
            # rule: O-20d
            messages = [encode(frame) for frame in _bulked(frames)]
            out.down(link_unit(NodeId(peer)), SendChannel(channel, messages))
        if self._effects:
            out.effects += [(item, False) for item in self._effects]
            self._effects = []
        if not self._downs and not self._facts:
            return
        downs, self._downs = self._downs, []
        for unit, item in downs:
            out.up(unit, item)
        facts, self._facts = self._facts, []
        for fact in facts:
            out.fact(fact)

    # -- timers --------------------------------------------------------------------------------------------------

    def after(self, delay: Nanos, call: Callable[[], None]) -> Timer:
        timer = Timer(self.now + max(delay, 1), call)
        self._ticket += 1
        heappush(self._timers, (timer.at, self._ticket, timer))
        return timer

    def run_timers(self) -> None:
        """Call those that are due; ones that they set are for later."""
        due: list[Timer] = []
        while self._timers and self._timers[0][0] <= self.now:
            due.append(heappop(self._timers)[2])
        for timer in due:
            call, timer.call = timer.call, None
            if call is not None:
                call()

    def deadline(self) -> Nanos:
        timers = self._timers
        while timers and timers[0][2].call is None:
            heappop(timers)
        if len(timers) > 4096 and sum(t[2].call is None for t in timers) * 2 > len(timers):
            self._timers = [t for t in timers if t[2].call is not None]
            heapify(self._timers)
            timers = self._timers
        return timers[0][0] if timers else NEVER

    def jitter(self, base: Nanos) -> Nanos:
        """Between half and one and a half times `base`."""
        return base // 2 + self.rng.randrange(max(base, 1))


def _bulked(frames: list[OverlayFrame]) -> list[OverlayFrame]:
    """Builder messages that follow each other travel as one (seed: 'Bulk Publish')."""
    if len(frames) == 1 or Wave not in map(type, frames):
        return frames
    packed: list[OverlayFrame] = []
    waves: list[Wave] = []
    for frame in frames:
        if isinstance(frame, Wave):
            waves.append(frame)
            continue
        packed += _packed(waves)
        waves = []
        packed.append(frame)
    return packed + _packed(waves)


def _packed(waves: list[Wave]) -> list[OverlayFrame]:
    parts = [waves[k : k + BULK_MAX] for k in range(0, len(waves), BULK_MAX)]
    return [part[0] if len(part) == 1 else Bulk(tuple(part)) for part in parts]
