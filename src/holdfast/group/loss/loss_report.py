"""Collects what is known about lost messages: from the messages around the gap, the peers, and recovery attempts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from holdfast.group.core import Core
from holdfast.group.frames import MessageMetadata
from holdfast.group.loss.loss_info import (
    AgeInfo,
    ClusterStatus,
    LossInfo,
    MessageHolder,
    NextMessage,
    Range,
    RecoveryInfo,
    TransportInfo,
)
from holdfast.group.streams.message_metadata import (
    BACK,
    created_before,
    distances_at,
    indicate,
    merge,
    priority_at,
    topic_at,
    with_told,
)
from holdfast.group.streams.stream_buffer import Stream
from holdfast.group.streams.values import Hole, Indication, Piece
from holdfast.types import SECOND, Nanos, NodeId
from holdfast.wire.blocks import unpack_block
from holdfast.wire.codec import Rejected

NEXT_MAX: Final = 8
NEXT_BYTES: Final = 64 << 10
"""How many of the messages after a gap, and of the recovered ones, are included, and their total size."""


class LossReport:
    """Reports what is known about numbers of a stream that this replica lacks."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def cluster(self) -> ClusterStatus:
        peers = self._core.peers
        names = tuple(peer.name for peer in peers.replicas)
        alone = not self._core.voters_here()
        return ClusterStatus(peers.known + 1, len(names) + 1, alone, names)

    def transport(self, stream: Stream, lost: tuple[Range, ...], now: Nanos) -> TransportInfo:
        core = self._core
        source = NodeId(stream.id.source)
        name = core.peers.names.get(source, source.hex())
        return TransportInfo(
            core.name if source == core.node else name,
            core.recovery.source_is_here(stream.id),
            core.recovery.source_is_gone(stream.id, now),
            stream.id,
            self._topics(stream, lost),
            core.config.transport,
            _rate(stream, lost[-1][1]),
            stream.packets,
            stream.messages,
            stream.nacks,
        )

    def _topics(self, stream: Stream, lost: tuple[Range, ...]) -> tuple[str, ...]:
        topics: dict[str, None] = {}
        for first, last in lost:
            for number in (first - 1, last + 1):
                piece = next(stream.pieces(number, number), None)
                if piece is not None:
                    topics[topic_at(piece.about, number - piece.start)] = None
        return tuple(topics)

    def priorities(
        self, stream: Stream, lost: tuple[Range, ...], told: Mapping[int, int]
    ) -> Indication:
        """From the distances of the message after each gap; `told` is what other replicas reported about single
        messages."""
        levels = self._core.config.priorities
        found: Indication | None = None
        for first, last in lost:
            after, distances = _distances_after(stream, last)
            one = _within(indicate(first - 1, after, distances, levels), first, last, after)
            one = with_told(one, first, last, told)
            found = one if found is None else merge(found, one)
        assert found is not None, "something is lost"
        return found

    def messages(self, stream: Stream, ranges: tuple[Range, ...]) -> tuple[NextMessage, ...]:
        """The first available messages among these numbers; others in between may be lost."""
        levels = self._core.config.priorities
        found: list[NextMessage] = []
        size = 0
        held = (
            (first, last, piece) for first, last in ranges for piece in stream.pieces(first, last)
        )
        for first, last, piece in held:
            unpacked = unpack_block(piece.block)
            assert not isinstance(unpacked, Rejected), "blocks are checked before they are kept"
            for number in range(max(piece.first, first), min(piece.last, last) + 1):
                place = number - piece.start
                message = bytes(unpacked[place])
                size += len(message)
                if len(found) == NEXT_MAX or (found and size > NEXT_BYTES):
                    return tuple(found)
                about = piece.about
                found.append(
                    NextMessage(
                        number, priority_at(about, place, levels), topic_at(about, place), message
                    )
                )
        return tuple(found)

    def age(self, stream: Stream, lost: tuple[Range, ...], now: Nanos) -> AgeInfo:
        oldest = self._age_of(stream, lost[0][0], lost[0][1], now)
        youngest = self._age_of(stream, lost[-1][1], lost[-1][1], now)
        return AgeInfo(max(oldest, youngest), youngest)

    def _age_of(self, stream: Stream, number: int, last: int, now: Nanos) -> Nanos:
        """The age of message `number`, from the metadata of the first message after `last`."""
        holes = self._holes(stream)
        since_ns = next((h.noticed_ns for h in holes if h.first <= number <= h.last), now)
        at_least = now - since_ns
        after = next(stream.pieces(last + 1, stream.exists), None)
        lead_ns = stream.lead_ns
        if lead_ns is None:
            return at_least
        if after is not None and after.about is not None:
            earlier = created_before(after.start - number, after.about.ages_ns)
            created_ns = after.created_ns - (earlier or 0)
        elif stream.idle is not None and stream.idle.about is not None:
            idle, ages = stream.idle, stream.idle.about.ages_ns
            earlier = created_before(idle.last + 1 - number, ages)
            said_ns = idle.created_ns + (ages[0] if ages and ages[0] >= 0 else 0)
            created_ns = said_ns - (earlier or 0)
        else:
            return at_least
        return max(at_least, now - created_ns - lead_ns)

    def _holes(self, stream: Stream) -> list[Hole]:
        gap = self._core.recovery.gaps.get(stream.id)
        return gap.holes if gap is not None else []

    def info(
        self,
        stream: Stream,
        lost: tuple[Range, ...],
        now: Nanos,
        question: int = 0,
        attempt: int = 1,
        places: tuple[MessageHolder, ...] = (),
        recovered: tuple[Range, ...] = (),
        reasons: tuple[str, ...] = (),
        told: Mapping[int, int] | None = None,
        refused: str = "",
    ) -> LossInfo:
        """Everything known about the loss."""
        estimate_ns = self._core.recovery.estimate_ns if places else 0
        return LossInfo(
            self._core.config.name,
            question,
            attempt,
            lost,
            sum(last - first + 1 for first, last in lost),
            self.cluster(),
            self.transport(stream, lost, now),
            self.priorities(stream, lost, told or {}),
            self.messages(stream, ((lost[0][1] + 1, stream.exists),)),
            RecoveryInfo(places, estimate_ns, recovered, reasons, self.messages(stream, recovered)),
            self.age(stream, lost, now),
            refused,
        )


