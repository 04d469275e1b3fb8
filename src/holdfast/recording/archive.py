"""The segments of one node on disk: open ones, closed ones that wait to be sealed, and sealed ones.

Used by one thread at a time, with the time as an argument. It never raises `OSError`: facts that the disk does not
accept are lost, and the loss is kept in `losses` until it can be recorded.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from holdfast.errors import MisuseError
from holdfast.recording.buffers import BUFFER_FULL, Taken
from holdfast.recording.columns import Layout, LostFact, Origin, complete
from holdfast.recording.frame_file import Contents, FrameFile, read_frames
from holdfast.recording.landing import Landing, SegmentId, parse_stem
from holdfast.recording.losses import UNKNOWN, Losses
from holdfast.telemetry.facts import Fact
from holdfast.types import SECOND, Nanos

OPEN: Final = "open"
FRAME_ROWS: Final = 1024
"""Facts per frame. Converting them holds the interpreter lock for about a millisecond; then the node may run."""


class SegmentBounds(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of telemetry on disk, and how soon it is visible to readers."""

    buffer_rows: int = 1 << 16
    """Facts in memory; further ones are dropped."""
    segment_rows: int = 200_000
    segment_bytes: int = 16 << 20
    """Of the open file; the sealed file is a fraction of that."""
    segment_age_ns: Nanos = 60 * SECOND
    sparse_rows: int = 500
    """A segment with fewer facts than this may stay open longer."""
    sparse_factor: int = 1
    """How many times longer: small files cost the pipeline more than they hold."""
    max_bytes: int = 1 << 30
    """Of everything on disk; above it, the oldest sealed segments are removed."""
    flush_ns: Nanos = SECOND
    """Interval between writes of the buffers: what a killed process loses."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) <= 0:
                raise MisuseError(f"telemetry: {name} must be above zero; nothing was started")


class _Open(msgspec.Struct, frozen=True):
    segment: SegmentId
    file: FrameFile
    since: Nanos


class _Closed(msgspec.Struct):
    """A closed file of frames."""

    segment: SegmentId
    path: Path
    size: int
    retry_at: Nanos


class Archive:
    """Everything that one node keeps under `directory`."""

    def __init__(self, directory: Path, origin: Origin, bounds: SegmentBounds) -> None:
        if not origin.node.isalnum():
            raise MisuseError(f"a node id must be hex digits, not {origin.node!r}")
        self.losses = Losses()
        self.problem = ""
        """The last error, for display; empty if there is none."""
        self._origin = origin
        self._bounds = bounds
        self._directory = directory / OPEN
        self._landing = Landing(directory, origin.node)
        self._open: dict[str, _Open] = {}
        self._closed: list[_Closed] = []
        self._seq = 0
        self._lost_n = 0
        self._lost_layout = Layout(LostFact)

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return self._landing.size + self._growing() + sum(closed.size for closed in self._closed)

    # -- what earlier lives left behind --------------------------------------------------------------------------

    def recover(self, now: Nanos) -> None:
        """Find the sealed and unsealed segments of earlier incarnations. Called once, first."""
        self._landing.scan()
        for path in self._directory.glob(f"*-{self._origin.node}-*.tmp"):
            path.unlink(missing_ok=True)
        for path in sorted(self._directory.glob(f"*-{self._origin.node}-*.frames")):
            kind, _, stem = path.stem.partition("-")
            segment = parse_stem(stem, kind)
            if segment is not None:
                self._closed.append(_Closed(segment, path, path.stat().st_size, now))
        taken = [*self._landing.places(), *(closed.segment for closed in self._closed)]
        mine = [place.seq for place in taken if place.incarnation == self._origin.incarnation]
        self._seq = max(mine, default=0)

    # -- appending -----------------------------------------------------------------------------------------------

    def append(self, taken: Taken, now: Nanos) -> None:
        """Write facts to the open segment of their kind."""
        end = taken.first + len(taken.facts)
        if taken.layout is None:
            self._lose(taken.kind, taken.first, end + taken.dropped - 1, "not a kind of facts")
            return
        for at in range(0, len(taken.facts), FRAME_ROWS):
            facts = taken.facts[at : at + FRAME_ROWS]
            self._append_frame(taken.layout, taken.first + at, facts, now)
            time.sleep(0)  # lets the thread of the node run
        if taken.dropped:
            self._lose(taken.kind, end, end + taken.dropped - 1, BUFFER_FULL)

    def report(self, now: Nanos) -> None:
        """Record losses, or later if the disk does not accept that either."""
        losses = self.losses.take()
        if not losses:
            return
        facts = [
            LostFact(now, loss.kind, loss.first, loss.last, loss.reason, loss.incarnation)
            for loss in losses
        ]
        try:
            file = self._file(self._lost_layout, self._lost_n, now)
            file.append(self._lost_layout.encode(self._lost_n, facts))
        except OSError as error:
            self.problem = str(error)
            self.losses.give_back(losses)
            return
        self._lost_n += len(facts)

    def _append_frame(self, layout: Layout, first: int, facts: Sequence[Fact], now: Nanos) -> None:
        kind = layout.kind
        for piece in layout.encode_most(first, facts):
            if isinstance(piece, tuple):
                n, reason = piece
                self._lose(kind, n, n, reason)
                continue
            begin = piece.column(0)[0].as_py()
            try:
                file = self._file(layout, begin, now)
                file.append(piece)
            except OSError as error:
                self.problem = str(error)
                end = begin + piece.num_rows - 1
                self._lose(kind, begin, end, f"disk: {error.strerror}")
                continue
            if file.rows >= self._bounds.segment_rows or file.size >= self._bounds.segment_bytes:
                self._retire(kind, now)

    def _file(self, layout: Layout, first: int, now: Nanos) -> FrameFile:
        kind = layout.kind
        if kind not in self._open:
            origin = self._origin
            segment = SegmentId(origin.incarnation, self._seq + 1, kind, origin.node)
            path = self._directory / f"{kind}-{segment.stem}.frames"
            self._directory.mkdir(parents=True, exist_ok=True)
            file = FrameFile(path, layout.schema, replace(origin, first=first))
            self._seq += 1
            self._open[kind] = _Open(segment, file, now)
        return self._open[kind].file

    # -- sealing -------------------------------------------------------------------------------------------------

    def seal_due(self, now: Nanos) -> None:
        """Seal old segments, or all if open segments use half of the limit."""
        crowded = self._growing() > self._bounds.max_bytes // 2
        for kind, growing in list(self._open.items()):
            few = growing.file.rows < self._bounds.sparse_rows
            age_ns = self._bounds.segment_age_ns * (self._bounds.sparse_factor if few else 1)
            if crowded or now - growing.since >= age_ns:
                self._retire(kind, now)
        self._seal_closed(now)

    def seal_all(self, now: Nanos) -> None:
        for kind in list(self._open):
            self._retire(kind, now)
        for closed in self._closed:
            closed.retry_at = now
        self._seal_closed(now)

    def _growing(self) -> int:
        return sum(growing.file.size for growing in self._open.values())

    def _retire(self, kind: str, now: Nanos) -> None:
        """Close the open segment of a kind."""
        growing = self._open.pop(kind)
        growing.file.close()
        self._closed.append(_Closed(growing.segment, growing.file.path, growing.file.size, now))

    def _seal_closed(self, now: Nanos) -> None:
        waiting: list[_Closed] = []
        for closed in self._closed:
            if closed.retry_at <= now and self._seal(closed, now):
                continue
            waiting.append(closed)
        self._closed = waiting

    def _seal(self, closed: _Closed, now: Nanos) -> bool:
        segment = closed.segment
        try:
            contents = read_frames(closed.path)
            # An incarnation that was killed may have sealed it without removing the frames.
            if contents.batches and not self._landing.has(segment):
                self._land(contents, segment, now)
            closed.path.unlink(missing_ok=True)
        except Exception as error:  # noqa: BLE001 one bad file must not keep the others from being sealed
            self.problem = f"{closed.path.name}: {error}"
            closed.retry_at = now + self._bounds.segment_age_ns
            return False
        for hole in contents.holes:
            reason = f"{hole.size} bytes torn or damaged in an open segment"
            self._lose(segment.kind, hole.first, hole.last, reason, segment.incarnation)
        return True

    def _land(self, contents: Contents, segment: SegmentId, now: Nanos) -> None:
        assert contents.origin is not None, "batches need an origin"
        table = complete(contents.batches, contents.schema, contents.origin)
        temporary = self._directory / f"{segment.kind}-{segment.stem}.tmp"
        self._landing.seal(table, segment, temporary, self._origin.wall_offset_ns + now)

    # -- the bound -----------------------------------------------------------------------------------------------

    def keep_bound(self) -> None:
        """Remove the oldest segments until everything fits."""
        reason = f"removed: telemetry takes more than {self._bounds.max_bytes} bytes"
        while self.size > self._bounds.max_bytes:
            removed = self._landing.remove_oldest() or self._remove_closed()
            if removed is None:
                return
            segment, first, last = removed
            self._lose(segment.kind, first, last, reason, segment.incarnation)

    def _remove_closed(self) -> tuple[SegmentId, int, int] | None:
        """Discard the oldest segment that could not be sealed."""
        if not self._closed:
            return None
        oldest = min(self._closed, key=lambda closed: closed.segment)
        self._closed.remove(oldest)
        first, last = 0, UNKNOWN
        with contextlib.suppress(OSError, ValueError):
            contents = read_frames(oldest.path)
            if contents.batches and not contents.holes:
                first = contents.batches[0].column(0)[0].as_py()
                last = contents.batches[-1].column(0)[-1].as_py()
        with contextlib.suppress(OSError):
            oldest.path.unlink()
        return oldest.segment, first, last

    def _lose(
        self, kind: str, first: int, last: int, reason: str, incarnation: int | None = None
    ) -> None:
        if incarnation is None:
            incarnation = self._origin.incarnation
        self.losses.add(kind, incarnation, first, last, reason)
