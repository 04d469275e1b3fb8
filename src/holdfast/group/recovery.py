"""Gaps: numbers that exist somewhere and are not here. Noticed, waited out for a moment, asked for again.

A gap consists of *holes*, ranges that were noticed at about the same time and are asked for together. Where later
messages of the stream are here, what is missing was overtaken or is lost, and is asked for almost at once; what is only
heard of may be on its way, and is given longer. The source is asked first, which has everything that some replica may
lack. A follower goes on to the leader, which has what it ordered, and then to the other replicas, one after the other,
for as long as it takes. A leader does not: after the source has not helped, the hole is *exhausted*, and what happens
next is decided (`decisions`). If that is to recover it, the leader is *granted* places to ask and a time. When the same
is asked for again follows from how long that node took lately (`roundtrip`), and doubles each time.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

import msgspec

from holdfast.group.config import GroupConfig, log_unit, source_unit
from holdfast.group.log import Log
from holdfast.group.metadata import priority_at
from holdfast.group.peers import Peers, post
from holdfast.group.roundtrip import RoundTrips
from holdfast.group.streams import Stream, Streams
from holdfast.links.ports import Received
from holdfast.machine import Outbox, RangeSet
from holdfast.telemetry.facts import GroupFact
from holdfast.types import MILLISECOND, NEVER, Nanos, NodeId
from holdfast.wire.frames import Found, Lost, Nack, Payload, StreamId

RANGES_MAX: Final = 64
"""Of one request."""
HOLES_MAX: Final = 256
"""Of one stream that are looked after at a time, from the first on."""
RESEND_BYTES: Final = 1 << 20
"""Another replica's request is answered with about this much; it asks again for the rest."""
TOLD_MAX: Final = 4096
"""Priorities of single messages that are told to a leader that lacks them."""
ABSENT_MAX: Final = 16_384
SOURCE_TRIES: Final = 2
"""So often the source is asked before anybody else is."""
LEADER_TRIES: Final = 3
"""So often a leader asks a source that is there before it takes something for lost, waiting twice as long each time."""
PLACES: Final = ("source", "replica", "log")
"""Where what was missing can come from: its source, another replica's buffer, a message log."""


class Hole(msgspec.Struct, gc=False):
    """Numbers that are missing, all in one piece, and what was done about them."""

    first: int
    last: int
    noticed_ns: Nanos
    due_ns: Nanos
    tries: int = 0
    exhausted: str = ""
    """Why asking has ended; empty while it has not."""
    asked: str = ""
    """What was last asked for them, one of `PLACES`; empty before anybody was."""

    def part(self, first: int, last: int) -> Hole:
        return Hole(
            first, last, self.noticed_ns, self.due_ns, self.tries, self.exhausted, self.asked
        )

    def joins(self, other: Hole) -> bool:
        """Whether both are at the same point, so that they can be one."""
        return (
            self.last + 1 == other.first
            and self.tries == other.tries
            and (self.exhausted, self.asked) == (other.exhausted, other.asked)
            and other.noticed_ns - self.noticed_ns < MILLISECOND
        )


class Grant(msgspec.Struct, gc=False):
    """The leader may recover these numbers, from these places."""

    ranges: RangeSet
    places: tuple[tuple[NodeId, bool], ...]
    """Nodes, and whether their message log is meant, not their buffers."""


class Gap(msgspec.Struct, gc=False):
    """What is missing of one stream."""

    since_ns: Nanos
    holes: list[Hole]
    asked: bool = False
    brought: int = 0
    """Messages that came after they were asked for."""
    timed: tuple[NodeId, int, Nanos] | None = None
    """A request whose answer is timed: who was asked, for which number, when."""

    @property
    def due_ns(self) -> Nanos:
        return min([hole.due_ns for hole in self.holes], default=NEVER)


