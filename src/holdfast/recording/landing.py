"""Sealed segments: Parquet files that readers see completely or not at all; the oldest are removed first.

`landing/<kind>/day=<sealing day>/<node>-<incarnation>-<seq>.parquet`. `seq` counts the segments of one incarnation over
all kinds, so `(incarnation, seq)` is the order of their creation, independent of the wall clock.
"""

from __future__ import annotations

import contextlib
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.recording.losses import UNKNOWN
from holdfast.stores.files import make_directory, place
from holdfast.types import SECOND, Nanos

LANDING: Final = "landing"


class SegmentId(msgspec.Struct, frozen=True, order=True):
    """Identifies a segment; sorts by age."""

    incarnation: int
    seq: int
    kind: str
    node: str

    @property
    def stem(self) -> str:
        return f"{self.node}-{self.incarnation}-{self.seq:06d}"


def parse_stem(stem: str, kind: str) -> SegmentId | None:
    """The place given by a file name, or None if the file is not a segment."""
    node, _, rest = stem.partition("-")
    incarnation, _, seq = rest.partition("-")
    if not (node and incarnation.isdecimal() and seq.isdecimal()):
        return None
    return SegmentId(int(incarnation), int(seq), kind, node)


class Landing:
    """The sealed segments of one node in a directory, which other nodes may use too."""

    def __init__(self, directory: Path, node: str) -> None:
        self.directory = directory / LANDING
        self.size = 0
        self._node = node
        self._sealed: dict[SegmentId, tuple[Path, int]] = {}

    def scan(self) -> None:
        """Find the segments of earlier incarnations."""
        self._sealed.clear()
        for path in sorted(self.directory.glob(f"*/day=*/{self._node}-*.parquet")):
            segment = parse_stem(path.stem, path.parent.parent.name)
            if segment is not None:
                with contextlib.suppress(OSError):
                    self._sealed[segment] = (path, path.stat().st_size)
        self.size = sum(size for _, size in self._sealed.values())

    def places(self) -> list[SegmentId]:
        return list(self._sealed)

    def has(self, segment: SegmentId) -> bool:
        return segment in self._sealed

    def seal(self, table: pa.Table, segment: SegmentId, temporary: Path, wall_ns: Nanos) -> Path:
        """Write a table as one Parquet file. Raises `OSError` and leaves nothing behind."""
        day = self.directory / segment.kind / f"day={day_of(wall_ns)}"
        path = day / f"{segment.stem}.parquet"
        make_directory(day)
        try:
            size = write_parquet(table, temporary)
            place(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        self._sealed[segment] = (path, size)
        self.size += size
        return path

    def remove_oldest(self) -> tuple[SegmentId, int, int] | None:
        """Remove the oldest segment. Returns its place and its first and last number, or None if there is none."""
        while self._sealed:
            segment = min(self._sealed)
            path, size = self._sealed.pop(segment)
            self.size -= size
            first, last = numbers_in(path)
            try:
                path.unlink()
            except FileNotFoundError:
                continue  # another process has removed it, so it is not lost
            except OSError:
                continue  # cannot be removed any more; it no longer counts
            return segment, first, last
        return None


def write_parquet(table: pa.Table, path: Path) -> int:
    """Write and sync. Returns the size.

    Numbers of facts mostly grow by steps, or stay: as differences they take a fraction of the time and the room that
    dictionaries take.
    """
    texts = [field.name for field in table.schema if pa.types.is_string(field.type)]
    numbers = [
        field.name
        for field in table.schema
        if pa.types.is_integer(field.type) or pa.types.is_timestamp(field.type)
    ]
    with path.open("wb") as file:
        # Readers take segments whole. Only the range of `n` is read from the footer (`numbers_in`).
        pq.write_table(
            table, file, compression="zstd", write_page_checksum=True, write_statistics=["n"],
            use_dictionary=texts, column_encoding=dict.fromkeys(numbers, "DELTA_BINARY_PACKED"),
        )  # fmt: skip
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def numbers_in(path: Path) -> tuple[int, int]:
    """The first and last `n` of a sealed segment, from its footer; unknown if that is not readable."""
    try:
        metadata = pq.read_metadata(path)
        at = metadata.schema.names.index("n")
        groups = [
            metadata.row_group(i).column(at).statistics for i in range(metadata.num_row_groups)
        ]
        return min(group.min for group in groups), max(group.max for group in groups)
    except (OSError, ValueError, AttributeError):
        return 0, UNKNOWN


def day_of(wall_ns: Nanos) -> str:
    return datetime.fromtimestamp(wall_ns // SECOND, UTC).date().isoformat()
