"""The telemetry of a node on its way to the disk.

`SegmentWriter.record` keeps facts in memory and returns. A thread appends them to open segments, seals long, large or
old ones to Parquet, and keeps everything within a limit (`archive`). Nothing here stops a node or raises into it: facts
that cannot be kept are dropped, counted, and reported as facts of the kind `lost` when the disk works again.
`MemorySegments` is the variant for the simulator: no thread, no clock, the same files.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from holdfast.errors import MisuseError, SetupError
from holdfast.recording.archive import Archive, SegmentBounds
from holdfast.recording.buffers import Buffers
from holdfast.recording.columns import LostFact, Origin, arrow_schema
from holdfast.recording.memory_segments import MemorySegments
from holdfast.telemetry.facts import Fact, SamplingFact
from holdfast.types import SECOND, Nanos

PRESSED_EVERY: Final = 10
"""Under pressure, one of so many samples of paths is kept."""
PRESSED_NS: Final = 60 * SECOND
"""How long after the last dropped fact that lasts."""

__all__ = ["LostFact", "MemorySegments", "SegmentBounds", "SegmentWriter", "arrow_schema"]


class SegmentWriter:
    """Writes the facts of one incarnation of a node under `directory`."""

    def __init__(
        self,
        directory: Path,
        node_hex: str,
        name: str,
        incarnation: int,
        wall_offset_ns: Nanos,
        clock: Callable[[], Nanos],
        bounds: SegmentBounds | None = None,
        background: bool = True,
    ) -> None:
        """`clock` is the clock of `now_ns` in facts. Without `background` there is no thread: call `write_out`."""
        self._bounds = bounds or SegmentBounds()
        self._clock = clock
        self._buffers = Buffers(self._bounds.buffer_rows)
        self._wake_rows = max(1, self._bounds.buffer_rows // 2)
        self._wall_offset_ns = wall_offset_ns
        origin = Origin(node_hex, name, incarnation, wall_offset_ns)
        self._archive = Archive(directory, origin, self._bounds)
        self._recovered = False
        self._sampled_until = 0
        """Until when samples are left out; 0 while all are kept."""
        self._problem = ""
        self._writing = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SetupError(
                f"telemetry cannot be written under {directory} ({error.strerror}); nothing was started; "
                "give the node another directory"
            ) from error
        self._thread: threading.Thread | None = None
        if background:
            self._thread = threading.Thread(target=self._run, name="holdfast-facts", daemon=True)
            self._thread.start()

    @property
    def bounds(self) -> SegmentBounds:
        return self._bounds

    @property
    def facts(self) -> int:
        """Number of recorded facts."""
        return self._buffers.recorded

    @property
    def lost(self) -> int:
        """Number of facts that are not on disk and never will be, as far as they can be counted."""
        return self._archive.losses.facts

    @property
    def problem(self) -> str:
        """The last error, for display; empty if there is none."""
        return self._problem or self._archive.problem

    def record(self, facts: Sequence[Fact]) -> None:
        """Number the facts and keep them for the thread. Does not wait for the disk and does not raise."""
        if self._buffers.record(facts) >= self._wake_rows and not self._wake.is_set():
            self._wake.set()

    def sample(self, kind: str, every: int, reason: str = "") -> None:
        """Record one of `every` samples of a kind from now on, and say so in a fact."""
        if every < 1:
            raise MisuseError(f"one of {every} facts cannot be kept; sampling is unchanged")
        self._buffers.sample(kind, every)
        self.record([SamplingFact(self._clock(), kind, every, reason)])

    def write_out(self) -> None:
        """Write recorded facts, seal due segments, keep the limit. The thread does this automatically."""
        with self._writing:
            now = self._clock()
            self._guard(lambda: self._flush(now))
            self._guard(lambda: self._archive.seal_due(now))
            self._guard(self._archive.keep_bound)

    def seal(self) -> Nanos:
        """Seal everything that is recorded until now, for a reader that must not wait. Returns the wall-clock time up
        to which facts can be read."""
        with self._writing:
            now = self._clock()
            self._guard(lambda: self._flush(now))
            self._guard(lambda: self._archive.seal_all(now))
            self._guard(self._archive.keep_bound)
        return now + self._wall_offset_ns

    def close(self) -> None:
        """Seal everything and end the thread. What cannot be sealed now is sealed at the next start."""
        self._closing = True
        if self._thread is not None:
            self._wake.set()
            self._thread.join()
        with self._writing:
            now = self._clock()
            # Twice: sealing and keeping the limit can lose facts, which are then reported and sealed too.
            for _ in range(2):
                self._guard(lambda: self._flush(now))
                self._guard(lambda: self._archive.seal_all(now))
                self._guard(self._archive.keep_bound)

    def _run(self) -> None:
        pause_s = self._bounds.flush_ns / SECOND
        while not self._closing:
            self.write_out()
            self._wake.wait(pause_s)
            self._wake.clear()

    def _flush(self, now: Nanos) -> None:
        if not self._recovered:
            self._recovered = True
            self._guard(lambda: self._archive.recover(now))
        dropped = 0
        for taken in self._buffers.take():
            dropped += taken.dropped
            self._guard(partial(self._archive.append, taken, now))
        self._archive.report(now)
        self._relieve(dropped, now)

    def _relieve(self, dropped: int, now: Nanos) -> None:
        """After facts were dropped, keep only some samples of paths until a while has passed without that."""
        if dropped:
            if not self._sampled_until:
                self.sample("path", PRESSED_EVERY, f"{dropped} facts did not fit into the buffer")
            self._sampled_until = now + PRESSED_NS
        elif self._sampled_until and now >= self._sampled_until:
            self._sampled_until = 0
            self.sample("path", 1, "the buffer has room again")

    def _guard(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001 telemetry never stops a node; people see `problem`
            self._problem = repr(error)
