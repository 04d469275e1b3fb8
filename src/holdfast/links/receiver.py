"""The receiving side of the channels of a link: pieces become messages, and messages reach their units."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from holdfast.links.channel_in import ChannelIn
from holdfast.links.ports import PORT_MIN, PortReady, Received
from holdfast.machine import Outbox
from holdfast.subsystem import Route
from holdfast.types import MILLISECOND, NEVER, Nanos, NodeId
from holdfast.wire.blocks import unpack_block
from holdfast.wire.codec import Rejected, decode_frame
from holdfast.wire.frames import Chunk, ChunkAck, Frame, RawBatch

CHANNELS_MAX: Final = 64
ACK_BYTES: Final = 512 << 10
"""A stream loses nothing by itself, so its data is acknowledged after this many bytes..."""
ACK_SOON: Final = 5 * MILLISECOND
"""...or after this time, if something goes to the peer anyway..."""
ACK_DELAY: Final = 20 * MILLISECOND
"""...or after this time in any case."""
ACK_EARLY: Final = ACK_DELAY - ACK_SOON
_NOTHING: Final[tuple[list[ChunkAck], bool]] = ([], False)


class LinkReceiver:
    """The receiving side of a link."""

    def __init__(self, peer: NodeId, routes: Mapping[type, Route]) -> None:
        self.received: dict[int, int] = {}
        """Messages received on each channel."""
        self.unreadable = 0
        self._peer = peer
        self._routes = routes
        self._channels: dict[int, ChannelIn] = {}
        self._complete: dict[int, list[memoryview]] = {}
        self._raw: dict[int, list[memoryview]] = {}
        self.ready = False
        """There may be messages to pass on."""
        self._acks: dict[int, ChannelIn] = {}
        self._unheard = False
        self._owed = 0
        """Bytes received since the last acknowledgement."""
        self.in_hurry = False
        """The peer waits for the acknowledgement, or it covers much."""
        self.deadline: Nanos = NEVER
        """When outstanding acknowledgements are due; `NEVER` if there are none."""

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
        """Add a piece of a channel, received on a stream or in a datagram. A rejection with reason `channel` or
        `window` is harmless; any other means that the channel cannot be read any further."""
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

    def repeat(self, now: Nanos) -> None:
        """Acknowledge every channel again: the peer may not have heard the last time."""
        for number, channel in self._channels.items():
            self._acks[number] = channel
        self._unheard = True
        if self.deadline == NEVER:
            self.deadline = now

    def acks(self, now: Nanos, leaving: bool) -> tuple[list[ChunkAck], bool]:
        """What to acknowledge now, and whether an earlier acknowledgement was lost because a piece arrived twice.
        `leaving`: another packet is sent to the peer anyway."""
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
        """Pass complete and ordered messages, and datagrams, to their units."""
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
        by_unit: dict[str, list[Frame]] = {}
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
