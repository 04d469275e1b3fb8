"""Outgoing datagrams of a link: application datagrams, and frames that need no channel.

They are queued as messages, not as packets, because the packet size can change before they are sent. A message that no
datagram flow can carry is sent on a stream; if no flow can carry it, it is refused and its sender informed. Each class
has its own bound, so data leaves room for synchronisation.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import Final

from holdfast.links.flow import STREAM_PACKET_MAX, FlowState
from holdfast.links.flow_selection import FlowChoice, FlowSelection, PlainFlowChoice, by_class
from holdfast.links.ports import COPY_PORT, DATAGRAMS, PortRefused, SendRaw, class_of
from holdfast.machine import Outbox
from holdfast.types import BULK, DATA, SYNC, FlowId, Nanos, NodeId
from holdfast.wire.blocks import HEAD, block_after
from holdfast.wire.codec import raw_head

BOUNDS: Final[Mapping[int, int]] = {SYNC: 256 << 10, DATA: 1 << 20, BULK: 256 << 10}
"""Bytes of each class that may wait for a flow."""
BATCH_HEAD: Final = 24
"""The overhead of a `RawBatch`; each message takes four more bytes."""
ARRAY_HEAD: Final = 3
"""The overhead of the frames of a packet together: the head of their array."""


MESSAGE_MAX: Final = STREAM_PACKET_MAX - 256
"""The largest application datagram, and the largest frame; a stream sends it in one packet."""


class DatagramQueue(PlainFlowChoice):
    """The datagrams of one port (or frames of one class): their flow and their queue."""

    __slots__ = ("largest", "messages", "refusal", "refused", "sent", "size")

    def __init__(self, traffic: int) -> None:
        super().__init__(traffic, True)
        self.messages: list[bytes] = []
        self.size = 0
        """The size of the waiting messages, and of the largest one."""
        self.largest = 0
        self.sent = 0
        self.refused = 0
        self.refusal = ""

    def put(self, messages: list[bytes], size: int, largest: int) -> None:
        self.messages += messages
        self.size += size
        self.largest = max(self.largest, largest)

    def take(self) -> tuple[list[bytes], int, int]:
        """Take everything that waits: messages, size, the largest."""
        taken = self.messages, self.size, self.largest
        self.messages, self.size, self.largest = [], 0, 0
        return taken


class DatagramsOut:
    """The sending side of all datagrams of one link."""

    def __init__(
        self, peer: NodeId, flows: dict[FlowId, FlowState], selection: FlowSelection
    ) -> None:
        self.queues: dict[int, DatagramQueue] = {}
        self.dropped = 0
        self.room = 0
        """The largest frame of class `DATA` that its datagram flow carried when frames were last sent; 0 if they used a
        stream."""
        self.waiting = dict.fromkeys(BOUNDS, 0)
        """Waiting bytes, by class."""
        self._peer = peer
        self._flows = flows
        self._selection = selection

    def clear(self, out: Outbox) -> None:
        """The session ended: waiting messages are not sent, and their senders informed. Counts stay."""
        for queue in self.queues.values():
            if queue.messages:
                self._refuse(queue, len(queue.take()[0]), "the session ended", out)
            queue.flow = None
            queue.home = ""
        self.room = 0
        self.waiting = dict.fromkeys(BOUNDS, 0)

    def frame(self, cls: int, part: bytes) -> None:
        """Add an encoded frame."""
        queue = self._queue(cls)
        size = len(part)
        if size > MESSAGE_MAX or self.waiting[cls] + size > BOUNDS[cls]:
            self.dropped += 1
            return
        queue.put([part], size, size)
        self.waiting[cls] += size

    def raw(self, item: SendRaw, out: Outbox) -> None:
        """Add messages of an application; those without room are refused."""
        queue = self._queue(DATAGRAMS + item.port)
        messages = item.messages
        if not messages:
            return
        sizes = list(map(len, messages))
        size, largest = sum(sizes) + 4 * len(sizes), max(sizes)
        if self.waiting[DATA] + size > BOUNDS[DATA] or largest > MESSAGE_MAX:
            messages, size = self._admit(queue, messages, out)
        queue.put(messages, size, largest)
        self.waiting[DATA] += size

    def _admit(
        self, queue: DatagramQueue, messages: list[bytes], out: Outbox
    ) -> tuple[list[bytes], int]:
        """The messages for which there is room, and their size; the sender is informed of the others."""
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
            self._refuse(queue, large, f"over {MESSAGE_MAX} bytes: use a channel", out)
        crowded = len(messages) - large - len(admitted)
        if crowded:
            waiting = self.waiting[DATA] + size
            self._refuse(queue, crowded, f"{waiting} bytes are already waiting", out)
        return admitted, size

    def _queue(self, traffic: int) -> DatagramQueue:
        queue = self.queues.get(traffic)
        if queue is None:
            queue = self.queues[traffic] = DatagramQueue(traffic)
        return queue

    def _refuse(self, queue: DatagramQueue, count: int, reason: str, out: Outbox) -> None:
        self.dropped += count
        queue.refused += count
        queue.refusal = reason
        if queue.traffic >= DATAGRAMS:
            out.effect(PortRefused(self._peer, queue.traffic - DATAGRAMS, count, reason))

    # -- sending -------------------------------------------------------------------------------------------------

    def placed(self) -> list[FlowChoice]:
        """All lanes that have a flow, in the order in which they move."""
        return by_class(queue for queue in self.queues.values() if queue.flow is not None)

    def flush(self, now: Nanos, out: Outbox) -> None:
        """Pass waiting messages to their flows, synchronisation first."""
        if not any(self.waiting.values()):
            return
        for traffic in sorted(self.queues, key=lambda t: (class_of(t), t)):
            queue = self.queues[traffic]
            if queue.messages:
                self._flush_queue(now, queue, out)

    def _flush_queue(self, now: Nanos, queue: DatagramQueue, out: Outbox) -> None:
        flow = self._selection.place(now, queue)
        if flow is not None and not flow.credit:
            return
        messages, size, largest = queue.take()
        self.waiting[class_of(queue.traffic)] -= size
        if flow is None:
            self._refuse(queue, len(messages), "there is no path that this traffic may use", out)
            return
        raw = queue.traffic >= DATAGRAMS
        head, extra = (BATCH_HEAD, 4) if raw else (0, 0)
        room = flow.body_max - head
        asked = 0 if flow.stream else flow.fitness_for(queue.traffic).size
        if queue.traffic == DATA:
            self.room = 0 if flow.stream else _within(asked, flow, room - ARRAY_HEAD)
        if largest + extra > room:
            large = [message for message in messages if len(message) + extra > room]
            messages = [message for message in messages if len(message) + extra <= room]
            self._flush_large(now, queue, large, room, out)
            if not messages:
                return
        queue.sent += len(messages)
        if asked:
            room = _within(asked, flow, room, head)
        parts = _packed(queue.traffic - DATAGRAMS, messages, room) if raw else messages
        if raw and not flow.stream:
            flow.raw_sent += len(parts)
            flow.raw_last = messages[-1]
        (flow.apart if asked else flow.parts).extend(parts)

    def _flush_large(
        self, now: Nanos, queue: DatagramQueue, messages: list[bytes], room: int, out: Outbox
    ) -> None:
        """Send messages that the flow of this lane cannot carry elsewhere, or inform the sender."""
        raw = queue.traffic >= DATAGRAMS
        refused: list[int] = []
        for message in messages:
            size = len(message) + (4 + BATCH_HEAD if raw else 0)
            flow = self._carrier(now, queue, size)
            if flow is None:
                refused.append(len(message))
                continue
            queue.sent += 1
            parts = _packed(queue.traffic - DATAGRAMS, [message], size) if raw else [message]
            if raw and not flow.stream:
                flow.raw_sent += len(parts)
                flow.raw_last = message
            flow.parts.extend(parts)
        if refused:
            reason = (
                f"{max(refused)} bytes do not pass on any path now; up to {max(0, room - 4)} do"
            )
            self._refuse(queue, len(refused), reason, out)

    def _carrier(self, now: Nanos, queue: DatagramQueue, size: int) -> FlowState | None:
        """The best flow that can carry a packet of this size and is not known to fail."""
        fitting = [
            flow
            for flow in self._flows.values()
            if self._selection.may_use(flow, queue)
            and flow.alive
            and flow.credit
            and not flow.choked
            and not flow.untried
            and flow.body_max >= size
        ]
        if not fitting:
            return None
        return min(fitting, key=lambda flow: flow.cost(now, queue.traffic, True))


def copy_of(message: bytes) -> bytes:
    """A packet with the contents of a datagram, which the peer counts and discards."""
    return _batch(COPY_PORT, [message], [len(message)])


def _within(asked: int, flow: FlowState, room: int, head: int = 0) -> int:
    """The room for messages in a packet of at most the declared size; 0: any size."""
    return min(room, max(0, asked - flow.size + flow.body_max - head)) if asked else room


def _packed(port: int, messages: list[bytes], room_max: int) -> list[bytes]:
    """Messages in as few frames as possible, at least one per frame."""
    sizes = list(map(len, messages))
    largest = max(sizes) + 4
    if sum(sizes) + 4 * len(sizes) == largest * len(
        sizes
    ):  # all of the same size: no need to add up
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
    """A `RawBatch`, built in one step."""
    size = HEAD + sum(sizes) + 4 * len(sizes)
    return block_after(raw_head(port, size), messages, sizes, size)
