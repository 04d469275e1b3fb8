"""The sending half of a channel: a byte stream of blocks with its own offsets, above all flows of a link.

The stream is cut into pieces by offset, so any piece fits into any packet on any flow: retransmitting, moving to
another path and using smaller packets are the same operation. The link decides which flow is used and when.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from itertools import accumulate
from typing import Final

from holdfast.links.channel_in import BLOCK_MAX, RANGES_MAX, WINDOW
from holdfast.links.doubt import Doubt, Patience, SmallCopies
from holdfast.machine.rangeset import RangeSet
from holdfast.types import MILLISECOND, SECOND, FlowId, Nanos
from holdfast.wire.blocks import HEAD, block_after, head_of_one, roomy_block
from holdfast.wire.codec import ROOM, Part, chunk_head, roomy_chunk
from holdfast.wire.frames import ChunkAck

ROOMY_MIN: Final = 8 << 10
"""A smaller block is copied into its packet, together with other frames."""
REORDER: Final = 3
"""A piece is lost when this many later ones on the same flow have arrived."""
CONGESTION_MIN: Final = 8 << 10
CONGESTION_START: Final = 64 << 10
CONGESTION_MAX: Final = 1 << 20
RTO_MIN: Final = 20 * MILLISECOND
RTO_MAX: Final = 2000 * MILLISECOND


class _Sent:
    """A piece in flight."""

    __slots__ = ("again", "at", "flow", "order", "start", "stop")

    def __init__(
        self, start: int, stop: int, at: Nanos, flow: FlowId, order: int, again: bool
    ) -> None:
        self.start = start
        self.stop = stop
        self.at = at
        self.flow = flow
        self.order = order
        self.again = again


class _Block:
    """Messages that travel together. They are joined into one buffer when they are sent: most are sent once and
    completely, and a buffer that is free after each write stays in the CPU cache."""

    __slots__ = ("_bytes", "_messages", "size")

    def __init__(self, messages: list[bytes], size: int) -> None:
        self.size = size
        self._messages = messages
        self._bytes: memoryview | None = None

    def whole(self, channel: int, start: int) -> Part:
        """The complete block as a frame; a large one in a buffer with room for the packet headers."""
        messages = self._messages
        lengths = list(map(len, messages))
        if self.size < ROOMY_MIN:
            return block_after(chunk_head(channel, start, self.size), messages, lengths, self.size)
        return roomy_chunk(channel, start, roomy_block(messages, lengths, ROOM))

    def piece(self, start: int, stop: int) -> memoryview:
        """A part of it; a block that is requested in part is needed completely."""
        if self._bytes is None:
            lengths = list(map(len, self._messages))
            self._bytes = memoryview(roomy_block(self._messages, lengths, 0))
            self._messages = []
        return self._bytes[start:stop]

    def roomy_piece(self, start: int, stop: int) -> bytearray:
        """The same in a buffer with room for the packet headers. One large message is not joined with its head for
        that: each byte of it is copied once."""
        if self._bytes is not None or len(self._messages) != 1:
            return bytearray().join((_ROOM, self.piece(start, stop)))
        message = memoryview(self._messages[0])
        head = head_of_one(len(message))
        first, last = max(start - len(head), 0), max(stop - len(head), 0)
        return bytearray().join((_ROOM, head[start:stop], message[first:last]))

    @property
    def in_pieces(self) -> bool:
        return self._bytes is not None


_FREED: Final = _Block([], 0)
_ROOM: Final = bytes(ROOM)


RELAPSE_NS: Final = 600 * SECOND
RELAPSES_MAX: Final = 5


class ChannelOut:
    """The sending half. Keeps every block until it is acknowledged."""

    def __init__(self, channel: int) -> None:
        self.channel = channel
        self.flow: FlowId | None = None
        self.moves = 0
        self.reason = ""
        """Why it uses its current flow."""
        self.home = ""
        self.waiting_bytes = 0
        self.given_bytes = 0
        """The total of written bytes as counted by the handle of the application: four more per message."""
        self.told_waiting = -1
        """The last number of waiting bytes reported to the application; -1: report in any case."""
        self.messages = 0
        self.acked = 0
        """Everything below this offset has arrived."""
        self.limit = WINDOW
        self.patience = Patience()
        self.small_copies = SmallCopies()
        self.blocked_since: Nanos | None = None
        """Since when it could send, but its flow accepts nothing; None: it accepts."""
        self.doubt: Doubt | None = None
        """The flow that it uses may not deliver: everything is sent on another one as well."""
        self.emitted = 0
        """Bytes of all pieces that were ever sent."""
        self.rtt_ns = 0
        self.backoff = 0
        self._returns = 0
        self._returned_at: Nanos = -RELAPSE_NS
        self.waiting: list[bytes] = []
        """Messages that are not in a block yet, and some that have just been taken."""
        self._taken = 0
        self._blocks: list[_Block] = []
        self._starts: list[int] = []
        self._first = 0
        """The first block that is still held; those before it are empty."""
        self._packed = 0
        self._sent = 0
        self._order = 0
        self._copied = 0
        """The last piece that was sent on another flow as well."""
        self._sampled_at: Nanos = 0
        self._flight: deque[_Sent] = deque()
        self._flight_bytes = 0
        self._again_flight = 0
        self._progress_at: Nanos = 0
        self._lost = RangeSet()
        self._sacked = RangeSet()
        self._congestion = CONGESTION_START
        self._reduced_order = 0

    def came_back(self, now: Nanos) -> None:
        """It returned to a stream that had stalled."""
        recent = now < self._returned_at + RELAPSE_NS
        self._returns = min(self._returns + 1, RELAPSES_MAX) if recent else 1
        self._returned_at = now

    def relapses(self, now: Nanos) -> int:
        """How many times the period for which it avoids a stalling stream has doubled."""
        return self._returns if now < self._returned_at + RELAPSE_NS else 0

    @property
    def traffic(self) -> int:
        return self.channel

    @property
    def pieces_sent(self) -> int:
        return self._order

    @property
    def bytes_sent(self) -> int:
        """Bytes that were sent at least once."""
        return self._sent

    @property
    def datagrams(self) -> bool:
        return False

    # -- the queue -----------------------------------------------------------------------------------------------

    def write(self, messages: list[bytes]) -> None:
        self.waiting += messages
        # The sender counts these as waiting until it is informed otherwise.
        self.told_waiting = -1
        count = len(messages)
        size = len(messages[0]) if count == 1 else sum(map(len, messages))
        self.waiting_bytes += size
        self.given_bytes += size + 4 * count
        self.messages += count

    @property
    def unacked(self) -> int:
        return self._packed - self.acked

    @property
    def is_busy(self) -> bool:
        """Whether anything waits or is in flight, or did at the last report to the application."""
        on_its_way = self._packed > self.acked
        return on_its_way or self._taken < len(self.waiting) or self.told_waiting > 0

    def wants(self) -> bool:
        """Whether there is anything that could be sent now."""
        if self._lost.starts:
            return True
        new = self._sent < self._packed or self._taken < len(self.waiting)
        return new and self._sent < self.limit

    def stalled_since(self) -> Nanos | None:
        """Since when something is in flight without any acknowledgement. A slow path is not a stalled one."""
        return self._progress_at if self._flight else None

    def rto(self) -> Nanos:
        """How long to wait for the acknowledgement of a datagram."""
        base = 3 * self.rtt_ns if self.rtt_ns else 100 * MILLISECOND
        return min(RTO_MAX, max(RTO_MIN, base) << min(self.backoff, 6))

    # -- sending -------------------------------------------------------------------------------------------------

    def send_all(self, now: Nanos, flow: FlowId, piece_max: int) -> Part | None:
        """Everything that waits, as one piece on a stream: the common case of `pump` in one step. None if it does not
        apply."""
        messages, start = self.waiting, self._packed
        size = self.waiting_bytes + 4 * len(messages) + HEAD
        stop = start + size
        if (
            not messages
            or self._taken
            or self._sent != start
            or size > piece_max
            or size > BLOCK_MAX
            or stop > self.limit
            or self._lost.starts
        ):
            return None
        self.waiting, self.waiting_bytes = [], 0
        block = _Block(messages, size)
        self._blocks.append(block)
        self._starts.append(start)
        self._packed = self._sent = stop
        self._count_sent(start, stop, now, flow, False)
        return block.whole(self.channel, start)

    def pump(
        self, now: Nanos, flow: FlowId, budget: int, piece_max: int, datagrams: bool
    ) -> list[Part]:
        """`Chunk` frames to send on `flow` now, of about `budget` bytes together."""
        if datagrams:
            budget = min(budget, self._congestion - self._flight_bytes)
        frames: list[Part] = []
        for start, stop in self._lost if budget > 0 and self._lost.starts else ():
            while start < stop and budget > 0:
                self._again_flight += 1
                size = self._emit(start, stop, piece_max, now, flow, frames, again=True)
                self._lost.remove(start, start + size)
                start += size
                budget -= size
        while budget > 0 and self._sent < self.limit:
            if self._sent == self._packed:
                if self._taken == len(self.waiting):
                    break
                self._pack(min(piece_max, BLOCK_MAX))
            stop = min(self._packed, self.limit)
            in_doubt = (
                datagrams or self.doubt is not None
            )  # a whole block has room for one packet only
            if not in_doubt and self._emit_whole(stop, piece_max, now, flow, frames):
                size = self._packed - self._sent
            else:
                size = self._emit(
                    self._sent, stop, piece_max, now, flow, frames, again=False, alone=not in_doubt
                )
            self._sent += size
            budget -= size
        return frames

    def _pack(self, block_max: int) -> None:
        """Build the next block from waiting messages."""
        waiting, first = self.waiting, self._taken
        count = len(waiting) - first
        if self.waiting_bytes + 4 * count + HEAD > block_max:
            # As many as fit by average size; one more might have fitted, which does not matter.
            count = max(1, (block_max - HEAD) // (self.waiting_bytes // count + 4))
        taken = waiting[first : first + count]
        lengths = list(map(len, taken))
        size = sum(lengths)
        if size + 4 * len(taken) + HEAD > block_max:
            ends = list(accumulate(lengths))
            # Each message takes four more bytes for its length; at least one is taken, however large.
            count = bisect_right(
                range(len(ends)), block_max - HEAD, key=lambda k: ends[k] + 4 * k + 4
            )
            count = max(count, 1)
            size = ends[count - 1]
            del taken[count:]
        self._take(len(taken), size)
        size += 4 * len(taken) + HEAD
        self._blocks.append(_Block(taken, size))
        self._starts.append(self._packed)
        self._packed += size

    def _take(self, count: int, size: int) -> None:
        """Remove this many messages from the waiting ones."""
        self.waiting_bytes -= size
        self._taken += count
        if self._taken == len(self.waiting):
            self.waiting, self._taken = [], 0
        elif self._taken > 8192:
            del self.waiting[: self._taken]
            self._taken = 0

    def _emit(
        self,
        start: int,
        stop: int,
        piece_max: int,
        now: Nanos,
        flow: FlowId,
        frames: list[Part],
        again: bool,
        alone: bool = False,
    ) -> int:
        """`alone`: a large piece may get a packet of its own, which only one flow can send."""
        begin, block = self._find(start)
        stop = min(stop, start + piece_max, begin + block.size)
        if alone and stop - start >= ROOMY_MIN:
            buffer = block.roomy_piece(start - begin, stop - begin)
            frames.append(roomy_chunk(self.channel, start, buffer))
        else:
            head = chunk_head(self.channel, start, stop - start)
            frames.append((head, block.piece(start - begin, stop - begin)))
        self._count_sent(start, stop, now, flow, again)
        return stop - start

    def _emit_whole(
        self, stop: int, piece_max: int, now: Nanos, flow: FlowId, frames: list[Part]
    ) -> bool:
        """Send the newest block without a further copy, if it can be sent completely."""
        start, block = self._starts[-1], self._blocks[-1]
        whole = start == self._sent and stop == self._packed and not block.in_pieces
        if not whole or block.size > piece_max:
            return False
        frames.append(block.whole(self.channel, start))
        self._count_sent(start, stop, now, flow, again=False)
        return True

    def _count_sent(self, start: int, stop: int, now: Nanos, flow: FlowId, again: bool) -> None:
        self._order += 1
        if not self._flight or self._flight[-1].flow != flow:
            self._progress_at = now  # the stall timer of a newly chosen flow starts now
        self._flight.append(_Sent(start, stop, now, flow, self._order, again))
        self._flight_bytes += stop - start
        self.emitted += stop - start

    def _find(self, offset: int) -> tuple[int, _Block]:
        """The block that contains `offset`, and its start."""
        starts = self._starts
        at = len(starts) - 1
        if offset < starts[at]:
            at = bisect_right(starts, offset, self._first) - 1
        return starts[at], self._blocks[at]

    # -- acknowledgement and loss --------------------------------------------------------------------------------

    def ack(
        self, now: Nanos, frame: ChunkAck, datagram_flows: Callable[[], dict[FlowId, bool]]
    ) -> bool:
        """Process an acknowledgement; False if it covers bytes that were never sent. `datagram_flows` are the flows
        that may lose a piece."""
        if frame.upto > self._sent or len(frame.ranges) > RANGES_MAX:
            return False
        self.limit = max(self.limit, min(frame.limit, frame.upto + 4 * WINDOW))
        if frame.upto > self.acked:
            self.acked = frame.upto
            self.backoff = 0
            if self._lost.starts:
                self._lost.remove(0, frame.upto)
            self._free(frame.upto)
        if frame.ranges:
            for start, stop in frame.ranges:
                if self.acked < start < stop <= self._sent:
                    self._sacked.add(start, stop)
                    self._lost.remove(start, stop)
        if self._sacked.starts:
            self._sacked.remove(0, self.acked)
        self._settle(now, datagram_flows)
        return True

    def _free(self, upto: int) -> None:
        """Free the blocks that end at or before `upto`."""
        blocks, starts, first = self._blocks, self._starts, self._first
        while first < len(blocks) and starts[first] + blocks[first].size <= upto:
            blocks[first] = _FREED
            first += 1
        if first > 1024 and 2 * first > len(blocks):
            del blocks[:first], starts[:first]
            first = 0
        self._first = first

    def _settle(self, now: Nanos, datagram_flows: Callable[[], dict[FlowId, bool]]) -> None:
        """Remove what arrived from the flight, and find what was lost."""
        flight, acked, sacked = self._flight, self.acked, self._sacked
        if not sacked.starts:
            while flight and flight[0].stop <= acked:
                self._arrived(flight.popleft(), now)
            if not self._again_flight:  # then the flight is in the order of offsets
                return
        newest: dict[FlowId, int] = {}
        still: deque[_Sent] = deque()
        for piece in flight:
            if piece.stop <= acked or sacked.covers(max(piece.start, acked), piece.stop):
                self._arrived(piece, now)
                newest[piece.flow] = piece.order
            else:
                still.append(piece)
        self._flight = deque()
        lossy = datagram_flows() if still else {}
        for piece in still:
            if lossy.get(piece.flow) and newest.get(piece.flow, 0) >= piece.order + REORDER:
                self._give_up(piece)
            else:
                self._flight.append(piece)

    def _arrived(self, piece: _Sent, now: Nanos) -> None:
        size = piece.stop - piece.start
        self._progress_at = now
        self._flight_bytes -= size
        self._congestion = min(CONGESTION_MAX, self._congestion + size)
        if piece.again:
            self._again_flight -= 1
        elif not self.rtt_ns or piece.order > self._copied or now != self._sampled_at:
            sample, self._sampled_at = now - piece.at, now
            if self.rtt_ns and piece.order <= self._copied:
                # A copy may have been acknowledged. If all are late, the path has become slower.
                sample = min(sample, 2 * self.rtt_ns)
            self.rtt_ns = (7 * self.rtt_ns + sample) // 8 if self.rtt_ns else sample

    def _give_up(self, piece: _Sent) -> None:
        """The piece is lost: retransmit it, and reduce the window (once per flight)."""
        self._flight_bytes -= piece.stop - piece.start
        self._again_flight -= piece.again
        for start, stop in self._sacked.missing(max(piece.start, self.acked), piece.stop):
            self._lost.add(start, stop)
        if piece.order > self._reduced_order:
            self._reduced_order = self._order
            self._congestion = max(CONGESTION_MIN, self._congestion // 2)

    def expire(self, now: Nanos, flow: FlowId) -> bool:
        """Give up datagrams on `flow` that exceed the timeout; True if there was any."""
        rto = self.rto()
        late = [p for p in self._flight if p.flow == flow and now - p.at >= rto]
        if not late:
            return False
        self._flight = deque(p for p in self._flight if not (p.flow == flow and now - p.at >= rto))
        for piece in late:
            self._give_up(piece)
        self.backoff += 1
        return True

    def give_up_strays(self, now: Nanos, patience_ns: Nanos) -> None:
        """Retransmit what was sent on a flow that the channel has left since and did not arrive in time, because no
        other check covers that flow."""
        while self._flight and self._flight[0].flow != self.flow:
            if now - self._flight[0].at < patience_ns:
                return
            self.abandon(self._flight[0].flow)

    def copies(self, flow: FlowId, piece_max: int, budget: int, after: int = 0) -> list[Part]:
        """Copies of everything in flight on `flow`, to be sent on another one; the flight does not change. `after`:
        only of what was sent after so many pieces."""
        frames: list[Part] = []
        for piece in self._flight:
            if piece.flow != flow or piece.order <= after:
                continue
            for start, stop in self._sacked.missing(max(piece.start, self.acked), piece.stop):
                while start < stop and budget > 0:
                    begin, block = self._find(start)
                    end = min(stop, start + piece_max, begin + block.size)
                    head = chunk_head(self.channel, start, end - start)
                    frames.append((head, block.piece(start - begin, end - begin)))
                    budget -= end - start
                    self.emitted += end - start
                    start = end
            self._copied = max(self._copied, piece.order)
        return frames

    def oldest_on(self, flow: FlowId) -> bool:
        """Whether something is in flight on `flow`."""
        return any(piece.flow == flow for piece in self._flight)

    def in_flight(self, flow: FlowId) -> int:
        """Bytes in flight on `flow`."""
        return sum(piece.stop - piece.start for piece in self._flight if piece.flow == flow)

    def give_up_larger(self, flow: FlowId, piece_max: int) -> None:
        """Pieces on `flow` that are larger than its new limit will not arrive: retransmit them in smaller pieces."""
        kept: deque[_Sent] = deque()
        for piece in self._flight:
            if piece.flow == flow and piece.stop - piece.start > piece_max:
                self._give_up(piece)
            else:
                kept.append(piece)
        self._flight = kept

    def abandon(self, flow: FlowId) -> None:
        """Give up everything in flight on `flow`: the flow closed, or the channel leaves it."""
        kept: deque[_Sent] = deque()
        for piece in self._flight:
            if piece.flow == flow:
                self._give_up(piece)
            else:
                kept.append(piece)
        self._flight = kept
        if self.flow == flow:
            self.flow = None
