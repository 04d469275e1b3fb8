"""What comes in on the channels of a link: pieces in any order become messages, messages find their units."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from holdfast.links.channel import ChannelIn
from holdfast.links.ports import PORT_MIN, PortReady, Received
from holdfast.machine import Outbox
from holdfast.types import MILLISECOND, NEVER, Nanos, NodeId
from holdfast.wire.blocks import unpack_block
from holdfast.wire.codec import Rejected, decode_frame
from holdfast.wire.frames import AnyFrame, Chunk, ChunkAck, RawBatch

CHANNELS_MAX: Final = 64
BULK_BYTES: Final = 16 << 10
"""A piece that is at least this large can only have come on a stream, and seldom comes alone..."""
ACK_BYTES: Final = 512 << 10
"""...so the acknowledgement waits for this much..."""
ACK_DELAY: Final = 10 * MILLISECOND
"""...or for this long, whichever comes first."""

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
        self._acks: dict[int, ChannelIn] = {}
        self._unheard = False
        self._owed = 0
        """Bytes that came in since the last acknowledgement."""
        self._bulk = False
        """A large piece came since the last look: more is likely to follow at once."""
        self.deadline: Nanos = NEVER
        """When what was held back must be acknowledged."""

    def clear(self) -> None:
        """The session ended."""
        self._channels.clear()
        self._complete.clear()
        self._raw.clear()
        self._acks.clear()
        self.received.clear()
        self._unheard = self._bulk = False
        self._owed = 0
        self.deadline = NEVER

    def take(self, frame: Chunk) -> Rejected | None:
        """Add a piece of a channel. What is rejected with reason `channel` or `window` does no harm; anything else
        means that the channel cannot be read on."""
        number = frame.channel
        channel = self._channels.get(number)
        if channel is None:
            if len(self._channels) >= CHANNELS_MAX or number < 0:
                return Rejected("channel", "too many channels")
            channel = self._channels[number] = ChannelIn(number)
        before = channel.duplicates
        size = len(frame.data)
        self._owed += size
        self._bulk = self._bulk or size >= BULK_BYTES
        problem = channel.take(frame, self._complete.setdefault(number, []))
        self._unheard = self._unheard or channel.duplicates > before
        self._acks[number] = channel
        return problem

    def acks(self, now: Nanos) -> tuple[list[ChunkAck], bool]:
        """What to acknowledge now, and whether an earlier acknowledgement was not heard: a piece came twice."""
        if self._owed < ACK_BYTES and self._bulk and not self._unheard:
            self.deadline = min(self.deadline, now + ACK_DELAY)
            if now < self.deadline:
                self._bulk = False
                return [], False
        self.deadline = NEVER
        self._owed = 0
        self._bulk = False
        acks = [channel.ack() for channel in self._acks.values()]
        self._acks.clear()
        unheard, self._unheard = self._unheard, False
        return acks, unheard

    def raw(self, frame: RawBatch) -> None:
        """Add datagrams of an application."""
        messages = unpack_block(frame.block)
        if isinstance(messages, Rejected):
            self.unreadable += 1
        elif frame.port in self._raw:
            self._raw[frame.port] += messages
        else:
            self._raw[frame.port] = messages

    def hand_on(self, at: Nanos, out: Outbox) -> None:
        """Messages that are complete and in order, to whom they are for; and datagrams."""
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
        for message in messages:
            frame = decode_frame(message)
            route = self._routes.get(type(frame))
            if route is None or isinstance(frame, Rejected):
                self.unreadable += 1
                continue
            for unit in route(frame):
                by_unit.setdefault(unit, []).append(frame)
        for unit, frames in by_unit.items():
            out.up(unit, Received(self._peer, frames, at))