class Recovery:
    """Finds gaps in the streams of one replica and asks for what is missing."""

    def __init__(
        self,
        config: GroupConfig,
        node: NodeId,
        incarnation: int,
        log: Log,
        streams: Streams,
        peers: Peers,
    ) -> None:
        self._config = config
        self._node = node
        self._incarnation = incarnation
        self._log = log
        self._streams = streams
        self._peers = peers
        self.leading = False
        """Whether somebody decides here about what cannot be had from its source."""
        self.leader = ""
        """Who leads: it has whatever the order names."""
        self._trips = RoundTrips(config.nack_retry_ns, config.nack_delay_max_ns)
        self.gaps: dict[StreamId, Gap] = {}
        self.grants: dict[StreamId, Grant] = {}
        self.nacks = 0
        self.recovered = 0
        self.brought = dict.fromkeys(PLACES, 0)
        """Messages that came after they were asked for, by what was asked last."""
        self._absent: dict[NodeId, Nanos] = {}
        """Nodes that could be reached once, and since when they cannot; those that said goodbye since ever."""
        self._left: dict[NodeId, None] = {}
        """Nodes that said goodbye: this life of them sends nothing more."""
        self._took_ns: Nanos = 0
        """How long recovery has taken lately, smoothed; 0 before the first one."""

    # -- what is missing -----------------------------------------------------------------------------------------

    def next_of(self, stream: Stream) -> int:
        """The number that the order goes on with."""
        return self._log.tail.next.get(stream.id, stream.origin)

    def look(self, stream: Stream, now: Nanos, out: Outbox) -> None:
        """Something has changed in the stream: is there a gap, is there still one?"""
        tail, gap = self._log.tail, self.gaps.get(stream.id)
        first = tail.next.get(stream.id, stream.origin)
        if gap is not None:
            self._count_brought(stream, gap)
            if gap.timed is not None:
                node, number, asked_ns = gap.timed
                if number in stream.held or number < stream.floor:
                    gap.timed = None
                    self._trips.took(node, now - asked_ns)
        is_whole = stream.held.first_missing(first) > stream.exists
        if is_whole or (tail.over and tail.is_over(stream.id)):
            if gap is not None:
                self._close(stream, gap, now, out)
            return
        if gap is None:
            gap = self.gaps[stream.id] = Gap(now, [])
        missing = islice(stream.held.missing(first, stream.exists + 1), HOLES_MAX)
        gap.holes = self._renewed(stream, gap.holes, list(missing), now)

    def _count_brought(self, stream: Stream, gap: Gap) -> None:
        """What was asked for and is here now. What is dropped is not: it was not brought."""
        for hole in gap.holes:
            if hole.asked:
                stop = hole.last + 1
                missing = sum(b - a for a, b in stream.held.missing(hole.first, stop))
                self.brought[hole.asked] += stop - hole.first - missing
                gap.brought += stop - hole.first - missing

    def _renewed(
        self, stream: Stream, old: list[Hole], missing: list[tuple[int, int]], now: Nanos
    ) -> list[Hole]:
        """The holes there are now; what was missing before keeps its history."""
        heard_of_ns, overtaken_ns = self._patience(stream)
        top = stream.top
        holes: list[Hole] = []
        at = 0
        for start, stop in missing:
            while start < stop:
                while at < len(old) and old[at].last < start:
                    at += 1
                if at < len(old) and old[at].first <= start:
                    hole = old[at].part(start, min(old[at].last, stop - 1))
                else:
                    end = min(stop, old[at].first) if at < len(old) else stop
                    hole = Hole(start, end - 1, now, now + heard_of_ns)
                if not hole.tries and hole.last < top:
                    hole.due_ns = min(hole.due_ns, now + overtaken_ns)
                start = hole.last + 1
                if holes and holes[-1].joins(hole):
                    holes[-1].last = hole.last
                else:
                    holes.append(hole)
        return holes[:HOLES_MAX]

    def _patience(self, stream: Stream) -> tuple[Nanos, Nanos]:
        """How long a message may be heard of before it comes, and how long it may be overtaken by later ones. A
        reliable channel loses none while its session lasts: what is missing there was overtaken by news of it. News of
        a datagram comes by way of another node: it is early only where that way is the shorter one, and then by less
        than a frame takes."""
        config = self._config
        here = self.source_is_here(stream.id)
        if config.transport == "channel" and here:
            late_ns = max(config.late_ns, config.nack_delay_ns)
            return late_ns, late_ns
        overtaken_ns = min(config.reorder_ns, config.nack_delay_ns)
        trip_ns = self._trips.mean_ns(NodeId(stream.id.source)) if here else 0
        return max(overtaken_ns, trip_ns // 4) if trip_ns else config.nack_delay_ns, overtaken_ns

    def source_is_here(self, stream: StreamId) -> bool:
        """Whether the very life of the source that made the stream can be reached."""
        source = NodeId(stream.source)
        if source == self._node:
            return stream.incarnation == self._incarnation
        peer = self._peers.at(source)
        return peer is not None and peer.incarnation == stream.incarnation

    def source_is_gone(self, stream: StreamId, now: Nanos) -> bool:
        """Whether the life of the source that made the stream will not bring anything back."""
        if self.source_is_here(stream):
            return False
        source = NodeId(stream.source)
        if source == self._node or self._peers.at(source) is not None:
            return True  # another life of it is here
        gap = self.gaps.get(stream)
        since_ns = self._absent.get(source, gap.since_ns if gap is not None else now)
        return now - since_ns >= self._config.gone_ns

    def source_down(self, source: NodeId, left: bool, now: Nanos) -> None:
        """A node cannot be reached any more."""
        self._absent.pop(source, None)
        self._absent[source] = now - self._config.gone_ns if left else now
        if left:
            self._left[source] = None
        for nodes in (self._absent, self._left):
            if len(nodes) > ABSENT_MAX:
                del nodes[next(iter(nodes))]

    def has_left(self, source: NodeId) -> bool:
        """Whether the node has said goodbye, and did not come back."""
        return source in self._left

    def _close(self, stream: Stream, gap: Gap, now: Nanos, out: Outbox) -> None:
        del self.gaps[stream.id]
        self.grants.pop(stream.id, None)
        if gap.brought:
            self.recovered += 1
            took_ns = now - gap.since_ns
            self._took_ns += (took_ns - self._took_ns) // 8 if self._took_ns else took_ns
            text = f"{stream.label} whole up to {stream.exists} after {took_ns // MILLISECOND} ms"
            self._fact("recovered", text, now, out)

    def source_back(self, source: NodeId, now: Nanos) -> None:
        """A source can be reached (again): it may have what nobody else has."""
        self._absent.pop(source, None)
        self._left.pop(source, None)
        for stream, gap in self.gaps.items():
            if stream.source == source and self.source_is_here(stream):
                for hole in gap.holes:
                    hole.tries = 0
                    hole.exhausted = ""
                    hole.due_ns = now

    def exhausted(self, stream: StreamId) -> list[Hole]:
        """What the source could not bring back."""
        gap = self.gaps.get(stream)
        return [hole for hole in gap.holes if hole.exhausted] if gap is not None else []

    @property
    def estimate_ns(self) -> Nanos:
        """How long it is likely to take to get something back."""
        return self._took_ns or self._config.nack_retry_ns

    # -- asking --------------------------------------------------------------------------------------------------

    def wake(self, now: Nanos, out: Outbox) -> None:
        """Ask for what is due."""
        for stream_id, gap in list(self.gaps.items()):
            if gap.due_ns > now:
                continue
            stream = self._streams.get(stream_id)
            if stream is None:
                del self.gaps[stream_id]
                continue
            self.look(stream, now, out)
            if stream_id in self.gaps:
                self._ask(stream, gap, now, out)

    def _ask(self, stream: Stream, gap: Gap, now: Nanos, out: Outbox) -> None:
        asked: dict[tuple[NodeId, bool], list[tuple[int, int]]] = {}
        for hole in gap.holes:
            if hole.due_ns > now:
                continue
            target = self._target(stream, hole)
            ranges = asked.setdefault(target, []) if target is not None else []
            if len(ranges) >= RANGES_MAX:
                continue  # Still due: it goes with the next request, a moment later.
            hole.tries += 1
            if target is None:
                hole.due_ns = NEVER if hole.exhausted else now + self._config.nack_retry_ns
                continue
            hole.asked = self._place(stream, target)
            hole.due_ns = now + self._trips.wait_ns(target[0], hole.tries)
            if gap.timed is None and hole.tries == 1:
                gap.timed = (target[0], hole.first, now)
            ranges.append((hole.first, hole.last))
        if asked and not gap.asked:
            gap.asked = True
            missing = sum(hole.last - hole.first + 1 for hole in gap.holes)
            first = gap.holes[0]
            text = f"{stream.label} lacks {missing} from {first.first} (to {first.last})"
            self._fact("gap", text, now, out)
        for target, ranges in asked.items():
            self._send(stream, target, tuple(ranges), now, out)

    def _place(self, stream: Stream, target: tuple[NodeId, bool]) -> str:
        node, from_log = target
        if from_log:
            return "log"
        is_source = node == stream.id.source and self.source_is_here(stream.id)
        return "source" if is_source else "replica"

    def _send(
        self,
        stream: Stream,
        target: tuple[NodeId, bool],
        ranges: tuple[tuple[int, int], ...],
        now: Nanos,
        out: Outbox,
    ) -> None:
        group = self._config.name
        node, from_log = target
        nack = Nack(group, stream.id, ranges, from_log)
        self.nacks += 1
        stream.nacks += 1
        if node == self._node:
            unit = log_unit(group) if from_log else source_unit(group)
            out.up(unit, Received(self._node, [nack], now))
        else:
            post(out, [node], nack)

    def _target(self, stream: Stream, hole: Hole) -> tuple[NodeId, bool] | None:
        """Whom to ask: the source at first, then everybody in turn; for a leader only those that it may."""
        source = NodeId(stream.id.source)
        here = self.source_is_here(stream.id) and stream.origin <= hole.last
        grant = self.grants.get(stream.id)
        if self.leading and grant is not None and grant.ranges.covers(hole.first, hole.last + 1):
            return grant.places[hole.tries % len(grant.places)] if grant.places else None
        if here and hole.tries < (LEADER_TRIES if self.leading else SOURCE_TRIES):
            return source, False
        if self.leading:
            hole.exhausted = self._why_not(stream)
            return None
        # The node of a source that is gone may run a replica that has it all: only a living source is left out.
        others = [
            (peer.node, False) for peer in self._peers.replicas if not here or peer.node != source
        ]
        leader = self._peers.named(self.leader)
        if leader is not None and (leader.node, False) in others:
            others.remove((leader.node, False))
            others.insert(0, (leader.node, False))
        if here:
            others.append((source, False))
        if self._config.message_log_bytes:
            others += [
                (node, True) for node in (self._node, *(p.node for p in self._peers.replicas))
            ]
        turn = hole.tries - SOURCE_TRIES if here else hole.tries
        return others[turn % len(others)] if others else None

    def _why_not(self, stream: Stream) -> str:
        if not self.source_is_here(stream.id):
            return "their source is gone"
        if stream.origin > self.next_of(stream):
            return "their source does not have them any more"
        return "their source did not bring them back"

    def grant(
        self,
        stream: StreamId,
        ranges: RangeSet,
        places: tuple[tuple[NodeId, bool], ...],
        now: Nanos,
    ) -> None:
        """The leader is to recover these, from these places in turn."""
        self.grants[stream] = Grant(ranges, places)
        gap = self.gaps.get(stream)
        for hole in gap.holes if gap is not None else ():
            if ranges.covers(hole.first, hole.last + 1):
                hole.tries = 0
                hole.exhausted = ""
                hole.due_ns = now

    def revoke(self, stream: StreamId, why: str) -> None:
        """Recovery has failed, or ended."""
        grant = self.grants.pop(stream, None)
        gap = self.gaps.get(stream)
        if grant is None or gap is None:
            return
        for hole in gap.holes:
            if grant.ranges.covers(hole.first, hole.last + 1):
                hole.exhausted = why
                hole.due_ns = NEVER

    # -- answering -----------------------------------------------------------------------------------------------

    def answer(self, nack: Nack, to: NodeId, out: Outbox) -> None:
        """Another replica lacks something: send it what is held here of it, up to a bound."""
        stream = self._streams.get(nack.stream)
        if stream is None:
            return
        budget = RESEND_BYTES
        sent = 0
        for first, last in nack.ranges[:RANGES_MAX]:
            for piece in stream.pieces(first, last):
                # Two pieces of one block are sent once.
                if budget <= 0 or piece.start <= sent:
                    continue
                budget -= len(piece.block)
                sent = piece.start
                frame = Payload(
                    self._config.name, stream.id, piece.start, piece.count, piece.created_ns,
                    piece.block, piece.about,
                )  # fmt: skip
                post(out, [to], frame)

    def say_found(self, lost: Lost, to: NodeId, out: Outbox) -> None:
        """The leader lacks something: tell it what is held here of it."""
        stream = self._streams.get(lost.stream)
        held: list[tuple[int, int]] = []
        priorities = bytearray()
        for first, last in lost.ranges[:RANGES_MAX]:
            for piece in stream.pieces(first, last) if stream is not None else ():
                a, b = max(first, piece.first), min(last, piece.last)
                held.append((a, b))
                for number in range(a, min(b + 1, a + TOLD_MAX - len(priorities))):
                    at = number - piece.start
                    priorities.append(priority_at(piece.about, at, self._config.priorities))
        group = self._config.name
        found = Found(group, lost.question, lost.stream, tuple(held), bytes(priorities))
        post(out, [to], found)

    def forget(self) -> None:
        """The place in the order has changed, or who decides: look again from there."""
        self.grants.clear()
        for stream in self.gaps:
            self._streams.look_at(stream)
        self.gaps.clear()

    def _fact(self, event: str, detail: str, now: Nanos, out: Outbox) -> None:
        tail = self._log.tail
        out.fact(GroupFact(now, self._config.name, event, tail.term, tail.index, detail))

    def deadline(self) -> Nanos:
        return min([gap.due_ns for gap in self.gaps.values()], default=NEVER)
