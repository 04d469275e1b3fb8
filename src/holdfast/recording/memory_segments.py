"""Telemetry segments of a simulated node: no threads, clock or open files, and the same Parquet files at the end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from holdfast.recording.buffers import BUFFER_FULL, Buffers, Taken
from holdfast.recording.columns import Layout, LostFact, Origin, complete
from holdfast.recording.landing import Landing, SegmentId
from holdfast.recording.losses import Losses
from holdfast.telemetry.facts import Fact
from holdfast.types import Nanos

ROWS_MAX: Final = 10_000_000
ENCODE_ROWS: Final = 4096
"""Facts are converted to columns, which are smaller, when there are this many."""


class MemorySegments:
    """Keeps the facts of one incarnation of a node until `write`."""

    def __init__(
        self,
        node_hex: str,
        name: str,
        incarnation: int,
        wall_offset_ns: Nanos,
        rows_max: int = ROWS_MAX,
    ) -> None:
        """Facts beyond `rows_max` are dropped, and the segments record that."""
        self._origin = Origin(node_hex, name, incarnation, wall_offset_ns)
        self._buffers = Buffers(rows_max)
        self._rows_max = rows_max
        self._rows = 0
        self._losses = Losses()
        self._lost_layout = Layout(LostFact)
        self._lost_n = 0
        self._kept: dict[str, tuple[Layout, list[Any]]] = {}
        self._last_ns = 0
        self._seq = 0

    @property
    def facts(self) -> int:
        """Number of recorded facts."""
        return self._buffers.recorded

    @property
    def lost(self) -> int:
        """Number of dropped facts."""
        self._encode()
        return self._losses.facts

    def record(self, facts: Sequence[Fact]) -> None:
        """Number the facts and keep them. Does not raise."""
        if self._buffers.record(facts) >= ENCODE_ROWS:
            self._encode()

    def write(self, directory: Path) -> list[Path]:
        """Write the facts since the last call, one segment per kind. The day is that of the last fact."""
        self._encode()
        self._report()
        directory.mkdir(parents=True, exist_ok=True)
        landing = Landing(directory, self._origin.node)
        wall_ns = self._origin.wall_offset_ns + self._last_ns
        paths = []
        for kind, (layout, batches) in self._kept.items():
            if not batches:
                continue
            self._seq += 1
            segment = SegmentId(self._origin.incarnation, self._seq, kind, self._origin.node)
            table = complete(batches, layout.schema, self._origin)
            temporary = directory / f"{kind}-{segment.stem}.tmp"
            paths.append(landing.seal(table, segment, temporary, wall_ns))
        self._kept.clear()
        self._rows = 0
        return paths

    def _encode(self) -> None:
        for taken in self._buffers.take():
            kept = self._keep(taken)
            end = taken.first + len(taken.facts) + taken.dropped
            if taken.layout is None:
                self._lose(taken.kind, taken.first, end, "not a kind of facts")
            else:
                self._lose(taken.kind, taken.first + kept, end, BUFFER_FULL)

    def _keep(self, taken: Taken) -> int:
        """Keep what fits. Returns the number of facts kept."""
        layout = taken.layout
        facts = taken.facts[: self._rows_max - self._rows]
        if layout is None or not facts:
            return 0
        self._rows += len(facts)
        self._last_ns = max(self._last_ns, facts[-1].now_ns)
        _, batches = self._kept.setdefault(layout.kind, (layout, []))
        for piece in layout.encode_most(taken.first, facts):
            if isinstance(piece, tuple):
                n, reason = piece
                self._lose(layout.kind, n, n + 1, reason)
            else:
                batches.append(piece)
        return len(facts)

    def _report(self) -> None:
        losses = self._losses.take()
        if not losses:
            return
        facts = [
            LostFact(self._last_ns, loss.kind, loss.first, loss.last, loss.reason, loss.incarnation)
            for loss in losses
        ]
        batch = self._lost_layout.encode(self._lost_n, facts)
        self._kept[LostFact.kind] = (self._lost_layout, [batch])
        self._lost_n += len(facts)

    def _lose(self, kind: str, first: int, stop: int, reason: str) -> None:
        if first < stop:
            self._losses.add(kind, self._origin.incarnation, first, stop - 1, reason)
