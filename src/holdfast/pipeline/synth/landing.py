"""Segments where nodes put them, and under the names that nodes give them.

    <out>/landing/<kind>/day=<sealing day>/<node>-<incarnation>-<seq>.parquet

`out` is a directory or a URI that pyarrow knows (`file:`, `hdfs:`, `s3:`, `gs:`).
"""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from holdfast.pipeline.synth.chance import generator
from holdfast.pipeline.synth.columns import Facts, table_of
from holdfast.pipeline.synth.lives import Life
from holdfast.pipeline.synth.options import DAY_S
from holdfast.pipeline.synth.topology import Topology
from holdfast.recording.landing import LANDING, SegmentId, day_of
from holdfast.types import Nanos

_LATE_SHARE: Final = 0.02
_LATE_DAYS_MAX: Final = 2
_LOST_PER_DAY: Final = 0.5
_LOST_MAX: Final = 20


class Store:
    """Files under one place, local or not."""

    def __init__(self, out: str) -> None:
        self._files, root = fs.FileSystem.from_uri(out) if "://" in out else _local(out)
        self._root = root

    def write(self, table: pa.Table, *names: str) -> int:
        """Write a table as one Parquet file under a path; readers never see half of it. Gives its size."""
        path = posixpath.join(self._root, *names)
        folder, name = posixpath.split(path)
        self._files.create_dir(folder, recursive=True)
        draft = posixpath.join(folder, f".{name}.draft")
        with self._files.open_output_stream(draft) as file:
            pq.write_table(table, file, compression="zstd", write_page_checksum=True)
            size = int(file.tell())
        self._files.move(draft, path)
        return size

    def write_text(self, text: str, *names: str) -> None:
        path = posixpath.join(self._root, *names)
        self._files.create_dir(posixpath.split(path)[0], recursive=True)
        with self._files.open_output_stream(path) as file:
            file.write(text.encode())


class LandingWriter:
    """Numbers the facts of one life of a node and seals them as segments."""

    def __init__(self, store: Store, life: Life, topology: Topology) -> None:
        self._store = store
        self._life = life
        self._topology = topology
        self._next: dict[str, int] = {}
        self._seq = 0
        self._rng = generator(topology.options.seed, "landing", life.node, life.number)
        self.rows = 0
        self.bytes = 0
        self.files = 0
        self.late: list[tuple[str, str]] = []
        """Files that are late, with their sealing day."""
        self.lost: list[tuple[str, int, int, float]] = []
        """Facts that were lost: kind, first, last, when."""

    def seal(self, facts: Facts, sealed_at_s: float, may_lose: bool = True) -> None:
        """Write facts as one segment, sealed at a time; may lose some and may be late."""
        if not facts.rows:
            return
        first = self._next.get(facts.kind, 0)
        self._next[facts.kind] = first + facts.rows
        table = table_of(facts, first, self._life, self._topology)
        if facts.lost is not None:
            table = self._lose_these(facts, table, sealed_at_s)
        elif may_lose:
            table = self._lose(facts.kind, table, sealed_at_s)
        wall_s = self._topology.options.start_s + sealed_at_s + self._life.skew_s
        wall_ns = Nanos(round(wall_s * 1e9)) + self._late_ns()
        day = day_of(Nanos(wall_ns))
        segment = SegmentId(
            self._life.incarnation, self._seq, facts.kind, self._topology.ids[self._life.node]
        )
        self._seq += 1
        name = f"{segment.stem}.parquet"
        if day != day_of(Nanos(round(wall_s * 1e9))):
            self.late.append((f"{facts.kind}/{name}", day))
        self.bytes += self._store.write(table, LANDING, facts.kind, f"day={day}", name)
        self.rows += table.num_rows
        self.files += 1

    def _late_ns(self) -> int:
        """How much later than usual a segment is sealed: a node may be cut off from its disk or its collector."""
        if self._rng.random() >= _LATE_SHARE * self._topology.options.noise:
            return 0
        return int(self._rng.integers(1, _LATE_DAYS_MAX + 1)) * DAY_S * 10**9

    def _lose(self, kind: str, table: pa.Table, sealed_at_s: float) -> pa.Table:
        """Drop a run of facts now and then, and remember to say so."""
        options = self._topology.options
        chance = _LOST_PER_DAY * options.noise * options.segment_minutes / 1440
        if kind in ("group", "lost", "node", "order", "delivery") or table.num_rows < 4 * _LOST_MAX:
            return table
        if self._rng.random() >= chance:
            return table
        begin = int(self._rng.integers(1, table.num_rows - _LOST_MAX))
        count = int(self._rng.integers(1, _LOST_MAX))
        first = table["n"][begin].as_py()
        self.lost.append((kind, first, first + count - 1, sealed_at_s))
        return pa.concat_tables([table.slice(0, begin), table.slice(begin + count)])

    def _lose_these(self, facts: Facts, table: pa.Table, sealed_at_s: float) -> pa.Table:
        numbers = table["n"].filter(pa.array(facts.lost)).to_pylist()
        self.lost += [(facts.kind, number, number, sealed_at_s) for number in numbers]
        return table.filter(pc.invert(pa.array(facts.lost)))

    def take_lost(self) -> list[tuple[str, int, int, float]]:
        taken, self.lost = self.lost, []
        return taken


def _local(out: str) -> tuple[Any, str]:
    return fs.LocalFileSystem(), str(Path(out).absolute())
