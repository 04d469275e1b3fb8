"""Gaps: numbers that exist somewhere and are missing here. They are detected, and requested after a short wait.

A gap consists of *holes*: ranges that were detected at about the same time and are requested together. If later
messages of the stream are here, a missing one was overtaken or lost, and is requested almost at once; one that is only
known from others may be on its way, and gets longer. The source is asked first, because it has everything that some
replica may lack. A learner of a large group asks the replica that passes messages on to it (`relay`), and others near
it, before the source. A follower continues with the leader, which has what it ordered, and then with the other replicas
in turn, without a time limit. A leader does not: if the source has not helped, the hole is *exhausted*, and a decision
follows (`decisions`). If that is to recover it, the leader is *granted* nodes to ask and a time limit. The timeout of a
request follows the recent response times of the node (`round_trip`), and doubles each time.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from holdfast.group.config import GroupConfig, log_unit, source_unit
from holdfast.group.frames import LossQuery, LossReply, Nack, Payload, StreamId
from holdfast.group.log.replicated_log import Log
from holdfast.group.peers import Peers, post
from holdfast.group.streams.message_metadata import priority_at
from holdfast.group.streams.round_trip import RoundTrips
from holdfast.group.streams.stream_buffer import Stream, Streams
from holdfast.group.streams.values import Gap, Grant, Hole
from holdfast.links.ports import Received
from holdfast.machine import Outbox, RangeSet
from holdfast.telemetry.facts import GroupFact
from holdfast.types import MILLISECOND, NEVER, Nanos, NodeId

RANGES_MAX: Final = 64
"""Of one request."""
HOLES_MAX: Final = 256
"""Holes of one stream that are tracked at a time, from the first on."""
RESEND_BYTES: Final = 1 << 20
"""The approximate size of the answer to the request of another replica; it asks again for the rest."""
TOLD_MAX: Final = 4096
"""Priorities of single messages that are reported to a leader that lacks them."""
ABSENT_MAX: Final = 16_384
SOURCE_TRIES: Final = 2
"""How often the source is asked before other nodes."""
NEAR_MAX: Final = 3
"""How many other replicas near it a learner with a feed asks before the leader."""
LEADER_TRIES: Final = 3
"""How often a leader asks a reachable source before a message counts as lost, with doubling timeouts."""
PLACES: Final = ("source", "replica", "log")
"""Where missing messages can come from: the source, the buffer of another replica, a message log."""


class Recovery:
    """Finds gaps in the streams of one replica and requests missing messages."""

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
        """Whether this replica decides about what its source cannot supply."""
        self.leader = ""
        """The leader, which has whatever the order names."""
        self.feeds: tuple[NodeId, ...] = ()
        """A learner of a large group: the replica that passes messages on to it, and others that could."""
        self._trips = RoundTrips(config.nack_retry_ns, config.nack_delay_max_ns)
        self.gaps: dict[StreamId, Gap] = {}
        self.grants: dict[StreamId, Grant] = {}
        self.nacks = 0
        self.recovered = 0
        self.brought = dict.fromkeys(PLACES, 0)
        """Messages that arrived after they were requested, by the last place asked."""
        self._absent: dict[NodeId, Nanos] = {}
        """Nodes that were reachable once, and since when they are not; for nodes that stopped normally, since the
        beginning."""
        self._left: dict[NodeId, None] = {}
        """Nodes that stopped normally: this incarnation sends nothing more."""
        self._took_ns: Nanos = 0
        """The recent duration of recovery, smoothed; 0 before the first one."""

    # -- gaps ----------------------------------------------------------------------------------------------------

    def next_of(self, stream: Stream) -> int:
        """The next number of the order."""
        return self._log.tail.next.get(stream.id, stream.origin)

    def look(self, stream: Stream, now: Nanos, out: Outbox) -> None:
        """The stream has changed: check for a gap."""
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
        """Count requested messages that have arrived. Dropped messages are not counted."""
        for hole in gap.holes:
            if hole.asked:
                stop = hole.last + 1
                missing = sum(b - a for a, b in stream.held.missing(hole.first, stop))
                self.brought[hole.asked] += stop - hole.first - missing
                gap.brought += stop - hole.first - missing

    def _renewed(
        self, stream: Stream, old: list[Hole], missing: list[tuple[int, int]], now: Nanos
    ) -> list[Hole]:
        """The current holes; those that were missing before keep their history."""
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
                    if not hole.tries and old[at].first < start and hole.first > top:
                        # The stream is arriving, and this is the part of it that is still on its way.
                        hole.due_ns = now + heard_of_ns
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
        """How long a message may be known before it arrives, and how long later ones may be ahead of it. A reliable
        channel loses none while its session lasts: a missing message was overtaken by news of it. News of a datagram
        comes through another node: it is early only if that way is shorter, and then by less than a frame takes."""
        config = self._config
        here = self.source_is_here(stream.id)
        if config.transport == "channel" and here:
            late_ns = max(config.late_ns, config.nack_delay_ns)
            return late_ns, late_ns
        overtaken_ns = min(config.reorder_ns, config.nack_delay_ns)
        trip_ns = self._trips.mean_ns(NodeId(stream.id.source)) if here else 0
        return max(overtaken_ns, trip_ns // 4) if trip_ns else config.nack_delay_ns, overtaken_ns

    def source_is_here(self, stream: StreamId) -> bool:
        """Whether the incarnation of the source that created the stream is reachable."""
        source = NodeId(stream.source)
        if source == self._node:
            return stream.incarnation == self._incarnation
        peer = self._peers.at(source)
        return peer is not None and peer.incarnation == stream.incarnation

    def source_is_gone(self, stream: StreamId, now: Nanos) -> bool:
        """Whether the incarnation of the source that created the stream can no longer supply anything."""
        if self.source_is_here(stream):
            return False
        source = NodeId(stream.source)
        if source == self._node or self._peers.at(source) is not None:
            return True  # another incarnation of it is here
        gap = self.gaps.get(stream)
        since_ns = self._absent.get(source, gap.since_ns if gap is not None else now)
        return now - since_ns >= self._config.gone_ns

    def source_down(self, source: NodeId, left: bool, now: Nanos) -> None:
        """A node is no longer reachable."""
        self._absent.pop(source, None)
        self._absent[source] = now - self._config.gone_ns if left else now
        if left:
            self._left[source] = None
        for nodes in (self._absent, self._left):
            if len(nodes) > ABSENT_MAX:
                del nodes[next(iter(nodes))]

    def has_left(self, source: NodeId) -> bool:
        """Whether the node has stopped normally and has not returned."""
        return source in self._left

    def _close(self, stream: Stream, gap: Gap, now: Nanos, out: Outbox) -> None:
        del self.gaps[stream.id]
        self.grants.pop(stream.id, None)
        if gap.brought:
            self.recovered += 1
            took_ns = now - gap.since_ns
            self._took_ns += (took_ns - self._took_ns) // 8 if self._took_ns else took_ns
            text = f"{stream.label} complete to {stream.exists} after {took_ns // MILLISECOND} ms"
            self._fact("recovered", text, now, out)

    def source_back(self, source: NodeId, now: Nanos) -> None:
        """A source is reachable (again): it may have what no other node has."""
        self._absent.pop(source, None)
        self._left.pop(source, None)
        for stream, gap in self.gaps.items():
            if stream.source == source and self.source_is_here(stream):
                for hole in gap.holes:
                    hole.tries = 0
                    hole.exhausted = ""
                    hole.due_ns = now

    def exhausted(self, stream: StreamId) -> list[Hole]:
        """The holes that the source could not fill."""
        gap = self.gaps.get(stream)
        return [hole for hole in gap.holes if hole.exhausted] if gap is not None else []

    @property
    def estimate_ns(self) -> Nanos:
        """The estimated duration of a recovery."""
        return self._took_ns or self._config.nack_retry_ns

    # -- asking --------------------------------------------------------------------------------------------------

    def wake(self, now: Nanos, out: Outbox) -> None:
        """Send the requests that are due."""
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
                continue  # still due: it is sent with the next request, a moment later
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
        """The node to ask: the source or the feed first, then all in turn; for a leader only granted ones."""
        source = NodeId(stream.id.source)
        here = self.source_is_here(stream.id) and stream.origin <= hole.last
        grant = self.grants.get(stream.id)
        if self.leading and grant is not None and grant.ranges.covers(hole.first, hole.last + 1):
            return grant.places[hole.tries % len(grant.places)] if grant.places else None
        fed = bool(self.feeds) and not self.leading
        if fed and hole.tries < SOURCE_TRIES:
            return self.feeds[0], False
        if here and not fed and hole.tries < (LEADER_TRIES if self.leading else SOURCE_TRIES):
            return source, False
        if self.leading:
            hole.exhausted = self._why_not(stream)
            return None
        places = self._places(source, here)
        turn = hole.tries - SOURCE_TRIES if here or fed else hole.tries
        return places[turn % len(places)] if places else None

    def _places(self, source: NodeId, here: bool) -> list[tuple[NodeId, bool]]:
        """All nodes that a follower asks in turn. A learner with a feed asks others near it before the leader, which
        has hundreds of them; every other replica asks the leader first, which has whatever the order names."""
        # The node of a source that is gone may run a replica that has everything: only a live source is excluded.
        replicas = self._peers.replicas
        others = dict.fromkeys([p.node for p in replicas if not here or p.node != source])
        leader = self._peers.named(self.leader)
        first = [*self.feeds[1 : 1 + NEAR_MAX]]
        if leader is not None:
            first.append(leader.node)
        nodes = [node for node in dict.fromkeys([*first, *others]) if node in others]
        if here:
            # With a feed the source was not asked before.
            nodes.insert(len(first) if self.feeds else len(nodes), source)
        places = [(node, False) for node in nodes]
        if self._config.message_log_bytes:
            places += [
                (node, True) for node in (self._node, *(p.node for p in self._peers.replicas))
            ]
        return places

    def _why_not(self, stream: Stream) -> str:
        if not self.source_is_here(stream.id):
            return "their source is gone"
        if stream.origin > self.next_of(stream):
            return "their source no longer has them"
        return "their source did not supply them"

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
        """Another replica lacks messages: send those that are held here, up to a bound."""
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

    def answer_loss_query(self, lost: LossQuery, to: NodeId, out: Outbox) -> None:
        """The leader lacks messages: report which of them are held here."""
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
        found = LossReply(group, lost.question, lost.stream, tuple(held), bytes(priorities))
        post(out, [to], found)

    def forget(self) -> None:
        """The position in the order has changed, or the leader has: check again from there."""
        self.grants.clear()
        for stream in self.gaps:
            # rule: 1f
            self._streams.look_at(stream)
        self.gaps.clear()

    def _fact(self, event: str, detail: str, now: Nanos, out: Outbox) -> None:
        tail = self._log.tail
        out.fact(
            GroupFact(now, self._config.name, event, tail.term, tail.index, detail, self._log.epoch)
        )

    def deadline(self) -> Nanos:
        return min([gap.due_ns for gap in self.gaps.values()], default=NEVER)
