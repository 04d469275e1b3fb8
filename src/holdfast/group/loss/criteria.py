"""Ignore criteria. All properties that a criterion names must match.

Only the leader evaluates criteria: ignored messages are skipped ranges in the log, so every replica skips the same, and
a new leader finds the active criteria and their remaining counts in the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.group.frames import StreamId
from holdfast.group.streams.message_metadata import priority_at, topic_at, zone_of
from holdfast.types import SECOND, Nanos

if TYPE_CHECKING:
    from holdfast.group.streams.values import Piece

CRITERIA_MAX: Final = 256
"""The maximum number of active criteria; a further one ends the oldest."""


class Criterion(msgspec.Struct, frozen=True, array_like=True):
    """Messages of a source (all its incarnations), a stream, a topic, a priority: everything that is given must
    match."""

    source: bytes = b""
    stream: StreamId | None = None
    topic: str = ""
    priority: int = -1
    until_ns: Nanos = 0
    """In log time; 0: without end."""
    count: int = 0
    """This many messages; 0: any number."""
    resync: bool = False
    """Until any message of `lost_by` is marked as a resync."""
    lost_by: bytes = b""
    """The source whose messages were lost."""
    spared: tuple[StreamId, int] | None = None
    """Messages of this stream up to this number are exempt: they were lost, and may be recovered."""

    def fits_stream(self, stream: StreamId) -> bool:
        """Whether messages of the stream can match at all."""
        if self.source and self.source != stream.source:
            return False
        return self.stream is None or self.stream == stream

    def spares(self, stream: StreamId, number: int) -> bool:
        return self.spared is not None and self.spared[0] == stream and number <= self.spared[1]

    def fits(self, priority: int, topic: str) -> bool:
        """Whether a message of a matching stream matches."""
        if self.topic and self.topic != topic:
            return False
        return self.priority < 0 or self.priority == priority

    def text(self) -> str:
        """For display."""
        parts = []
        if self.source:
            parts.append(f"source {self.source[:4].hex()}")
        if self.stream is not None:
            of, life = self.stream.source[:4].hex(), self.stream.incarnation
            parts.append(f"stream {of}/{life}/{self.stream.stream}")
        if self.topic:
            parts.append(f"topic {self.topic}")
        if self.priority >= 0:
            parts.append(f"priority {self.priority}")
        end = []
        if self.until_ns:
            end.append(f"until log time {self.until_ns / SECOND:.3f} s")
        if self.count:
            end.append(f"for {self.count} messages")
        if self.resync:
            end.append("until a resync")
        return f"{', '.join(parts) or 'everything'} {' or '.join(end) or 'permanently'}"


def is_sound_criterion(criterion: Criterion) -> bool:
    ids = (criterion.source, criterion.lost_by)
    return all(len(id_) in (0, 16) for id_ in ids) and min(criterion.count, criterion.until_ns) >= 0


class Run(msgspec.Struct, frozen=True, gc=False):
    """Messages `first` to `last` of a stream that are treated alike."""

    first: int
    last: int
    criterion: int = 0
    """Ignored by this criterion; 0: to be delivered."""
    resumed: tuple[int, ...] = ()
    """These criteria end with the first message, which is a resync."""
    repeat: bool = False
    """A request that was delivered before."""
    requests: tuple[tuple[int, bytes], ...] = ()
    zone: str = ""
    """The zone whose replicas deliver it; empty: all."""


Active = Mapping[int, tuple[Criterion, int]]
"""Active criteria, by id, each with its remaining count; 0 for any number."""


def sort_out(
    stream: StreamId,
    pieces: Iterable[Piece],
    first: int,
    stop: int,
    active: Active,
    known: Mapping[bytes, int],
    levels: int,
) -> Iterator[Run]:
    """Divide messages `first` to `stop - 1`, all of which are held, into runs. `active` and `known` may change between
    two runs: each run is decided by the current state."""
    start = first
    run: Run | None = None
    for piece in pieces:
        for number in range(max(start, piece.first), min(stop - 1, piece.last) + 1):
            one = _judge(stream, piece, number, run, active, known, levels)
            if run is not None and _goes_on(run, one):
                requests = run.requests + one.requests
                run = Run(
                    run.first, number, run.criterion, run.resumed, run.repeat, requests, run.zone
                )
                continue
            if run is not None:
                yield run
                one = _judge(stream, piece, number, None, active, known, levels)
            run = one
    if run is not None:
        yield run


def _goes_on(run: Run, one: Run) -> bool:
    same = run.criterion == one.criterion and run.repeat == one.repeat and run.zone == one.zone
    return same and not one.resumed


def _judge(
    stream: StreamId,
    piece: Piece,
    number: int,
    run: Run | None,
    active: Active,
    known: Mapping[bytes, int],
    levels: int,
) -> Run:
    """What to do with one message, after the actions of `run`."""
    about, place = piece.about, number - piece.start
    priority, topic = priority_at(about, place, levels), topic_at(about, place)
    resync = about is not None and place in about.resyncs
    resumed: tuple[int, ...] = ()
    if resync:  # it ends them even if another criterion ignores it
        resumed = tuple(
            id_ for id_, (it, _) in active.items() if it.resync and it.lost_by == stream.source
        )
    for id_, (criterion, left) in active.items():
        if id_ in resumed:
            continue
        if not criterion.fits_stream(stream) or not criterion.fits(priority, topic):
            continue
        if criterion.spares(stream, number):
            continue
        used = run.last - run.first + 1 if run is not None and run.criterion == id_ else 0
        if left and used >= left:
            continue
        return Run(number, number, id_, resumed)
    request = next((it for at, it in about.requests if at == place), b"") if about else b""
    before = run.requests if run is not None else ()
    if request and (request in known or any(request == it for _, it in before)):
        return Run(number, number, 0, resumed, repeat=True)
    requests = ((number, request),) if request else ()
    return Run(number, number, 0, resumed, False, requests, zone_of(topic))


def covering(
    active: Active, stream: StreamId, first: int, possible: tuple[int, ...], count: int
) -> int:
    """The criterion that lost messages certainly match, given only the first number, their count and the possible
    priorities; 0 if none."""
    for id_, (criterion, left) in active.items():
        if not criterion.fits_stream(stream) or criterion.topic or criterion.resync:
            continue
        if (left and left < count) or not possible or criterion.spares(stream, first):
            continue
        if criterion.priority < 0 or possible == (criterion.priority,):
            return id_
    return 0
