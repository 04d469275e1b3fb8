"""Outputs of the application, kept by every replica until their destination has them.

Every replica computes the same outputs with the same ids (position, k). The leader sends them; a new leader resends
whatever no entry records as arrived (`OUTPUTS`). A node of the domain accepts each id once and in order
(`output_receiver`); other destinations receive each output at least once, with its id.

The outputs kept are bounded: an application whose destinations do not accept its outputs gets no more messages.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from holdfast.group.config import OUTPUT_RECEIVER, replica_unit
from holdfast.group.core import Core
from holdfast.group.frames import Outputs, OutputsAck
from holdfast.group.log.entries import EVERYBODY, Marked, encode_data
from holdfast.group.log.order import Order
from holdfast.group.log.replicated_log import Kind
from holdfast.group.log.values import DESTINATIONS_MAX, NOTHING, Id
from holdfast.group.outputs.output_buffer import OutputBuffer
from holdfast.group.peers import post
from holdfast.group.ports import Output, SendOutputs, StopOutputs
from holdfast.links.ports import Received
from holdfast.machine import Outbox
from holdfast.types import NEVER, Nanos, NodeId

IN_FLIGHT: Final = 1 << 20
"""Bytes in flight to one destination."""
FRAME_BYTES: Final = 48_000
NODE: Final = "node:"


class OutputSender:
    """The part of the leader: sends what is kept, and orders what has arrived."""

    def __init__(self, core: Core, order: Order, output_buffer: OutputBuffer) -> None:
        self._core = core
        self._order = order
        self._output_buffer = output_buffer
        self._sent: dict[str, Id] = {}
        """Per destination: the last one that was sent since the last restart of sending."""
        self._arrived: dict[str, Id] = {}
        """Acknowledgements of destinations that are not in the log yet."""
        self._retry_ns: dict[str, Nanos] = {}
        self._said_ns: Nanos = 0
        self._handed_out = False
        """Whether a destination outside the domain may still be processing outputs of this replica."""

    def begin(self) -> None:
        """A term begins: what an earlier leader sent may not have arrived."""
        # rule: 10e
        self._sent.clear()
        # rule: 10g
        self._arrived.clear()
        # rule: 10h
        self._retry_ns.clear()

    def end(self, out: Outbox) -> None:
        """Another replica leads, or none."""
        if self._handed_out:
            self._handed_out = False
            # Not before what was handed out in earlier turns, which waits for its writes.
            # rule: 10f
            out.effect(StopOutputs(replica_unit(self._core.config.name)))

    def node_up(self, name: str) -> None:
        """A session with a node starts: what was in flight may be lost."""
        self._sent.pop(NODE + name, None)

    def here(self, name: str, frame: OutputsAck) -> None:
        """A node reports its progress."""
        self.arrived(NODE + name, (frame.position, frame.k))

    def arrived(self, destination: str, upto: Id) -> None:
        queue = self._output_buffer.queues.get(destination)
        # It may have more than was sent from here: from an earlier leader, or from the losing side of a partition.
        upto = min(upto, self._sent.get(destination, NOTHING))
        if queue is None or upto == NOTHING:
            return
        if upto < self._watermark(destination) or upto == self._arrived.get(destination):
            # It repeats its last report: what came after that did not arrive.
            self._sent[destination] = max(upto, self._watermark(destination))
            return
        self._arrived[destination] = max(upto, self._arrived.get(destination, NOTHING))

    def _watermark(self, destination: str) -> Id:
        return self._core.log.tail.metadata.arrived(destination)

    def settle(self, now: Nanos, out: Outbox) -> None:
        if self._core.delivery.suspended:
            return
        if now >= self._said_ns + self._core.config.free_period_ns:
            if self._arrived:
                self._said_ns = now
                self._order_arrivals(now, out)
            self._order_floor(now, out)
        for destination, queue in self._output_buffer.queues.items():
            if queue and queue[-1][0] > self._sent.get(destination, NOTHING):
                self._send(destination, queue, now, out)
            elif queue and now >= self._retry_ns.get(destination, 0):
                # Nothing new, and not all of the old has arrived.
                self._sent[destination] = self._watermark(destination)
                self._send(destination, queue, now, out)

    def _order_arrivals(self, now: Nanos, out: Outbox) -> None:
        for destination, upto in list(self._arrived.items()):
            if upto > self._watermark(destination):
                data = encode_data(Marked(destination, upto[0], upto[1]))
                # rule: 10b
                self._order.append(Kind.OUTPUTS, None, 0, 0, data, now, out)
            else:
                del self._arrived[destination]

    def _order_floor(self, now: Nanos, out: Outbox) -> None:
        """With many destinations, record for all of them at once up to where everything has arrived. Otherwise a
        replica whose application is behind would never learn about those that are not tracked individually."""
        log, applied = self._core.log, self._core.delivery.applied
        few = len(log.tail.metadata.watermarks) <= DESTINATIONS_MAX // 2
        if few or applied < log.ground.index:
            return
        # What our application has not reached, and the first output that is kept, may not have arrived.
        position = log.entry(applied + 1).position if applied < log.last else log.tail.position
        firsts = [queue[0][0][0] for queue in self._output_buffer.queues.values() if queue]
        upto = (min(position, *firsts) if firsts else position, -1)
        if upto > log.tail.metadata.floor:
            self._said_ns = now
            data = encode_data(Marked(EVERYBODY, *upto))
            self._order.append(Kind.OUTPUTS, None, 0, 0, data, now, out)
            queues = self._output_buffer.queues
            self._sent = {to: id_ for to, id_ in self._sent.items() if to in queues}
            self._retry_ns = {to: ns for to, ns in self._retry_ns.items() if to in queues}

    def _send(
        self, destination: str, queue: deque[tuple[Id, bytes]], now: Nanos, out: Outbox
    ) -> None:
        """Send what was not sent yet, within the limit in flight."""
        sent = max(self._sent.get(destination, NOTHING), self._watermark(destination))
        batch: list[tuple[Id, bytes]] = []
        size = on_way = 0
        after = sent
        self._retry_ns[destination] = now + self._core.config.output_retry_ns
        decided = self._decided()
        for id_, payload in queue:
            on_way += len(payload)
            # rule: 10c
            if id_[0] >= decided:
                break
            if id_ <= sent:
                continue
            if on_way > IN_FLIGHT and (batch or on_way > IN_FLIGHT + len(payload)):
                break
            if batch and size + len(payload) > FRAME_BYTES:
                self._emit(destination, after, batch, now, out)
                after, batch, size = batch[-1][0], [], 0
            batch.append((id_, payload))
            size += len(payload)
        if batch:
            self._emit(destination, after, batch, now, out)
            self._sent[destination] = batch[-1][0]

    def _decided(self) -> int:
        """Outputs of positions below this one come from committed messages: in `fast` groups the application is ahead
        of that."""
        log = self._core.log
        if self._core.config.delivery == "safe":
            return log.tail.position
        return log.cursor_at(log.commit).position

    def _emit(
        self, destination: str, after: Id, batch: list[tuple[Id, bytes]], now: Nanos, out: Outbox
    ) -> None:
        core = self._core
        if not destination.startswith(NODE):
            outputs = tuple(
                Output(*id_, destination, payload, core.group_epoch) for id_, payload in batch
            )
            out.effect(SendOutputs(replica_unit(core.config.name), destination, outputs))
            self._handed_out = True
            return
        name = destination.removeprefix(NODE)
        items = tuple((id_[0], id_[1], payload) for id_, payload in batch)
        floor = self._watermark(destination)
        frame = Outputs(core.config.name, core.group_epoch, after, floor, items)
        if name == core.name:
            out.up(OUTPUT_RECEIVER, Received(core.node, [frame], now))
            return
        peer = core.peers.named(name)
        if peer is not None:
            post(out, [NodeId(peer.node)], frame)

    def deadline(self) -> Nanos:
        due_ns = NEVER
        if self._core.delivery.suspended:
            return due_ns
        if self._arrived:
            due_ns = self._said_ns + self._core.config.free_period_ns
        for destination, queue in self._output_buffer.queues.items():
            if queue:
                due_ns = min(due_ns, self._retry_ns.get(destination, NEVER))
        return due_ns
