"""What the application says to the outside, kept by every replica until its destination has it.

Every replica computes the same outputs, under the same ids (position, k). The leader sends them; a new leader sends
again whatever no entry of the order says to have arrived (`OUTPUTS`). A node of the domain takes each id once, and in
order (`sink`); other destinations get each output at least once, with its id.

What is kept is bounded: an application whose destinations do not take what it says is given no more messages.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from holdfast.group.config import SINK, replica_unit
from holdfast.group.core import Core
from holdfast.group.entries import EVERYBODY, Marked, encode_data
from holdfast.group.keeping import Kept
from holdfast.group.log import Kind
from holdfast.group.order import Order
from holdfast.group.peers import post
from holdfast.group.ports import Output, SendOutputs, StopOutputs
from holdfast.group.rulings import DESTINATIONS_MAX, NOTHING, Id
from holdfast.links.ports import Received
from holdfast.machine import Outbox
from holdfast.types import NEVER, Nanos, NodeId
from holdfast.wire.frames import Outputs, OutputsHere

IN_FLIGHT: Final = 1 << 20
"""Bytes on their way to one destination."""
FRAME_BYTES: Final = 48_000
NODE: Final = "node:"


class Emitter:
    """The leader's part: sends what is kept, and orders what has arrived."""

    def __init__(self, core: Core, order: Order, kept: Kept) -> None:
        self._core = core
        self._order = order
        self._kept = kept
        self._sent: dict[str, Id] = {}
        """Per destination: the last one that was sent since there was reason to begin again."""
        self._arrived: dict[str, Id] = {}
        """What destinations say to have, as far as no entry says it yet."""
        self._retry_ns: dict[str, Nanos] = {}
        self._said_ns: Nanos = 0
        self._handed_out = False
        """Whether somebody outside the domain may still be busy with what this replica said."""

    def begin(self) -> None:
        """A term begins: what an earlier leader sent may not have arrived."""
        self._sent.clear()
        self._arrived.clear()
        self._retry_ns.clear()

    def end(self, out: Outbox) -> None:
        """Another one leads, or nobody."""
        if self._handed_out:
            self._handed_out = False
            # Not before what was handed out in earlier turns, which waits for its writes.
            out.effect(StopOutputs(replica_unit(self._core.config.name)))

    def node_up(self, name: str) -> None:
        """A session with a node begins: what was on its way may be lost."""
        self._sent.pop(NODE + name, None)

    def here(self, name: str, frame: OutputsHere) -> None:
        """A node says how far it has come."""
        self.arrived(NODE + name, (frame.position, frame.k))

    def arrived(self, destination: str, upto: Id) -> None:
        queue = self._kept.queues.get(destination)
        # It may have more than was sent from here: of an earlier leader, or of a side of a cut that has lost.
        upto = min(upto, self._sent.get(destination, NOTHING))
        if queue is None or upto == NOTHING:
            return
        if upto < self._watermark(destination) or upto == self._arrived.get(destination):
            # It says again what it said before: what came after that did not arrive.
            self._sent[destination] = max(upto, self._watermark(destination))
            return
        self._arrived[destination] = max(upto, self._arrived.get(destination, NOTHING))

    def _watermark(self, destination: str) -> Id:
        return self._core.log.tail.rulings.arrived(destination)

    def settle(self, now: Nanos, out: Outbox) -> None:
        if self._core.delivery.suspended:
            return
        if now >= self._said_ns + self._core.config.free_period_ns:
            if self._arrived:
                self._said_ns = now
                self._order_arrivals(now, out)
            self._order_floor(now, out)
        for destination, queue in self._kept.queues.items():
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
                self._order.append(Kind.OUTPUTS, None, 0, 0, data, now, out)
            else:
                del self._arrived[destination]

    def _order_floor(self, now: Nanos, out: Outbox) -> None:
        """With many destinations, say of all of them at once up to where everything has arrived. Otherwise those that
        are forgotten because there are too many would never be heard of by a replica whose application is behind."""
        log, applied = self._core.log, self._core.delivery.applied
        few = len(log.tail.rulings.watermarks) <= DESTINATIONS_MAX // 2
        if few or applied < log.ground.index:
            return
        # What our application has not come to, and the first that is kept of what it said, may not have arrived.
        position = log.entry(applied + 1).position if applied < log.last else log.tail.position
        firsts = [queue[0][0][0] for queue in self._kept.queues.values() if queue]
        upto = (min(position, *firsts) if firsts else position, -1)
        if upto > log.tail.rulings.floor:
            self._said_ns = now
            data = encode_data(Marked(EVERYBODY, *upto))
            self._order.append(Kind.OUTPUTS, None, 0, 0, data, now, out)
            queues = self._kept.queues
            self._sent = {to: id_ for to, id_ in self._sent.items() if to in queues}
            self._retry_ns = {to: ns for to, ns in self._retry_ns.items() if to in queues}

    def _send(
        self, destination: str, queue: deque[tuple[Id, bytes]], now: Nanos, out: Outbox
    ) -> None:
        """Send what was not sent yet, as far as may be on its way."""
        sent = max(self._sent.get(destination, NOTHING), self._watermark(destination))
        batch: list[tuple[Id, bytes]] = []
        size = on_way = 0
        after = sent
        self._retry_ns[destination] = now + self._core.config.output_retry_ns
        decided = self._decided()
        for id_, payload in queue:
            on_way += len(payload)
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
        """Outputs of positions below this one come from messages whose place is decided: in `fast` groups the
        application is ahead of that."""
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
                Output(*id_, destination, payload, core.history) for id_, payload in batch
            )
            out.effect(SendOutputs(replica_unit(core.config.name), destination, outputs))
            self._handed_out = True
            return
        name = destination.removeprefix(NODE)
        items = tuple((id_[0], id_[1], payload) for id_, payload in batch)
        floor = self._watermark(destination)
        frame = Outputs(core.config.name, core.history, after, floor, items)
        if name == core.name:
            out.up(SINK, Received(core.node, [frame], now))
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
        for destination, queue in self._kept.queues.items():
            if queue:
                due_ns = min(due_ns, self._retry_ns.get(destination, NEVER))
        return due_ns
