"""One stress job: every combination of attributes from this node to one other, several times, at a bounded rate.

Combinations are sent fill by fill. After each fill the listener is asked for its counts. A stream that lost a segment
blocks everything behind it, so its connection is replaced, and the next fill waits for the new one. Both directions
share a connection; data in flight on one that was replaced is sent again.

    sending ──► draining ──► asking ──► sending (next fill) ... ──► over
                                └─► waiting (for connections) ──┘
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from holdfast.health.frames import StressCell, StressOrder
from holdfast.links.ports import FlowReady
from holdfast.types import MILLISECOND, SECOND, FlowId, Nanos, NodeId

LANES_MAX: Final = 64
SIZES_MAX: Final = 64
FILLS_MAX: Final = 16
ROUNDS_MAX: Final = 200
RATE_MAX: Final = 100_000_000
DRAIN_NS: Final = 300 * MILLISECOND
ANSWER_NS: Final = 5 * SECOND
REPLACE_NS: Final = 8 * SECOND
TRIES_MAX: Final = 3
JOB_NS_MAX: Final = 180 * SECOND
TICK_NS: Final = 10 * MILLISECOND
IP_TCP: Final = 40
NEUTRAL_FILL: Final = bytes(range(256))

SENDING: Final = "sending"
DRAINING: Final = "draining"
ASKING: Final = "asking"
WAITING: Final = "waiting"
OVER: Final = "over"

Shot = tuple["StressLane", int]
"""A lane, and the index of a size on it."""


def kind_of(ready: FlowReady) -> str:
    """What a flow measures; empty for one that cannot carry packets of a given size."""
    if ready.transport == "multicast":
        return "multicast"
    if ready.transport == "udp":
        return ready.use or "udp"
    return "tcp" if ready.use.startswith("mss:") else ""


class StressLane:
    """One path and kind: the sizes sent on it, and the result of each combination."""

    __slots__ = (
        "disturbed",
        "dropped",
        "flow",
        "heard",
        "heard_before",
        "key",
        "kind",
        "number",
        "ready",
        "sent",
        "sizes",
        "stuck",
        "tries",
        "wanted",
    )

    def __init__(
        self,
        number: int,
        ready: FlowReady,
        flow: FlowId | None,
        sizes: tuple[int, ...],
        fills: int,
    ) -> None:
        self.number = number
        self.ready = ready
        self.flow = flow
        """None while the connection is blocked or gone."""
        self.key = key_of(ready)
        self.kind = kind_of(ready)
        self.sizes = sizes
        self.sent = [0] * (len(sizes) * fills)
        self.heard = [0] * (len(sizes) * fills)
        self.heard_before = [0] * (len(sizes) * fills)
        """What the listener had counted when this attempt started."""
        self.wanted = True
        """Whether the current fill is still to be sent."""
        self.disturbed = False
        """Its flow was lost while this fill was in flight."""
        self.tries = 0
        self.stuck: FlowId | None = None
        """A connection that lost something: nothing more arrives on it."""
        self.dropped = False
        """There is no connection after repeated waiting."""

    def takes(self) -> bool:
        """Whether something can and should be sent on it now."""
        return self.flow is not None and self.wanted and not self.dropped

    def judge(self, codes: range, counted: bytes, rounds: int, first: bool) -> None:
        """The result of the current fill, and whether it must be sent again."""
        lost = False
        for code in codes:
            count = counted[code] if code < len(counted) else 0
            self.heard[code] = min(self.sent[code], max(0, count - self.heard_before[code]))
            self.heard_before[code] = count
            lost = lost or self.heard[code] < self.sent[code]
        tried = any(self.sent[code] for code in codes)
        self.tries += 1
        whole = all(self.sent[code] == rounds for code in codes)
        unclear = not tried or (self.disturbed and (lost or not whole))
        self.wanted = unclear and self.kind == "tcp" and self.tries < TRIES_MAX and not self.dropped
        if self.kind == "tcp" and lost and not self.disturbed:
            self.stuck, self.flow = self.flow, None
        self.dropped = self.dropped or (first and not tried and not self.wanted)
        if self.wanted:
            for code in codes:
                self.sent[code] = 0


def key_of(ready: FlowReady) -> tuple[str, str, str, str]:
    """What stays the same when a flow is replaced by another for the same purpose."""
    return ready.adapter, ready.remote_adapter, ready.transport, ready.use


class Job:
    """What is sent to one target, and when."""

    def __init__(
        self,
        now: Nanos,
        order: StressOrder,
        client: NodeId,
        lanes: list[StressLane],
        fills: list[str],
    ) -> None:
        self.order = order
        self.target = NodeId(order.target)
        self.client = client
        self.lanes = lanes
        self.fills = fills
        """Patterns; the first is empty: a fill without any."""
        self.state = SENDING
        self.failure = ""
        self.done = 0
        self.total = order.rounds * len(fills) * sum(len(lane.sizes) for lane in lanes)
        self._began = now
        self._until = 0
        self._fill = 0
        self._shots = self._make_shots()
        self._room = 0
        self._topped = now
        if not lanes:
            self.fail("there is no path on which sizes can be measured")

    @property
    def fill(self) -> int:
        return self._fill

    def _make_shots(self) -> Iterator[Shot]:
        """Round-robin over all lanes, so that no path gets everything at once."""
        for _ in range(self.order.rounds):
            for index in range(SIZES_MAX):
                for lane in self.lanes:
                    if index < len(lane.sizes):
                        yield lane, index

    def shots(self, now: Nanos) -> list[Shot]:
        """What to send now; continues when nothing is left of this fill."""
        if self.state != SENDING:
            return []
        rate = self.order.bytes_per_s
        self._room = min(
            self._room + (now - self._topped) * rate // SECOND, 2 * rate // 100 + 65_535
        )
        self._topped = now
        found: list[Shot] = []
        while self._room > 0:
            shot = next(self._shots, None)
            if shot is None:
                self.state, self._until = DRAINING, now + DRAIN_NS
                break
            lane, index = shot
            self.done = min(self.done + 1, self._done_max())
            if not lane.takes():
                continue
            self._room -= lane.sizes[index]
            lane.sent[self.code(index)] += 1
            found.append(shot)
        return found

    def _done_max(self) -> int:
        """What counts as done with this fill: a repetition is no progress."""
        return self.total * (self._fill + 1) // len(self.fills)

    def code(self, index: int) -> int:
        """The combination of a size, by its index, and the current fill."""
        return index * len(self.fills) + self._fill

    def passed(self, now: Nanos) -> bool:
        """Time has passed; True if the listener must be asked now."""
        if now - self._began > JOB_NS_MAX and self.state != OVER:
            self.fail(f"it took longer than {JOB_NS_MAX // SECOND} s")
        if self.state == DRAINING and now >= self._until:
            self.state, self._until = ASKING, now + ANSWER_NS
            return True
        if self.state == ASKING and now >= self._until:
            self.fail("the listener does not report what it received")
        if self.state == WAITING:
            self._go_on(now)
        return False

    def counts(self, now: Nanos, counts: tuple[bytes, ...]) -> None:
        """The answer of the listener: how many of each combination it has received so far."""
        if self.state != ASKING:
            return
        for lane in self.lanes:
            if lane.wanted:
                codes = range(self._fill, len(lane.sent), len(self.fills))
                counted = counts[lane.number] if lane.number < len(counts) else b""
                lane.judge(codes, counted, self.order.rounds, self._fill == 0)
        self.state, self._until = WAITING, now + REPLACE_NS
        self._go_on(now)

    def _go_on(self, now: Nanos) -> None:
        """Send the same fill again where needed, or the next one, once there are connections for it."""
        again = [lane for lane in self.lanes if lane.wanted]
        last = self._fill + 1 == len(self.fills)
        if not again and last:
            self.state = OVER
            return
        needed = again or [lane for lane in self.lanes if not lane.dropped]
        if now < self._until and any(lane.flow is None for lane in needed):
            return
        if not again:
            self._fill += 1
            for lane in self.lanes:
                lane.wanted, lane.tries = True, 0
        for lane in self.lanes:
            lane.disturbed = False
        self._shots = self._make_shots()
        self.state, self._topped, self._room = SENDING, now, 0

    def take_stuck(self) -> list[FlowId]:
        """Connections that must be replaced."""
        found = [lane.stuck for lane in self.lanes if lane.stuck is not None]
        for lane in self.lanes:
            lane.stuck = None
        return found

    def fail(self, why: str) -> None:
        self.state, self.failure = OVER, why

    # -- flows that come and go ----------------------------------------------------------------------------------

    def ready(self, ready: FlowReady) -> None:
        """A new flow replaces one for the same purpose."""
        for lane in self.lanes:
            if lane.key == key_of(ready) and lane.flow != ready.flow:
                lane.disturbed = lane.disturbed or self.state != WAITING
                lane.flow, lane.ready = ready.flow, ready

    def lost(self, flow: FlowId) -> None:
        for lane in self.lanes:
            if lane.flow == flow:
                lane.flow = None
                lane.disturbed = True

    def cells(self) -> tuple[StressCell, ...]:
        """The matrix of this pair: every combination on every path."""
        return tuple(
            StressCell(
                lane.ready.adapter,
                lane.ready.remote_adapter,
                lane.ready.subnet,
                lane.kind,
                size,
                pattern,
                lane.sent[index * len(self.fills) + number],
                lane.heard[index * len(self.fills) + number],
            )
            for lane in self.lanes
            for index, size in enumerate(lane.sizes)
            for number, pattern in enumerate(self.fills)
        )


def make_lanes(
    flows: list[tuple[FlowReady, bool]],
    order: StressOrder,
    mtus: dict[str, int],
    rungs: tuple[int, ...],
    fills: int,
) -> list[StressLane]:
    """The flows to one peer on which something can be measured, each with whether it currently exists."""
    lanes: list[StressLane] = []
    for ready, there in sorted(flows, key=lambda item: key_of(item[0])):
        mtu = mtus.get(ready.adapter, 1500)
        sizes = sizes_for(ready, order.sizes or rungs, mtu, bool(order.sizes))
        if sizes and len(lanes) < LANES_MAX:
            lanes.append(StressLane(len(lanes), ready, ready.flow if there else None, sizes, fills))
    return lanes


def sizes_for(ready: FlowReady, wanted: tuple[int, ...], mtu: int, exact: bool) -> tuple[int, ...]:
    """Sizes of one kind: whole packets up to the MTU, fragmented ones above it, one size per segment size."""
    match kind_of(ready):
        case "":
            return ()
        case "tcp":
            number = ready.use.partition(":")[2]
            return (int(number) + IP_TCP,) if number.isdigit() else ()
        case "frag":
            found = [size for size in wanted if size > mtu]
            return tuple(sorted({*found, *(() if exact else (mtu + 500,))}))[:SIZES_MAX]
        case _:
            found = [size for size in wanted if size <= mtu]
            return tuple(sorted({*found, *(() if exact else (mtu,))}))[-SIZES_MAX:]
