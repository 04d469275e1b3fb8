"""Frames that wait a little for other traffic to the same member (S7).

The owner calls `ride` when it sends something to a member anyway, and sends what it is given in the same packet. A
frame waits only where such traffic flowed lately, and at most `ride_ns`; without traffic nothing is delayed. A
confirmation waits longer, because nothing but a repetition depends on it. A later frame of the same kind replaces one
that waits, because it says everything that the earlier one said.
"""

from __future__ import annotations

from typing import Final

from holdfast.stability.frames import ResultAck, StabilityFrame
from holdfast.types import NEVER, Nanos, NodeId

RECENT: Final = 8
"""Traffic is recent when it flowed within this many times `ride_ns`."""
PATIENT: Final = 4
"""A confirmation waits this many times `ride_ns`."""

Posts = list[tuple[tuple[NodeId, ...], StabilityFrame]]
"""Frames to send, each with its receivers."""


class Riding:
    """The frames of one member that wait for a ride."""

    __slots__ = ("_ride_ns", "_seen_ns", "_waiting", "deadline", "last_ns", "rode")

    def __init__(self, ride_ns: Nanos) -> None:
        self._ride_ns = ride_ns
        self._seen_ns: dict[NodeId, Nanos] = {}
        """When traffic to a node last flowed. Bounded by the members of the view."""
        self.last_ns: Nanos = -RECENT * ride_ns - 1
        """When traffic to any node last flowed."""
        self._waiting: dict[NodeId, dict[type[StabilityFrame], StabilityFrame]] = {}
        self.deadline: Nanos = NEVER
        self.rode = 0

    def post(
        self, nodes: tuple[NodeId, ...], frame: StabilityFrame, now: Nanos, out: Posts
    ) -> None:
        """Send the frame now to members without recent traffic; keep it for the others."""
        if not self._seen_ns:
            out.append((nodes, frame))
            return
        limit = now - RECENT * self._ride_ns
        direct = tuple(node for node in nodes if self._seen_ns.get(node, limit) <= limit)
        if direct:
            out.append((direct, frame))
        if len(direct) == len(nodes):
            return
        for node in nodes:
            if self._seen_ns.get(node, limit) > limit:
                self._waiting.setdefault(node, {})[type(frame)] = frame
        wait_ns = self._ride_ns * (PATIENT if type(frame) is ResultAck else 1)
        self.deadline = min(self.deadline, now + wait_ns)

    def ride(self, node: NodeId, now: Nanos) -> list[StabilityFrame]:
        """Traffic flows to `node` now: what should go with it."""
        self._seen_ns[node] = self.last_ns = now
        waiting = self._waiting.pop(node, None)
        if waiting is None:
            return []
        self.rode += len(waiting)
        if not self._waiting:
            self.deadline = NEVER
        return list(waiting.values())

    def slack_ns(self, due_ns: Nanos) -> Nanos:
        """How much longer work that is due then may wait for traffic, to which frames can be added at once."""
        return self._ride_ns if due_ns <= self.last_ns + RECENT * self._ride_ns else 0

    def flush(self, out: Posts) -> None:
        """No traffic came in time: send everything that waits."""
        for node, frames in self._waiting.items():
            out += [((node,), frame) for frame in frames.values()]
        self._waiting.clear()
        self.deadline = NEVER

    def forget(self) -> None:
        """The view changed: what waits belongs to the old one."""
        self._waiting.clear()
        self._seen_ns.clear()
        self.deadline = NEVER
