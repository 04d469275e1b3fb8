"""Production detectors on the packet network, with the joins and other traffic of a group.

`rounds` drives bare protocols through one round. Here each node has a complete `Detector`, so views change while rounds
run, and frames can be piggybacked on other packets.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

from holdfast.experiments.bad_links import node_id
from holdfast.experiments.points import HEADER_BYTES, NUMBER_BYTES, transmission_ns
from holdfast.experiments.rounds import RoundFailed
from holdfast.experiments.traffic import Network, Send
from holdfast.stability.config import StabilityConfig
from holdfast.stability.detector import Detector
from holdfast.stability.frames import StabilityFrame
from holdfast.stability.ports import Member, View
from holdfast.stability.riding import Posts
from holdfast.types import NEVER, SECOND, Nanos

LIMIT_NS: Final = 20 * SECOND
"""A run that takes longer is aborted."""
SLOTS: Final = (1, 2)

Event = Callable[[Nanos], None]


class LivingGroup:
    """All nodes of one group, the network between them, and events at set times."""

    def __init__(self, config: StabilityConfig, network: Network, nodes: int) -> None:
        self._network = network
        self._frames: list[tuple[StabilityFrame, ...]] = []
        self._sends: list[Send] = []
        self._out: Posts = []
        self._timers: list[tuple[Nanos, int, int]] = []
        self._events: dict[int, Event] = {}
        self._number = 0
        self.detectors = [Detector(config, "x", node_id(number), 1, 1) for number in range(nodes)]
        self._set: list[Nanos] = [NEVER] * nodes
        self._numbers = {node_id(number): number for number in range(nodes)}
        self.packets = 0
        """Packets that carried stability frames and nothing else."""

    def view(self, index: int, members: int) -> View:
        """A view of the first `members` nodes."""
        return View(1, index, tuple(Member(f"n{k}", node_id(k), 1) for k in range(members)), SLOTS)

    def at(self, when: Nanos, event: Event) -> None:
        self._number += 1
        self._events[self._number] = event
        heapq.heappush(self._timers, (when, -1, self._number))

    def run(self, is_over: Callable[[], bool]) -> Nanos:
        """Run until `is_over`; returns the time."""
        now = 0
        while not is_over():
            until_ns = self._timers[0][0] if self._timers else LIMIT_NS
            if now > LIMIT_NS or (self._network.is_empty and until_ns >= LIMIT_NS):
                raise RoundFailed(f"not stable everywhere after {now / 1e9:.1f} s; no result")
            arrivals = self._network.open_slot(until_ns)
            end_ns = self._network.slot_end_ns(until_ns)
            for position, now, source, target, tag in arrivals:
                self._wake_until(now)
                for frame in self._frames[tag]:
                    self.detectors[target].take(node_id(source), frame, now, self._out)
                    self.settle(target, now, position + 1)
            self._wake_until(end_ns - 1)
            now = max(now, min(end_ns, until_ns))
            self._network.close_slot(self._sends)
            self._sends = []
        return now

    def _wake_until(self, now: Nanos) -> None:
        while self._timers and self._timers[0][0] <= now:
            at, node, number = heapq.heappop(self._timers)
            if node < 0:
                self._events.pop(number)(at)
                continue
            if self._set[node] != at:
                continue
            self._set[node] = NEVER
            self.detectors[node].wake(at, self._out)
            self.settle(node, at, self._network.position(at))

    def enter(self, node: int, view: View, now: Nanos) -> None:
        self.detectors[node].enter(view, now, self._out)
        self.settle(node, now, self._network.position(now))

    def report(self, node: int, value: int, now: Nanos) -> None:
        self.detectors[node].report([value] * len(SLOTS), 0, now, self._out)
        self.settle(node, now, self._network.position(now))

    def send_other(self, node: int, target: int, size: int, ride: bool, now: Nanos) -> None:
        """Send a packet of the application; with `ride`, waiting stability frames are piggybacked on it."""
        frames = tuple(self.detectors[node].ride(node_id(target), now)) if ride else ()
        size += NUMBER_BYTES * len(SLOTS) * len(frames)
        self._send(node, (target,), frames, size, now, self._network.position(now))
        self.settle(node, now, self._network.position(now))

    def settle(self, node: int, now: Nanos, position: int) -> None:
        """After every call of a detector: send its frames and set its timer."""
        for nodes, frame in self._out:
            targets = tuple([self._numbers[there] for there in nodes])
            self.packets += len(targets)
            size = HEADER_BYTES + NUMBER_BYTES * len(SLOTS)
            self._send(node, targets, (frame,), size, now, position)
        self._out.clear()
        deadline = self.detectors[node].deadline
        if deadline < NEVER and deadline != self._set[node]:
            self._set[node] = deadline
            heapq.heappush(self._timers, (deadline, node, 0))

    def _send(
        self, node: int, targets: tuple[int, ...], frames: tuple[StabilityFrame, ...],
        size: int, now: Nanos, position: int,
    ) -> None:  # fmt: skip
        tag = len(self._frames)
        self._frames.append(frames)
        self._sends.append(Send(position, now, node, targets, transmission_ns(size), tag))
