"""Gaps: numbers that exist somewhere and are not here. Noticed, waited out for a moment, asked for again.

First the source is asked, which has everything that some replica may lack; when that does not help, or the source is
gone, the other replicas, one after the other. Each request that brings nothing doubles the time to the next one.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.group.config import GroupConfig, source_unit
from holdfast.group.log import Log
from holdfast.group.peers import Peers, post
from holdfast.group.streams import Stream, Streams
from holdfast.links.ports import Received
from holdfast.machine import Outbox
from holdfast.telemetry.facts import GroupFact
from holdfast.types import NEVER, Nanos, NodeId
from holdfast.wire.frames import Nack, Payload, StreamId

RANGES_MAX: Final = 64
"""Of one request."""
RESEND_BYTES: Final = 1 << 20
"""Another replica's request is answered with about this much; it asks again for the rest."""
SOURCE_TRIES: Final = 2
"""So often the source is asked before anybody else is."""


class Gap(msgspec.Struct, gc=False):
    """What is missing of one stream."""

    since_ns: Nanos
    due_ns: Nanos
    missing: int
    """How many numbers."""
    tries: int = 0
    asked: bool = False


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
        self.gaps: dict[StreamId, Gap] = {}
        self.nacks = 0
        self.recovered = 0

    def look(self, stream: Stream, now: Nanos, out: Outbox) -> None:
        """Something has changed in the stream: is there a gap, is there still one?"""
        first = self._log.tail.next.get(stream.id, stream.origin)
        gap = self.gaps.get(stream.id)
        if stream.held.first_missing(first) > stream.exists or self._log.tail.is_over(stream.id):
            if gap is not None:
                self._close(stream, gap, now, out)
            return
        if gap is None:
            due_ns = now + self._config.nack_delay_ns
            self.gaps[stream.id] = Gap(now, due_ns, 0)

    def _close(self, stream: Stream, gap: Gap, now: Nanos, out: Outbox) -> None:
        del self.gaps[stream.id]
        if gap.asked:
            self.recovered += 1
            took_ms = (now - gap.since_ns) // 1_000_000
            self._fact(
                "recovered",
                f"{stream.label} whole up to {stream.exists} after {took_ms} ms",
                now,
                out,
            )

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
        first = self._log.tail.next.get(stream.id, stream.origin)
        ranges = list(stream.held.missing(first, stream.exists + 1))
        missing = sum(stop - start for start, stop in ranges)
        gap.tries = gap.tries + 1 if missing == gap.missing else 0
        gap.missing = missing
        if not gap.asked:
            gap.asked = True
            start, stop = ranges[0]
            self._fact(
                "gap", f"{stream.label} lacks {missing} from {start} (to {stop - 1})", now, out
            )
        delay_ns = min(
            self._config.nack_delay_ns << min(gap.tries, 20), self._config.nack_delay_max_ns
        )
        gap.due_ns = now + delay_ns
        target = self._target(stream.id, gap.tries)
        if target is None:
            return
        asked = tuple((start, stop - 1) for start, stop in ranges[:RANGES_MAX])
        nack = Nack(self._config.name, stream.id, asked)
        self.nacks += 1
        if target == self._node:
            out.up(source_unit(self._config.name), Received(self._node, [nack], now))
        else:
            post(out, [target], nack)

    def _target(self, stream: StreamId, tries: int) -> NodeId | None:
        """Whom to ask: the source at first, then everybody in turn."""
        source = NodeId(stream.source)
        others = [peer.node for peer in self._peers.replicas if peer.node != source]
        own = source == self._node and stream.incarnation == self._incarnation
        if own or self._peers.at(source) is not None:
            if tries < SOURCE_TRIES or not others:
                return source
            others.append(source)
        return others[tries % len(others)] if others else None

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

    def forget(self) -> None:
        """The place in the order has changed: look again from there."""
        self.gaps.clear()

    def _fact(self, event: str, detail: str, now: Nanos, out: Outbox) -> None:
        tail = self._log.tail
        out.fact(GroupFact(now, self._config.name, event, tail.term, tail.index, detail))

    def deadline(self) -> Nanos:
        return min((gap.due_ns for gap in self.gaps.values()), default=NEVER)
