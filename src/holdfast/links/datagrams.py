"""Datagrams that leave a link: what applications send that may be lost, and frames that need no channel.

They wait as messages, not as packets, because what a packet holds can change before they go. A message that no
datagram flow carries goes by stream; one that nothing carries is refused, and its sender is told. Each class has a
bound of its own, so that a flood of data leaves room for synchronisation.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import Final

from holdfast.links.flow import STREAM_PACKET_MAX, FlowState
from holdfast.links.lanes import Lane, Lanes, Placed, by_class
from holdfast.links.ports import DATAGRAMS, PortRefused, SendRaw, class_of
from holdfast.machine import Outbox
from holdfast.types import BULK, DATA, SYNC, FlowId, Nanos, NodeId
from holdfast.wire.blocks import HEAD, block_after
from holdfast.wire.codec import raw_head

BOUNDS: Final[Mapping[int, int]] = {SYNC: 256 << 10, DATA: 1 << 20, BULK: 256 << 10}
"""Bytes of each class that wait for a flow to take more."""
BATCH_HEAD: Final = 24
"""What a `RawBatch` adds to its messages, each of which takes four bytes more."""


MESSAGE_MAX: Final = STREAM_PACKET_MAX - 256
"""The largest datagram of an application, and the largest frame; a stream takes it in one packet."""


class DatagramLane(Lane):
    """The datagrams of one port (or frames of one class), where they go, and what waits."""

    __slots__ = ("largest", "messages", "refusal", "refused", "sent", "size")

    def __init__(self, traffic: int) -> None:
        super().__init__(traffic, True)
        self.messages: list[bytes] = []
        self.size = 0
        """What the messages that wait count for, and the largest of them."""
        self.largest = 0
        self.sent = 0
        self.refused = 0
        self.refusal = ""

    def put(self, messages: list[bytes], size: int, largest: int) -> None:
        self.messages += messages
        self.size += size
        self.largest = max(self.largest, largest)

    def take(self) -> tuple[list[bytes], int, int]:
        """Everything that waits: messages, size, the largest."""
        taken = self.messages, self.size, self.largest
        self.messages, self.size, self.largest = [], 0, 0
        return taken


class DatagramsOut:
    """The sending side of all datagrams of one link."""

    def __init__(self, peer: NodeId, flows: dict[FlowId, FlowState], lanes: Lanes) -> None:
        self.lanes: dict[int, DatagramLane] = {}
        self.dropped = 0
        self.waiting = dict.fromkeys(BOUNDS, 0)
        """Bytes that wait, by class."""
        self._peer = peer
        self._flows = flows
        self._choice = lanes

    def clear(self, out: Outbox) -> None:
        """The session ended: what waits is not sent, and its senders are told. Counts stay."""
        for lane in self.lanes.values():
            if lane.messages:
                self._refuse(lane, len(lane.take()[0]), "the session ended", out)
            lane.flow = None
            lane.home = ""
        self.waiting = dict.fromkeys(BOUNDS, 0)

    def frame(self, cls: int, part: bytes) -> None:
        """An encoded frame."""
        lane = self._lane(cls)
        size = len(part)
        if size > MESSAGE_MAX or self.waiting[cls] + size > BOUNDS[cls]:
            self.dropped += 1
            return
        lane.put([part], size, size)
        self.waiting[cls] += size

    def raw(self, item: SendRaw, out: Outbox) -> None:
        """Messages of an application; those that there is no room for are refused."""
        lane = self._lane(DATAGRAMS + item.port)
        messages = item.messages
        if not messages:
            return
        sizes = list(map(len, messages))
        size, largest = sum(sizes) + 4 * len(sizes), max(sizes)
        if self.waiting[DATA] + size > BOUNDS[DATA] or largest > MESSAGE_MAX:
            messages, size = self._admit(lane, messages, out)
        lane.put(messages, size, largest)
        self.waiting[DATA] += size

    def _admit(
        self, lane: DatagramLane, messages: list[bytes], out: Outbox
    ) -> tuple[list[bytes], int]:
        """Those that there is room for, and their size; the sender is told of the others."""
        admitted: list[bytes] = []
        size = large = 0
        room = BOUNDS[DATA] - self.waiting[DATA]
        for message in messages:
            if len(message) > MESSAGE_MAX:
                large += 1
            elif size + len(message) + 4 <= room:
                size += len(message) + 4
                admitted.append(message)
        if large:
            self._refuse(lane, large, f"over {MESSAGE_MAX} bytes: use a channel", out)
        crowded = len(messages) - large - len(admitted)
        if crowded:
            waiting = self.waiting[DATA] + size
            self._refuse(lane, crowded, f"{waiting} bytes wait already", out)
        return admitted, size

    def _lane(self, traffic: int) -> DatagramLane:
        lane = self.lanes.get(traffic)
        if lane is None:
            lane = self.lanes[traffic] = DatagramLane(traffic)
        return lane

    def _refuse(self, lane: DatagramLane, count: int, reason: str, out: Outbox) -> None:
        self.dropped += count
        lane.refused += count
        lane.refusal = reason
        if lane.traffic >= DATAGRAMS:
            out.effect(PortRefused(self._peer, lane.traffic - DATAGRAMS, count, reason))

    # -- out they go ---------------------------------------------------------------------------------------------

    def placed(self) -> list[Placed]:
        """Every lane that has a place, in the order in which they are moved."""
        return by_class(lane for lane in self.lanes.values() if lane.flow is not None)

    def flush(self, now: Nanos, out: Outbox) -> None:
        """Give what waits to its flows, synchronisation first."""
        if not any(self.waiting.values()):
            return
        for traffic in sorted(self.lanes, key=lambda t: (class_of(t), t)):
            lane = self.lanes[traffic]
            if lane.messages:
                self._flush_lane(now, lane, out)

    def _flush_lane(self, now: Nanos, lane: DatagramLane, out: Outbox) -> None:
        flow = self._choice.place(now, lane)
        if flow is not None and not flow.credit:
            return
        messages, size, largest = lane.take()
        self.waiting[class_of(lane.traffic)] -= size
        if flow is None:
            self._refuse(lane, len(messages), "there is no path that it may use", out)
            return
        raw = lane.traffic >= DATAGRAMS
        head, extra = (BATCH_HEAD, 4) if raw else (0, 0)
        room = flow.body_max - head
        if largest + extra > room:
            large = [message for message in messages if len(message) + extra > room]
            messages = [message for message in messages if len(message) + extra <= room]
            self._flush_large(now, lane, large, room, out)
            if not messages:
                return
        lane.sent += len(messages)
        asked = 0 if flow.stream else flow.fitness_for(lane.traffic).size
        if asked:
            room = min(room, max(0, asked - flow.size + flow.body_max - head))
        parts = _packed(lane.traffic - DATAGRAMS, messages, room) if raw else messages
        (flow.apart if asked else flow.parts).extend(parts)

    def _flush_large(
        self, now: Nanos, lane: DatagramLane, messages: list[bytes], room: int, out: Outbox
    ) -> None:
        """What the flow of this lane cannot hold goes where it fits, or its sender is told."""
        raw = lane.traffic >= DATAGRAMS
        refused: list[int] = []
        for message in messages:
            size = len(message) + (4 + BATCH_HEAD if raw else 0)
            flow = self._carrier(now, lane, size)
            if flow is None:
                refused.append(len(message))
                continue
            lane.sent += 1
            parts = _packed(lane.traffic - DATAGRAMS, [message], size) if raw else [message]
            flow.parts.extend(parts)
        if refused:
            reason = (
                f"{max(refused)} bytes do not pass on any path now; up to {max(0, room - 4)} do"
            )
            self._refuse(lane, len(refused), reason, out)

    def _carrier(self, now: Nanos, lane: DatagramLane, size: int) -> FlowState | None:
        """The best flow that holds so large a packet and is not known to fail."""
        fitting = [
            flow
            for flow in self._flows.values()
            if self._choice.may_use(flow, lane)
            and flow.alive
            and flow.credit
            and not flow.choked
            and not flow.untried
            and flow.body_max >= size
        ]
        if not fitting:
            return None
        return min(fitting, key=lambda flow: flow.cost(now, lane.traffic, True))


def _packed(port: int, messages: list[bytes], room_max: int) -> list[bytes]:
    """Messages as few frames: as many in each as have room together, but at least one."""
    sizes = list(map(len, messages))
    largest = max(sizes) + 4
    if sum(sizes) + 4 * len(sizes) == largest * len(sizes):  # all alike: no need to add up
        step = max(1, room_max // largest)
        cuts = [*range(0, len(messages), step), len(messages)]
    else:
        cuts = [0]
        ends = list(accumulate(size + 4 for size in sizes))
        before = 0
        while cuts[-1] < len(messages):
            last = max(cuts[-1] + 1, bisect_right(ends, before + room_max, cuts[-1]))
            cuts.append(last)
            before = ends[last - 1]
    return [_batch(port, messages[a:b], sizes[a:b]) for a, b in pairwise(cuts)]


def _batch(port: int, messages: list[bytes], sizes: list[int]) -> bytes:
    """A `RawBatch`, put together in one step."""
    size = HEAD + sum(sizes) + 4 * len(sizes)
    return block_after(raw_head(port, size), messages, sizes, size)
