"""The ledger: one row per segment that was ever examined, with the outcome. Partitioned by arrival day.

It replaces moving files: a node's file stays where it is, and quarantine is an outcome. A run reads the ledger of the
arrival days that it lists, and appends a file per arrival day with the rows of the segments that it examined. Of
several rows for one file the one with the highest `run` counts. Days older than facts are kept, of which no landing
folder is left, are forgotten (`next_snapshot.forget_arrivals`).
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.pipeline.check import GONE, KEPT, WRONG_SCHEMA
from holdfast.pipeline.landings import Segment
from holdfast.pipeline.snapshot import Part, Parts, TableFile
from holdfast.pipeline.storage.port import Store, join
from holdfast.telemetry.facts import SCHEMA

LEDGER: Final = "ledger"
USED: Final = "-used"
"""In the name of a ledger file all of whose segments are used: who looks for others need not read it."""

LEDGER_SCHEMA: Final = pa.schema(
    [
        ("path", pa.string()),
        ("kind", pa.string()),
        ("day", pa.string()),
        ("size", pa.int64()),
        ("mtime_ms", pa.int64()),
        ("digest", pa.string()),
        ("rows", pa.int64()),
        ("hours", pa.list_(pa.string())),
        ("outcome", pa.string()),
        ("reason", pa.string()),
        ("schema", pa.int32()),
        ("examine_us", pa.int64()),
        ("disordered", pa.int64()),
        ("run", pa.int64()),
    ]
)


class Entry(msgspec.Struct, frozen=True):
    """One row."""

    path: str
    kind: str
    day: str
    size: int
    mtime_ms: int
    digest: str
    rows: int
    hours: list[str]
    outcome: str
    reason: str
    schema: int
    """The pipeline's schema version when it was examined."""
    examine_us: int
    disordered: int
    run: int
    """The snapshot that the run made."""

    def settles(self, segment: Segment, now_us: int) -> bool:
        """Whether a segment needs no further look."""
        if (self.size, self.mtime_ms) != (segment.size, segment.mtime_ms) or self.outcome == GONE:
            return False
        if self.outcome == WRONG_SCHEMA and self.schema < SCHEMA:
            return False
        return not 0 < self.examine_us <= now_us

    @property
    def set_aside(self) -> bool:
        return self.outcome not in (KEPT, GONE)


def read_ledger(store: Store, root: str, parts: Parts, days: Iterable[str]) -> dict[str, Entry]:
    """The newest entry of each file of the given arrival days."""
    newest: dict[str, Entry] = {}
    for day in days:
        for file in parts.get(day, Part()).files:
            table = pq.read_table(pa.BufferReader(store.read(join(root, file.name))))
            for entry in msgspec.convert(table.to_pylist(), list[Entry]):
                before = newest.get(entry.path)
                if before is None or before.run <= entry.run:
                    newest[entry.path] = entry
    return newest


def append_ledger(
    store: Store, root: str, attempt: str, parts: Parts, entries: Iterable[Entry]
) -> Parts:
    """`parts` with new files for the entries, one per arrival day."""
    by_day: dict[str, list[Entry]] = {}
    for entry in entries:
        by_day.setdefault(entry.day, []).append(entry)
    made = dict(parts)
    for day, rows in sorted(by_day.items()):
        content = io.BytesIO()
        table = pa.Table.from_pylist(msgspec.to_builtins(rows), schema=LEDGER_SCHEMA)
        pq.write_table(table, content, compression="zstd")
        used = "" if any(entry.set_aside for entry in rows) else USED
        name = join(LEDGER, attempt, f"{day}{used}.parquet").lstrip("/")
        store.create(join(root, name), content.getvalue())
        file = TableFile(name, content.tell(), len(rows))
        made[day] = Part((*made.get(day, Part()).files, file))
    return made


def compacted(store: Store, root: str, attempt: str, parts: Parts, files_max: int = 16) -> Parts:
    """`parts` with days of more than `files_max` files rewritten into one."""
    made = dict(parts)
    for day, part in parts.items():
        if len(part.files) > files_max:
            entries = read_ledger(store, root, parts, [day]).values()
            made |= append_ledger(store, root, f"{attempt}/compact", {}, entries)
    return made


def files_set_aside(store: Store, root: str, parts: Parts) -> list[Entry]:
    """The files that are not used, by their newest entry. Only their rows become objects, and only arrival days that
    have any are read: most have none."""
    found: list[Entry] = []
    for _, part in sorted(parts.items()):
        if all(file.name.endswith(f"{USED}.parquet") for file in part.files):
            continue
        tables = [
            pq.read_table(pa.BufferReader(store.read(join(root, file.name)))) for file in part.files
        ]
        rows = pa.concat_tables(tables)
        fine = pc.is_in(rows["outcome"], pa.array([KEPT, GONE]))
        paths = pc.unique(rows.filter(pc.invert(fine))["path"])
        about = rows.filter(pc.is_in(rows["path"], paths)).sort_by("run")
        newest = {entry.path: entry for entry in msgspec.convert(about.to_pylist(), list[Entry])}
        found += [entry for entry in newest.values() if entry.set_aside]
    return sorted(found, key=lambda entry: entry.path)
