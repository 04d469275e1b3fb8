"""Rounds of a protocol over reliable FIFO channels with random delays, as section 2 of seed 004 assumes them."""

from __future__ import annotations

from heapq import heappop, heappush
from random import Random

from holdfast.bench.stability_rounds import build
from holdfast.stability import StabilityConfig
from holdfast.stability.frames import StabilityFrame
from holdfast.stability.protocol import Protocol, Sends
from holdfast.types import MICROSECOND, SECOND, Nanos

EVERY_NS = 500 * MICROSECOND
"""All members receive another message this often."""
DELAY_US = (100, 2000)


class FifoRounds:
    """All members of a view. Rounds follow each other, `delta_ns` apart."""

    def __init__(self, protocol: str, size: int, seed: int, delta_ns: Nanos) -> None:
        config = StabilityConfig(
            protocol=protocol, gap_ns=delta_ns, period_ns=delta_ns, repeat_ns=SECOND
        )
        self.members = build(protocol, size, 1, config)
        for member in self.members:
            member.mine[:] = 0
        self.now: Nanos = SECOND
        self.ahead: list[tuple[int, int]] = []
        """(round of a frame, round of its receiver), where the frame was of a later round."""
        self.frames = 0
        self.lag_ns_max: Nanos = 0
        """The longest time from the moment at which all members had a message until one knew it to be stable."""
        self._rng = Random(seed)
        self._begun = self.now
        self._known = [0] * size
        """What each member knows to be stable."""
        self._count = 0
        self._links: dict[tuple[int, int], Nanos] = {}
        self._events: list[tuple[Nanos, int, int, int, StabilityFrame]] = []
        self._sends: Sends = []

    def run(self, duration_ns: Nanos) -> None:
        for member in self.members:
            self._after(member)
        end = self.now + duration_ns
        while self.now < end:
            due = min(self.members, key=lambda member: member.deadline)
            if self._events and self._events[0][0] <= due.deadline:
                self.now, _, sender, place, frame = heappop(self._events)
                self._receive_messages()
                self._deliver(sender, self.members[place], frame)
            else:
                self.now = max(self.now, due.deadline)
                self._receive_messages()
                due.wake(self.now, self._sends)
                self._note_lag(due)
                self._after(due)

    def _receive_messages(self) -> None:
        for member in self.members:
            member.mine[0] = (self.now - self._begun) // EVERY_NS

    def _deliver(self, sender: int, member: Protocol, frame: StabilityFrame) -> None:
        self.frames += 1
        if frame.round > member.round:
            self.ahead.append((frame.round, member.round))
        member.take(sender, frame, self.now, self._sends)
        self._note_lag(member)
        self._after(member)

    def _note_lag(self, member: Protocol) -> None:
        """The oldest message that has just become stable waited longest."""
        place, stable = member.seat.place, int(member.stable[0])
        if stable > self._known[place]:
            received_ns = self._begun + (self._known[place] + 1) * EVERY_NS
            self.lag_ns_max = max(self.lag_ns_max, self.now - received_ns)
            self._known[place] = stable

    def _after(self, member: Protocol) -> None:
        """Every member always wants the next round; frames go out."""
        if member.initiates and not member.running and not member.wanted:
            member.want(self.now, self._sends)
        for places, frame in self._sends:
            for place in places:
                self._send(member.seat.place, place, frame)
        self._sends.clear()

    def _send(self, sender: int, place: int, frame: StabilityFrame) -> None:
        """FIFO: never earlier than what was sent before."""
        link = (sender, place)
        at = self.now + self._rng.randint(*DELAY_US) * MICROSECOND
        self._links[link] = at = max(at, self._links.get(link, 0) + 1)
        self._count += 1
        heappush(self._events, (at, self._count, sender, place, frame))