def _distances_after(stream: Stream, last: int) -> tuple[int, tuple[int, ...]]:
    """The next available or known message after number `last`, and its distances."""
    piece: Piece | None = next(stream.pieces(last + 1, stream.exists), None)
    if piece is not None and piece.about is not None:
        return piece.first, distances_at(piece.about, piece.first - piece.start)
    idle = stream.idle
    if piece is None and idle is not None and idle.about is not None and idle.last >= last:
        return idle.last + 1, idle.about.distances
    return last + 1, ()


def _within(one: Indication, first: int, last: int, after: int) -> Indication:
    """Limited to the numbers up to `last`, if the message with the metadata comes later."""
    if after == last + 1:
        return one
    count = last - first + 1
    known = tuple((number, priority) for number, priority in one.known if number <= last)
    least = [0] * one.levels
    for _, priority in known:
        least[priority] += 1
    most = tuple(min(most, count) for most in one.at_most)
    return Indication(one.levels, known, tuple(least), most)


def _rate(stream: Stream, last: int) -> int:
    """Messages per second, from the creation times of the source."""
    piece = next(stream.pieces(last + 1, stream.exists), None)
    about: MessageMetadata | None = piece.about if piece is not None else None
    if about is None and stream.idle is not None:
        about = stream.idle.about
    if about is None:
        return 0
    known = [(back, age) for back, age in zip(BACK, about.ages_ns, strict=False) if age > 0]
    return known[-1][0] * SECOND // known[-1][1] if known else 0
