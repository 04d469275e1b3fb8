"""Published tables, for any program: needs pyarrow and no Spark.

A reader takes one snapshot and reads files that it names, so it never mixes two runs. Files stay for hours after a
newer snapshot has replaced them; a reader that is slower than that starts over with the newest snapshot.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.pipeline.ledger import LEDGER, Entry, files_set_aside
from holdfast.pipeline.snapshot import (
    Part,
    Snapshot,
    Snapshots,
    TableDamaged,
    TableFile,
    TableMissing,
)
from holdfast.pipeline.storage.port import Missing, Store, for_people, join, to_uri
from holdfast.pipeline.storage.stores import Stores
from holdfast.pipeline.units import in_order
from holdfast.pipeline.words import VERDICTS

__all__ = ["TableDamaged", "TableMissing", "Tables", "open_tables", "read_table"]

_ATTEMPTS: Final = 10


class Tables:
    """The tables of one snapshot."""

    def __init__(self, store: Store, root: str, snapshot: Snapshot) -> None:
        self._store = store
        self.root = root
        self.snapshot = snapshot
        self._aside: list[Entry] | None = None

    def has(self, name: str) -> bool:
        return bool(self.snapshot.parts(name))

    def read(
        self, name: str, columns: list[str] | None = None, units: list[str] | None = None
    ) -> pa.Table:
        """All rows of a table, or those of some units. Raises `TableMissing`, `TableDamaged` or `Missing`."""
        parts = self.snapshot.parts(name)
        if not parts:
            raise TableMissing(
                f"there is no table {name!r} under {for_people(self.root)}: run `holdfast pipeline run` first"
            )
        wanted = in_order(parts) if units is None else units
        files = [file for unit in wanted for file in parts.get(unit, Part()).files]
        tables = [self._file(file, columns) for file in files]
        return pa.concat_tables(tables) if tables else pa.table({})

    def rows(self, name: str, columns: list[str] | None = None) -> list[dict[str, Any]]:
        return list(self.read(name, columns).to_pylist())

    def verdicts(self) -> dict[str, str]:
        """Group to the verdict on its deliveries; the worst of its epochs."""
        if not self.has("delivery_audit"):
            return {}
        found: dict[str, str] = {}
        for row in self.rows("delivery_audit", ["group", "verdict"]):
            before = found.get(row["group"], "holds")
            found[row["group"]] = min(before, row["verdict"], key=VERDICTS.index)
        return found

    def set_aside(self) -> list[Entry]:
        """The segments that are not used, with reasons."""
        if self._aside is None:
            parts = self.snapshot.parts(LEDGER)
            self._aside = files_set_aside(self._store, self.root, parts)
        return self._aside

    def _file(self, file: TableFile, columns: list[str] | None) -> pa.Table:
        uri = join(self.root, file.name)
        try:
            table = pq.ParquetFile(pa.BufferReader(self._store.read(uri))).read(columns=columns)
        except (pa.ArrowException, OSError) as damage:
            raise TableDamaged(f"{for_people(uri)} is not readable: {damage}") from damage
        if 0 <= file.rows != table.num_rows:
            raise TableDamaged(
                f"{for_people(uri)} has {table.num_rows} rows, its snapshot says {file.rows}"
            )
        return table


def open_tables(root: str | Path, store: Store | None = None) -> Tables:
    """The tables of the newest snapshot under `root`; raises `TableMissing` if there is none."""
    stores, uri = store or Stores(), to_uri(root)
    snapshot = Snapshots(stores, uri).latest()
    if snapshot is None:
        raise TableMissing(
            f"nothing is published under {for_people(uri)}: run `holdfast pipeline run` first"
        )
    return Tables(stores, uri, snapshot)


def read_table(root: str | Path, name: str, columns: list[str] | None = None) -> pa.Table:
    """All rows of a published table, of one snapshot."""
    for _ in range(_ATTEMPTS):
        tables = open_tables(root)
        try:
            return tables.read(name, columns)
        except Missing as missing:
            if open_tables(root).snapshot.number == tables.snapshot.number:
                raise TableDamaged(
                    f"snapshot {tables.snapshot.number} names {missing}, which is not there. "
                    "Restore the file, or remove the snapshots and run the pipeline again"
                ) from None
    raise TableDamaged(f"the table {name!r} was replaced {_ATTEMPTS} times while it was read")
