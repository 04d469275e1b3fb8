"""Both halves of a channel with a bad network between them, and an audit of the sender's books."""

from __future__ import annotations

from heapq import heappop, heappush
from random import Random

from holdfast.links.channel_in import RANGES_MAX, WINDOW, ChannelIn
from holdfast.links.channel_out import ChannelOut
from holdfast.machine.rangeset import RangeSet
from holdfast.types import MICROSECOND, MILLISECOND, FlowId
from holdfast.wire.codec import Rejected, RoomyPart, decode_body, encode
from holdfast.wire.frames import Chunk, ChunkAck
from holdfast.wire.packet import HEAD, write_plain

STREAM, OTHER_STREAM, DATAGRAMS = FlowId(1), FlowId(2), FlowId(3)
KINDS = {STREAM: False, OTHER_STREAM: False, DATAGRAMS: True}
"""Which flows are datagram flows."""


def chunk_of(part: object) -> Chunk:
    """A part as the receiver decodes it."""
    assert isinstance(part, bytes | tuple | RoomyPart)
    body = write_plain(0, 0, [part])[HEAD:]
    frames = decode_body(body)
    assert isinstance(frames, list)
    assert isinstance(frames[0], Chunk)
    return frames[0]


def audit(out: ChannelOut) -> None:
    """What was sent and is not acknowledged is on its way, or known to be there, or known to be lost: never nowhere."""
    flight, lost, sacked = out._flight, out._lost, out._sacked
    assert out._flight_bytes == sum(piece.stop - piece.start for piece in flight)
    assert out._again_flight == sum(piece.again for piece in flight)
    assert out.acked <= out._sent <= out._packed
    assert out._sent - out.acked <= WINDOW
    somewhere = RangeSet((piece.start, piece.stop) for piece in flight)
    for start, stop in lost:
        assert out.acked <= start < stop <= out._sent
        somewhere.add(start, stop)
    for start, stop in sacked:
        assert out.acked <= start < stop <= out._sent
        assert list(lost.missing(start, stop)) == [(start, stop)], "known to be there, sent again"
        somewhere.add(start, stop)
    assert somewhere.covers(out.acked, out._sent)


class Weather:
    """What the network does to the two directions, drawn from a seed."""

    def __init__(self, rng: Random) -> None:
        self.loss = rng.choice([0, 0.01, 0.1, 0.3])
        self.ack_loss = rng.choice([0, 0.1, 0.5])
        self.duplicate = rng.choice([0, 0.1])
        self.jitter_ns = rng.choice([0, 1, 20]) * MILLISECOND
        self.changes = rng.choice([0, 3, 20])
        """How often the path, the packet size or a flow changes on the way."""


class Pair:
    """A sender, a receiver, and everything that is on its way between them."""

    def __init__(self, seed: int, pieces: tuple[int, ...] = (34, 500, 1200, 60_000)) -> None:
        self.rng = Random(seed)
        self.pieces = pieces
        self.weather = Weather(self.rng)
        self.now = 0
        self.out = ChannelOut(16)
        self.into = ChannelIn(16)
        self.flow = self.rng.choice([STREAM, DATAGRAMS])
        self.piece_max = self.rng.choice(pieces)
        self.received: list[bytes] = []
        self._heap: list[tuple[int, int, FlowId | None, Chunk | ChunkAck]] = []
        self._order = 0
        self._stream_at: dict[FlowId, int] = {}

    def run(self, messages: list[bytes]) -> None:
        """Send all; returns when everything has arrived and is acknowledged."""
        waiting = list(messages)
        changes = self.weather.changes
        for step in range(200_000):
            if waiting and self.rng.random() < 0.3:
                count = self.rng.randrange(1, 20)
                self.out.write(waiting[:count])
                del waiting[:count]
            if changes and self.rng.random() < 0.05:
                changes -= 1
                self._change()
            self._pump()
            if step % 8 == 0:
                audit(self.out)
            if not self._next():
                if not waiting and not self.out.unacked and not self.out.waiting_bytes:
                    return
                self._late()
            assert self.into._early_bytes <= 2 * WINDOW + 60_000, step
        raise AssertionError("it never ends")

    def _change(self) -> None:
        """Another path, another size of packets, or a flow that closes with all that is on it."""
        what = self.rng.randrange(3)
        if what == 0:
            self.flow = self.rng.choice([STREAM, OTHER_STREAM, DATAGRAMS])
        elif what == 1:
            self.piece_max = self.rng.choice(self.pieces)
        else:
            gone = self.rng.choice([STREAM, OTHER_STREAM, DATAGRAMS])
            self._heap = sorted(event for event in self._heap if event[2] != gone)
            self._stream_at.pop(gone, None)
            self.out.abandon(gone)

    def _pump(self) -> None:
        datagrams = KINDS[self.flow]
        budget = self.rng.choice([1000, 5000, 1 << 20])
        for part in self.out.pump(self.now, self.flow, budget, self.piece_max, datagrams):
            self._send(self.flow, chunk_of(part))

    def _send(self, flow: FlowId | None, frame: Chunk | ChunkAck) -> None:
        rng, weather = self.rng, self.weather
        when = self.now + 100 * MICROSECOND
        if flow is not None and not KINDS[flow]:
            when = self._stream_at[flow] = max(when, self._stream_at.get(flow, 0))
            self._push(when, flow, frame)
            return
        if rng.random() < (weather.loss if flow else weather.ack_loss):
            return
        for _ in range(1 + (rng.random() < weather.duplicate)):
            self._push(when + rng.randrange(weather.jitter_ns + 1), flow, frame)

    def _push(self, when: int, flow: FlowId | None, frame: Chunk | ChunkAck) -> None:
        self._order += 1
        heappush(self._heap, (when, self._order, flow, frame))

    def _next(self) -> bool:
        if not self._heap:
            return False
        when, _, _, frame = heappop(self._heap)
        self.now = max(self.now, when)
        if isinstance(frame, ChunkAck):
            assert self.out.ack(self.now, frame, KINDS.copy)
            return True
        messages: list[memoryview] = []
        assert self.into.take(frame, messages) is None
        self.received.extend(bytes(message) for message in messages)
        ack = self.into.ack()
        assert len(ack.ranges) <= RANGES_MAX
        assert not isinstance(encode(ack), Rejected)
        self._send(None, ack)
        return True

    def _late(self) -> None:
        """Nothing is on its way any more: only the sender's own clock helps."""
        self.now += max(self.out.rto(), 150 * MILLISECOND)
        self.out.expire(self.now, DATAGRAMS)
        if (
            self.out.stalled_since() is not None
        ):  # on a stream whose acknowledgements were lost: the link would move
            self.out.abandon(STREAM)
            self.out.abandon(OTHER_STREAM)
