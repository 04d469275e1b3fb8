"""A source: numbers messages, sends them directly to every replica, and keeps them until every replica has them.

All messages of a turn are sent together, in payload frames that are encoded once. They are kept, encoded, until the
leader announces that every replica holds them, and count against the window until every replica has applied them
(`Freed`, `sent_frames`). Receivers detect losses by gaps and, at the end of a
burst, by `Idle`, which repeats the last number with increasing intervals. `message_metadata` writes the metadata of
frames.

Payload uses the data channel or, if configured, datagrams: a frame then has about the size of a packet, so that the
loss of a packet is the loss of one frame, and retransmissions use the channel. Packets have the largest size that is
known to pass to every replica (`DatagramRoom`), because each packet costs as much as many messages.

The window is bounded by `window_bytes`. Above that, messages wait here without a number, for as much again.
`SourceRoom` informs senders, which stop long before that; further messages are refused, counted and recorded.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import accumulate
from random import Random
from typing import Any, ClassVar, Final

from holdfast.group.config import GroupConfig, log_unit, replica_unit, source_unit
from holdfast.group.frames import (
    CommitQuery,
    CommitReply,
    Freed,
    Idle,
    Nack,
    Payload,
    StreamId,
)
from holdfast.group.peers import Peers, post, post_bytes
from holdfast.group.ports import Flush, Multicast, SourceRoom
from holdfast.group.streams.message_metadata import Annotator
from holdfast.group.streams.sent_frames import SentFrames
from holdfast.group.streams.values import Note, SentFrame
from holdfast.links.ports import (
    DatagramRoom,
    PeerDown,
    PeerUp,
    Received,
    SendDatagrams,
    link_unit,
)
from holdfast.machine import Machine, Outbox
from holdfast.telemetry.facts import GroupFact
from holdfast.types import DATA, MILLISECOND, NEVER, Nanos, NodeId
from holdfast.wire.blocks import HEAD, pack_block
from holdfast.wire.codec import encode
from holdfast.wire.frames import Frame

PACKED_AT_ONCE: Final = 8192
"""How many waiting messages are examined at once: a full buffer must not cost more than what leaves it."""
QUIET: Final = 32
"""How much less often a source whose messages are all free is announced: there may be thousands of them."""
RELIABLE: Final = 8
"""How much later a source on channels is announced: they lose nothing while the session lasts, and a new session
announces it at once."""
ASK_FIRST_NS: Final = 5 * MILLISECOND
ASK_MAX_NS: Final = 320 * MILLISECOND
"""How long a source waits before it asks whether its messages are committed, and at most before it asks again."""
RESEND_BYTES: Final = 1 << 20
"""The approximate size of the answer to one retransmission request; the rest is requested again."""
FRAME_HEAD: Final = 200
"""The maximum of a payload frame without messages, its group, and the distances of priorities."""
MESSAGE_HEAD: Final = 6
"""Of each message in a frame: its length, priority and topic."""
NOTE_HEAD: Final = 16
"""Of each message with metadata, besides its topic and its request id."""
FRAMES_AT_LEAST: Final = 16
"""How many frames fit into the window of datagrams, however large datagrams may be."""


class SourceMachine(Machine):
    """The unit `source/<group>` of a node. Each machine is one stream, from number 1 on."""

    layer: ClassVar[str] = "source"
    hears: ClassVar[tuple[type, ...]] = (PeerUp, PeerDown, DatagramRoom)

    def __init__(
        self,
        *,
        config: GroupConfig,
        node: NodeId,
        name: str,
        incarnation: int,
        rng: Random,
        stream: int = 0,
    ) -> None:
        """`stream` must differ from that of any earlier machine of this incarnation, because numbers start at 1
        again."""
        self._config = config
        self._node = node
        self._unit = source_unit(config.name)
        self._replica = replica_unit(config.name) if name in config.replicas else ""
        self._rng = rng
        self._peers = Peers(config, name)
        self._view = 0
        """The number of the view that messages are sent to."""
        # rule: 7b
        self.stream = StreamId(node, incarnation, stream)
        self._sent = SentFrames()
        self._queue: list[bytes] = []
        self._queue_bytes = 0
        self._queue_start = 0
        """How many messages have left the queue so far; notes are kept by place in the whole queue."""
        self._notes: list[tuple[int, Note]] = []
        self._annotator = Annotator(config.priorities)
        self._datagrams = config.transport == "datagram"
        self._rooms: dict[NodeId, int] = {}
        """The largest frame that one datagram to a node carries, if it is known."""
        self._last = 0
        self._created_ns = 0
        reliable = RELIABLE if config.transport == "channel" else 1
        self._idle_first_ns = min(config.idle_first_ns * reliable, config.idle_max_ns)
        self._idle_delay_ns = self._idle_first_ns
        self._taken = 0
        """Bytes of everything that it received from senders, including what it refused."""
        self._wanted = self._settled = 0
        """The number up to which senders asked for the commit status, and the number up to which they know it."""
        self._ask_ns: Nanos = NEVER
        self._ask_delay_ns = 0
        self._idle_ns: Nanos = NEVER
        self._room_said = (-1, 0, 0)
        """The last report to senders; initially none, so that those of an earlier stream learn of this one."""
        self._refused = 0
        self._ignored = 0
        self._inputs: dict[type[Any], Callable[[Nanos, Any, Outbox], None]] = {
            Multicast: self._multicast,
            Flush: self._flush,
            Received: self._received,
            PeerUp: self._peer_up,
            PeerDown: self._peer_down,
            DatagramRoom: self._datagram_room,
        }

    @property
    def held(self) -> int:
        """Bytes that count against the window: not applied by every replica, or waiting to be sent."""
        return self._sent.unapplied + self._queue_bytes

    @property
    def kept(self) -> int:
        """Bytes in memory: not held by every replica, or waiting to be sent."""
        return self._sent.kept + self._queue_bytes

    @property
    def forgotten(self) -> int:
        """The number up to which the source can send nothing again."""
        return self._sent.forgotten

    # -- inputs --------------------------------------------------------------------------------------------------

    def up(self, now: Nanos, inputs: list[Any], out: Outbox) -> None:
        for item in inputs:
            take = self._inputs.get(type(item))
            if take is not None:
                take(now, item, out)
        if self._queue:
            self._send(now, out)
        self._say_room(out)
        self.deadline = min(self._idle_ns, self._ask_ns)

    def wake(self, now: Nanos, out: Outbox) -> None:
        if now >= self._ask_ns:
            self._ask(now, out)
        if now >= self._idle_ns:
            self._idle(now, out)
        self.deadline = min(self._idle_ns, self._ask_ns)

    def _idle(self, now: Nanos, out: Outbox) -> None:
        """Nothing was sent for a while: repeat the last number."""
        nodes = [peer.node for peer in self._peers.replicas]
        self._say_idle(now, [*nodes, self._node] if self._replica else nodes, out)
        # If all replicas have everything, nothing can be missing; it is sent for those that start again.
        calm = QUIET if self._sent.applied == self._last else 1
        delay_ns = min(2 * self._idle_delay_ns, self._config.idle_max_ns * calm)
        self._idle_delay_ns = delay_ns
        # With a small offset, or all sources of a quiet group would send at the same moment.
        self._idle_ns = now + delay_ns + self._rng.randrange(delay_ns // 8 + 1)

    def _multicast(self, now: Nanos, item: Multicast, out: Outbox) -> None:
        messages = item.messages
        if not messages:
            return
        if item.stream not in (-1, self.stream.stream):
            self._refuse(now, len(messages), "their source has failed", out)
            return
        size = sum(map(len, messages)) + 4 * len(messages)
        self._taken += size
        if max(map(len, messages)) > self._config.message_bytes:
            self._refuse(now, len(messages), "a message is too long", out)
            return
        if self._queue_bytes + size > self._config.window_bytes:
            self._refuse(now, len(messages), "the buffer is full", out)
            return
        if item.notes:
            base = self._queue_start + len(self._queue)
            self._notes.extend((base + k, note) for k, note in item.notes if 0 <= k < len(messages))
        self._queue.extend(messages)
        self._queue_bytes += size

    def _refuse(self, now: Nanos, count: int, why: str, out: Outbox) -> None:
        self._refused += count
        detail = f"{count} messages refused: {why}; none of them was sent"
        out.fact(GroupFact(now, self._config.name, "refused", 0, self._last, detail))

    def _peer_up(self, now: Nanos, item: PeerUp, out: Outbox) -> None:
        self._peers.up(item.peer, item.member)
        if self._last and self._peers.replica_at(item.peer):
            self._say_idle(now, [item.peer], out)

    def _peer_down(self, _now: Nanos, item: PeerDown, _out: Outbox) -> None:
        self._peers.down(item.peer)
        self._rooms.pop(item.peer, None)

    def _datagram_room(self, _now: Nanos, item: DatagramRoom, _out: Outbox) -> None:
        self._rooms[item.peer] = item.size

    def _received(self, now: Nanos, item: Received, out: Outbox) -> None:
        for frame in item.frames:
            if self._is_heard(item.peer, frame):
                self._frame(now, item.peer, frame, out)
            else:
                self._ignored += 1

    def _is_heard(self, node: NodeId, frame: Frame) -> bool:
        """Whether a report of a node counts. Perhaps all known members have been removed: a view later than ours names
        the members."""
        if node == self._node or self._peers.replica_at(node) is not None:
            return True
        if isinstance(frame, Nack):
            # These very messages may be needed to commit that it is a member.
            # rule: 11b
            return self._peers.at(node) is not None
        if not isinstance(frame, Freed) or frame.view <= self._view:
            return False
        peer = self._peers.at(node)
        # rule: 6z
        return peer is not None and peer.name in frame.replicas

    def _frame(self, now: Nanos, peer: NodeId, frame: Frame, out: Outbox) -> None:
        if not isinstance(frame, Nack | Freed | CommitReply) or frame.group != self._config.name:
            self._ignored += 1
        elif isinstance(frame, CommitReply):
            if frame.stream == self.stream and frame.number <= self._last:
                self._settled = max(self._settled, frame.number)
        elif isinstance(frame, Nack):
            if frame.stream == self.stream:
                self._resend(now, peer, frame.ranges, out)
        else:
            for stream, upto in frame.held:
                if stream == self.stream:
                    # rule: S-1c
                    self._sent.hold(upto)
            for stream, upto in frame.upto:
                if stream == self.stream:
                    self._sent.apply(upto)
            self._follow_view(now, frame, out)

    def _follow_view(self, now: Nanos, frame: Freed, out: Outbox) -> None:
        """Membership changes while messages flow: the leader announces the members."""
        if frame.view == self._view or not frame.replicas:
            return
        before = self._peers.replicas
        self._view = frame.view
        self._peers.use(frame.replicas)
        new = [peer.node for peer in self._peers.replicas if peer not in before]
        if new and self._last:
            self._say_idle(now, new, out)

    # -- sending -------------------------------------------------------------------------------------------------

    def _send(self, now: Nanos, out: Outbox) -> None:
        """Number what waits and send it, as far as the window allows."""
        sent: list[SentFrame] = []
        room = self._room
        while self._queue and room > 0:
            for block, count, notes in self._pack(room):
                sent.append(self._number(now, count, block, notes))
                self._queue_bytes -= len(block) - HEAD
                room = self._room
        if not sent:
            return
        nodes = [peer.node for peer in self._peers.replicas]
        data = [frame.data for frame in sent]
        if self._datagrams:
            for node in nodes:
                out.down(link_unit(node), SendDatagrams(DATA, data), immediate=True)
        else:
            post_bytes(out, nodes, data, Payload)
        if self._replica:
            frames: list[Frame] = [item.frame(self._config.name, self.stream) for item in sent]
            out.up(self._replica, Received(self._node, frames, now))
            if self._config.message_log_bytes:
                out.up(log_unit(self._config.name), Received(self._node, frames, now))
        self._idle_delay_ns = self._idle_first_ns
        # rule: 7c
        self._idle_ns = now + self._idle_delay_ns

    @property
    def _room(self) -> int:
        """Datagrams have no flow control: fewer bytes are in flight at a time."""
        room = self._config.window_bytes - self._sent.unapplied
        if not self._datagrams:
            return room
        return min(room, self._config.datagram_window - self._sent.in_flight)

    def _pack(self, room: int) -> list[tuple[bytes, int, list[tuple[int, Note]]]]:
        """Take about `room` bytes of what waits, as blocks of the size of a frame."""
        config = self._config
        queue, limit = self._queue, config.payload_bytes
        sizes = list(map(len, queue[:PACKED_AT_ONCE]))
        if self._datagrams:
            # rule: 12a
            limit = min(limit, config.datagram_bytes)
            passing = self._passing
            if passing > limit:
                limit, sizes = passing, self._sizes_in_frame(sizes)
        ends = list(accumulate(sizes))
        blocks: list[tuple[bytes, int, list[tuple[int, Note]]]] = []
        done = begin = 0
        while done < len(ends) and begin < room:
            # The four bytes of each length are not worth a second pass: a frame may be slightly larger.
            stop = max(done + 1, bisect_right(ends, begin + limit, done))
            notes = self._notes_of(done, stop) if self._notes else []
            blocks.append((pack_block(queue[done:stop]), stop - done, notes))
            begin = ends[stop - 1]
            done = stop
        del queue[:done]
        self._queue_start += done
        return blocks

    @property
    def _passing(self) -> int:
        """How much fits into a frame that one datagram carries to every replica; 0 if that is not known."""
        config, rooms = self._config, self._rooms
        room = min([rooms.get(peer.node, 0) for peer in self._peers.replicas], default=0)
        head = FRAME_HEAD + len(config.name.encode()) + NOTE_HEAD * config.priorities
        return min(room - head, config.payload_bytes, config.datagram_window // FRAMES_AT_LEAST)

    def _sizes_in_frame(self, sizes: list[int]) -> list[int]:
        """The maximum that each waiting message adds to its frame: a frame above the limit would use a stream."""
        sizes = [size + MESSAGE_HEAD for size in sizes]
        for place, note in self._notes:
            at = place - self._queue_start
            if at >= len(sizes):
                break
            sizes[at] += NOTE_HEAD + len(note.topic.encode()) + len(note.request)
        return sizes

    def _notes_of(self, first: int, stop: int) -> list[tuple[int, Note]]:
        """The notes of a part of the queue, by place in that part. Parts are taken in order."""
        start = self._queue_start + first
        count = bisect_left(self._notes, self._queue_start + stop, key=lambda item: item[0])
        notes = [(place - start, note) for place, note in self._notes[:count]]
        del self._notes[:count]
        return notes

    def _number(
        self, now: Nanos, count: int, block: bytes, notes: list[tuple[int, Note]]
    ) -> SentFrame:
        first = self._last + 1
        about = self._annotator.take(now, count, notes)
        frame = Payload(self._config.name, self.stream, first, count, now, memoryview(block), about)
        tail = len(encode(about))
        sent = SentFrame(first, count, now, encode(frame), len(block), about, tail)
        self._last += count
        self._created_ns = now
        self._sent.add(sent)
        return sent

    def _resend(
        self, now: Nanos, peer: NodeId, ranges: tuple[tuple[int, int], ...], out: Outbox
    ) -> None:
        """Answer a request from the buffer; for forgotten messages, state up to which number they are forgotten."""
        found = self._sent.find(ranges, RESEND_BYTES)
        if found and peer == self._node:
            frames: list[Frame] = [item.frame(self._config.name, self.stream) for item in found]
            out.up(self._replica, Received(self._node, frames, now))
        elif found:
            post_bytes(out, [peer], [item.data for item in found], Payload)
        if any(first <= self._sent.forgotten for first, _ in ranges):
            # The replica on this node may have it, and answers once it knows that the source does not.
            both = [peer, self._node] if self._replica and peer != self._node else [peer]
            self._say_idle(now, both, out)

    def _say_idle(self, now: Nanos, nodes: list[NodeId], out: Outbox) -> None:
        # rule: 7h
        about = self._annotator.next(now)
        idle = Idle(
            self._config.name,
            self.stream,
            self._last,
            self._sent.forgotten,
            self._created_ns,
            about,
        )
        post(out, [node for node in nodes if node != self._node], idle)
        if self._node in nodes:
            out.up(self._replica, Received(self._node, [idle], now))

    # -- commit queries ------------------------------------------------------------------------------------------

    def _flush(self, now: Nanos, item: Flush, _out: Outbox) -> None:
        """A sender wants to know. That takes at least a round trip or two, so the query is sent slightly later."""
        self._wanted = max(self._wanted, item.number)
        self._ask_delay_ns = ASK_FIRST_NS
        self._ask_ns = min(self._ask_ns, now + ASK_FIRST_NS)

    def _ask(self, now: Nanos, out: Outbox) -> None:
        """Any replica that knows answers; until then all are asked, with increasing intervals."""
        if self._wanted <= self._committed:
            self._ask_ns = NEVER
            return
        question = CommitQuery(self._config.name, self.stream, min(self._wanted, self._last))
        post(out, [peer.node for peer in self._peers.replicas], question)
        if self._replica:
            out.up(self._replica, Received(self._node, [question], now))
        self._ask_ns = now + self._ask_delay_ns
        self._ask_delay_ns = min(2 * self._ask_delay_ns, ASK_MAX_NS)

    @property
    def _committed(self) -> int:
        """Up to which number everything is known to be committed. Applied entries are."""
        return max(self._settled, self._sent.applied)

    def _say_room(self, out: Outbox) -> None:
        # Once per turn, if it has changed: the sender continues counting from the last report.
        room = (self.held, self._taken, self._committed)
        if room != self._room_said:
            self._room_said = room
            out.effect(SourceRoom(self._unit, *room), immediate=True)

    def status(self) -> dict[str, object]:
        return {
            "group": self._config.name,
            "stream": f"{self.stream.source.hex()}/{self.stream.incarnation}/{self.stream.stream}",
            "last": self._last,
            "freed": self._sent.applied,
            "forgotten": self._sent.forgotten,
            "held": self.held,
            "kept": self.kept,
            "queued": len(self._queue),
            "window": self._config.window_bytes,
            "refused": self._refused,
            "ignored": self._ignored,
            "replicas": [peer.name for peer in self._peers.replicas],
        }
