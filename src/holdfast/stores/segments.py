"""The telemetry of a node on its way to the disk.

`SegmentWriter.record` keeps facts in memory and returns. A thread appends them to open segments, seals those that
are long, large or old enough to Parquet, and keeps all of it under a bound (`archive`). Nothing in here stops a node
or raises into it: what cannot be kept is dropped, counted, and reported as facts of the kind `lost` when the disk
takes something again. `MemorySegments` is the same for the simulator: no thread, no clock, the same files.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from holdfast.errors import SetupError
from holdfast.stores.archive import Archive, SegmentBounds
from holdfast.stores.buffers import Buffers
from holdfast.stores.columns import LostFact, Origin, arrow_schema
from holdfast.stores.memory_segments import MemorySegments
from holdfast.telemetry.facts import Fact
from holdfast.types import SECOND, Nanos

__all__ = ["LostFact", "MemorySegments", "SegmentBounds", "SegmentWriter", "arrow_schema"]


class SegmentWriter:
    """Writes the facts of one life of one node under `directory`."""

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
        """`clock` is the clock of the facts' `now_ns`. Without `background` there is no thread: call `write_out`."""
        self._bounds = bounds or SegmentBounds()
        self._clock = clock
        self._buffers = Buffers(self._bounds.buffer_rows)
        self._wake_rows = max(1, self._bounds.buffer_rows // 2)
        origin = Origin(node_hex, name, incarnation, wall_offset_ns)
        self._archive = Archive(directory, origin, self._bounds)
        self._recovered = False
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
    def facts(self) -> int:
        """How many facts were recorded."""
        return self._buffers.recorded

    @property
    def lost(self) -> int:
        """How many facts are not on disk and never will be, as far as they can be counted."""
        return self._archive.losses.facts

    @property
    def problem(self) -> str:
        """What went wrong last, for people; empty when nothing did."""
        return self._problem or self._archive.problem

    def record(self, facts: Sequence[Fact]) -> None:
        """Number the facts and keep them for the thread. Does not wait for the disk, does not raise."""
        if self._buffers.record(facts) >= self._wake_rows and not self._wake.is_set():
            self._wake.set()

    def write_out(self) -> None:
        """Write what was recorded, seal what is due, keep the bound. The thread does this by itself."""
        with self._writing:
            now = self._clock()
            self._guard(lambda: self._flush(now))
            self._guard(lambda: self._archive.seal_due(now))
            self._guard(self._archive.keep_bound)

    def close(self) -> None:
        """Seal everything and end the thread. What cannot be sealed now is sealed at the next start."""
        self._closing = True
        if self._thread is not None:
            self._wake.set()
            self._thread.join()
        with self._writing:
            now = self._clock()
            # Twice: sealing and keeping the bound can lose something, which is then reported and sealed too.
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
        for taken in self._buffers.take():
            self._guard(partial(self._archive.append, taken, now))
        self._archive.report(now)

    def _guard(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001 telemetry never stops a node; people see `problem`
            self._problem = repr(error)
