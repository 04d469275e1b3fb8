"""Damaged and unknown segments are found before Spark reads, and set aside with the reason.

One bad file fails a whole Spark read, and its message does not say which one. So each new segment is read through once
here, alone: footer, columns, every page. What does not pass is moved, never deleted, to

    <root>/quarantine/<kind>/day=YYYY-MM-DD/<file>  and  <file>.reason.txt
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.pipeline.schemas import COLUMNS, Column
from holdfast.pipeline.sources import Segment
from holdfast.telemetry.facts import SCHEMA

_BATCH_ROWS: Final = 65_536
_NEVER_EMPTY: Final = ("schema", "node", "name", "incarnation", "n", "at", "now_ns")
_NAMES_MAX: Final = 1_000


class Unfit(Exception):
    """Why a segment cannot be used."""


class Gone(Exception):
    """The segment is not there any more: its node has made room. Nobody's fault."""


class Passed(msgspec.Struct, frozen=True):
    """What a segment that passed contains."""

    rows: int
    digest: str
    """sha256 of the file: what it says, whatever its name and date."""


class SetAside(msgspec.Struct, frozen=True):
    """A segment that was not used. `now_at` is empty when it could not be moved and lies where it was."""

    path: str
    reason: str
    now_at: str


def check(segment: Segment) -> Passed:
    """Read a segment through; raises `Unfit` with the reason, or `Gone`."""
    path = Path(segment.path)
    try:
        if segment.size == 0:
            raise Unfit("the file is empty")
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        with pq.ParquetFile(path, page_checksum_verification=True) as parquet:
            columns = _check_columns(segment.kind, parquet.schema_arrow)
            rows = _read_through(parquet, columns)
    except FileNotFoundError:
        raise Gone(segment.path) from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as damage:
        raise Unfit(f"not a whole Parquet file: {_first_line(damage)}") from damage
    return Passed(rows, digest)


def set_aside(root: Path, segment: Segment, reason: str) -> SetAside:
    """Move a segment into the quarantine beside its reason. Where it cannot be moved, it is copied; or only named."""
    source = Path(segment.path)
    folder = root / "quarantine" / segment.kind / f"day={segment.day}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        target = _free_name(folder, source)
        _move(source, target)
        target.with_name(target.name + ".reason.txt").write_text(
            f"{segment.path}\n{reason}\n"
            "To use it after all, mend the cause, move it back there, and run the pipeline again.\n"
        )
    except OSError as failure:
        return SetAside(segment.path, f"{reason} (and not moved: {failure})", "")
    return SetAside(segment.path, reason, str(target))


def _check_columns(kind: str, schema: pa.Schema) -> list[str]:
    """The columns to read through; raises `Unfit` if one that must be there is not, or has another type."""
    present: list[str] = []
    for column in COLUMNS[kind]:
        place = schema.get_all_field_indices(column.name)
        if not place and column.optional:
            continue
        if len(place) != 1:
            raise Unfit(f"{len(place)} columns named {column.name!r}, there must be one")
        if not _reads_as(schema.field(place[0]).type, column):
            raise Unfit(
                f"column {column.name!r} has type {schema.field(place[0]).type}, not {column.arrow}"
            )
        present.append(column.name)
    return present


def _reads_as(found: pa.DataType, column: Column) -> bool:
    """Columns are only ever widened, so a narrower integer is an older segment's."""
    if pa.types.is_dictionary(found):
        found = found.value_type
    if found == column.arrow:
        return True
    if pa.types.is_string(column.arrow):
        return bool(pa.types.is_large_string(found))
    if pa.types.is_timestamp(column.arrow):
        return bool(pa.types.is_timestamp(found) and found.unit in ("ms", "us") and found.tz)
    if pa.types.is_signed_integer(column.arrow):
        return bool(pa.types.is_signed_integer(found) and found.bit_width <= column.arrow.bit_width)
    return False


def _read_through(parquet: pq.ParquetFile, columns: list[str]) -> int:
    rows = 0
    for batch in parquet.iter_batches(_BATCH_ROWS, columns=columns):
        batch.validate(full=True)
        rows += batch.num_rows
        for name in _NEVER_EMPTY:
            if batch.column(name).null_count:
                raise Unfit(f"column {name!r} has empty values")
        newest = pc.max(batch.column("schema")).as_py()
        if newest is not None and newest > SCHEMA:
            raise Unfit(
                f"written with schema {newest}, this pipeline knows {SCHEMA}: update the pipeline"
            )
    return rows


def _free_name(folder: Path, source: Path) -> Path:
    target = folder / source.name
    for number in range(2, _NAMES_MAX):
        if not target.exists():
            return target
        target = folder / f"{source.stem}.{number}{source.suffix}"
    raise OSError(f"{_NAMES_MAX} files named like {source.name} are in {folder} already")


def _move(source: Path, target: Path) -> None:
    try:
        source.rename(target)
    except OSError:
        # Another file system, or a landing directory that is not ours to change.
        shutil.copy2(source, target)
        with contextlib.suppress(OSError):
            source.unlink()


def _first_line(failure: Exception) -> str:
    return str(failure).strip().partition("\n")[0][:300]
