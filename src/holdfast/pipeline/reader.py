"""Published tables, for anybody: needs pyarrow and no Spark.

A table is a directory of immutable runs and a manifest that names one of them. The manifest is replaced as a whole,
so a reader sees the table before a run or after it, never between. Runs are kept for a while after they are replaced;
a reader that is slower than that starts over with the new manifest.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import HoldfastError

MANIFEST_VERSION: Final = 1
_ATTEMPTS: Final = 10


class TableMissing(HoldfastError):
    """No run has published this table yet, or it is somewhere else."""


class TableDamaged(HoldfastError):
    """What the manifest names is not there or not readable. Run the pipeline again after removing the table."""


class TableFile(msgspec.Struct, frozen=True):
    name: str
    rows: int
    size: int


class Manifest(msgspec.Struct, frozen=True):
    """What a table is right now. `run` names the directory; `previous` are the runs before it that are kept."""

    version: int
    table: str
    run: str
    files: tuple[TableFile, ...]
    previous: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


def table_dir(root: Path, name: str) -> Path:
    return root / "tables" / name


def read_manifest(root: Path, name: str) -> Manifest | None:
    """The manifest of a table, or None if it was never published."""
    path = table_dir(root, name) / "manifest.json"
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as damage:
        raise TableDamaged(f"{path} is not a manifest: {damage}") from damage
    if manifest.version != MANIFEST_VERSION:
        raise TableDamaged(
            f"{path} has version {manifest.version}, this Holdfast reads {MANIFEST_VERSION}: "
            "use the version of Holdfast that ran the pipeline"
        )
    return manifest


def read_table(root: Path, name: str, columns: list[str] | None = None) -> pa.Table:
    """All rows of a published table, of one run."""
    for _ in range(_ATTEMPTS):
        manifest = read_manifest(root, name)
        if manifest is None:
            raise TableMissing(
                f"there is no table {name!r} under {root}: run `holdfast pipeline run` first"
            )
        run = table_dir(root, name) / "runs" / manifest.run
        try:
            return pa.concat_tables(_read_file(run, file, columns) for file in manifest.files)
        except FileNotFoundError:
            if read_manifest(root, name) == manifest:
                raise TableDamaged(
                    f"the manifest of {name!r} names files that are not in {run}"
                ) from None
    raise TableDamaged(f"the table {name!r} was replaced {_ATTEMPTS} times while it was read")


def _read_file(run: Path, file: TableFile, columns: list[str] | None) -> pa.Table:
    path = run / file.name
    try:
        table = pq.ParquetFile(path).read(columns=columns)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as damage:
        raise TableDamaged(f"{path} is not readable: {damage}") from damage
    if table.num_rows != file.rows:
        raise TableDamaged(f"{path} has {table.num_rows} rows, its manifest says {file.rows}")
    return table
