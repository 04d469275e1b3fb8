"""What comes in on the channels of a link: pieces in any order become messages, messages find their units."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from holdfast.links.channel_in import ChannelIn
from holdfast.links.ports import PORT_MIN, PortReady, Received
from holdfast.machine import Outbox
from holdfast.types import MILLISECOND, NEVER, Nanos, NodeId
from holdfast.wire.blocks import unpack_block
from holdfast.wire.codec import Rejected, decode_frame
from holdfast.wire.frames import AnyFrame, Chunk, ChunkAck, RawBatch

CHANNELS_MAX: Final = 64
ACK_BYTES: Final = 512 << 10
"""A stream loses nothing by itself, so what came on one is acknowledged when it is this much..."""
ACK_SOON: Final = 5 * MILLISECOND
"""...or after this time, if something goes to the peer anyway..."""
ACK_DELAY: Final = 40 * MILLISECOND
"""...or after this time in any case."""
ACK_EARLY: Final = ACK_DELAY - ACK_SOON
_NOTHING: Final[tuple[list[ChunkAck], bool]] = ([], False)

Route = Callable[[Any], tuple[str, ...]]
"""The units that a frame is for."""


class Inlet:
    """The receiving side of a link."""

    def __init__(self, peer: NodeId, routes: Mapping[type, Route]) -> None:
        self.received: dict[int, int] = {}
        """Messages that came in on each channel."""
        self.unreadable = 0
        self._peer = peer
        self._routes = routes
        self._channels: dict[int, ChannelIn] = {}
        self._complete: dict[int, list[memoryview]] = {}
        self._raw: dict[int, list[memoryview]] = {}
        self.ready = False
        """Something may be there to be handed on."""
        self._acks: dict[int, ChannelIn] = {}
        self._unheard = False
        self._owed = 0
        """Bytes that came in since the last acknowledgement."""
        self.in_hurry = False
        """Somebody waits for the acknowledgement, or it is about much."""
        self.deadline: Nanos = NEVER
        """When what was not acknowledged yet must be; `NEVER` when there is nothing."""

    def clear(self) -> None:
        """The session ended."""
        self._channels.clear()
        self._complete.clear()
        self._raw.clear()
        self._acks.clear()
        self.received.clear()
        self._unheard = self.in_hurry = False
        self._owed = 0
        self.deadline = NEVER

    def take(self, now: Nanos, frame: Chunk, stream: bool) -> Rejected | None:
        """Add a piece of a channel, which came on a stream or in a datagram. What is rejected with reason `channel` or
        `window` does no harm; anything else means that the channel cannot be read on."""
        number = frame.channel
        channel = self._channels.get(number)
        if channel is None:
            if len(self._channels) >= CHANNELS_MAX or number < 0:
                return Rejected("channel", "too many channels")
            channel = self._channels[number] = ChannelIn(number)
        before = channel.duplicates
        self.ready = True
        messages = self._complete.get(number)
        if messages is None:
            messages = self._complete[number] = []
        problem = channel.take(frame, messages)
        self._acks[number] = channel
        self._owed += len(frame.data)
        if self.deadline == NEVER:
            self.deadline = now + ACK_DELAY
        if channel.duplicates > before:
            self._unheard = self.in_hurry = True
        elif not stream or self._owed >= ACK_BYTES:
            self.in_hurry = True
        return problem

    def acks(self, now: Nanos, leaving: bool) -> tuple[list[ChunkAck], bool]:
        """What to acknowledge now, and whether an earlier acknowledgement was not heard: a piece came twice.
        `leaving` says that something goes to the peer anyway."""
        patience = ACK_EARLY if leaving else 0
        if not self.in_hurry and now < self.deadline - patience:
            return _NOTHING
        self.deadline = NEVER
        self._owed = 0
        self.in_hurry = False
        acks = [channel.ack() for channel in self._acks.values()]
        self._acks.clear()
        unheard, self._unheard = self._unheard, False
        return acks, unheard

    def raw(self, frame: RawBatch) -> None:
        """Add datagrams of an application."""
        self.ready = True
        messages = unpack_block(frame.block)
        if isinstance(messages, Rejected):
            self.unreadable += 1
        elif frame.port in self._raw:
            self._raw[frame.port] += messages
        else:
            self._raw[frame.port] = messages

    def hand_on(self, at: Nanos, out: Outbox) -> None:
        """Messages that are complete and in order, to whom they are for; and datagrams."""
        self.ready = False
        if self._raw:
            for port, datagrams in self._raw.items():
                out.effect(PortReady(self._peer, port, False, datagrams))
            self._raw = {}
        if not self._complete:
            return
        complete, self._complete = self._complete, {}
        for number, messages in complete.items():
            if not messages:
                continue
            self.received[number] = self.received.get(number, 0) + len(messages)
            if number >= PORT_MIN:
                out.effect(PortReady(self._peer, number, True, messages))
            else:
                self._to_units(messages, at, out)

    def _to_units(self, messages: list[memoryview], at: Nanos, out: Outbox) -> None:
        by_unit: dict[str, list[AnyFrame]] = {}
        routes = self._routes
        for message in messages:
            frame = decode_frame(message)
            route = routes.get(type(frame))
            if route is None or isinstance(frame, Rejected):
                self.unreadable += 1
                continue
            for unit in route(frame):
                if unit in by_unit:
                    by_unit[unit].append(frame)
                else:
                    by_unit[unit] = [frame]
        for unit, frames in by_unit.items():
            out.up(unit, Received(self._peer, frames, at))
